//! Where a backup goes: files, URLs, tapes, or nowhere.

use std::fmt;
use std::str::FromStr;

use super::quote::{identifier, literal};
use crate::error::{Error, ErrorKind, Result};

/// Longest path or URL of a device, in UTF-16 units.
const PATH_UNITS_MAX: usize = 259;

/// One device, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A file on the server's own disks, or a share.
    Disk(String),
    /// Nothing is kept: to measure reading.
    Nul,
    /// An object in Azure Blob Storage.
    Azure(String),
    /// An object in S3 or what speaks like it.
    S3(String),
    /// A tape drive.
    Tape(String),
    /// A logical device (`sp_addumpdevice`).
    Logical(String),
}

/// Devices of one media set are of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A file.
    Disk,
    /// Nothing.
    Nul,
    /// Azure Blob Storage.
    Azure,
    /// S3.
    S3,
    /// Tape.
    Tape,
    /// Named on the server.
    Logical,
}

impl Device {
    /// Its kind.
    pub fn kind(&self) -> DeviceKind {
        match self {
            Device::Disk(_) => DeviceKind::Disk,
            Device::Nul => DeviceKind::Nul,
            Device::Azure(_) => DeviceKind::Azure,
            Device::S3(_) => DeviceKind::S3,
            Device::Tape(_) => DeviceKind::Tape,
            Device::Logical(_) => DeviceKind::Logical,
        }
    }

    /// Whether it is reached by URL.
    pub fn is_url(&self) -> bool {
        matches!(self, Device::Azure(_) | Device::S3(_))
    }

    /// `DISK = N'...'` and so on.
    ///
    /// # Errors
    /// `Usage` for paths that no statement can carry.
    pub(super) fn sql(&self) -> Result<String> {
        let path = |what: &str, path: &str| literal(what, path, PATH_UNITS_MAX);
        Ok(match self {
            Device::Disk(file) => format!("DISK = {}", path("path", file)?),
            Device::Nul => "DISK = N'NUL'".to_owned(),
            Device::Azure(url) | Device::S3(url) => format!("URL = {}", path("URL", url)?),
            Device::Tape(drive) => format!("TAPE = {}", path("tape drive", drive)?),
            Device::Logical(name) => identifier(name)?,
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Disk(path) | Device::Azure(path) | Device::S3(path) => f.write_str(path),
            Device::Nul => f.write_str("NUL"),
            Device::Tape(drive) => write!(f, "tape:{drive}"),
            Device::Logical(name) => write!(f, "device:{name}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |cause: &str| {
            Error::new(ErrorKind::Usage, format!("use {text:?} as a device"), cause).hint(
                "examples are /backup/a.bak or D:\\backup\\a.bak (paths of the server), \\\\nas\\share\\a.bak, \
                 https://ACCOUNT.blob.core.windows.net/..., s3://HOST:PORT/BUCKET/a.bak, NUL, tape:\\\\.\\tape0, device:NAME",
            )
        };
        if text.eq_ignore_ascii_case("NUL") {
            return Ok(Device::Nul);
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return match scheme.to_ascii_lowercase().as_str() {
                _ if rest.is_empty() => Err(refused("the URL names no place")),
                "https" => Ok(Device::Azure(text.to_owned())),
                "s3" => Ok(Device::S3(text.to_owned())),
                _ => Err(refused("the server takes https (Azure) and s3 URLs only")),
            };
        }
        if let Some(drive) = text.strip_prefix("tape:") {
            return Ok(Device::Tape(drive.to_owned()));
        }
        if let Some(name) = text.strip_prefix("device:") {
            return Ok(Device::Logical(name.to_owned()));
        }
        // The server would put a bare name into a directory of its own; whoever means that says so with it.
        let is_drive = text.as_bytes().get(1) == Some(&b':') && text.as_bytes()[0].is_ascii_alphabetic();
        if is_drive || text.starts_with('/') || text.starts_with("\\\\") {
            Ok(Device::Disk(text.to_owned()))
        } else {
            Err(refused("it is no whole path on the server"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_people_write_them() {
        let sql = |text: &str| text.parse::<Device>().unwrap().sql().unwrap();
        assert_eq!(sql("/var/opt/it's.bak"), "DISK = N'/var/opt/it''s.bak'");
        assert_eq!(sql("D:\\a.bak"), "DISK = N'D:\\a.bak'");
        assert_eq!(sql("nul"), "DISK = N'NUL'");
        assert_eq!(sql("s3://h:9000/b/a.bak"), "URL = N's3://h:9000/b/a.bak'");
        assert_eq!(sql("https://x.blob.core.windows.net/c/a.bak"), "URL = N'https://x.blob.core.windows.net/c/a.bak'");
        assert_eq!(sql("device:a]b"), "[a]]b]");
        assert_eq!(sql("tape:\\\\.\\tape0"), "TAPE = N'\\\\.\\tape0'");
        for bad in ["", "a.bak", "http://x/y", "s3://", "../x"] {
            assert!(bad.parse::<Device>().is_err(), "{bad}");
        }
        assert!(Device::Disk(format!("/{}", "x".repeat(259))).sql().is_err());
    }
}
