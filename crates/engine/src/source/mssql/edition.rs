//! What a server of a version and edition can do.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// Major versions by their product names.
const PRODUCTS: [(u16, &str); 7] =
    [(11, "2012"), (12, "2014"), (13, "2016"), (14, "2017"), (15, "2019"), (16, "2022"), (17, "2025")];

/// A major version: 16 is SQL Server 2022.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MajorVersion(pub u16);

impl MajorVersion {
    /// SQL Server 2014.
    pub const V2014: MajorVersion = MajorVersion(12);
    /// SQL Server 2016.
    pub const V2016: MajorVersion = MajorVersion(13);
    /// SQL Server 2019.
    pub const V2019: MajorVersion = MajorVersion(15);
    /// SQL Server 2022.
    pub const V2022: MajorVersion = MajorVersion(16);
    /// SQL Server 2025.
    pub const V2025: MajorVersion = MajorVersion(17);

    /// From a product name, `2022`, or a major version, `16`.
    ///
    /// # Errors
    /// `Usage` for what is neither.
    pub fn parse(text: &str) -> Result<Self> {
        let number = text.parse::<u16>().ok();
        let known = PRODUCTS.iter().find(|(major, name)| *name == text || Some(*major) == number);
        known.map(|(major, _)| MajorVersion(*major)).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("use {text:?} as a version of SQL Server"), "it is none that is known")
                .hint("it is 2012, 2014, 2016, 2017, 2019, 2022 or 2025")
        })
    }

    /// An error unless this version is supported at all.
    ///
    /// # Errors
    /// `Source`, for one before 2012.
    pub fn check_supported(self) -> Result<()> {
        if self.0 >= PRODUCTS[0].0 {
            return Ok(());
        }
        let cause = format!("its version is {}, and 2012 (11) is the first that is supported", self.0);
        Err(Error::new(ErrorKind::Source, "work with this SQL Server", cause))
    }
}

impl fmt::Display for MajorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PRODUCTS.iter().find(|(major, _)| *major == self.0) {
            Some((_, name)) => write!(f, "SQL Server {name}"),
            None => write!(f, "SQL Server of version {}", self.0),
        }
    }
}

/// What was bought, as far as backups care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// Express and LocalDB: no compression, no encryption.
    Express,
    /// Web: restores what is compressed, makes none.
    Web,
    /// Standard.
    Standard,
    /// Enterprise, Developer and Evaluation.
    Enterprise,
}

impl Edition {
    /// From `SERVERPROPERTY('EngineEdition')` and `SERVERPROPERTY('Edition')`.
    ///
    /// # Errors
    /// `Source` for a kind of server that takes no such backups.
    pub fn from_properties(engine_edition: i64, edition: &str) -> Result<Self> {
        match engine_edition {
            3 => Ok(Edition::Enterprise),
            4 => Ok(Edition::Express),
            2 if edition.starts_with("Web") => Ok(Edition::Web),
            2 => Ok(Edition::Standard),
            _ => {
                let cause = format!("it is {edition} (engine edition {engine_edition})");
                Err(Error::new(ErrorKind::Source, "work with this SQL Server", cause)
                    .hint("managed instances and databases make their own backups"))
            }
        }
    }

    /// From what people type.
    ///
    /// # Errors
    /// `Usage`.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "express" => Edition::Express,
            "web" => Edition::Web,
            "standard" => Edition::Standard,
            "enterprise" | "developer" | "evaluation" => Edition::Enterprise,
            _ => {
                let cause = "there is no such edition";
                return Err(Error::new(ErrorKind::Usage, format!("use {text:?} as an edition"), cause)
                    .hint("it is express, web, standard, enterprise or developer"));
            }
        })
    }
}

impl fmt::Display for Edition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Edition::Express => "Express",
            Edition::Web => "Web",
            Edition::Standard => "Standard",
            Edition::Enterprise => "Enterprise",
        })
    }
}

/// For which server a statement is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Its version.
    pub version: MajorVersion,
    /// Its edition.
    pub edition: Edition,
    /// Whether it runs on Windows; on Linux there are no tapes and no QAT.
    pub is_windows: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_editions_as_they_are_told() {
        assert_eq!(MajorVersion::parse("2025").unwrap(), MajorVersion::V2025);
        assert_eq!(MajorVersion::parse("16").unwrap(), MajorVersion::V2022);
        assert!(MajorVersion::parse("2008").is_err() && MajorVersion(10).check_supported().is_err());
        assert_eq!(MajorVersion(17).to_string(), "SQL Server 2025");
        assert_eq!(Edition::from_properties(3, "Developer Edition (64-bit)").unwrap(), Edition::Enterprise);
        assert_eq!(Edition::from_properties(2, "Web Edition (64-bit)").unwrap(), Edition::Web);
        assert!(Edition::from_properties(8, "SQL Azure").is_err());
        assert_eq!(Edition::parse("Developer").unwrap(), Edition::Enterprise);
    }
}
