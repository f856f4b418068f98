//! A RESTORE as text.

use super::backup::OnPageError;
use super::backup_text::{devices, parts};
use super::restore::{Recovery, RestoreKind, RestoreOptions, RestoreStatement, Stop, StopAt};
use super::restore_rules;
use crate::error::Result;
use crate::source::mssql::edition::Dialect;
use crate::source::mssql::quote::{identifier, literal};

const NAME_UNITS_MAX: usize = 128;
const PATH_UNITS_MAX: usize = 259;

impl RestoreStatement {
    /// The statement's text for a server of `dialect`, on several lines, ended by a semicolon.
    ///
    /// # Errors
    /// `Usage` for what such a server does not take; the hint is the rule.
    pub fn sql(&self, dialect: &Dialect) -> Result<String> {
        restore_rules::check(self, dialect)?;
        let mut text = format!("RESTORE {}\nFROM {}", kind(&self.kind)?, devices(&self.from)?);
        let options = options(&self.options)?;
        if !options.is_empty() {
            text.push_str(&format!("\nWITH {}", options.join(", ")));
        }
        text.push(';');
        Ok(text)
    }
}

fn kind(kind: &RestoreKind) -> Result<String> {
    Ok(match kind {
        RestoreKind::Database(name) => format!("DATABASE {}", identifier(name)?),
        RestoreKind::Parts(name, list) => format!("DATABASE {} {}", identifier(name)?, parts(list)?),
        RestoreKind::Pages(name, pages) => {
            let pages: Vec<String> = pages.iter().map(|(file, page)| format!("{file}:{page}")).collect();
            format!("DATABASE {} PAGE = N'{}'", identifier(name)?, pages.join(", "))
        }
        RestoreKind::Log(name) => format!("LOG {}", identifier(name)?),
        RestoreKind::HeaderOnly => "HEADERONLY".to_owned(),
        RestoreKind::FileListOnly => "FILELISTONLY".to_owned(),
        RestoreKind::LabelOnly => "LABELONLY".to_owned(),
        RestoreKind::VerifyOnly => "VERIFYONLY".to_owned(),
        RestoreKind::BackupSetOnly => "BACKUPSETONLY".to_owned(),
        RestoreKind::RewindOnly => "REWINDONLY".to_owned(),
    })
}

fn options(options: &RestoreOptions) -> Result<Vec<String>> {
    let mut list = Vec::new();
    if options.metadata_only {
        list.push("METADATA_ONLY".to_owned());
    }
    list.extend(options.file.map(|number| format!("FILE = {number}")));
    for (name, path) in &options.moves {
        let (name, path) = (literal("file", name, NAME_UNITS_MAX)?, literal("path", path, PATH_UNITS_MAX)?);
        list.push(format!("MOVE {name} TO {path}"));
    }
    if let Some(name) = &options.database_in_snapshot {
        list.push(format!("DBNAME = {}", literal("database", name, NAME_UNITS_MAX)?));
    }
    match &options.recovery {
        None => {}
        Some(Recovery::Recovery) => list.push("RECOVERY".to_owned()),
        Some(Recovery::NoRecovery) => list.push("NORECOVERY".to_owned()),
        Some(Recovery::Standby(file)) => list.push(format!("STANDBY = {}", literal("path", file, PATH_UNITS_MAX)?)),
    }
    list.extend(options.stop_at.as_ref().map(stop_at).transpose()?);
    list.extend(words(options).into_iter().map(str::to_owned));
    let texts = [("CREDENTIAL", &options.credential), ("MEDIANAME", &options.media_name)];
    for (word, text) in texts {
        if let Some(text) = text {
            list.push(format!("{word} = {}", literal(&word.to_ascii_lowercase(), text, NAME_UNITS_MAX)?));
        }
    }
    let numbers = [
        ("BLOCKSIZE", options.block_size),
        ("BUFFERCOUNT", options.buffer_count),
        ("MAXTRANSFERSIZE", options.max_transfer_size),
        ("STATS", options.stats),
    ];
    list.extend(numbers.iter().filter_map(|(word, number)| Some(format!("{word} = {}", (*number)?))));
    Ok(list)
}

fn stop_at(stop: &StopAt) -> Result<String> {
    let word = match stop.stop {
        Stop::Time => "STOPAT",
        Stop::AtMark => "STOPATMARK",
        Stop::BeforeMark => "STOPBEFOREMARK",
    };
    let after = match &stop.after {
        Some(time) => format!(" AFTER {}", literal("time", time, 40)?),
        None => String::new(),
    };
    Ok(format!("{word} = {}{after}", literal("place to stop at", &stop.place, NAME_UNITS_MAX)?))
}

fn words(options: &RestoreOptions) -> Vec<&'static str> {
    let checks = match options.checksum {
        None => "",
        Some(true) => "CHECKSUM",
        Some(false) => "NO_CHECKSUM",
    };
    let on_page_error = match options.on_page_error {
        None => "",
        Some(OnPageError::Stop) => "STOP_ON_ERROR",
        Some(OnPageError::Continue) => "CONTINUE_AFTER_ERROR",
    };
    let flags = [
        (options.partial, "PARTIAL"),
        (options.replace, "REPLACE"),
        (options.restricted_user, "RESTRICTED_USER"),
        (options.keep_replication, "KEEP_REPLICATION"),
        (options.keep_cdc, "KEEP_CDC"),
        (options.load_history, "LOADHISTORY"),
        (!checks.is_empty(), checks),
        (!on_page_error.is_empty(), on_page_error),
    ];
    flags.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect()
}
