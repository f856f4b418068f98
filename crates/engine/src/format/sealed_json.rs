//! JSON documents that end with their own checksum, so that people can read them and no flipped bit passes.

use serde::Serialize;

use super::checksum::xxh3;
use crate::error::{Error, ErrorKind, Result};

fn tail(key: &str, hash: u64) -> String {
    format!(",\n  \"{key}\": \"{hash:016x}\"\n}}\n")
}

/// `document`, an object, with its checksum as its last entry `key`.
///
/// # Errors
/// `Bug` if it cannot be rendered.
pub(super) fn seal(document: &impl Serialize, key: &str) -> Result<Vec<u8>> {
    let mut text = serde_json::to_string_pretty(document)
        .map_err(|cause| Error::new(ErrorKind::Bug, "render a document of the repository", cause))?;
    // The brace that closes the object comes back behind the checksum.
    text.truncate(text.strip_suffix("\n}").map_or(text.len(), str::len));
    let hash = xxh3(text.as_bytes());
    text.push_str(&tail(key, hash));
    Ok(text.into_bytes())
}

/// The document without its checksum; None if that does not hold.
pub(super) fn open(bytes: &[u8], key: &str) -> Option<Vec<u8>> {
    let (body, end) = bytes.split_at_checked(bytes.len().checked_sub(tail(key, 0).len())?)?;
    (tail(key, xxh3(body)).as_bytes() == end).then(|| [body, b"\n}\n"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let good = seal(&serde_json::json!({"one": 1, "two": {"three": []}}), "xxh3").unwrap();
        let document: serde_json::Value = serde_json::from_slice(&open(&good, "xxh3").unwrap()).unwrap();
        assert_eq!(document, serde_json::json!({"one": 1, "two": {"three": []}}));
        assert_eq!(open(&good, "xxh4"), None);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&bad, "xxh3"), None, "bit {bit}");
        }
        for length in 0..good.len() {
            assert_eq!(open(&good[..length], "xxh3"), None, "cut to {length}");
        }
    }
}
