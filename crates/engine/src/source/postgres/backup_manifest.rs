//! Writes PostgreSQL's own `backup_manifest`, so that pg_verifybackup accepts a restored directory.
//!
//! The rule: the manual's "Backup Manifest Format" and src/backend/backup/backup_manifest.c.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

/// One file of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestFile<'a> {
    /// Relative to the data directory.
    pub path: &'a [u8],
    /// Size as stored in the backup.
    pub size_bytes: u64,
    /// Time of the last change, seconds since 1970.
    pub mtime_s: i64,
    /// CRC32C of the content as stored in the backup.
    pub crc32c: u32,
}

/// What the manifest says about the backup as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestHeader {
    /// The server's major version; from 17 on the manifest carries the system identifier.
    pub major: u32,
    /// The cluster's identifier.
    pub system_identifier: u64,
    /// The timeline of the WAL that is needed.
    pub timeline: TimelineId,
    /// Where the needed WAL starts.
    pub start_lsn: Lsn,
    /// Where it ends.
    pub stop_lsn: Lsn,
}

/// Writes the manifest of `files` to `output`; their order does not matter.
///
/// # Errors
/// `Repository` when `output` cannot be written, `Source` for a time outside the years of four digits.
pub fn write_backup_manifest<'a>(
    output: &mut dyn Write,
    header: &ManifestHeader,
    files: impl IntoIterator<Item = ManifestFile<'a>>,
) -> Result<()> {
    let failed = |cause: io::Error| Error::new(ErrorKind::Repository, "write backup_manifest", cause);
    let mut output = HashingWriter { inner: output, hash: Sha256::new() };
    write_header(&mut output, header).map_err(failed)?;
    let mut separator = "\n";
    for file in files {
        let mtime = gmt(file.mtime_s)?;
        output.write_all(separator.as_bytes()).map_err(failed)?;
        write_file(&mut output, &file, &mtime).map_err(failed)?;
        separator = ",\n";
    }
    write_footer(output, header).map_err(failed)
}

fn write_header(output: &mut impl Write, header: &ManifestHeader) -> io::Result<()> {
    let version = if header.major >= 17 { 2 } else { 1 };
    writeln!(output, "{{ \"PostgreSQL-Backup-Manifest-Version\": {version},")?;
    if version >= 2 {
        writeln!(output, "\"System-Identifier\": {},", header.system_identifier)?;
    }
    write!(output, "\"Files\": [")
}

fn write_file(output: &mut impl Write, file: &ManifestFile<'_>, mtime: &str) -> io::Result<()> {
    match plain_path(file.path) {
        Some(path) => write!(output, "{{ \"Path\": {}, ", serde_json::to_string(path)?)?,
        None => write!(output, "{{ \"Encoded-Path\": \"{}\", ", hex(file.path))?,
    }
    // The server writes the CRC's bytes as they lie in memory: lowest first.
    let checksum = hex(&file.crc32c.to_le_bytes());
    write!(
        output,
        "\"Size\": {}, \"Last-Modified\": \"{mtime} GMT\", \"Checksum-Algorithm\": \"CRC32C\", \
         \"Checksum\": \"{checksum}\" }}",
        file.size_bytes
    )
}

/// The checksum is of every byte before its own line.
fn write_footer(mut output: HashingWriter<'_>, header: &ManifestHeader) -> io::Result<()> {
    write!(
        output,
        "\n],\n\"WAL-Ranges\": [\n{{ \"Timeline\": {}, \"Start-LSN\": \"{}\", \"End-LSN\": \"{}\" }}\n],\n",
        header.timeline, header.start_lsn, header.stop_lsn
    )?;
    let HashingWriter { inner, hash } = output;
    writeln!(inner, "\"Manifest-Checksum\": \"{}\"}}", hex(&hash.finalize()))?;
    inner.flush()
}

/// The path as text, if every reader of JSON agrees on what it means.
fn plain_path(path: &[u8]) -> Option<&str> {
    std::str::from_utf8(path).ok().filter(|text| !text.chars().any(char::is_control))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// `2026-11-21 20:15:30`, without its zone.
fn gmt(seconds: i64) -> Result<String> {
    let bad = || Error::new(ErrorKind::Source, "write backup_manifest", format!("{seconds} is no file time"));
    let timestamp = jiff::Timestamp::from_second(seconds).map_err(|_| bad())?;
    Ok(timestamp.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Passes bytes on and hashes them.
struct HashingWriter<'a> {
    inner: &'a mut dyn Write,
    hash: Sha256,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(major: u32) -> ManifestHeader {
        ManifestHeader {
            major,
            system_identifier: 42,
            timeline: TimelineId(1),
            start_lsn: Lsn(0x200_0028),
            stop_lsn: Lsn(0x200_0100),
        }
    }

    #[test]
    fn the_format_is_the_servers() {
        let files = [
            ManifestFile { path: b"base/1/\"q\"", size_bytes: 3, mtime_s: 0, crc32c: 0x0102_0304 },
            ManifestFile { path: b"x\xff", size_bytes: 0, mtime_s: 1, crc32c: 0 },
        ];
        let mut bytes = Vec::new();
        write_backup_manifest(&mut bytes, &header(17), files).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with(
            "{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\"System-Identifier\": 42,\n\"Files\": [\n{ \"Path\": \
             \"base/1/\\\"q\\\"\", \"Size\": 3, \"Last-Modified\": \"1970-01-01 00:00:00 GMT\", \
             \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"04030201\" },\n{ \"Encoded-Path\": \"78ff\","
        ));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["WAL-Ranges"][0]["End-LSN"], "0/2000100");
        let last_line = text.trim_end().rfind('\n').unwrap() + 1;
        assert_eq!(json["Manifest-Checksum"], hex(&Sha256::digest(&text[..last_line])));
    }

    #[test]
    fn an_empty_list_is_valid_and_old_versions_have_no_identifier() {
        let mut bytes = Vec::new();
        write_backup_manifest(&mut bytes, &header(15), []).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["PostgreSQL-Backup-Manifest-Version"], 1);
        assert!(json.get("System-Identifier").is_none());
    }
}
