//! Reads the `backup_manifest` that a server sends with a base backup: what it believes to have sent.
//!
//! The rule: the manual's "Backup Manifest Format".

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// One file as the server read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFile {
    /// Relative to the data directory.
    pub path: Vec<u8>,
    /// Bytes of content.
    pub size_bytes: u64,
    /// CRC32C of the content.
    pub crc32c: u32,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(rename = "Files", borrow)]
    files: Vec<FileRecord<'a>>,
}

#[derive(Deserialize)]
struct FileRecord<'a> {
    #[serde(rename = "Path", borrow)]
    path: Option<std::borrow::Cow<'a, str>>,
    #[serde(rename = "Encoded-Path", borrow)]
    encoded_path: Option<&'a str>,
    #[serde(rename = "Size")]
    size: u64,
    #[serde(rename = "Checksum-Algorithm", borrow)]
    algorithm: Option<&'a str>,
    #[serde(rename = "Checksum", borrow)]
    checksum: Option<&'a str>,
}

/// The files of a manifest, sorted by path.
///
/// # Errors
/// `Source` if its own checksum does not hold, or it is not what the manual describes.
pub fn parse(manifest: &[u8]) -> Result<Vec<SentFile>> {
    check_own_checksum(manifest)?;
    let document: Document<'_> = serde_json::from_slice(manifest).map_err(|cause| refuse(&cause.to_string()))?;
    let mut files = Vec::with_capacity(document.files.len());
    for record in document.files {
        let path = match (record.path, record.encoded_path) {
            (Some(path), None) => path.into_owned().into_bytes(),
            (None, Some(hex)) => from_hex(hex).ok_or_else(|| refuse("a path is not hexadecimal"))?,
            _ => return Err(refuse("a file has no path, or two")),
        };
        let crc32c = match (record.algorithm, record.checksum.and_then(from_hex).as_deref()) {
            // The server writes the CRC's bytes as they lie in memory: lowest first.
            (Some("CRC32C"), Some(&[a, b, c, d])) => u32::from_le_bytes([a, b, c, d]),
            _ => return Err(refuse(&format!("{} has no CRC32C", path.escape_ascii()))),
        };
        files.push(SentFile { path, size_bytes: record.size, crc32c });
    }
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The manifest's last line has the SHA-256 of everything before it.
fn check_own_checksum(manifest: &[u8]) -> Result<()> {
    const KEY: &[u8] = b"\"Manifest-Checksum\": \"";
    let start = manifest.windows(KEY.len()).rposition(|window| window == KEY).ok_or_else(|| refuse("it is cut off"))?;
    let stored = manifest.get(start + KEY.len()..).and_then(|rest| rest.get(..64));
    let stored = stored.and_then(|hex| from_hex(std::str::from_utf8(hex).ok()?));
    let computed = Sha256::digest(&manifest[..start]);
    match stored {
        Some(stored) if stored[..] == computed[..] => Ok(()),
        _ => Err(refuse("its own checksum does not hold")),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

fn refuse(cause: &str) -> Error {
    Error::new(ErrorKind::Source, "read the server's backup manifest", cause)
}

#[cfg(test)]
mod tests {
    use super::super::backup_manifest::{ManifestFile, ManifestHeader, write_backup_manifest};
    use super::*;
    use crate::terms::{Lsn, TimelineId};

    fn written() -> Vec<u8> {
        let header = ManifestHeader {
            major: 17,
            system_identifier: 5,
            timeline: TimelineId(1),
            start_lsn: Lsn(1),
            stop_lsn: Lsn(2),
        };
        let file = |path, size_bytes, crc32c| ManifestFile { path, size_bytes, mtime_s: 0, crc32c };
        let files = [file(&b"b \"quoted\""[..], 8192, 0x0102_0304), file(&b"a\xff"[..], 0, 0)];
        let mut bytes = Vec::new();
        write_backup_manifest(&mut bytes, &header, files).unwrap();
        bytes
    }

    #[test]
    fn our_own_manifest_reads() {
        let files = parse(&written()).unwrap();
        assert_eq!(files[0], SentFile { path: b"a\xff".to_vec(), size_bytes: 0, crc32c: 0 });
        assert_eq!(files[1].path, b"b \"quoted\"");
        assert_eq!((files[1].size_bytes, files[1].crc32c), (8192, 0x0102_0304));
    }

    #[test]
    fn every_flipped_byte_before_the_checksum_and_every_cut_is_seen() {
        let good = written();
        let end = good.len() - 4;
        for at in 0..end {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(parse(&bad).is_err(), "byte {at}");
        }
        for length in 0..end {
            assert!(parse(&good[..length]).is_err(), "cut at {length}");
        }
    }
}
