//! `recovery-<until>-<random>.json`: a server replays from a set and from the WAL behind it, or soon will.
//!
//! A restore ends before the recovery that it prepares has begun, and that may run for hours on a machine that holds no
//! lease here. So the restore leaves this mark, and the server's `recovery_end_command` takes it away. A recovery that is
//! given up leaves it there; it says itself until when it counts, in its name, so that nobody has to be able to read it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::repository::{Repository, set_prefix};
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::terms::{BackupLabel, SourceName};

const PREFIX: &str = "recovery-";
const SUFFIX: &str = ".json";
/// How long a mark counts: a recovery that takes longer needs another backup to begin with.
const COUNTS_FOR: Duration = Duration::from_secs(3 * 24 * 3600);

/// The mark of one recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryMark {
    /// Second since 1970 until which it counts.
    until_s: u64,
    random: u64,
}

/// What is in it, for people.
#[derive(Debug, Serialize, Deserialize)]
struct Words {
    format_version: u16,
    target_directory: String,
    made_at: String,
    until: String,
}

impl RecoveryMark {
    /// A new mark, which is not stored yet.
    ///
    /// # Errors
    /// `Bug` if the system gives no random number.
    pub fn new(at: Timestamp) -> Result<Self> {
        let mut bytes = [0u8; 8];
        getrandom::fill(&mut bytes).map_err(|cause| Error::new(ErrorKind::Bug, "name a mark", cause))?;
        let until_s = u64::try_from(at.as_second()).unwrap_or(0).saturating_add(COUNTS_FOR.as_secs());
        Ok(RecoveryMark { until_s, random: u64::from_le_bytes(bytes) })
    }

    /// The mark with this name; None if an object of that name is none.
    pub fn parse(name: &str) -> Option<Self> {
        let (until, random) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
        let number = |text: &str, digits: usize| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (text.len() == digits && text.bytes().all(is_hex)).then(|| u64::from_str_radix(text, 16).ok())?
        };
        Some(RecoveryMark { until_s: number(until, 10)?, random: number(random, 16)? })
    }

    /// The name of its object in a set.
    pub fn name(&self) -> String {
        format!("{PREFIX}{:010x}-{:016x}{SUFFIX}", self.until_s, self.random)
    }

    /// Whether the set is still wanted, on this day. A mark that is to count longer than any does is of a wrong clock.
    pub fn counts(&self, at: Timestamp) -> bool {
        let now_s = u64::try_from(at.as_second()).unwrap_or(0);
        (now_s..=now_s.saturating_add(2 * COUNTS_FOR.as_secs())).contains(&self.until_s)
    }

    /// Stores it in a set; `target_directory` is said to people.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn put(
        &self,
        repository: &Repository,
        source: &SourceName,
        label: &BackupLabel,
        target_directory: &str,
    ) -> Result<()> {
        let second = |second: u64| {
            let time = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            time.map_or_else(String::new, |time| time.to_string())
        };
        let words = Words {
            format_version: FORMAT_VERSION,
            target_directory: target_directory.to_owned(),
            made_at: second(self.until_s.saturating_sub(COUNTS_FOR.as_secs())),
            until: second(self.until_s),
        };
        let text = serde_json::to_vec_pretty(&words)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render the mark of a recovery", cause))?;
        repository.storage().put_new(&self.object(source, label), &text).map(drop)
    }

    /// Takes it away: the recovery has ended, or never began.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn remove(&self, repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<()> {
        repository.storage().delete(&self.object(source, label))
    }

    fn object(&self, source: &SourceName, label: &BackupLabel) -> String {
        format!("{}/{}", set_prefix(source, label), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_itself_how_long_it_counts() {
        let now: Timestamp = "2026-11-22T04:05:06Z".parse().unwrap();
        let mark = RecoveryMark::new(now).unwrap();
        assert_eq!(RecoveryMark::parse(&mark.name()), Some(mark.clone()));
        let hour = |hours: i64| Timestamp::from_second(now.as_second() + hours * 3600).unwrap();
        assert!(mark.counts(now) && mark.counts(hour(71)) && !mark.counts(hour(73)));
        assert!(
            mark.counts(hour(-71)) && !mark.counts(hour(-73)),
            "a clock that is days ahead does not keep it for ever"
        );
        for bad in ["", "recovery-.json", "recovery-0000000001-000000000000000G.json", "pin.json", "reader-00"] {
            assert_eq!(RecoveryMark::parse(bad), None, "{bad}");
        }
    }
}
