//! One choice of settings, as a word that is read back.

use std::fmt;
use std::str::FromStr;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::statement::Compression;
use pagehaul_engine::terms::bytes_from_text;

use crate::space::size_text;

/// Settings of a backup and its restore; None leaves it to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// Algorithm and level.
    pub compression: Compression,
    /// Backup files.
    pub files: u16,
    /// BUFFERCOUNT.
    pub buffer_count: Option<u32>,
    /// MAXTRANSFERSIZE.
    pub transfer_size: Option<u32>,
    /// BLOCKSIZE.
    pub block_size: Option<u32>,
}

impl Point {
    /// What the server does when nobody says anything.
    pub fn defaults() -> Self {
        let compression = Compression::Configured;
        Point { compression, files: 1, buffer_count: None, transfer_size: None, block_size: None }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} f{}", self.compression, self.files)?;
        if let Some(count) = self.buffer_count {
            write!(f, " b{count}")?;
        }
        if let Some(size) = self.transfer_size {
            write!(f, " t{}", size_text(size))?;
        }
        if let Some(size) = self.block_size {
            write!(f, " k{}", size_text(size))?;
        }
        Ok(())
    }
}

impl FromStr for Point {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::new(ErrorKind::Usage, format!("use {text:?} as settings"), "they are not understood").hint(
                "an example is zstd:low f4 b50 t4MiB: compression, files, BUFFERCOUNT, MAXTRANSFERSIZE, k64KiB is BLOCKSIZE",
            )
        };
        let mut words = text.split_whitespace();
        let compression = words.next().ok_or_else(bad)?.parse()?;
        let mut point = Point { compression, ..Point::defaults() };
        for word in words {
            let (letter, value) = word.split_at_checked(1).ok_or_else(bad)?;
            let size = || bytes_from_text(value).and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(bad);
            match letter {
                "f" => point.files = value.parse().map_err(|_| bad())?,
                "b" => point.buffer_count = Some(value.parse().map_err(|_| bad())?),
                "t" => point.transfer_size = Some(size()?),
                "k" => point.block_size = Some(size()?),
                _ => return Err(bad()),
            }
        }
        Ok(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        for text in ["server f1", "zstd:low f4 b50 t4MiB", "none f64 k64KiB", "ms_xpress f2 t64KiB"] {
            assert_eq!(text.parse::<Point>().unwrap().to_string(), text);
        }
        for bad in ["", "lz4 f1", "zstd x3", "zstd fx", "zstd t1X"] {
            assert!(bad.parse::<Point>().is_err(), "{bad}");
        }
    }
}
