//! Points in time as MTF writes them: five bytes, local time of the server, whole seconds.

use std::fmt;

use serde::{Serialize, Serializer};

/// A date of 14 bits of year, 4 of month, 5 of day, 5 of hour, 6 of minute and 6 of second, highest bit first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MtfDate(u64);

impl MtfDate {
    /// The date in `bytes`.
    pub fn from_bytes(bytes: [u8; 5]) -> Self {
        MtfDate(bytes.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
    }

    /// The date's five bytes.
    pub fn to_bytes(self) -> [u8; 5] {
        let [_, _, _, bytes @ ..] = self.0.to_be_bytes();
        bytes
    }

    /// The date of its parts; each is cut to the bits it has.
    pub fn new(year: u16, month: u8, day: u8, hour: u8, minute: u8, second: u8) -> Self {
        let parts = [(month, 4), (day, 5), (hour, 5), (minute, 6), (second, 6)];
        let bits = parts.iter().fold(u64::from(year) & 0x3fff, |bits, (part, width)| {
            bits << width | u64::from(*part) & ((1 << width) - 1)
        });
        MtfDate(bits)
    }

    /// Whether the field was left empty.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    fn part(self, shift: u32, width: u32) -> u64 {
        self.0 >> shift & ((1 << width) - 1)
    }
}

impl fmt::Display for MtfDate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = (self.part(26, 14), self.part(22, 4), self.part(17, 5));
        let (hour, minute, second) = (self.part(12, 5), self.part(6, 6), self.part(0, 6));
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

impl Serialize for MtfDate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.is_none() { to.serialize_none() } else { to.collect_str(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_read_as_servers_write_them() {
        let date = MtfDate::from_bytes([0x1f, 0x85, 0x64, 0x44, 0x69]);
        assert_eq!(date.to_string(), "2017-05-18T04:17:41");
        assert_eq!(date, MtfDate::new(2017, 5, 18, 4, 17, 41));
        assert_eq!(date.to_bytes(), [0x1f, 0x85, 0x64, 0x44, 0x69]);
        assert!(MtfDate::default().is_none());
    }
}
