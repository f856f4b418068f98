//! What BACKUP does not take, with the rule.

use super::backup::{Algorithm, BackupOptions, BackupStatement, Compression, Contents, LogTail, Media};
use super::rule;
use crate::error::{Error, ErrorKind, Result};
use crate::source::mssql::device::{Device, DeviceKind};
use crate::source::mssql::edition::{Dialect, Edition, MajorVersion};

const WHAT: &str = "BACKUP statement";
const DEVICE_COUNT_MAX: usize = 64;
const MIRRORED_S3_COUNT_MAX: usize = 32;
const MIRROR_COUNT_MAX: usize = 3;
/// MAXTRANSFERSIZE is a multiple of this.
pub(super) const TRANSFER_UNIT: u32 = 64 << 10;
const TRANSFER_SIZE_MAX: u32 = 4 << 20;
const S3_TRANSFER_SIZES: std::ops::RangeInclusive<u32> = (5 << 20)..=(20 << 20);
pub(super) const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=65536;

/// The first rule that `statement` breaks on `dialect`.
pub(super) fn check(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    dialect.version.check_supported()?;
    check_devices(statement, dialect)?;
    check_contents(statement)?;
    check_compression(statement, dialect)?;
    check_sizes(statement)?;
    check_media(statement)?;
    check_encryption(statement, dialect)?;
    check_azure(statement, dialect)?;
    check_metadata_only(statement, dialect)
}

fn refuse(cause: impl Into<String>, hint: &str) -> Result<()> {
    Err(Error::new(ErrorKind::Usage, format!("make a {WHAT}"), cause.into()).hint(hint))
}

/// A feature that came with `version`.
fn since(version: MajorVersion, dialect: &Dialect, is_used: bool, feature: &str) -> Result<()> {
    if !is_used || dialect.version >= version {
        return Ok(());
    }
    let cause = format!("{feature} came with {version}, and this is {}", dialect.version);
    refuse(cause, "leave it out, or take a server of that version")
}

fn check_devices(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    let count = statement.to.len();
    let kinds: Vec<DeviceKind> =
        statement.to.iter().chain(statement.mirrors.iter().flatten()).map(Device::kind).collect();
    let has = |kind| kinds.contains(&kind);
    rule(
        (1..=DEVICE_COUNT_MAX).contains(&count),
        WHAT,
        &format!("it goes to {count} devices"),
        "1 to 64 are possible",
    )?;
    let is_mixed = kinds.iter().any(|kind| *kind != kinds[0] && !matches!(kind, DeviceKind::Logical));
    let hint = "all devices of a media set are of one kind: all files, all of one cloud, all tapes, or NUL alone";
    rule(!is_mixed, WHAT, "its devices are of several kinds", hint)?;
    rule(!has(DeviceKind::Nul) || statement.mirrors.is_empty(), WHAT, "NUL is mirrored", "NUL keeps nothing")?;
    let all: Vec<&Device> = statement.to.iter().chain(statement.mirrors.iter().flatten()).collect();
    let is_twice = |(at, device): (usize, &&Device)| **device != Device::Nul && all[..at].contains(device);
    if let Some((_, twice)) = all.iter().enumerate().find(|entry| is_twice((entry.0, entry.1))) {
        return refuse(format!("{twice} is named twice"), "each device holds one file of the media set");
    }
    since(MajorVersion::V2022, dialect, has(DeviceKind::S3), "s3:// as a device")?;
    rule(!has(DeviceKind::Tape) || dialect.is_windows, WHAT, "it goes to tape", "only servers on Windows have tapes")?;
    check_mirrors(statement, dialect)?;
    let options = &statement.options;
    let on_tape = kinds[0] == DeviceKind::Tape || kinds[0] == DeviceKind::Logical;
    rule(options.tape_end.is_none() || on_tape, WHAT, "it says what becomes of a tape", "that is for tapes only")
}

fn check_mirrors(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    if statement.mirrors.is_empty() {
        return Ok(());
    }
    let count = statement.to.len();
    let is_even = statement.mirrors.iter().all(|mirror| mirror.len() == count);
    let edition = dialect.edition;
    let fits = count <= MIRRORED_S3_COUNT_MAX || statement.to[0].kind() != DeviceKind::S3;
    rule(
        statement.mirrors.len() <= MIRROR_COUNT_MAX,
        WHAT,
        "it has more than three mirrors",
        "MIRROR TO comes up to three times",
    )?;
    rule(is_even, WHAT, "its mirrors have other numbers of devices", "each mirror has as many devices as TO")?;
    rule(fits, WHAT, "it is mirrored with more than 32 URLs", "a mirrored media set in S3 has up to 32 URLs")?;
    rule(
        edition == Edition::Enterprise,
        WHAT,
        &format!("it has mirrors, and this is {edition}"),
        "MIRROR TO needs Enterprise",
    )?;
    rule(
        statement.options.media == Some(Media::Format),
        WHAT,
        "mirrors are not written anew",
        "MIRROR TO goes with FORMAT",
    )
}

fn check_contents(statement: &BackupStatement) -> Result<()> {
    let options = &statement.options;
    let is_log = statement.is_log();
    rule(!(options.differential && is_log), WHAT, "a log is to be differential", "DIFFERENTIAL is for data")?;
    let hint = "with DIFFERENTIAL the server ignores COPY_ONLY: leave one of them out";
    rule(!(options.differential && options.copy_only), WHAT, "it is DIFFERENTIAL and COPY_ONLY", hint)?;
    rule(!options.no_truncate || is_log, WHAT, "data are to be backed up with NO_TRUNCATE", "NO_TRUNCATE is for logs")?;
    match &statement.contents {
        Contents::Parts(_, parts) => rule(!parts.is_empty(), WHAT, "it names no part", "name files or filegroups"),
        Contents::Group(names) => {
            rule(!names.is_empty(), WHAT, "the group has no database", "name the databases that are suspended")?;
            rule(
                options.metadata_only,
                WHAT,
                "a group's data are to be backed up",
                "BACKUP GROUP goes with METADATA_ONLY",
            )
        }
        Contents::Server => rule(
            options.metadata_only,
            WHAT,
            "a server's data are to be backed up",
            "BACKUP SERVER goes with METADATA_ONLY",
        ),
        Contents::Log(_, tail) => {
            let keeps = *tail == LogTail::GoesOn;
            let hint = "NORECOVERY and STANDBY take the last of a database's log, which is no copy";
            rule(keeps || !options.copy_only, WHAT, "the tail of a log is COPY_ONLY", hint)
        }
        _ => Ok(()),
    }
}

fn check_compression(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    let Some(compression) = statement.options.compression else { return Ok(()) };
    let packs = compression.packs();
    let cause = format!("it is to be compressed, and this is {}", dialect.edition);
    let can = matches!(dialect.edition, Edition::Standard | Edition::Enterprise);
    rule(!packs || can, WHAT, &cause, "Standard and Enterprise compress backups")?;
    let Compression::By(algorithm, level) = compression else { return Ok(()) };
    since(MajorVersion::V2022, dialect, algorithm == Algorithm::QatDeflate, "QAT_DEFLATE")?;
    since(MajorVersion::V2025, dialect, algorithm == Algorithm::Zstd, "ZSTD")?;
    rule(
        algorithm != Algorithm::QatDeflate || dialect.is_windows,
        WHAT,
        "it takes QAT_DEFLATE, and the server runs on Linux",
        "SQL Server offers QAT on Windows only",
    )?;
    rule(level.is_none() || algorithm == Algorithm::Zstd, WHAT, "it gives a level", "LEVEL goes with ZSTD")
}

fn check_sizes(statement: &BackupStatement) -> Result<()> {
    let options = &statement.options;
    let count_is_right = options.buffer_count.is_none_or(|count| (1..=i32::MAX as u32).contains(&count));
    rule(count_is_right, WHAT, "BUFFERCOUNT is out of range", "it is 1 or more")?;
    rule(
        options.stats.is_none_or(|stats| (1..=100).contains(&stats)),
        WHAT,
        "STATS is out of range",
        "it is 1 to 100",
    )?;
    check_block_size(WHAT, options.block_size)?;
    let Some(size) = options.max_transfer_size else { return Ok(()) };
    if statement.to[0].kind() == DeviceKind::S3 {
        let fits = S3_TRANSFER_SIZES.contains(&size) && size.is_multiple_of(TRANSFER_UNIT);
        rule(fits, WHAT, "MAXTRANSFERSIZE is out of range", "for S3 it is 5 MiB to 20 MiB, a multiple of 64 KiB")?;
        let packs = options.compression.is_some_and(Compression::packs);
        return rule(packs, WHAT, "MAXTRANSFERSIZE is set without compression", "for S3 it goes with COMPRESSION only");
    }
    check_transfer_size(WHAT, size)
}

/// Of what lies on disks and tapes.
pub(super) fn check_transfer_size(what: &str, size: u32) -> Result<()> {
    let fits = (TRANSFER_UNIT..=TRANSFER_SIZE_MAX).contains(&size) && size.is_multiple_of(TRANSFER_UNIT);
    rule(fits, what, "MAXTRANSFERSIZE is out of range", "it is 64 KiB to 4 MiB, a multiple of 64 KiB")
}

pub(super) fn check_block_size(what: &str, size: Option<u32>) -> Result<()> {
    let fits = size.is_none_or(|size| BLOCK_SIZES.contains(&size) && size.is_power_of_two());
    rule(fits, what, "BLOCKSIZE is out of range", "it is a power of two from 512 to 65536")
}

fn check_media(statement: &BackupStatement) -> Result<()> {
    let options = &statement.options;
    let formats = options.media == Some(Media::Format);
    let contradicts = formats && options.skip == Some(false);
    rule(!contradicts, WHAT, "it is FORMAT and NOSKIP", "FORMAT overwrites whatever there is, so it implies SKIP")?;
    let on_url = statement.to[0].is_url();
    let appends = matches!(options.media, Some(Media::Append | Media::Overwrite));
    rule(!on_url || !appends, WHAT, "it is added to an object", "an object holds one set: use FORMAT, or a new name")?;
    let hint = "expiry, SKIP and NOSKIP are for disks and tapes";
    rule(!on_url || (options.expiry.is_none() && options.skip.is_none()), WHAT, "an object is to expire", hint)?;
    let continues = options.on_page_error.is_some();
    rule(
        !(options.checksum == Some(false) && continues),
        WHAT,
        "it says what a wrong page does, and checks none",
        "STOP_ON_ERROR and CONTINUE_AFTER_ERROR go with CHECKSUM",
    )
}

fn check_encryption(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    let is_used = statement.options.encryption.is_some();
    since(MajorVersion::V2014, dialect, is_used, "ENCRYPTION")?;
    let can = matches!(dialect.edition, Edition::Standard | Edition::Enterprise);
    let cause = format!("it is to be encrypted, and this is {}", dialect.edition);
    rule(!is_used || can, WHAT, &cause, "Standard and Enterprise encrypt backups")?;
    let is_new = statement.options.media == Some(Media::Format) || statement.to[0].is_url();
    rule(
        !is_used || is_new,
        WHAT,
        "it is added to other sets",
        "an encrypted set needs a media set of its own: use FORMAT",
    )
}

fn check_azure(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    let BackupOptions { credential, file_snapshot, max_transfer_size, block_size, differential, .. } =
        &statement.options;
    let on_azure = statement.to[0].kind() == DeviceKind::Azure;
    let is_page_blob = credential.is_some();
    rule(!is_page_blob || on_azure, WHAT, "it names a credential", "WITH CREDENTIAL is for Azure page blobs")?;
    rule(
        !is_page_blob || statement.to.len() == 1,
        WHAT,
        "a page blob is striped",
        "a page blob is one file; a shared access signature allows 64",
    )?;
    let hint = "page blobs take neither MAXTRANSFERSIZE nor BLOCKSIZE";
    rule(
        !is_page_blob || (max_transfer_size.is_none() && block_size.is_none()),
        WHAT,
        "a page blob is given sizes",
        hint,
    )?;
    rule(!is_page_blob || statement.mirrors.is_empty(), WHAT, "a page blob is mirrored", "page blobs have no mirrors")?;
    since(MajorVersion::V2016, dialect, *file_snapshot, "FILE_SNAPSHOT")?;
    let fits = on_azure && !is_page_blob && statement.to.len() == 1 && !differential;
    rule(
        !file_snapshot || fits,
        WHAT,
        "FILE_SNAPSHOT does not fit",
        "it goes to one URL in Azure by a shared access signature, and is never DIFFERENTIAL",
    )
}

fn check_metadata_only(statement: &BackupStatement, dialect: &Dialect) -> Result<()> {
    let options = &statement.options;
    if !options.metadata_only {
        return Ok(());
    }
    since(MajorVersion::V2022, dialect, true, "METADATA_ONLY")?;
    let is_whole = matches!(statement.contents, Contents::Database(_) | Contents::Group(_) | Contents::Server);
    rule(
        is_whole && !options.differential,
        WHAT,
        "a part is to be METADATA_ONLY",
        "it is of whole databases that are suspended",
    )?;
    rule(
        statement.to.len() == 1 && statement.mirrors.is_empty(),
        WHAT,
        "metadata are striped",
        "METADATA_ONLY goes to one file",
    )?;
    rule(statement.to[0] != Device::Nul, WHAT, "metadata go nowhere", "without its metadata a snapshot is no backup")?;
    let has_data_options = options.compression.is_some_and(Compression::packs)
        || options.buffer_count.is_some()
        || options.max_transfer_size.is_some()
        || options.encryption.is_some()
        || options.file_snapshot;
    let hint = "leave out COMPRESSION, ENCRYPTION, BUFFERCOUNT, MAXTRANSFERSIZE and FILE_SNAPSHOT: no data are written";
    rule(!has_data_options, WHAT, "options of data go with METADATA_ONLY", hint)
}
