//! The words of the field as types: one word, one type, one flag, one manifest key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

mod wal;

pub use wal::{
    RESTORE_POINT_NAME_BYTES_MAX, RestorePoint, SegmentNumber, TimelineBranch, TimelineHistory, WalFacts,
    WalSegmentName, WalTime,
};

/// The name of one database system that is backed up; it is a directory name in the repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SourceName(String);

impl SourceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SourceName {
    type Error = Error;

    /// Documents are not believed: a name in one is looked at like one that somebody typed.
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for SourceName {
    type Err = Error;

    /// Accepts 1 to 64 of `a-z A-Z 0-9 . _ -`, not starting with a dot or dash: a safe directory and bucket name.
    fn from_str(text: &str) -> Result<Self> {
        let safe = text.len() <= 64
            && text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            // The repository's marker has such a name.
            && !text.ends_with(".json");
        if safe {
            Ok(SourceName(text.to_owned()))
        } else {
            Err(Error::new(ErrorKind::Usage, format!("use {text:?} as a source name"), "not a valid name")
                .hint("use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"))
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a backup set stands alone or needs priors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackupKind {
    /// No prior.
    Full,
    /// The prior is the last full.
    Differential,
    /// The prior is the last set of any kind.
    Incremental,
}

impl BackupKind {
    /// The letter at the end of a label.
    pub fn letter(self) -> char {
        match self {
            BackupKind::Full => 'F',
            BackupKind::Differential => 'D',
            BackupKind::Incremental => 'I',
        }
    }
}

impl fmt::Display for BackupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackupKind::Full => "full",
            BackupKind::Differential => "differential",
            BackupKind::Incremental => "incremental",
        })
    }
}

/// The unique name of a backup set: UTC start time and kind, `20261121-201530F`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct BackupLabel(String);

impl BackupLabel {
    /// The label of a set that starts at `start`.
    pub fn new(start: jiff::Timestamp, kind: BackupKind) -> Self {
        let zoned = start.to_zoned(jiff::tz::TimeZone::UTC);
        BackupLabel(format!("{}{}", zoned.strftime("%Y%m%d-%H%M%S"), kind.letter()))
    }

    /// The moment that the label names; None if there is no such moment.
    pub fn moment(&self) -> Option<jiff::Timestamp> {
        let civil = jiff::civil::DateTime::strptime("%Y%m%d-%H%M%S", self.0.get(..15)?).ok()?;
        civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BackupLabel {
    type Error = Error;

    /// Documents are not believed: a name in one is looked at like one that somebody typed.
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for BackupLabel {
    type Err = Error;

    /// Accepts `YYYYMMDD-HHMMSS` followed by F, D or I.
    fn from_str(text: &str) -> Result<Self> {
        let bytes = text.as_bytes();
        let digits = |range: std::ops::Range<usize>| bytes[range].iter().all(u8::is_ascii_digit);
        if bytes.len() == 16 && digits(0..8) && bytes[8] == b'-' && digits(9..15) && b"FDI".contains(&bytes[15]) {
            Ok(BackupLabel(text.to_owned()))
        } else {
            Err(Error::new(ErrorKind::Usage, format!("use {text:?} as a backup label"), "not a label")
                .hint("a label looks like 20261121-201530F; `pagehaul info` lists them"))
        }
    }
}

impl fmt::Display for BackupLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 128 random bits that tie every stripe and frame to one backup set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetId(pub [u8; 16]);

impl SetId {
    /// A new random id.
    ///
    /// # Errors
    /// `Bug` if the system has no random source.
    pub fn random() -> Result<Self> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes).map_err(|cause| Error::new(ErrorKind::Bug, "make a set id", cause))?;
        Ok(SetId(bytes))
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a data key is known by, without giving it away: who has the key can compute it, and no two keys share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 32]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetId({self})")
    }
}

impl FromStr for SetId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::new(ErrorKind::Damage, format!("read set id {text:?}"), "not 32 hexadecimal digits");
        if text.len() != 32 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0u8; 16];
        for (position, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[position * 2..position * 2 + 2], 16).map_err(|_| bad())?;
        }
        Ok(SetId(bytes))
    }
}

/// Which stripe of a media set, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StripeIndex(pub u16);

impl fmt::Display for StripeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Which set of a backup chain, from 0: the set itself, then the priors that its manifest names, nearest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetIndex(pub u16);

impl SetIndex {
    /// The set that a file table or a stripe is of itself.
    pub const OWN: SetIndex = SetIndex(0);
}

/// Which file of a set's file list, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A page's number within its file (PostgreSQL: 8 KiB pages of one segment).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageNumber(pub u32);

/// A PostgreSQL timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TimelineId(pub u32);

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A position in PostgreSQL's WAL; written `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (high, low) = text.split_once('/')?;
            let high = u32::from_str_radix(high, 16).ok()?;
            let low = u32::from_str_radix(low, 16).ok()?;
            Some(Lsn(u64::from(high) << 32 | u64::from(low)))
        };
        parse().ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("read {text:?} as an LSN"), "not of the form 16/B374D848")
        })
    }
}

impl Serialize for Lsn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| serde::de::Error::custom(error.message()))
    }
}

/// Unit, in lower case, to bytes. One letter is binary, as in dd and PostgreSQL; with a B it is decimal, as on disks.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// The bytes that a size as people type it means: `1MiB`, `64K`, `10MB`; None if it is no size.
pub fn bytes_from_text(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// What the names of object stores begin with, before `://`.
pub const OBJECT_STORE_SCHEMES: [&str; 3] = ["s3", "gs", "azblob"];

/// Whether `text` names an object store, well or badly.
pub fn names_object_store(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| OBJECT_STORE_SCHEMES.contains(&scheme))
}

/// Whether a target is in an object store, also behind a throttle.
pub fn is_elsewhere(target: &str) -> bool {
    target.contains("://")
}

/// Whether a recorded place of stripes reads the same from everywhere: an absolute directory, or an object store.
pub fn is_absolute_place(text: &str) -> bool {
    text.starts_with('/') || names_object_store(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsn_round_trips_as_text() {
        let lsn: Lsn = "16/B374D848".parse().unwrap();
        assert_eq!(lsn.0, 0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert!("16B374D848".parse::<Lsn>().is_err());
    }

    #[test]
    fn labels_and_names_are_checked() {
        let label = BackupLabel::new("2026-11-21T20:15:30Z".parse().unwrap(), BackupKind::Full);
        assert_eq!(label.moment(), Some("2026-11-21T20:15:30Z".parse().unwrap()));
        assert_eq!("20261321-201530F".parse::<BackupLabel>().unwrap().moment(), None);
        assert_eq!(label.as_str(), "20261121-201530F");
        assert!("20261121-201530F".parse::<BackupLabel>().is_ok());
        assert!("../../etc".parse::<BackupLabel>().is_err());
        assert!("main".parse::<SourceName>().is_ok());
        for hostile in ["", "..", "a/b", "-x", ".hidden", "a\0b"] {
            assert!(hostile.parse::<SourceName>().is_err(), "{hostile:?}");
        }
    }
}
