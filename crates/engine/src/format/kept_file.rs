//! The document of a kept file: one foreign file that is stored as frames of a single stripe.

use serde::{Deserialize, Serialize};

use super::FORMAT_VERSION;
use super::sealed_json;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FRAME_SIZE_BYTES_MAX, FRAME_SIZE_BYTES_MIN};
use crate::terms::SourceName;

/// Largest document a reader accepts.
pub const KEPT_FILE_BYTES_MAX: u64 = 64 * 1024;
/// Longest name of a kept file.
pub const KEPT_NAME_BYTES_MAX: usize = 128;
const CHECKSUM_KEY: &str = "kept_xxh3";

/// What a kept file is, and where its bytes are. It is written last: before it there is no such file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptFile {
    /// Version of the format.
    pub format_version: u16,
    /// Version of the program that wrote it.
    pub engine_version: String,
    /// Whose.
    pub source: SourceName,
    /// Its name in the repository.
    pub name: String,
    /// Where it was, for people.
    pub original_path: String,
    /// What kind of file it is and what was done to its content, for those who made it, such as `mssql-bak/as-is`.
    pub content_kind: String,
    /// Size of the file that it was made of.
    pub original_bytes: u64,
    /// Size of the content: the same, unless the content is another form of the file.
    pub content_bytes: u64,
    /// CRC32C of the content, 8 hexadecimal digits.
    pub content_crc32c: String,
    /// XXH3-64 of the content, 16 hexadecimal digits.
    pub content_xxh3: String,
    /// When it was kept, RFC 3339 in UTC; for people.
    pub kept_at: String,
    /// Codec and level, as typed.
    pub compression: String,
    /// The id in the stripe, 32 hexadecimal digits.
    pub set_id: String,
    /// Raw size of a full frame.
    pub frame_size_bytes: u32,
    /// How many frames there are.
    pub frame_count: u64,
    /// Size of the stripe.
    pub stored_bytes: u64,
}

/// Whether `name` can be that of a kept file: letters, digits, `.`, `_` and `-`, not first a dot.
pub fn is_kept_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= KEPT_NAME_BYTES_MAX && !name.starts_with('.') && name.bytes().all(is_letter)
}

impl KeptFile {
    /// The document's bytes.
    ///
    /// # Errors
    /// `Bug` if it breaks its own rules.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = sealed_json::seal(self, CHECKSUM_KEY)?;
        if Self::from_bytes(&bytes).ok().as_ref() != Some(self) {
            return Err(Error::new(
                ErrorKind::Bug,
                format!("write the document of {}", self.name),
                "it would not read",
            ));
        }
        Ok(bytes)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// `Damage` if its checksum does not hold, or its version or a key is not known, or a value is out of bounds.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |cause: String| Error::new(ErrorKind::Damage, "read the document of a kept file", cause);
        let body =
            sealed_json::open(bytes, CHECKSUM_KEY).ok_or_else(|| bad("its checksum does not match".to_owned()))?;
        let kept: KeptFile = serde_json::from_slice(&body).map_err(|cause| bad(cause.to_string()))?;
        if kept.format_version != FORMAT_VERSION {
            return Err(bad(format!("format version {} is not known to this build", kept.format_version)));
        }
        let frame_is_right = (FRAME_SIZE_BYTES_MIN..=FRAME_SIZE_BYTES_MAX).contains(&kept.frame_size_bytes);
        let frames = kept.content_bytes.div_ceil(u64::from(kept.frame_size_bytes.max(1)));
        if !frame_is_right || frames != kept.frame_count || u32::try_from(frames).is_err() || !is_kept_name(&kept.name)
        {
            return Err(bad("a name, count or size is out of bounds".to_owned()));
        }
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> KeptFile {
        KeptFile {
            format_version: FORMAT_VERSION,
            engine_version: "0".to_owned(),
            source: "mssql".parse().unwrap(),
            name: "sales.bak".to_owned(),
            original_path: "/x/sales.bak".to_owned(),
            content_kind: "mssql-bak/as-is".to_owned(),
            original_bytes: 200_000,
            content_bytes: 200_000,
            content_crc32c: "00000000".to_owned(),
            content_xxh3: "0000000000000000".to_owned(),
            kept_at: "2026-01-01T00:00:00Z".to_owned(),
            compression: "zstd:3".to_owned(),
            set_id: "0".repeat(32),
            frame_size_bytes: 65536,
            frame_count: 4,
            stored_bytes: 100_000,
        }
    }

    #[test]
    fn documents_round_trip_and_bounds_hold() {
        assert_eq!(KeptFile::from_bytes(&kept().to_bytes().unwrap()).unwrap(), kept());
        for bad in [
            KeptFile { frame_count: 5, ..kept() },
            KeptFile { frame_size_bytes: 0, ..kept() },
            KeptFile { name: "../x".to_owned(), ..kept() },
            KeptFile { format_version: 9, ..kept() },
        ] {
            assert_eq!(bad.to_bytes().unwrap_err().kind(), ErrorKind::Bug);
        }
        let mut flipped = kept().to_bytes().unwrap();
        flipped[40] ^= 1;
        assert_eq!(KeptFile::from_bytes(&flipped).unwrap_err().kind(), ErrorKind::Damage);
    }

    #[test]
    fn names_stay_in_their_place() {
        assert!(is_kept_name("Sales_2024-01.bak"));
        for bad in ["", ".x", "a/b", "a b", "ä", &"x".repeat(129)] {
            assert!(!is_kept_name(bad), "{bad}");
        }
    }
}
