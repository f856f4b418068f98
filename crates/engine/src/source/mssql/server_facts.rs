//! What the server said about itself and a database.

use super::client::Connection;
use super::edition::{Dialect, Edition, MajorVersion};
use super::questions::{self, FACTS, Line, SESSION_START};
use crate::error::{Error, ErrorKind, Result};

/// One file of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseFile {
    /// ROWS, LOG, FILESTREAM.
    pub kind: String,
    /// Logical name.
    pub name: String,
    /// Path on the server.
    pub path: String,
}

/// Facts about a server and one of its databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its own name.
    pub server: String,
    /// `16.0.4075.1`.
    pub product_version: String,
    /// `Developer Edition (64-bit)`.
    pub edition_name: String,
    /// What it can do.
    pub dialect: Dialect,
    /// Processors that it uses.
    pub cpu_count: u16,
    /// Memory of its machine.
    pub memory_bytes: u64,
    /// What of that was free.
    pub memory_free_bytes: u64,
    /// Where databases are made.
    pub default_data_path: String,
    /// Where their logs are made.
    pub default_log_path: String,
    /// Whether backups are compressed when nobody says anything.
    pub compresses_by_default: bool,
    /// Name of the database.
    pub database: String,
    /// ONLINE or why not.
    pub state: String,
    /// FULL, BULK_LOGGED, SIMPLE.
    pub recovery_model: String,
    /// Whether its pages are encrypted on disk (TDE).
    pub is_encrypted: bool,
    /// Bytes of its data files.
    pub data_bytes: u64,
    /// Volumes that they lie on.
    pub volume_count: u32,
    /// All its files.
    pub files: Vec<DatabaseFile>,
}

impl ServerFacts {
    /// Asks; the session is set up on the way.
    ///
    /// # Errors
    /// `Source` for a server that does not answer, is too old, or has no such database; `Usage` for its name.
    pub fn ask(connection: &mut Connection, database: &str) -> Result<Self> {
        connection.ask(SESSION_START, "set up a session")?;
        let question = questions::facts(database)?;
        let answer = connection.ask(&question, &format!("ask about database {database:?}"))?;
        ServerFacts::read(answer.messages.iter().map(|message| message.text.as_str()), database)
    }

    /// Reads lines of an answer; others in between do no harm.
    ///
    /// # Errors
    /// `Source` as for [`ServerFacts::ask`], or if something is missing.
    pub fn read<'a>(lines: impl Iterator<Item = &'a str>, database: &str) -> Result<Self> {
        let found: Vec<Line<'_>> = lines.filter_map(Line::parse).filter(|line| line.moment == FACTS).collect();
        let failed = |cause: String| Error::new(ErrorKind::Source, format!("learn about database {database:?}"), cause);
        let text = |name: &str| {
            let line = found.iter().find(|line| line.name == name);
            line.map(|line| line.value.to_owned()).ok_or_else(|| failed(format!("the answer does not say {name}")))
        };
        let number = |name: &str| {
            let value = text(name)?;
            value.parse::<u64>().map_err(|_| failed(format!("{name} is {value:?} and no number")))
        };
        let product_version = text("product_version")?;
        let major = product_version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or_default();
        MajorVersion(major).check_supported()?;
        let edition_name = text("edition")?;
        let state = text("state")?;
        if state.is_empty() {
            return Err(failed("the server has none of this name, or this user may not see it".to_owned()));
        }
        let each =
            |name: &str| found.iter().filter(|line| line.name == name).map(|line| line.value.to_owned()).collect();
        let (kinds, names, paths): (Vec<String>, Vec<String>, Vec<String>) =
            (each("file_type"), each("file_name"), each("file_path"));
        if names.is_empty() || kinds.len() != names.len() || paths.len() != names.len() {
            return Err(failed("its files are not all told: this user may need VIEW ANY DEFINITION".to_owned()));
        }
        let files =
            kinds.into_iter().zip(names).zip(paths).map(|((kind, name), path)| DatabaseFile { kind, name, path });
        Ok(ServerFacts {
            server: text("server")?,
            dialect: Dialect {
                version: MajorVersion(major),
                edition: Edition::from_properties(number("engine_edition")? as i64, &edition_name)?,
                is_windows: text("platform")? == "Windows",
            },
            product_version,
            edition_name,
            cpu_count: u16::try_from(number("cpu_count")?).unwrap_or(u16::MAX),
            memory_bytes: number("memory_bytes")?,
            memory_free_bytes: number("memory_free_bytes")?,
            default_data_path: text("default_data_path")?,
            default_log_path: text("default_log_path")?,
            compresses_by_default: text("backup_compression_default")? == "1",
            database: database.to_owned(),
            state,
            recovery_model: text("recovery_model")?,
            is_encrypted: text("is_encrypted")? == "1",
            data_bytes: number("data_bytes")?,
            volume_count: number("volume_count")?.clamp(1, 64) as u32,
            files: files.collect(),
        })
    }

    /// An error unless the database can be backed up.
    ///
    /// # Errors
    /// `Source`.
    pub fn check_online(&self) -> Result<()> {
        if self.state == "ONLINE" {
            return Ok(());
        }
        let action = format!("back up database {:?}", self.database);
        Err(Error::new(ErrorKind::Source, action, format!("it is {}", self.state)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
Changed language setting to us_english.
pagehaul||facts|server|DB1
pagehaul||facts|product_version|16.0.4075.1
pagehaul||facts|edition|Standard Edition (64-bit)
pagehaul||facts|engine_edition|2
pagehaul||facts|platform|Linux
pagehaul||facts|cpu_count|8
pagehaul||facts|memory_bytes|17179869184
pagehaul||facts|memory_free_bytes|8589934592
pagehaul||facts|default_data_path|/var/opt/mssql/data/
pagehaul||facts|default_log_path|/var/opt/mssql/data/
pagehaul||facts|backup_compression_default|1
pagehaul||facts|backup_checksum_default|0
pagehaul||facts|state|ONLINE
pagehaul||facts|recovery_model|FULL
pagehaul||facts|is_encrypted|0
pagehaul||facts|data_bytes|8589934592
pagehaul||facts|volume_count|2
pagehaul||facts|file_type|ROWS
pagehaul||facts|file_name|a|b
pagehaul||facts|file_path|/d/a.mdf";

    #[test]
    fn facts_are_read_out_of_messages() {
        let facts = ServerFacts::read(LINES.lines(), "shop").unwrap();
        assert_eq!((facts.dialect.version, facts.dialect.edition), (MajorVersion::V2022, Edition::Standard));
        assert!(!facts.dialect.is_windows && facts.compresses_by_default);
        let file = DatabaseFile { kind: "ROWS".into(), name: "a|b".into(), path: "/d/a.mdf".into() };
        assert_eq!((facts.files, facts.volume_count), (vec![file], 2));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |lines: String| ServerFacts::read(lines.lines(), "shop").unwrap_err().message();
        assert!(error(LINES.replace("cpu_count", "x")).contains("does not say cpu_count"));
        assert!(error(LINES.replace("|ONLINE", "|")).contains("none of this name"));
        assert!(error(LINES.replace("|16.0", "|10.0")).contains("2012"));
        assert!(error(LINES.replace("file_path", "x")).contains("files are not all told"));
        assert!(error(LINES.replace("engine_edition|2", "engine_edition|8")).contains("engine edition 8"));
    }
}
