//! What is asked beside BACKUP and RESTORE: batches that print one line a fact.
//!
//! Lines are PRINTed and not selected, so that a DBA who runs a script by hand has everything in one place, in order:
//! facts, the server's own messages and its errors. A line is `pagehaul|KEY|MOMENT|NAME|VALUE`.

use super::edition::MajorVersion;
use super::quote::{identifier, plain_literal};
use crate::error::Result;

/// Before everything: messages in English, for they are read; no counts of rows between them.
pub const SESSION_START: &str = "SET NOCOUNT ON;\nSET LANGUAGE us_english;";
/// The moment of facts about server and database.
pub const FACTS: &str = "facts";
/// The moment of what msdb says of a set.
pub const OUTCOME: &str = "outcome";
/// Waits of a backup: reading data files, writing the media, waiting for a free buffer, waiting for the others.
pub const WAITS: [&str; 4] = ["ASYNC_IO_COMPLETION", "BACKUPIO", "BACKUPBUFFER", "BACKUPTHREAD"];
/// What every line of ours begins with.
pub const LINE_MARK: &str = "pagehaul|";

/// `PRINT` of a line whose value is the variable `name`.
fn print(key: &str, moment: &str, name: &str) -> String {
    let head = plain_literal(&format!("{LINE_MARK}{key}|{moment}|{name}|"));
    format!("PRINT CONCAT({head}, @{name});\n")
}

fn prints(key: &str, moment: &str, names: &[&str]) -> String {
    names.iter().map(|name| print(key, moment, name)).collect()
}

/// A line whose value is known already.
pub fn say(key: &str, moment: &str, name: &str, value: &str) -> String {
    format!("PRINT {};", plain_literal(&format!("{LINE_MARK}{key}|{moment}|{name}|{value}")))
}

/// Facts about the server and `database`.
///
/// # Errors
/// `Usage` if the name cannot be one.
pub fn facts(database: &str) -> Result<String> {
    identifier(database)?;
    let lines = prints(
        "",
        FACTS,
        &[
            "server",
            "product_version",
            "edition",
            "engine_edition",
            "platform",
            "cpu_count",
            "memory_bytes",
            "memory_free_bytes",
            "default_data_path",
            "default_log_path",
            "backup_compression_default",
            "backup_checksum_default",
            "state",
            "recovery_model",
            "is_encrypted",
            "data_bytes",
            "volume_count",
        ],
    );
    let of_file = prints("", FACTS, &["file_type", "file_name", "file_path"]).replace("PRINT", "    PRINT");
    Ok(format!(
        "\
DECLARE @database nvarchar(128) = {database};
DECLARE @server nvarchar(256) = CONVERT(nvarchar(256), SERVERPROPERTY('ServerName'));
DECLARE @product_version nvarchar(128) = CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion'));
DECLARE @edition nvarchar(128) = CONVERT(nvarchar(128), SERVERPROPERTY('Edition'));
DECLARE @engine_edition int = CONVERT(int, SERVERPROPERTY('EngineEdition'));
DECLARE @platform nvarchar(16) = CASE WHEN @@VERSION LIKE N'% on Linux%' THEN N'Linux' ELSE N'Windows' END;
DECLARE @cpu_count int = (SELECT cpu_count FROM sys.dm_os_sys_info);
DECLARE @memory_bytes bigint = (SELECT total_physical_memory_kb * 1024 FROM sys.dm_os_sys_memory);
DECLARE @memory_free_bytes bigint = (SELECT available_physical_memory_kb * 1024 FROM sys.dm_os_sys_memory);
DECLARE @default_data_path nvarchar(260) = CONVERT(nvarchar(260), SERVERPROPERTY('InstanceDefaultDataPath'));
DECLARE @default_log_path nvarchar(260) = CONVERT(nvarchar(260), SERVERPROPERTY('InstanceDefaultLogPath'));
DECLARE @backup_compression_default int =
    (SELECT CONVERT(int, value_in_use) FROM sys.configurations WHERE name = N'backup compression default');
DECLARE @backup_checksum_default int =
    (SELECT CONVERT(int, value_in_use) FROM sys.configurations WHERE name = N'backup checksum default');
DECLARE @state nvarchar(60) = (SELECT state_desc FROM sys.databases WHERE name = @database);
DECLARE @recovery_model nvarchar(60) = (SELECT recovery_model_desc FROM sys.databases WHERE name = @database);
DECLARE @is_encrypted int = (SELECT CONVERT(int, is_encrypted) FROM sys.databases WHERE name = @database);
DECLARE @data_bytes bigint =
    (SELECT SUM(CONVERT(bigint, size)) * 8192 FROM sys.master_files WHERE database_id = DB_ID(@database) AND type <> 1);
DECLARE @volume_count int =
    (SELECT COUNT(DISTINCT volume.volume_mount_point) FROM sys.master_files AS own
     CROSS APPLY sys.dm_os_volume_stats(own.database_id, own.file_id) AS volume
     WHERE own.database_id = DB_ID(@database) AND own.type <> 1);
{lines}DECLARE @file_type nvarchar(60), @file_name nvarchar(128), @file_path nvarchar(260);
DECLARE file_list CURSOR LOCAL FAST_FORWARD FOR
    SELECT type_desc, name, physical_name FROM sys.master_files WHERE database_id = DB_ID(@database) ORDER BY file_id;
OPEN file_list;
FETCH NEXT FROM file_list INTO @file_type, @file_name, @file_path;
WHILE @@FETCH_STATUS = 0
BEGIN
{of_file}    FETCH NEXT FROM file_list INTO @file_type, @file_name, @file_path;
END;
CLOSE file_list;
DEALLOCATE file_list;",
        database = plain_literal(database)
    ))
}

/// Time, CPU time and waits of the server at `moment` of `key`.
pub fn probe(key: &str, moment: &str) -> String {
    let waits: String = WAITS
        .iter()
        .map(|wait| {
            format!(
                "DECLARE @{wait} bigint =\n    (SELECT SUM(wait_time_ms) FROM sys.dm_os_wait_stats WHERE wait_type = N'{wait}');\n"
            )
        })
        .collect();
    let names: Vec<&str> = ["time_utc", "cpu_ms"].into_iter().chain(WAITS).collect();
    format!(
        "\
DECLARE @time_utc nvarchar(40) = CONVERT(nvarchar(40), SYSUTCDATETIME(), 126);
DECLARE @cpu_ms bigint = (SELECT process_user_time_ms + process_kernel_time_ms FROM sys.dm_os_sys_info);
{waits}{}",
        prints(key, moment, &names).trim_end()
    )
}

/// What msdb says of the newest set of `database` with the description `description`.
pub fn outcome(key: &str, database: &str, description: &str, version: MajorVersion) -> String {
    let mut names = vec!["backup_size", "stored_size", "has_checksums", "is_copy_only", "is_damaged"];
    let (declared, read) = if version >= MajorVersion::V2022 {
        names.push("algorithm");
        (", @algorithm nvarchar(32)", ", @algorithm = compression_algorithm")
    } else {
        ("", "")
    };
    format!(
        "\
DECLARE @backup_size bigint, @stored_size bigint, @has_checksums bit, @is_copy_only bit, @is_damaged bit{declared};
SELECT TOP (1) @backup_size = backup_size, @stored_size = compressed_backup_size, @has_checksums = has_backup_checksums,
    @is_copy_only = is_copy_only, @is_damaged = is_damaged{read}
FROM msdb.dbo.backupset
WHERE database_name = {} AND description = {}
ORDER BY backup_set_id DESC;
{}",
        plain_literal(database),
        plain_literal(description),
        prints(key, OUTCOME, &names).trim_end()
    )
}

/// On which full backup the differential with the description `description` is built: when, by whom, where.
pub fn differential_base(key: &str, database: &str, description: &str) -> String {
    format!(
        "\
DECLARE @base nvarchar(1000) =
    (SELECT TOP (1) CONCAT(CONVERT(nvarchar(40), full_set.backup_finish_date, 126), N' by ', full_set.user_name, N' in ',
        (SELECT TOP (1) physical_device_name FROM msdb.dbo.backupmediafamily WHERE media_set_id = full_set.media_set_id))
     FROM msdb.dbo.backupset AS own
     JOIN msdb.dbo.backupset AS full_set ON full_set.backup_set_uuid = own.differential_base_guid
     WHERE own.database_name = {} AND own.description = {}
     ORDER BY own.backup_set_id DESC);
{}",
        plain_literal(database),
        plain_literal(description),
        print(key, OUTCOME, "base").trim_end()
    )
}

/// Whether there is a database called `name`; if it must not be there, nothing that follows in the session is executed
/// when it is.
pub fn is_taken(name: &str, must_be_free: bool) -> String {
    let name = plain_literal(name);
    let asks = format!(
        "DECLARE @taken int = CASE WHEN DB_ID({name}) IS NULL THEN 0 ELSE 1 END;\n{}",
        print("", FACTS, "taken").trim_end()
    );
    if must_be_free {
        // Run by hand there is nobody who reads the answer and stops.
        format!("{asks}\nIF @taken = 1 SET NOEXEC ON;")
    } else {
        asks
    }
}

/// Drops the database `name`, which is ours, if it is there.
///
/// # Errors
/// `Usage` if the name cannot be one.
pub fn drop_database(name: &str) -> Result<String> {
    Ok(format!("IF DB_ID({}) IS NOT NULL DROP DATABASE {};", plain_literal(name), identifier(name)?))
}

/// Removes a backup file of the server's disks.
pub fn remove_file(path: &str, version: MajorVersion) -> String {
    let path = plain_literal(path);
    if version >= MajorVersion::V2019 {
        format!("EXEC master.sys.xp_delete_files {path};")
    } else {
        format!("EXEC master.dbo.xp_delete_file 0, {path};")
    }
}

/// One line of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Which run; empty for facts.
    pub key: &'a str,
    /// Which moment of it.
    pub moment: &'a str,
    /// What.
    pub name: &'a str,
    /// Its value, empty for NULL.
    pub value: &'a str,
}

impl<'a> Line<'a> {
    /// The line of ours that `text` is, if it is one.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.trim().strip_prefix(LINE_MARK)?.splitn(4, '|');
        Some(Line { key: parts.next()?, moment: parts.next()?, name: parts.next()?, value: parts.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_printed() {
        let said = say("k", "trial", "setting", "it's | here");
        assert_eq!(said, "PRINT N'pagehaul|k|trial|setting|it''s | here';");
        let line = Line::parse("pagehaul|k|trial|setting|it's | here").unwrap();
        assert_eq!((line.key, line.moment, line.name, line.value), ("k", "trial", "setting", "it's | here"));
        assert_eq!(Line::parse("pagehaul||facts|algorithm|").unwrap().value, "");
        assert!(Line::parse("10 percent processed.").is_none() && Line::parse("pagehaul|x").is_none());
    }

    #[test]
    fn questions_ask_a_version_for_what_it_has() {
        assert!(outcome("k", "d", "x", MajorVersion::V2022).contains("compression_algorithm"));
        assert!(!outcome("k", "d", "x", MajorVersion::V2019).contains("compression_algorithm"));
        assert!(remove_file("/b/1", MajorVersion::V2019).contains("xp_delete_files N'/b/1'"));
        assert!(remove_file("/b/1", MajorVersion::V2016).contains("xp_delete_file 0, N'/b/1'"));
        assert_eq!(drop_database("a]b").unwrap(), "IF DB_ID(N'a]b') IS NOT NULL DROP DATABASE [a]]b];");
        assert!(facts("it's").unwrap().contains("N'it''s'") && facts("").is_err());
    }
}
