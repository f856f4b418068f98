//! Object lock: objects that a store keeps until a time, whoever asks it to delete them.
//!
//! Protection is only ever extended. Nothing here shortens one, and no object is bound harder than was asked for: what is
//! protected in one mode is not silently carried over into the other.

use std::fmt;
use std::str::FromStr;

use jiff::{Timestamp, Unit};
use serde::Serialize;

use super::Storage;
use crate::error::{Error, ErrorKind, Result};

/// How binding a protection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Who has a right of its own may end it before its time.
    Governance,
    /// Nobody may end it before its time, the owner of the account neither.
    Compliance,
}

impl LockMode {
    /// As stores write it.
    pub fn as_upper(self) -> &'static str {
        match self {
            LockMode::Governance => "GOVERNANCE",
            LockMode::Compliance => "COMPLIANCE",
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockMode::Governance => "governance",
            LockMode::Compliance => "compliance",
        })
    }
}

impl FromStr for LockMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "governance" => Ok(LockMode::Governance),
            "compliance" => Ok(LockMode::Compliance),
            _ => Err(format!("the mode {text:?} is neither governance nor compliance")),
        }
    }
}

/// Until when an object is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Up to this time, a whole second.
    pub until: Timestamp,
    /// How binding it is.
    pub mode: LockMode,
}

impl Protection {
    /// Until the end of the second in which `until` lies: stores count in seconds, and never less than was asked for.
    pub fn new(until: Timestamp, mode: LockMode) -> Self {
        let rounding = jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Ceil);
        Protection { until: until.round(rounding).unwrap_or(until), mode }
    }

    /// Whether an object that has `found` has to be told anything, so that it has at least this.
    ///
    /// # Errors
    /// The cause, if that would bind it harder or longer than was asked for.
    pub fn is_more_than(&self, found: Option<Protection>, now: Timestamp) -> std::result::Result<bool, String> {
        // One that has run out binds nobody.
        let Some(found) = found.filter(|found| found.until > now) else { return Ok(true) };
        match (found.mode, self.mode) {
            (LockMode::Governance, LockMode::Compliance) if found.until > self.until => Err(format!(
                "it is protected in governance mode until {}, and a protection is never shortened: in compliance mode it would \
                 have to last as long",
                found.until
            )),
            (LockMode::Governance, LockMode::Compliance) => Ok(true),
            (LockMode::Compliance, LockMode::Governance) if found.until < self.until => Err(format!(
                "it is protected in compliance mode until {}, and only in that mode can it be protected for longer",
                found.until
            )),
            _ => Ok(found.until < self.until),
        }
    }

    /// The error of an object for which [`is_more_than`](Self::is_more_than) gave this cause; `name` says where it is, too.
    pub fn bound_otherwise(&self, name: &str, cause: &str) -> Error {
        Error::new(
            ErrorKind::Configuration,
            format!("protect {name} in {} mode until {}", self.mode, self.until),
            cause,
        )
        .hint("give the mode in which it is protected (--mode), or a later time")
    }
}

/// A store that can protect its objects.
///
/// Contract:
/// - `protect` returns when every object has shown that it has at least the protection that was asked for.
/// - What is protected for longer stays as it is.
/// - After an error some of the objects may be protected: the same call again goes on.
pub trait ObjectLock: Send + Sync {
    /// Looks whether the bucket was made for it.
    ///
    /// # Errors
    /// `Configuration` if it was not; those of the store.
    fn check_enabled(&self) -> Result<()>;

    /// What protects each of the objects, in their order; None if nothing does, if nothing does that these credentials may
    /// see, or if it is not there.
    ///
    /// # Errors
    /// Those of the store.
    fn protections(&self, names: &[String]) -> Result<Vec<Option<Protection>>>;

    /// Protects each of the objects at least so; gives how many had less before.
    ///
    /// # Errors
    /// `Configuration` if one would be bound harder or longer than `wanted`; `Repository` if one is not there; those of the
    /// store.
    fn protect(&self, names: &[String], wanted: Protection) -> Result<u64>;
}

/// The object lock of a store whose bucket was made for it.
///
/// # Errors
/// `Configuration` if it has none; those of the store.
pub fn object_lock_of(storage: &dyn Storage) -> Result<&dyn ObjectLock> {
    let action = || format!("protect objects in {}", storage.describe());
    let lock = storage.object_lock().ok_or_else(|| {
        let cause = "only buckets in S3 and what speaks it have an object lock that is known here";
        Error::new(ErrorKind::Configuration, action(), cause).hint(
            "for backups that nobody may delete use a bucket that was made with object lock; directories, Google Cloud Storage \
             and Azure Blob have means of their own (snapshots, policies of the bucket), which are set there",
        )
    })?;
    lock.check_enabled()?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 3600 * hour).unwrap()
    }

    #[test]
    fn s19_protection_is_extended_and_never_shortened_nor_made_harder_than_asked() {
        use LockMode::{Compliance, Governance};
        let wanted = |mode| Protection::new(at(10), mode);
        let found = |hour, mode| Some(Protection::new(at(hour), mode));
        for (mode, found, expected) in [
            (Governance, None, Ok(true)),
            (Governance, found(9, Governance), Ok(true)),
            (Governance, found(10, Governance), Ok(false)),
            (Governance, found(11, Governance), Ok(false)),
            (Compliance, found(9, Governance), Ok(true)),
            (Compliance, found(10, Governance), Ok(true)),
            (Compliance, found(11, Governance), Err(())),
            (Compliance, found(11, Compliance), Ok(false)),
            (Governance, found(9, Compliance), Err(())),
            (Governance, found(11, Compliance), Ok(false)),
            // What has run out does not count.
            (Governance, found(0, Compliance), Ok(true)),
        ] {
            let is_more = wanted(mode).is_more_than(found, at(1)).map_err(drop);
            assert_eq!(is_more, expected, "{mode} on {found:?}");
        }
    }

    #[test]
    fn times_are_whole_seconds_and_never_earlier() {
        let until = |text: &str| Protection::new(text.parse().unwrap(), LockMode::Governance).until.to_string();
        assert_eq!(until("2026-12-24T18:00:00.001Z"), "2026-12-24T18:00:01Z");
        assert_eq!(until("2026-12-24T18:00:00Z"), "2026-12-24T18:00:00Z");
        assert_eq!("Compliance".parse(), Ok(LockMode::Compliance));
        assert!("legal".parse::<LockMode>().is_err());
    }
}
