//! `pagehaul mssql backup` as typed, and the statement it means.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::device::Device;
use pagehaul_engine::source::mssql::statement::{
    AsymmetricEncryption, BackupOptions, BackupStatement, Compression, Contents, Encryptor, Expiry, LogTail, Media,
    OnPageError, Part, TapeEnd,
};

use super::mssql::ServerArgs;
use super::parse_size_u32;

/// Flags of `mssql backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MssqlBackupArgs {
    /// The server.
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Database
    #[arg(long, value_name = "NAME", help_heading = "What")]
    pub(crate) database: String,

    /// What of it
    #[arg(long = "type", value_name = "KIND", value_enum, default_value = "full", help_heading = "What")]
    pub(crate) kind: BackupType,

    /// Only this file of it, by its logical name; give it several times
    #[arg(long = "only-file", value_name = "NAME", help_heading = "What")]
    pub(crate) only_file: Vec<String>,

    /// Only this filegroup; give it several times
    #[arg(long = "only-filegroup", value_name = "NAME", help_heading = "What")]
    pub(crate) only_filegroup: Vec<String>,

    /// The filegroups that can be written to, and those of --only-filegroup
    #[arg(long, conflicts_with = "only_file", help_heading = "What")]
    pub(crate) read_write_filegroups: bool,

    /// Part of the server's own chain: the base of later differentials, a link of its log chain
    #[arg(long, help_heading = "What")]
    pub(crate) in_chain: bool,

    /// With --type log, the database afterwards: norecovery, or standby:FILE
    #[arg(long, value_name = "STATE", help_heading = "What")]
    pub(crate) leave: Option<String>,

    /// With --type log, of a database that is damaged
    #[arg(long, help_heading = "What")]
    pub(crate) no_truncate: bool,

    /// Device: a path of the server, https://... (Azure), s3://..., NUL, tape:DRIVE, device:NAME; up to 64 times
    #[arg(long, value_name = "DEVICE", required = true, help_heading = "Whereto")]
    pub(crate) to: Vec<String>,

    /// A mirror: as many devices as --to has, with commas between; up to three times
    #[arg(long, value_name = "DEVICE,...", help_heading = "Whereto")]
    pub(crate) mirror_to: Vec<String>,

    /// What becomes of what is there [default: it is written anew; a log is appended]
    #[arg(long, value_name = "WHICH", value_enum, help_heading = "Whereto")]
    pub(crate) media: Option<MediaChoice>,

    /// Overwrite it though it has not expired
    #[arg(long, help_heading = "Whereto")]
    pub(crate) skip: bool,

    /// Must not be overwritten before, such as 2026-12-24
    #[arg(long, value_name = "TIME", conflicts_with = "retain_days", help_heading = "Whereto")]
    pub(crate) expire_date: Option<String>,

    /// Must not be overwritten for so many days
    #[arg(long, value_name = "N", help_heading = "Whereto")]
    pub(crate) retain_days: Option<u32>,

    /// Credential of an Azure page blob
    #[arg(long, value_name = "NAME", help_heading = "Whereto")]
    pub(crate) credential: Option<String>,

    /// A snapshot of data files that lie in Azure
    #[arg(long, help_heading = "Whereto")]
    pub(crate) file_snapshot: bool,

    /// The tape afterwards
    #[arg(long, value_name = "WHICH", value_enum, help_heading = "Whereto")]
    pub(crate) tape: Option<TapeChoice>,

    /// none, server (as configured there), ms_xpress, qat_deflate, zstd, zstd:low, zstd:medium, zstd:high
    #[arg(long, value_name = "SPEC", default_value = "server", help_heading = "How")]
    pub(crate) compression: String,

    /// BUFFERCOUNT
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) buffer_count: Option<u32>,

    /// MAXTRANSFERSIZE, such as 4MiB
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) max_transfer_size: Option<String>,

    /// BLOCKSIZE, such as 64KiB
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) block_size: Option<String>,

    /// Buffers that would take more than this are refused [default: a sixteenth of the server's memory]
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) max_buffer_memory: Option<String>,

    /// Do not check pages, and write no checksum
    #[arg(long, help_heading = "How")]
    pub(crate) no_checksum: bool,

    /// Go on at a damaged page; the set is then called damaged
    #[arg(long, help_heading = "How")]
    pub(crate) continue_after_error: bool,

    /// Encrypt for this certificate of the server's
    #[arg(long, value_name = "NAME", conflicts_with = "encrypt_for_key", help_heading = "How")]
    pub(crate) encrypt_for_certificate: Option<String>,

    /// Encrypt for this asymmetric key
    #[arg(long, value_name = "NAME", help_heading = "How")]
    pub(crate) encrypt_for_key: Option<String>,

    /// AES_128, AES_192, AES_256, TRIPLE_DES_3KEY
    #[arg(long, value_name = "NAME", default_value = "AES_256", help_heading = "How")]
    pub(crate) cipher: String,

    /// Program that has the storage take a snapshot; the database stands still meanwhile, and only metadata are stored
    #[arg(long, value_name = "PROGRAM", help_heading = "How")]
    pub(crate) snapshot_command: Option<PathBuf>,

    /// The longest time that it may stand still
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "How")]
    pub(crate) freeze_limit: String,

    /// A statement that takes longer is ended
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) statement_limit: Option<String>,

    /// Name of the set
    #[arg(long = "set-name", value_name = "TEXT", help_heading = "Words")]
    pub(crate) set_name: Option<String>,

    /// Description of the set [default: one that nobody else has]
    #[arg(long, value_name = "TEXT", help_heading = "Words")]
    pub(crate) description: Option<String>,

    /// Name of the media set
    #[arg(long, value_name = "TEXT", help_heading = "Words")]
    pub(crate) media_name: Option<String>,

    /// Description of the media set
    #[arg(long, value_name = "TEXT", help_heading = "Words")]
    pub(crate) media_description: Option<String>,

    /// Print the T-SQL and the memory it takes, and do nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    /// Print the outcome as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// What `--type` takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackupType {
    /// All of it
    Full,
    /// What has changed since the last full one
    Differential,
    /// Its log
    Log,
}

/// What `--media` takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaChoice {
    /// The set is appended
    Append,
    /// Sets are overwritten, the media stay
    Overwrite,
    /// Everything is written anew
    Format,
}

/// What `--tape` takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TapeChoice {
    /// Rewound and given back
    Rewind,
    /// Kept for the next backup
    NoRewind,
    /// Ejected
    Unload,
    /// Left in the drive
    NoUnload,
}

/// Devices as typed.
///
/// # Errors
/// `Usage`.
pub(super) fn devices<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<Device>> {
    texts.into_iter().map(str::parse).collect()
}

impl MssqlBackupArgs {
    /// The statement, with `description` as the set's.
    ///
    /// # Errors
    /// `Usage`; what the server's version does not take is said when the text is made.
    pub(crate) fn statement(&self, description: &str) -> Result<BackupStatement> {
        let mirror = |text: &String| devices(text.split(',').map(str::trim));
        Ok(BackupStatement {
            contents: self.contents()?,
            to: devices(self.to.iter().map(String::as_str))?,
            mirrors: self.mirror_to.iter().map(mirror).collect::<Result<_>>()?,
            options: self.options(description)?,
        })
    }

    fn contents(&self) -> Result<Contents> {
        let database = self.database.clone();
        let refused = |cause: &str| Err(Error::new(ErrorKind::Usage, "back up a database", cause));
        let has_parts = !self.only_file.is_empty() || !self.only_filegroup.is_empty() || self.read_write_filegroups;
        if self.kind == BackupType::Log {
            if has_parts {
                return refused("a log has neither files nor filegroups");
            }
            return Ok(Contents::Log(database, self.tail()?));
        }
        if self.leave.is_some() {
            return refused("--leave goes with --type log");
        }
        if self.read_write_filegroups {
            return Ok(Contents::ReadWrite(database, self.only_filegroup.clone()));
        }
        let files = self.only_file.iter().cloned().map(Part::File);
        let parts: Vec<Part> = files.chain(self.only_filegroup.iter().cloned().map(Part::Filegroup)).collect();
        Ok(if parts.is_empty() { Contents::Database(database) } else { Contents::Parts(database, parts) })
    }

    fn tail(&self) -> Result<LogTail> {
        match self.leave.as_deref() {
            None => Ok(LogTail::GoesOn),
            Some("norecovery") => Ok(LogTail::NoRecovery),
            Some(other) => match other.strip_prefix("standby:") {
                Some(file) => Ok(LogTail::Standby(file.to_owned())),
                None => {
                    let cause = "there is no such state";
                    Err(Error::new(ErrorKind::Usage, format!("use {other:?} for --leave"), cause)
                        .hint("it is norecovery, or standby:FILE"))
                }
            },
        }
    }

    /// Whether the server's own chain is left alone.
    fn is_copy_only(&self) -> bool {
        !self.in_chain && self.kind != BackupType::Differential && self.leave.is_none()
    }

    fn media(&self) -> Result<Option<Media>> {
        let on_url = self.to.iter().any(|device| device.contains("://"));
        Ok(match self.media {
            Some(MediaChoice::Append) => Some(Media::Append),
            Some(MediaChoice::Overwrite) => Some(Media::Overwrite),
            Some(MediaChoice::Format) => Some(Media::Format),
            // An object is new, a log is added to others, and a striped set is never mixed with what is there.
            None if on_url || self.kind == BackupType::Log => None,
            None => Some(Media::Format),
        })
    }

    fn options(&self, description: &str) -> Result<BackupOptions> {
        let size =
            |flag: &str, text: &Option<String>| text.as_deref().map(|text| parse_size_u32(flag, text)).transpose();
        let is_snapshot = self.snapshot_command.is_some();
        let compression: Compression = self.compression.parse()?;
        let certificate = self.encrypt_for_certificate.clone().map(Encryptor::Certificate);
        let encryptor = certificate.or(self.encrypt_for_key.clone().map(Encryptor::AsymmetricKey));
        let cipher = self.cipher.parse()?;
        Ok(BackupOptions {
            differential: self.kind == BackupType::Differential,
            copy_only: self.is_copy_only(),
            compression: Some(compression).filter(|_| !is_snapshot || compression != Compression::Configured),
            buffer_count: self.buffer_count,
            max_transfer_size: size("--max-transfer-size", &self.max_transfer_size)?,
            block_size: size("--block-size", &self.block_size)?,
            checksum: (!is_snapshot).then_some(!self.no_checksum),
            on_page_error: self.continue_after_error.then_some(OnPageError::Continue),
            media: self.media()?,
            skip: self.skip.then_some(true),
            name: self.set_name.clone(),
            description: Some(description.to_owned()),
            media_name: self.media_name.clone(),
            media_description: self.media_description.clone(),
            expiry: self.expire_date.clone().map(Expiry::At).or(self.retain_days.map(Expiry::Days)),
            encryption: encryptor.map(|encryptor| AsymmetricEncryption { cipher, encryptor }),
            credential: self.credential.clone(),
            file_snapshot: self.file_snapshot,
            metadata_only: is_snapshot,
            no_truncate: self.no_truncate,
            stats: (!is_snapshot).then_some(10),
            tape_end: self.tape.map(|tape| match tape {
                TapeChoice::Rewind => TapeEnd::Rewind,
                TapeChoice::NoRewind => TapeEnd::NoRewind,
                TapeChoice::Unload => TapeEnd::Unload,
                TapeChoice::NoUnload => TapeEnd::NoUnload,
            }),
        })
    }
}
