//! `pagehaul mssql restore` as typed, and the statement it means.

use clap::{Args, ValueEnum};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::statement::{
    OnPageError, Part, Recovery, RestoreKind, RestoreOptions, RestoreStatement, Stop, StopAt,
};

use super::mssql::ServerArgs;
use super::mssql_backup::devices;
use super::parse_size_u32;

/// Flags of `mssql restore`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MssqlRestoreArgs {
    /// The server.
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Name of the restored database
    #[arg(long, value_name = "NAME", required_unless_present = "look", help_heading = "What")]
    pub(crate) database: Option<String>,

    /// Restore nothing, and look: header, files, label, verify; or split a snapshot of several databases, or rewind a tape
    #[arg(long, value_name = "WHICH", value_enum, help_heading = "What")]
    pub(crate) look: Option<Look>,

    /// What is restored
    #[arg(long = "type", value_name = "KIND", value_enum, default_value = "database", help_heading = "What")]
    pub(crate) kind: RestoreType,

    /// Device of the backup; give all of a media set, in any order
    #[arg(long, value_name = "DEVICE", required = true, help_heading = "What")]
    pub(crate) from: Vec<String>,

    /// Which set on the media, from 1
    #[arg(long = "set-number", value_name = "N", help_heading = "What")]
    pub(crate) set_number: Option<u32>,

    /// Only this file, by its logical name; give it several times
    #[arg(long = "only-file", value_name = "NAME", help_heading = "What")]
    pub(crate) only_file: Vec<String>,

    /// Only this filegroup; give it several times
    #[arg(long = "only-filegroup", value_name = "NAME", help_heading = "What")]
    pub(crate) only_filegroup: Vec<String>,

    /// Only these pages, such as 1:57,1:202
    #[arg(long, value_name = "FILE:PAGE,...", help_heading = "What")]
    pub(crate) pages: Option<String>,

    /// Begin a piecemeal restore
    #[arg(long, help_heading = "What")]
    pub(crate) partial: bool,

    /// The metadata of a snapshot, whose files are in their places already
    #[arg(long, help_heading = "What")]
    pub(crate) metadata_only: bool,

    /// Of a snapshot of several databases, this one (DBNAME)
    #[arg(long, value_name = "NAME", requires = "metadata_only", help_heading = "What")]
    pub(crate) database_in_snapshot: Option<String>,

    /// Move a file: LOGICAL=PATH; give it several times
    #[arg(long = "move", value_name = "NAME=PATH", help_heading = "Whereto")]
    pub(crate) moves: Vec<String>,

    /// Directory of the server for all files, which get the new database's name
    #[arg(long, value_name = "DIR", help_heading = "Whereto")]
    pub(crate) data_to: Option<String>,

    /// The same for the log [default: --data-to]
    #[arg(long, value_name = "DIR", requires = "data_to", help_heading = "Whereto")]
    pub(crate) log_to: Option<String>,

    /// Overwrite a database or files that are there
    #[arg(long, help_heading = "Whereto")]
    pub(crate) replace: bool,

    /// The database afterwards: recovery, norecovery, standby:FILE [default: recovery]
    #[arg(long, value_name = "STATE", help_heading = "How")]
    pub(crate) recovery: Option<String>,

    /// Stop at this time
    #[arg(long, value_name = "TIME", conflicts_with_all = ["stop_at_mark", "stop_before_mark"], help_heading = "How")]
    pub(crate) stop_at: Option<String>,

    /// Stop with this mark, or lsn:N
    #[arg(long, value_name = "MARK", conflicts_with = "stop_before_mark", help_heading = "How")]
    pub(crate) stop_at_mark: Option<String>,

    /// Stop before this mark, or lsn:N
    #[arg(long, value_name = "MARK", help_heading = "How")]
    pub(crate) stop_before_mark: Option<String>,

    /// The first mark of the name behind this time
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) mark_after: Option<String>,

    /// Only administrators get in afterwards
    #[arg(long, help_heading = "How")]
    pub(crate) restricted_user: bool,

    /// Settings of replication stay
    #[arg(long, help_heading = "How")]
    pub(crate) keep_replication: bool,

    /// Change data capture stays
    #[arg(long, help_heading = "How")]
    pub(crate) keep_cdc: bool,

    /// Check the backup's checksums, which it must have; --look verify does unless --no-checksum is given
    #[arg(long, conflicts_with = "no_checksum", help_heading = "How")]
    pub(crate) checksum: bool,

    /// Check none
    #[arg(long, help_heading = "How")]
    pub(crate) no_checksum: bool,

    /// Go on at damage
    #[arg(long, help_heading = "How")]
    pub(crate) continue_after_error: bool,

    /// BUFFERCOUNT
    #[arg(long, value_name = "N", help_heading = "How")]
    pub(crate) buffer_count: Option<u32>,

    /// MAXTRANSFERSIZE, such as 4MiB
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) max_transfer_size: Option<String>,

    /// BLOCKSIZE, such as 64KiB
    #[arg(long, value_name = "SIZE", help_heading = "How")]
    pub(crate) block_size: Option<String>,

    /// Credential of an Azure page blob
    #[arg(long, value_name = "NAME", help_heading = "How")]
    pub(crate) credential: Option<String>,

    /// The media set must have this name
    #[arg(long, value_name = "TEXT", help_heading = "How")]
    pub(crate) media_name: Option<String>,

    /// With --look verify, note the set in msdb
    #[arg(long, help_heading = "How")]
    pub(crate) load_history: bool,

    /// A statement that takes longer is ended
    #[arg(long, value_name = "TIME", help_heading = "How")]
    pub(crate) statement_limit: Option<String>,

    /// Print the T-SQL and do nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    /// Print the outcome as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// What `--type` takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestoreType {
    /// Data, of a full or differential backup
    Database,
    /// A log
    Log,
}

/// What `--look` takes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The sets on the media
    Header,
    /// The database's files
    Files,
    /// The media
    Label,
    /// Whether it is whole
    Verify,
    /// A snapshot of several databases as one set each, in files beside it (2022 and later)
    Split,
    /// Rewind a tape and give it back
    Rewind,
}

fn usage(what: String, cause: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Usage, what, cause).hint(hint)
}

impl MssqlRestoreArgs {
    /// The statement; `--data-to` is not in it yet, because the names of the files are the server's to tell.
    ///
    /// # Errors
    /// `Usage`.
    pub(crate) fn statement(&self) -> Result<RestoreStatement> {
        Ok(RestoreStatement {
            kind: self.kind()?,
            from: devices(self.from.iter().map(String::as_str))?,
            options: self.options()?,
        })
    }

    fn kind(&self) -> Result<RestoreKind> {
        match self.look {
            Some(Look::Header) => return Ok(RestoreKind::HeaderOnly),
            Some(Look::Files) => return Ok(RestoreKind::FileListOnly),
            Some(Look::Label) => return Ok(RestoreKind::LabelOnly),
            Some(Look::Verify) => return Ok(RestoreKind::VerifyOnly),
            Some(Look::Split) => return Ok(RestoreKind::BackupSetOnly),
            Some(Look::Rewind) => return Ok(RestoreKind::RewindOnly),
            None => {}
        }
        let database = self.database.clone().unwrap_or_default();
        if self.kind == RestoreType::Log {
            return Ok(RestoreKind::Log(database));
        }
        if let Some(text) = &self.pages {
            let page = |text: &str| {
                let (file, page) = text.trim().split_once(':')?;
                Some((file.parse().ok()?, page.parse().ok()?))
            };
            let pages: Option<Vec<(u16, u32)>> = text.split(',').map(page).collect();
            let bad = || usage(format!("use {text:?} for --pages"), "those are no pages", "an example is 1:57,1:202");
            return Ok(RestoreKind::Pages(database, pages.ok_or_else(bad)?));
        }
        let files = self.only_file.iter().cloned().map(Part::File);
        let parts: Vec<Part> = files.chain(self.only_filegroup.iter().cloned().map(Part::Filegroup)).collect();
        Ok(if parts.is_empty() { RestoreKind::Database(database) } else { RestoreKind::Parts(database, parts) })
    }

    fn recovery(&self) -> Result<Option<Recovery>> {
        match self.recovery.as_deref() {
            None => Ok(None),
            Some("recovery") => Ok(Some(Recovery::Recovery)),
            Some("norecovery") => Ok(Some(Recovery::NoRecovery)),
            Some(other) => match other.strip_prefix("standby:") {
                Some(file) => Ok(Some(Recovery::Standby(file.to_owned()))),
                None => {
                    let what = format!("use {other:?} for --recovery");
                    Err(usage(what, "there is no such state", "it is recovery, norecovery, or standby:FILE"))
                }
            },
        }
    }

    fn stop_at(&self) -> Option<StopAt> {
        let named = [
            (Stop::Time, &self.stop_at),
            (Stop::AtMark, &self.stop_at_mark),
            (Stop::BeforeMark, &self.stop_before_mark),
        ];
        let (stop, place) = named.into_iter().find_map(|(stop, place)| Some((stop, place.clone()?)))?;
        Some(StopAt { stop, place, after: self.mark_after.clone() })
    }

    fn options(&self) -> Result<RestoreOptions> {
        let size =
            |flag: &str, text: &Option<String>| text.as_deref().map(|text| parse_size_u32(flag, text)).transpose();
        let moved = |text: &String| {
            let bad = || {
                usage(
                    format!("use {text:?} for --move"),
                    "it is no NAME=PATH",
                    "an example is --move shop_data=/d/shop.mdf",
                )
            };
            text.split_once('=').map(|(name, path)| (name.to_owned(), path.to_owned())).ok_or_else(bad)
        };
        let is_verify = self.look == Some(Look::Verify);
        let shows_progress = is_verify || self.look.is_none() && !self.metadata_only;
        Ok(RestoreOptions {
            file: self.set_number,
            moves: self.moves.iter().map(moved).collect::<Result<_>>()?,
            replace: self.replace,
            recovery: self.recovery()?,
            partial: self.partial,
            stop_at: self.stop_at(),
            restricted_user: self.restricted_user,
            keep_replication: self.keep_replication,
            keep_cdc: self.keep_cdc,
            buffer_count: self.buffer_count,
            max_transfer_size: size("--max-transfer-size", &self.max_transfer_size)?,
            block_size: size("--block-size", &self.block_size)?,
            // Without it VERIFYONLY looks at headers, and calls junk between them a backup.
            checksum: if self.no_checksum { Some(false) } else { (self.checksum || is_verify).then_some(true) },
            on_page_error: self.continue_after_error.then_some(OnPageError::Continue),
            credential: self.credential.clone(),
            media_name: self.media_name.clone(),
            metadata_only: self.metadata_only,
            database_in_snapshot: self.database_in_snapshot.clone(),
            load_history: self.load_history,
            stats: shows_progress.then_some(10),
        })
    }
}
