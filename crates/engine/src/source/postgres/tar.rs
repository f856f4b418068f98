//! Headers of the tar archives that `BASE_BACKUP` sends: plain ustar, and nothing else.
//!
//! Own code on purpose. General readers accept what different readers understand differently (extended headers, several
//! names for one file, sizes given twice), which has been a way to smuggle files past checks. The server writes
//! none of that (src/port/tar.c): whatever it does not write is refused here.

use crate::error::{Error, ErrorKind, Result};

/// Headers and padding come in blocks of this size.
pub const BLOCK_BYTES: usize = 512;

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// Relative, normal path: no part is empty, `.` or `..`.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: TarKind,
    /// Permission bits.
    pub mode: u32,
    /// Seconds since 1970.
    pub mtime_s: i64,
    /// Bytes of content that follow the header; 0 unless a file.
    pub size_bytes: u64,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TarKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Where it points.
        target: Vec<u8>,
    },
}

/// Reads one block; None for a block of zeros, which ends an archive.
///
/// # Errors
/// `Source` for everything that the server does not write.
pub fn parse_header(block: &[u8; BLOCK_BYTES]) -> Result<Option<TarEntry>> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let stored = octal(&block[148..156]).ok_or_else(|| refuse(block, "its checksum is no number"))?;
    // The sum takes its own field for blanks.
    let sum: u64 =
        block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) }).sum();
    if sum != stored {
        return Err(refuse(block, "its checksum does not hold"));
    }
    if &block[257..263] != b"ustar\0" || &block[263..265] != b"00" {
        return Err(refuse(block, "it is not in the ustar format"));
    }
    if block[345..500].iter().any(|byte| *byte != 0) {
        return Err(refuse(block, "it has a prefix to its name"));
    }
    let field = |range: std::ops::Range<usize>, what| octal(&block[range]).ok_or_else(|| refuse(block, what));
    let size_bytes = size(&block[124..136]).ok_or_else(|| refuse(block, "its size is no number"))?;
    let link = text(&block[157..257]);
    let kind = match block[156] {
        b'0' => TarKind::File,
        b'5' => TarKind::Directory,
        b'2' if !link.is_empty() => TarKind::Symlink { target: link.to_vec() },
        _ => return Err(refuse(block, "it is neither file nor directory nor symbolic link")),
    };
    if kind != TarKind::File && size_bytes != 0 {
        return Err(refuse(block, "content follows what is not a file"));
    }
    let name = text(&block[..100]);
    let path = match kind {
        TarKind::Directory => name.strip_suffix(b"/").unwrap_or(name),
        _ => name,
    };
    // The server writes the directories below pg_wal by hand, and these with the dot.
    let path = path.strip_prefix(b"./").unwrap_or(path);
    if !is_normal(path) {
        return Err(refuse(block, "its name leads elsewhere"));
    }
    Ok(Some(TarEntry {
        path: path.to_vec(),
        kind,
        mode: field(100..108, "its mode is no number")? as u32 & 0o7777,
        mtime_s: size(&block[136..148])
            .and_then(|time| i64::try_from(time).ok())
            .ok_or_else(|| refuse(block, "its time is no number"))?,
        size_bytes,
    }))
}

/// How many bytes follow the content of `size_bytes` up to the next block.
pub fn padding(size_bytes: u64) -> usize {
    (size_bytes.next_multiple_of(BLOCK_BYTES as u64) - size_bytes) as usize
}

/// A relative path of parts that are names.
fn is_normal(path: &[u8]) -> bool {
    !path.is_empty() && path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// The bytes before the first zero.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal digits, ended by a blank or a zero byte or the end of the field.
fn octal(field: &[u8]) -> Option<u64> {
    let digits = field.split(|byte| matches!(byte, 0 | b' ')).next()?;
    if digits.is_empty() || field[digits.len()..].iter().any(|byte| !matches!(byte, 0 | b' ')) {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// A number in octal, or in base 256 behind a byte 0x80 where octal has no room for it.
fn size(field: &[u8]) -> Option<u64> {
    match field.split_first()? {
        (0x80, rest) => rest.iter().try_fold(0u64, |value, byte| value.checked_mul(256)?.checked_add(u64::from(*byte))),
        _ => octal(field),
    }
}

fn refuse(block: &[u8; BLOCK_BYTES], cause: &str) -> Error {
    let name = text(&block[..100]).escape_ascii();
    Error::new(ErrorKind::Source, format!("read entry \"{name}\" of the server's archive"), cause)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn header(name: &[u8], kind: u8, size: &[u8]) -> [u8; BLOCK_BYTES] {
        let mut block = [0u8; BLOCK_BYTES];
        block[..name.len()].copy_from_slice(name);
        block[100..107].copy_from_slice(b"0000600");
        block[124..124 + size.len()].copy_from_slice(size);
        block[136..147].copy_from_slice(b"14723456701");
        block[156] = kind;
        block[257..263].copy_from_slice(b"ustar\0");
        block[263..265].copy_from_slice(b"00");
        seal(&mut block);
        block
    }

    pub(crate) fn seal(block: &mut [u8; BLOCK_BYTES]) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }

    #[test]
    fn the_servers_headers_are_read() {
        let entry = parse_header(&header(b"base/1/1259", b'0', b"00000020000")).unwrap().unwrap();
        assert_eq!((entry.path.as_slice(), entry.size_bytes, entry.mode), (&b"base/1/1259"[..], 8192, 0o600));
        assert_eq!(entry.mtime_s, 0o14723456701);
        let entry = parse_header(&header(b"base/1/", b'5', b"00000000000")).unwrap().unwrap();
        assert_eq!((entry.path.as_slice(), entry.kind), (&b"base/1"[..], TarKind::Directory));
        let entry = parse_header(&header(b"./pg_wal/archive_status/", b'5', b"00000000000")).unwrap().unwrap();
        assert_eq!(entry.path, b"pg_wal/archive_status");
        let large = parse_header(&header(b"x", b'0', &[0x80, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0])).unwrap().unwrap();
        assert_eq!(large.size_bytes, 4 << 32);
        let mut link = header(b"pg_tblspc/1", b'2', b"00000000000");
        link[157..161].copy_from_slice(b"/mnt");
        seal(&mut link);
        assert_eq!(parse_header(&link).unwrap().unwrap().kind, TarKind::Symlink { target: b"/mnt".to_vec() });
        assert_eq!(parse_header(&[0; BLOCK_BYTES]).unwrap(), None);
        assert_eq!([padding(0), padding(1), padding(512)], [0, 511, 0]);
    }

    #[test]
    fn s05_what_the_server_never_writes_is_refused() {
        let zero = b"00000000000";
        let cause = |block: &[u8; BLOCK_BYTES]| parse_header(block).unwrap_err().message();
        for name in [&b"/etc/passwd"[..], b"../x", b"a/../b", b"a//b", b"././a", b"a/./b", b"./", b""] {
            assert!(cause(&header(name, b'0', zero)).contains("leads elsewhere"), "{name:?}");
        }
        for kind in [b'1', b'3', b'6', b'7', b'L', b'K', b'x', b'g', b'S', 0] {
            assert!(cause(&header(b"a", kind, zero)).contains("neither file"), "{kind}");
        }
        assert!(cause(&header(b"a", b'2', zero)).contains("neither file"));
        assert!(cause(&header(b"a", b'5', b"00000000001")).contains("content follows"));
        assert!(cause(&header(b"a", b'0', b"0000000000x")).contains("size"));
        let mut prefixed = header(b"a", b'0', zero);
        prefixed[345] = b'b';
        seal(&mut prefixed);
        assert!(cause(&prefixed).contains("prefix"));
        let mut torn = header(b"a", b'0', zero);
        torn[0] ^= 1;
        assert!(cause(&torn).contains("checksum does not hold"));
        let mut old = header(b"a", b'0', zero);
        old[257..265].fill(0);
        seal(&mut old);
        assert!(cause(&old).contains("ustar"));
    }

    proptest! {
        #[test]
        fn rubbish_never_panics(mut block in proptest::collection::vec(any::<u8>(), BLOCK_BYTES), sealed in any::<bool>()) {
            let block: &mut [u8; BLOCK_BYTES] = block.as_mut_slice().try_into().unwrap();
            if sealed {
                block[257..265].copy_from_slice(b"ustar\x0000");
                seal(block);
            }
            if let Ok(Some(entry)) = parse_header(block) {
                prop_assert!(is_normal(&entry.path));
            }
        }
    }
}
