//! What has to be known of a server before a backup begins, and whether one may begin at all.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::client::{Connection, Row};
use super::replication::{Replication, SystemIdentity};
use super::session::quote_literal;
use crate::error::{Error, ErrorKind, Result};

/// The major versions that can be backed up.
pub const MAJORS: std::ops::RangeInclusive<u32> = 13..=18;

/// What the server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// `150020` for 15.20.
    pub server_version_num: u32,
    /// The server's data directory; unknown to a role without pg_read_all_settings.
    pub data_directory: Option<PathBuf>,
    /// Unique to the cluster; also in pg_control and in every WAL segment.
    pub system_identifier: u64,
    /// Size of one WAL segment.
    pub wal_segment_size_bytes: u64,
    /// Size of one data page.
    pub block_size_bytes: u32,
    /// Whether pages carry checksums.
    pub data_checksums: bool,
    /// postgresql.conf, pg_hba.conf and pg_ident.conf where they lie outside the data directory.
    pub outside_config_files: Vec<PathBuf>,
    /// All tablespaces but the two built-in ones.
    pub tablespaces: Vec<Tablespace>,
    /// All databases; not known without SQL.
    pub databases: Option<Vec<Database>>,
    /// Name of the superuser that initdb made, which no cluster is without; not known without SQL.
    pub bootstrap_role: Option<String>,
    /// When its postmaster started, in microseconds since 1970 by its own clock: the same in two backups only if it ran all
    /// the time between them. Not known without SQL.
    pub postmaster_start_us: Option<u64>,
    wal_level: String,
    is_standby: bool,
}

/// One tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablespace {
    /// Its object id, the name of its link in `pg_tblspc`.
    pub oid: u32,
    /// Where it lies; relative (`pg_tblspc/<oid>`) for one that lies inside the data directory.
    pub location: PathBuf,
}

/// One database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    /// Its object id, the name of its directory.
    pub oid: u32,
    /// Its name.
    pub name: String,
    /// Whether it is there to make others from.
    pub is_template: bool,
}

impl ServerFacts {
    /// The major version, 15 for 15.20.
    pub fn major(&self) -> u32 {
        self.server_version_num / 10_000
    }

    /// Whether it replays the WAL of another server.
    pub fn is_standby(&self) -> bool {
        self.is_standby
    }
}

#[cfg(test)]
impl ServerFacts {
    /// Those of some cluster, for pure tests.
    pub(crate) fn for_tests() -> Self {
        ServerFacts {
            server_version_num: 150_020,
            data_directory: None,
            system_identifier: 7_300_000_000_000_000_001,
            wal_segment_size_bytes: 16 << 20,
            block_size_bytes: 8192,
            data_checksums: true,
            outside_config_files: Vec::new(),
            tablespaces: Vec::new(),
            databases: None,
            bootstrap_role: None,
            postmaster_start_us: None,
            wal_level: "replica".to_owned(),
            is_standby: false,
        }
    }
}

/// Asks for all facts; the version is checked first, because the other questions depend on it.
///
/// # Errors
/// `Source` for a version outside [`MAJORS`] or an answer that makes no sense.
pub(super) fn gather(connection: &mut Connection) -> Result<ServerFacts> {
    let action = "ask the server about itself";
    let version = connection.server_version_num();
    if !MAJORS.contains(&(version / 10_000)) {
        return Err(Error::new(
            ErrorKind::Source,
            "back up this server",
            format!(
                "it is version {}, and versions {} to {} are supported",
                version / 10_000,
                MAJORS.start(),
                MAJORS.end()
            ),
        ));
    }
    let sql = "SELECT pg_is_in_recovery(), current_setting('wal_level'), current_setting('data_checksums'), \
               current_setting('block_size'), s.setting, c.system_identifier, \
               (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint \
               FROM pg_settings s, pg_control_system() c WHERE s.name = 'wal_segment_size'";
    let row = connection.query_row_text(sql, 7).map_err(|error| error.into_error(action))?;
    let texts: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
    let number = |position: usize| {
        texts[position]
            .parse::<u64>()
            .ok()
            .ok_or_else(|| Error::new(ErrorKind::Source, action, format!("{:?} is not a number", texts.get(position))))
    };
    let locations = setting_paths(connection)?;
    let data_directory = locations.get("data_directory").cloned();
    Ok(ServerFacts {
        server_version_num: version,
        is_standby: texts[0] == "t",
        wal_level: texts[1].clone(),
        data_checksums: texts[2] == "on",
        block_size_bytes: u32::try_from(number(3)?).unwrap_or(u32::MAX),
        wal_segment_size_bytes: wal_segment_size(number(4)?)?,
        system_identifier: shown_identifier(&texts[5], action)?,
        postmaster_start_us: Some(number(6)?),
        outside_config_files: outside_config_files(&locations, data_directory.as_deref()),
        data_directory,
        tablespaces: tablespaces(connection)?,
        databases: Some(databases(connection)?),
        bootstrap_role: connection
            .query_value("SELECT pg_get_userbyid(10)")
            .map(Some)
            .map_err(|error| error.into_error("ask for the bootstrap superuser"))?,
    })
}

/// The system identifier that SQL shows as `text`: as a signed number, so that those of clusters which are made from 2038 on
/// are negative.
///
/// # Errors
/// `Source` for anything else.
pub fn shown_identifier(text: &str, action: &str) -> Result<u64> {
    text.parse()
        .map(i64::cast_unsigned)
        .map_err(|_| Error::new(ErrorKind::Source, action, format!("{text:?} is no system identifier")))
}

/// What a server says over the replication protocol, where there is no SQL; `tablespaces` stays empty.
///
/// # Errors
/// `Source` for a lost connection or an answer that makes no sense.
pub fn gather_without_sql(replication: &mut Replication, identity: &SystemIdentity) -> Result<RemoteFacts> {
    let action = "ask the server about itself";
    let major = replication.major();
    let mut show = |setting: &str| replication.show(setting).map_err(|error| error.into_error(action));
    let size = |text: &str| {
        let bytes = bytes_of_setting(text);
        bytes.ok_or_else(|| Error::new(ErrorKind::Source, action, format!("{text:?} is not a size")))
    };
    let block_size_bytes = size(&show("block_size")?)?;
    let segment_bytes = size(&show("segment_size")?)?;
    let wal_block_size_bytes = size(&show("wal_block_size")?)?;
    let wal_segment_size_bytes = wal_segment_size(size(&show("wal_segment_size")?)?)?;
    let data_checksums = show("data_checksums")? == "on";
    let wal_level = show("wal_level")?;
    // Before 14 a standby shows only in that its transactions read; a primary may be set to that, too.
    let role = if major >= 14 { "in_hot_standby" } else { "transaction_read_only" };
    let is_standby = show(role)? == "on";
    if !block_size_bytes.is_power_of_two() || !wal_block_size_bytes.is_power_of_two() || block_size_bytes > 1 << 16 {
        return Err(Error::new(ErrorKind::Source, action, "its page size makes no sense"));
    }
    // Only a superuser and members of pg_read_all_settings are told.
    let mut path = |setting: &str| replication.show(setting).ok().filter(|text| !text.is_empty()).map(PathBuf::from);
    let mut locations = BTreeMap::new();
    for setting in ["data_directory", "config_file", "hba_file", "ident_file"] {
        if let Some(path) = path(setting) {
            locations.insert(setting.to_owned(), path);
        }
    }
    let data_directory = locations.get("data_directory").cloned();
    let facts = ServerFacts {
        server_version_num: replication.server_version_num(),
        system_identifier: identity.system_identifier,
        wal_segment_size_bytes,
        block_size_bytes: block_size_bytes as u32,
        data_checksums,
        outside_config_files: outside_config_files(&locations, data_directory.as_deref()),
        data_directory,
        tablespaces: Vec::new(),
        databases: None,
        bootstrap_role: None,
        postmaster_start_us: None,
        wal_level,
        is_standby,
    };
    let segment_blocks = (segment_bytes / block_size_bytes) as u32;
    Ok(RemoteFacts { facts, segment_blocks, wal_block_size_bytes: wal_block_size_bytes as u32 })
}

/// Facts of a server that is asked over the replication protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFacts {
    /// As of any server.
    pub facts: ServerFacts,
    /// Pages in one segment file of a relation.
    pub segment_blocks: u32,
    /// Size of a page of WAL.
    pub wal_block_size_bytes: u32,
}

/// A size as SHOW writes it: `8192`, `16MB`, `1GB`.
fn bytes_of_setting(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = match &text[digits..] {
        "" | "B" => 1,
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

/// pg_settings gives bytes; anything that is not a power of two from 1 MiB to 1 GiB would break later arithmetic.
fn wal_segment_size(size_bytes: u64) -> Result<u64> {
    if size_bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&size_bytes) {
        Ok(size_bytes)
    } else {
        Err(Error::new(ErrorKind::Source, "ask the server about itself", "wal_segment_size makes no sense"))
    }
}

/// The paths among the settings; the server hides them from roles without pg_read_all_settings.
fn setting_paths(connection: &mut Connection) -> Result<BTreeMap<String, PathBuf>> {
    let sql = "SELECT name, setting FROM pg_settings \
               WHERE name IN ('data_directory', 'config_file', 'hba_file', 'ident_file')";
    let rows = connection.query(sql).map_err(|error| error.into_error("ask for the data directory"))?;
    let pair = |row: Row| match <[_; 2]>::try_from(row) {
        Ok([Some(name), Some(path)]) if !path.is_empty() => {
            Some((String::from_utf8(name).ok()?, std::ffi::OsString::from_vec(path).into()))
        }
        _ => None,
    };
    Ok(rows.into_iter().filter_map(pair).collect())
}

fn outside_config_files(
    locations: &BTreeMap<String, PathBuf>,
    data_directory: Option<&std::path::Path>,
) -> Vec<PathBuf> {
    let Some(data_directory) = data_directory else { return Vec::new() };
    ["config_file", "hba_file", "ident_file"]
        .iter()
        .filter_map(|name| locations.get(*name))
        .filter(|path| !path.starts_with(data_directory))
        .cloned()
        .collect()
}

fn tablespaces(connection: &mut Connection) -> Result<Vec<Tablespace>> {
    let action = "ask for the tablespaces";
    let sql = "SELECT oid, pg_tablespace_location(oid) FROM pg_tablespace \
               WHERE spcname NOT IN ('pg_default', 'pg_global') ORDER BY oid";
    let rows = connection.query(sql).map_err(|error| error.into_error(action))?;
    rows.into_iter()
        .map(|row| {
            let bad = || Error::new(ErrorKind::Source, action, "the answer makes no sense");
            let [Some(oid), Some(location)] = <[_; 2]>::try_from(row).map_err(|_| bad())? else { return Err(bad()) };
            let oid = std::str::from_utf8(&oid).ok().and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            Ok(Tablespace { oid, location: std::ffi::OsString::from_vec(location).into() })
        })
        .collect()
}

fn databases(connection: &mut Connection) -> Result<Vec<Database>> {
    let action = "ask for the databases";
    let sql = "SELECT oid, datistemplate, datname FROM pg_database ORDER BY oid";
    let rows = connection.query(sql).map_err(|error| error.into_error(action))?;
    rows.into_iter()
        .map(|row| {
            let bad = || Error::new(ErrorKind::Source, action, "the answer makes no sense");
            let [Some(oid), Some(is_template), Some(name)] = <[_; 3]>::try_from(row).map_err(|_| bad())? else {
                return Err(bad());
            };
            let oid = std::str::from_utf8(&oid).ok().and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            let name = String::from_utf8_lossy(&name).into_owned();
            Ok(Database { oid, name, is_template: is_template == b"t" })
        })
        .collect()
}

/// What a server says about itself that can give a backup.
///
/// # Errors
/// `Source`: a version outside 13 to 18, `wal_level=minimal`, a missing right (the hint has the exact GRANT), or a lost connection.
pub fn gather_for_backup(connection: &mut Connection) -> Result<ServerFacts> {
    let facts = gather(connection)?;
    check_backup_is_possible(connection, &facts)?;
    Ok(facts)
}

/// Refuses `wal_level=minimal` and roles that may not begin or end a backup.
fn check_backup_is_possible(connection: &mut Connection, facts: &ServerFacts) -> Result<()> {
    let refuse =
        |cause: &str, hint: &str| Err(Error::new(ErrorKind::Source, "begin the backup", cause).hint(hint.to_owned()));
    // A standby replays what its primary wrote; its own setting means nothing yet.
    if facts.wal_level == "minimal" && !facts.is_standby {
        return refuse("wal_level is minimal", "set wal_level = replica and restart the server");
    }
    let missing = missing_grants(connection, facts)?;
    if missing.is_empty() {
        return Ok(());
    }
    refuse("the role lacks the right to begin or end a backup", &format!("as a superuser: {}", missing.join("; ")))
}

/// The GRANT statements that are missing, ready to be run.
fn missing_grants(connection: &mut Connection, facts: &ServerFacts) -> Result<Vec<String>> {
    let action = "check the rights of the role";
    let functions: &[&str] = if facts.server_version_num >= 150_000 {
        &["pg_backup_start(text, boolean)", "pg_backup_stop(boolean)"]
    } else {
        &["pg_start_backup(text, boolean, boolean)", "pg_stop_backup(boolean, boolean)"]
    };
    let mut missing = Vec::new();
    for function in functions {
        let sql =
            format!("SELECT has_function_privilege({}, 'EXECUTE'), quote_ident(current_user)", quote_literal(function));
        let row = connection.query_row_text(&sql, 2).map_err(|error| error.into_error(action))?;
        if let [Some(allowed), Some(role)] = &row[..]
            && allowed != "t"
        {
            missing.push(format!("GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {role}"));
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_later_years_are_negative_to_sql() {
        let shown = |text| shown_identifier(text, "ask").ok();
        assert_eq!(shown("7300000000000000001"), Some(7_300_000_000_000_000_001));
        assert_eq!(shown("-9223372036854775808"), Some(1 << 63));
        assert_eq!(shown("-1"), Some(u64::MAX));
        assert_eq!(shown("18446744073709551615"), None);
        assert_eq!(shown(""), None);
    }

    #[test]
    fn sizes_are_read_as_show_writes_them() {
        assert_eq!(bytes_of_setting("8192"), Some(8192));
        assert_eq!(bytes_of_setting("16MB"), Some(16 << 20));
        assert_eq!(bytes_of_setting("1GB"), Some(1 << 30));
        for bad in ["", "MB", "1 MB", "1mb", "99999999999TB"] {
            assert_eq!(bytes_of_setting(bad), None, "{bad:?}");
        }
    }
}
