//! What RESTORE does not take, with the rule.

use super::backup::OnPageError;
use super::backup_rules::{check_block_size, check_transfer_size};
use super::restore::{Recovery, RestoreKind, RestoreStatement, Stop};
use super::rule;
use crate::error::{Error, ErrorKind, Result};
use crate::source::mssql::device::{Device, DeviceKind};
use crate::source::mssql::edition::{Dialect, MajorVersion};

const WHAT: &str = "RESTORE statement";
const DEVICE_COUNT_MAX: usize = 64;
const PAGE_COUNT_MAX: usize = 1000;

/// The first rule that `statement` breaks on `dialect`.
pub(super) fn check(statement: &RestoreStatement, dialect: &Dialect) -> Result<()> {
    check_devices(statement, dialect)?;
    check_sizes(statement)?;
    if statement.kind.reads_data() {
        check_data(statement)?;
        check_snapshot(statement, dialect)
    } else {
        check_looks(statement, dialect)
    }
}

fn check_devices(statement: &RestoreStatement, dialect: &Dialect) -> Result<()> {
    let (from, count) = (&statement.from, statement.from.len());
    rule((1..=DEVICE_COUNT_MAX).contains(&count), WHAT, &format!("it reads {count} devices"), "1 to 64 are possible")?;
    rule(!from.contains(&Device::Nul), WHAT, "it reads NUL", "NUL keeps nothing")?;
    let is_mixed = from.iter().any(|device| device.kind() != from[0].kind() && device.kind() != DeviceKind::Logical);
    rule(!is_mixed, WHAT, "its devices are of several kinds", "all devices of a media set are of one kind")?;
    let is_twice = from.iter().enumerate().any(|(at, device)| from[..at].contains(device));
    rule(!is_twice, WHAT, "a device is named twice", "each device holds one file of the media set")?;
    let on_s3 = from[0].kind() == DeviceKind::S3;
    rule(!on_s3 || dialect.version >= MajorVersion::V2022, WHAT, "it reads S3", "s3:// came with SQL Server 2022")?;
    let on_azure = from[0].kind() == DeviceKind::Azure;
    let has_credential = statement.options.credential.is_some();
    rule(!has_credential || on_azure, WHAT, "it names a credential", "WITH CREDENTIAL is for Azure page blobs")?;
    let looks_at_media = statement.kind == RestoreKind::LabelOnly;
    let all = !looks_at_media || count == 1;
    rule(all, WHAT, "LABELONLY reads several devices", "each file has a label of its own: ask for one at a time")
}

fn check_sizes(statement: &RestoreStatement) -> Result<()> {
    let options = &statement.options;
    let count_is_right = options.buffer_count.is_none_or(|count| (1..=i32::MAX as u32).contains(&count));
    rule(count_is_right, WHAT, "BUFFERCOUNT is out of range", "it is 1 or more")?;
    rule(
        options.stats.is_none_or(|stats| (1..=100).contains(&stats)),
        WHAT,
        "STATS is out of range",
        "it is 1 to 100",
    )?;
    rule(options.file != Some(0), WHAT, "it reads set 0", "the sets on the media count from 1")?;
    check_block_size(WHAT, options.block_size)?;
    let on_s3 = statement.from[0].kind() == DeviceKind::S3;
    match options.max_transfer_size {
        Some(size) if !on_s3 => check_transfer_size(WHAT, size),
        _ => Ok(()),
    }
}

fn check_data(statement: &RestoreStatement) -> Result<()> {
    let (kind, options) = (&statement.kind, &statement.options);
    rule(!options.load_history, WHAT, "LOADHISTORY restores", "LOADHISTORY goes with VERIFYONLY")?;
    let is_log = matches!(kind, RestoreKind::Log(_));
    let is_database = matches!(kind, RestoreKind::Database(_));
    rule(
        !options.partial || is_database || matches!(kind, RestoreKind::Parts(..)),
        WHAT,
        "a log or pages are PARTIAL",
        "PARTIAL begins the piecemeal restore of a database",
    )?;
    rule(!(options.replace && is_log), WHAT, "a log is to REPLACE", "REPLACE is for databases")?;
    if let RestoreKind::Pages(_, pages) = kind {
        rule(
            (1..=PAGE_COUNT_MAX).contains(&pages.len()),
            WHAT,
            "it has too many pages, or none",
            "PAGE names 1 to 1000 pages",
        )?;
        rule(options.moves.is_empty(), WHAT, "pages are moved", "pages go back to where they were")?;
    }
    if let RestoreKind::Parts(_, parts) = kind {
        rule(!parts.is_empty(), WHAT, "it names no part", "name files or filegroups")?;
    }
    let waits = matches!(options.recovery, Some(Recovery::NoRecovery));
    rule(
        !(options.keep_replication && waits),
        WHAT,
        "KEEP_REPLICATION goes with NORECOVERY",
        "it counts with the last restore only",
    )?;
    rule(!(options.keep_cdc && waits), WHAT, "KEEP_CDC goes with NORECOVERY", "it counts with the last restore only")?;
    let is_marked = options.stop_at.as_ref().is_some_and(|stop| stop.after.is_some() && stop.stop == Stop::Time);
    rule(!is_marked, WHAT, "STOPAT has an AFTER", "AFTER goes with marks")?;
    let names: Vec<&String> = options.moves.iter().map(|(name, _)| name).collect();
    let is_twice = names.iter().enumerate().any(|(at, name)| names[..at].contains(name));
    rule(!is_twice, WHAT, "a file is moved twice", "each logical name goes to one place")?;
    checks_pages(statement)
}

fn checks_pages(statement: &RestoreStatement) -> Result<()> {
    let is_checked = statement.options.checksum != Some(false);
    let says = statement.options.on_page_error == Some(OnPageError::Stop);
    rule(is_checked || !says, WHAT, "it stops at wrong pages, and checks none", "STOP_ON_ERROR goes with CHECKSUM")
}

fn check_snapshot(statement: &RestoreStatement, dialect: &Dialect) -> Result<()> {
    let options = &statement.options;
    let is_whole = matches!(statement.kind, RestoreKind::Database(_));
    rule(
        options.database_in_snapshot.is_none() || options.metadata_only,
        WHAT,
        "DBNAME is given",
        "DBNAME goes with METADATA_ONLY",
    )?;
    if !options.metadata_only {
        return Ok(());
    }
    rule(
        dialect.version >= MajorVersion::V2022,
        WHAT,
        "it is METADATA_ONLY",
        "METADATA_ONLY came with SQL Server 2022",
    )?;
    rule(is_whole && !options.partial, WHAT, "a part is METADATA_ONLY", "a snapshot is of whole databases")?;
    let has_sizes = options.buffer_count.is_some() || options.max_transfer_size.is_some();
    rule(!has_sizes, WHAT, "sizes go with METADATA_ONLY", "no data are read: leave out BUFFERCOUNT and MAXTRANSFERSIZE")
}

/// HEADERONLY and its like take few options.
fn check_looks(statement: &RestoreStatement, dialect: &Dialect) -> Result<()> {
    let (kind, options) = (&statement.kind, &statement.options);
    let is_verify = *kind == RestoreKind::VerifyOnly;
    let restores = options.replace
        || options.partial
        || options.recovery.is_some()
        || options.stop_at.is_some()
        || options.restricted_user
        || options.keep_replication
        || options.keep_cdc;
    rule(!restores, WHAT, "it restores and only looks", "leave out what says how a database comes back")?;
    rule(
        is_verify || options.moves.is_empty(),
        WHAT,
        "it moves files and only looks",
        "MOVE goes with VERIFYONLY at most",
    )?;
    rule(
        is_verify || !options.load_history,
        WHAT,
        "LOADHISTORY without VERIFYONLY",
        "LOADHISTORY goes with VERIFYONLY",
    )?;
    let has_sizes = options.buffer_count.is_some() || options.max_transfer_size.is_some() || options.stats.is_some();
    rule(
        is_verify || !has_sizes,
        WHAT,
        "sizes for a look",
        "BUFFERCOUNT, MAXTRANSFERSIZE and STATS are for VERIFYONLY and restores",
    )?;
    let is_2022 = dialect.version >= MajorVersion::V2022;
    if *kind == RestoreKind::BackupSetOnly && !is_2022 {
        let cause = format!("BACKUPSETONLY came with SQL Server 2022, and this is {}", dialect.version);
        return Err(
            Error::new(ErrorKind::Usage, format!("make a {WHAT}"), cause).hint("take a server of that version for it")
        );
    }
    check_looks_at_snapshot(statement, dialect)?;
    let is_rewind = *kind == RestoreKind::RewindOnly;
    let on_tape = statement.from.iter().all(|device| matches!(device.kind(), DeviceKind::Tape | DeviceKind::Logical));
    rule(!is_rewind || on_tape, WHAT, "it rewinds what is no tape", "REWINDONLY is for tapes")?;
    let is_label = *kind == RestoreKind::LabelOnly;
    rule(!is_label || options.file.is_none(), WHAT, "a label of one set", "the label is the media's: leave FILE out")?;
    checks_pages(statement)
}

fn check_looks_at_snapshot(statement: &RestoreStatement, dialect: &Dialect) -> Result<()> {
    let (kind, options) = (&statement.kind, &statement.options);
    let splits = *kind == RestoreKind::BackupSetOnly;
    let names_one = splits || *kind == RestoreKind::FileListOnly;
    rule(
        options.database_in_snapshot.is_none() || options.metadata_only && names_one,
        WHAT,
        "DBNAME is given",
        "beside restores it goes with FILELISTONLY and BACKUPSETONLY, and with METADATA_ONLY",
    )?;
    rule(!splits || options.metadata_only, WHAT, "it splits data", "BACKUPSETONLY goes with METADATA_ONLY")?;
    if !options.metadata_only {
        return Ok(());
    }
    rule(
        dialect.version >= MajorVersion::V2022,
        WHAT,
        "it is METADATA_ONLY",
        "METADATA_ONLY came with SQL Server 2022",
    )?;
    let fits = names_one || *kind == RestoreKind::HeaderOnly;
    let hint = "there are no data to look at: it goes with HEADERONLY, FILELISTONLY and BACKUPSETONLY";
    rule(fits, WHAT, "it is METADATA_ONLY", hint)
}
