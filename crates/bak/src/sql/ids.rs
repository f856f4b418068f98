//! GUIDs and log sequence numbers.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::wire::{Fields, Parsed};

/// A GUID, shown as SQL Server shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    pub(crate) fn parse(fields: Fields<'_>, at: usize) -> Parsed<Self> {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(fields.bytes(at, 16)?);
        Ok(Guid(bytes))
    }

    /// Whether all bytes are zero: none is known.
    pub fn is_none(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first three parts are numbers, little-endian; the last two are bytes.
        let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        for (place, from) in order.into_iter().enumerate() {
            let dash = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(out, "{dash}{:02X}", self.0[from])?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Guid {
    type Err = String;

    /// Reads what [`fmt::Display`] writes, in either case.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        let number = u128::from_str_radix(&digits, 16).map_err(|_| format!("{text} is no GUID"))?;
        if digits.len() != 32 {
            return Err(format!("{text} is no GUID: it has {} digits of 32", digits.len()));
        }
        let mut bytes = number.to_be_bytes();
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Ok(Guid(bytes))
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.is_none() { to.serialize_none() } else { to.collect_str(self) }
    }
}

/// A place in the log: number of a virtual log file, of a block in it, of a record in that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlLsn {
    /// The virtual log file.
    pub log_file: u32,
    /// The block.
    pub block: u32,
    /// The record.
    pub record: u16,
}

impl SqlLsn {
    /// Bytes of one at rest.
    pub const BYTES: usize = 10;

    pub(crate) fn parse(fields: Fields<'_>, at: usize) -> Parsed<Self> {
        Ok(SqlLsn { log_file: fields.u32(at)?, block: fields.u32(at + 4)?, record: fields.u16(at + 8)? })
    }

    /// The bytes at rest.
    pub fn to_bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..4].copy_from_slice(&self.log_file.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..].copy_from_slice(&self.record.to_le_bytes());
        bytes
    }

    /// Whether all is zero: none is known.
    pub fn is_none(self) -> bool {
        self == SqlLsn::default()
    }
}

/// As RESTORE HEADERONLY shows it: one decimal number.
impl fmt::Display for SqlLsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return out.write_str("0");
        }
        write!(out, "{}{:010}{:05}", self.log_file, self.block, self.record)
    }
}

impl Serialize for SqlLsn {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_as_the_server_shows_them() {
        let lsn = SqlLsn { log_file: 24, block: 447, record: 37 };
        assert_eq!(lsn.to_string(), "24000000044700037");
        assert_eq!(SqlLsn::parse(Fields(&lsn.to_bytes()), 0), Ok(lsn));
        assert_eq!(SqlLsn::default().to_string(), "0");
        assert!(lsn < SqlLsn { log_file: 24, block: 463, record: 1 });
        let guid = Guid([0xf8, 4, 1, 0xa9, 0x55, 0x31, 0x1c, 0x43, 0xa8, 0x4c, 0x7c, 0xd0, 0x1e, 0xf6, 2, 0x27]);
        assert_eq!(guid.to_string(), "A90104F8-3155-431C-A84C-7CD01EF60227");
        assert_eq!("a90104f8-3155-431c-a84c-7cd01ef60227".parse(), Ok(guid));
        assert!("A90104F8".parse::<Guid>().is_err() && "x".parse::<Guid>().is_err());
    }
}
