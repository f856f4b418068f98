//! A proof: what came of restoring a set and starting it.

use serde::{Deserialize, Serialize};

use super::FORMAT_VERSION;
use super::sealed_json;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{BackupLabel, SourceName};

/// Largest proof a reader accepts.
pub const PROOF_BYTES_MAX: u64 = 1024 * 1024;
const CHECKSUM_KEY: &str = "proof_xxh3";

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProofResult {
    /// Restored, started, and every check passed.
    Proven,
    /// It could not be restored or started, or a check failed.
    Broken,
}

/// What became of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// It could not be made on that machine.
    Skipped,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofCheck {
    /// What must hold.
    pub name: String,
    /// Whether it does.
    pub state: CheckState,
    /// The evidence.
    pub detail: String,
}

/// One trial of one set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// Version of the format.
    pub format_version: u16,
    /// Version of the program that made the trial.
    pub engine_version: String,
    /// The set.
    pub label: BackupLabel,
    /// The id of the set: a set of the same label that is not this one is not proven by it.
    pub set_id: String,
    /// Whose.
    pub source: SourceName,
    /// What came of it.
    pub result: ProofResult,
    /// When, RFC 3339 in UTC; for people.
    pub proved_at: String,
    /// How far the server replayed, such as `end of the set`.
    pub recovery_target: String,
    /// Position in WAL that the server had reached; null if it never started.
    pub reached_lsn: Option<String>,
    /// Bytes of all files that were restored.
    pub restored_bytes: u64,
    /// Seconds of the restore.
    pub restore_s: f64,
    /// Seconds from the server's start until it took connections for writing.
    pub replay_s: f64,
    /// Seconds of the checks.
    pub checks_s: f64,
    /// The checks in order.
    pub checks: Vec<ProofCheck>,
    /// The step that failed and why; null if it is proven.
    pub failure: Option<String>,
}

impl Proof {
    /// Seconds from nothing to an open database: restore and replay.
    pub fn recovery_s(&self) -> f64 {
        self.restore_s + self.replay_s
    }

    /// The same without what tells of the content, for a set that is encrypted: the document is not.
    #[must_use]
    pub fn without_details(&self) -> Proof {
        let hidden = "not kept, as the set is encrypted";
        let check = |check: &ProofCheck| ProofCheck { detail: hidden.to_owned(), ..check.clone() };
        let step = |failure: &String| format!("{}: {hidden}", failure.split(':').next().unwrap_or_default());
        Proof {
            checks: self.checks.iter().map(check).collect(),
            failure: self.failure.as_ref().map(step),
            ..self.clone()
        }
    }

    /// The document with its checksum.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        sealed_json::seal(self, CHECKSUM_KEY)
    }

    /// Reads a proof; `name` is what errors call it.
    ///
    /// # Errors
    /// `Damage` if its checksum does not hold or its version is not known.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let bad = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Damage, format!("read proof {name}"), cause);
        let document = sealed_json::open(bytes, CHECKSUM_KEY)
            .ok_or_else(|| bad(&"its checksum does not match: it was changed or cut"))?;
        let proof: Proof = serde_json::from_slice(&document).map_err(|cause| bad(&cause))?;
        if proof.format_version != FORMAT_VERSION {
            return Err(bad(&format!("format version {} is not known to this build", proof.format_version)));
        }
        Ok(proof)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(label: &str, result: ProofResult) -> Proof {
        Proof {
            format_version: FORMAT_VERSION,
            engine_version: "0.1.0".into(),
            label: label.parse().unwrap(),
            set_id: "01".repeat(16),
            source: "main".parse().unwrap(),
            result,
            proved_at: "2026-11-21T20:15:30Z".into(),
            recovery_target: "end of the set".into(),
            reached_lsn: Some("0/3000100".into()),
            restored_bytes: 1,
            restore_s: 1.5,
            replay_s: 0.25,
            checks_s: 2.0,
            checks: vec![ProofCheck { name: "x".into(), state: CheckState::Skipped, detail: "y".into() }],
            failure: None,
        }
    }

    #[test]
    fn round_trip_and_damage() {
        let proof = sample("20261121-201530F", ProofResult::Proven);
        let bytes = proof.to_bytes().unwrap();
        assert_eq!(Proof::from_bytes(&bytes, "p").unwrap(), proof);
        let mut newer = proof;
        newer.format_version += 1;
        assert!(Proof::from_bytes(&newer.to_bytes().unwrap(), "p").is_err());
        let mut bad = bytes;
        bad[20] ^= 1;
        assert_eq!(Proof::from_bytes(&bad, "p").unwrap_err().kind(), ErrorKind::Damage);
    }
}
