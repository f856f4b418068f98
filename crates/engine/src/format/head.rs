//! A signed head: which sets a source has, after every change of that.

use serde::{Deserialize, Serialize};

use super::{DOCUMENT_HINT, FORMAT_VERSION};
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{BackupLabel, SourceName};

/// Largest head that a reader accepts: a hundred thousand sets.
pub const HEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedSet {
    /// Its label.
    pub label: BackupLabel,
    /// SHA-256 of the bytes of its manifest, in hexadecimal.
    pub manifest_sha256: String,
}

/// `heads/NNNNNNNNNN.json`; the one with the largest counter counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of all bytes.
    pub format_version: u16,
    /// Whose.
    pub source: SourceName,
    /// From 1; its name has it, too.
    pub counter: u64,
    /// SHA-256 of the bytes of the head before, in hexadecimal; null for the first one.
    pub previous_sha256: Option<String>,
    /// When it was signed, RFC 3339 in UTC; for people.
    pub signed_at: String,
    /// All sets, by label.
    pub sets: Vec<SignedSet>,
    /// The public key of who signed it, as OpenSSH writes it.
    pub signer: String,
    /// SSH signature, armored, of all the rest.
    pub signature: String,
}

impl Head {
    /// What is signed: the keys in their order as JSON without blanks, with an empty signature.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn signed_bytes(&self) -> Result<Vec<u8>> {
        let unsigned = Head { signature: String::new(), ..self.clone() };
        serde_json::to_vec(&unsigned).map_err(|cause| Error::new(ErrorKind::Bug, "render a head", cause))
    }

    /// The document.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut text =
            serde_json::to_vec_pretty(self).map_err(|cause| Error::new(ErrorKind::Bug, "render a head", cause))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads a document; `name` is what errors call it. The signature is not looked at.
    ///
    /// # Errors
    /// `Damage` if it does not read, its version is not known, or its sets are not in order.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u16,
        }
        let bad = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Damage, format!("read {name}"), cause).hint(DOCUMENT_HINT)
        };
        let version: Version = serde_json::from_slice(bytes).map_err(|cause| bad(&cause))?;
        if version.format_version != FORMAT_VERSION {
            let version = version.format_version;
            return Err(bad(&format!(
                "format version {version} is not known to this build, which reads version {FORMAT_VERSION}"
            )));
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|cause| bad(&cause))?;
        if !head.sets.is_sorted_by(|one, next| one.label < next.label) {
            return Err(bad(&"its sets are not in the order of their labels"));
        }
        Ok(head)
    }

    /// The digest of a set's manifest; None if it is not among the sets.
    pub fn manifest_sha256(&self, label: &BackupLabel) -> Option<&str> {
        let place = self.sets.binary_search_by(|set| set.label.cmp(label)).ok()?;
        self.sets.get(place).map(|set| set.manifest_sha256.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_all_but_the_signature_and_order_is_kept() {
        let set = |label: &str| SignedSet { label: label.parse().unwrap(), manifest_sha256: "ab".repeat(32) };
        let head = Head {
            format_version: FORMAT_VERSION,
            source: "main".parse().unwrap(),
            counter: 2,
            previous_sha256: Some("cd".repeat(32)),
            signed_at: "2026-11-24T04:00:00Z".into(),
            sets: vec![set("20261121-201530F"), set("20261122-201530F")],
            signer: "ssh-ed25519 AAAA".into(),
            signature: "one".into(),
        };
        let read = Head::from_bytes(&head.to_bytes().unwrap(), "h").unwrap();
        assert_eq!(read, head);
        assert_eq!(read.manifest_sha256(&"20261122-201530F".parse().unwrap()), Some(&*"ab".repeat(32)));
        assert_eq!(read.manifest_sha256(&"20261123-201530F".parse().unwrap()), None);
        let signed = head.signed_bytes().unwrap();
        assert_eq!(Head { signature: "other".into(), ..head.clone() }.signed_bytes().unwrap(), signed);
        for changed in [
            Head { counter: 3, ..head.clone() },
            Head { previous_sha256: None, ..head.clone() },
            Head { signer: "other".into(), ..head.clone() },
            Head { signed_at: "later".into(), ..head.clone() },
            Head { sets: vec![set("20261121-201530F")], ..head.clone() },
        ] {
            assert_ne!(changed.signed_bytes().unwrap(), signed);
        }
        let twice = Head { sets: vec![set("20261121-201530F"); 2], ..head.clone() };
        let text = String::from_utf8(head.to_bytes().unwrap()).unwrap();
        for bad in [twice.to_bytes().unwrap(), text.replace(": 1,", ": 2,").into(), text.replace("signer", "x").into()]
        {
            assert_eq!(Head::from_bytes(&bad, "h").unwrap_err().kind(), ErrorKind::Damage);
        }
    }
}
