//! The fence of a source: which cluster archives and backs up under its name.

use serde::{Deserialize, Serialize};

use super::{DOCUMENT_HINT, FORMAT_VERSION};
use crate::error::{Error, ErrorKind, Result};

/// Largest identity document that a reader accepts.
pub const IDENTITY_BYTES_MAX: u64 = 64 * 1024;

/// `identity-NNNN.json`; the one with the largest number counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Version of all bytes.
    pub format_version: u16,
    /// The cluster's system identifier, as text because JSON numbers are too small for it.
    pub system_identifier: String,
    /// `server_version_num`, such as 150020; without the minor version (150000) where only the major was known.
    pub pg_version_num: u32,
    /// When it was written, RFC 3339 in UTC; for people only.
    pub created_at: String,
}

impl Identity {
    /// The system identifier as a number.
    ///
    /// # Errors
    /// `Damage` if it is none.
    pub fn system_identifier(&self) -> Result<u64> {
        self.system_identifier.parse().map_err(|cause| {
            Error::new(ErrorKind::Damage, format!("read system identifier {:?}", self.system_identifier), cause)
        })
    }

    /// The document.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut text =
            serde_json::to_vec_pretty(self).map_err(|cause| Error::new(ErrorKind::Bug, "render an identity", cause))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads a document; `name` is what errors call it.
    ///
    /// # Errors
    /// `Damage` if it does not read or its version is not known.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u16,
        }
        let bad = |cause: String| Error::new(ErrorKind::Damage, format!("read {name}"), cause).hint(DOCUMENT_HINT);
        let version: Version = serde_json::from_slice(bytes).map_err(|cause| bad(cause.to_string()))?;
        if version.format_version != FORMAT_VERSION {
            let version = version.format_version;
            return Err(bad(format!(
                "format version {version} is not known to this build, which reads version {FORMAT_VERSION}"
            )));
        }
        let identity: Identity = serde_json::from_slice(bytes).map_err(|cause| bad(cause.to_string()))?;
        identity.system_identifier().map_err(|error| bad(error.message()))?;
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let identity = Identity {
            format_version: FORMAT_VERSION,
            system_identifier: u64::MAX.to_string(),
            pg_version_num: 170_000,
            created_at: "2026-11-22T04:00:00Z".into(),
        };
        let bytes = identity.to_bytes().unwrap();
        assert_eq!(Identity::from_bytes(&bytes, "i").unwrap(), identity);
        let text = String::from_utf8(bytes).unwrap();
        for bad in [
            text.replace(": 1,", ": 2,"),
            text.replace("\"184", "\"x184"),
            text.replace("created", "made"),
            String::new(),
        ] {
            assert_eq!(Identity::from_bytes(bad.as_bytes(), "i").unwrap_err().kind(), ErrorKind::Damage, "{bad}");
        }
    }
}
