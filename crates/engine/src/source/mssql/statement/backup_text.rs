//! A BACKUP as text.

use super::backup::{
    AsymmetricEncryption, BackupOptions, BackupStatement, Compression, Contents, Encryptor, Expiry, LogTail, Media,
    OnPageError, Part, TapeEnd,
};
use super::backup_rules;
use crate::error::Result;
use crate::source::mssql::device::Device;
use crate::source::mssql::edition::{Dialect, MajorVersion};
use crate::source::mssql::quote::{identifier, literal};

const NAME_UNITS_MAX: usize = 128;
const DESCRIPTION_UNITS_MAX: usize = 255;
const PATH_UNITS_MAX: usize = 259;

impl BackupStatement {
    /// The statement's text for a server of `dialect`, on several lines, ended by a semicolon.
    ///
    /// # Errors
    /// `Usage` for what such a server does not take; the hint is the rule.
    pub fn sql(&self, dialect: &Dialect) -> Result<String> {
        backup_rules::check(self, dialect)?;
        let mut text = format!("BACKUP {}\nTO {}", contents(&self.contents)?, devices(&self.to)?);
        for mirror in &self.mirrors {
            text.push_str(&format!("\nMIRROR TO {}", devices(mirror)?));
        }
        let options = options(self, dialect)?;
        if !options.is_empty() {
            text.push_str(&format!("\nWITH {}", options.join(", ")));
        }
        text.push(';');
        Ok(text)
    }
}

pub(super) fn devices(devices: &[Device]) -> Result<String> {
    Ok(devices.iter().map(Device::sql).collect::<Result<Vec<_>>>()?.join(",\n   "))
}

fn names(names: &[String]) -> Result<String> {
    Ok(names.iter().map(|name| identifier(name)).collect::<Result<Vec<_>>>()?.join(", "))
}

pub(super) fn parts(parts: &[Part]) -> Result<String> {
    let one = |part: &Part| {
        Ok(match part {
            Part::File(name) => format!("FILE = {}", literal("file", name, NAME_UNITS_MAX)?),
            Part::Filegroup(name) => format!("FILEGROUP = {}", literal("filegroup", name, NAME_UNITS_MAX)?),
        })
    };
    Ok(parts.iter().map(one).collect::<Result<Vec<_>>>()?.join(", "))
}

fn contents(contents: &Contents) -> Result<String> {
    Ok(match contents {
        Contents::Database(name) => format!("DATABASE {}", identifier(name)?),
        Contents::Parts(name, list) => format!("DATABASE {} {}", identifier(name)?, parts(list)?),
        Contents::ReadWrite(name, groups) => {
            let groups: Vec<Part> = groups.iter().cloned().map(Part::Filegroup).collect();
            let more = if groups.is_empty() { String::new() } else { format!(", {}", parts(&groups)?) };
            format!("DATABASE {} READ_WRITE_FILEGROUPS{more}", identifier(name)?)
        }
        Contents::Log(name, _) => format!("LOG {}", identifier(name)?),
        Contents::Group(list) => format!("GROUP {}", names(list)?),
        Contents::Server => "SERVER".to_owned(),
    })
}

fn options(statement: &BackupStatement, dialect: &Dialect) -> Result<Vec<String>> {
    let options = &statement.options;
    let mut list = Vec::new();
    let mut flag = |is_set: bool, word: &str| {
        if is_set {
            list.push(word.to_owned());
        }
    };
    flag(options.metadata_only, "METADATA_ONLY");
    flag(options.differential, "DIFFERENTIAL");
    flag(options.copy_only, "COPY_ONLY");
    flag(options.no_truncate, "NO_TRUNCATE");
    flag(options.file_snapshot, "FILE_SNAPSHOT");
    match &statement.contents {
        Contents::Log(_, LogTail::NoRecovery) => list.push("NORECOVERY".to_owned()),
        Contents::Log(_, LogTail::Standby(file)) => {
            list.push(format!("STANDBY = {}", literal("path", file, PATH_UNITS_MAX)?));
        }
        _ => {}
    }
    list.extend(options.compression.and_then(|compression| compression_text(compression, dialect)));
    if let Some(encryption) = &options.encryption {
        list.push(encryption_text(encryption)?);
    }
    list.extend(media(options));
    texts(options, &mut list)?;
    numbers(options, &mut list);
    Ok(list)
}

/// Before 2022 there is one algorithm, which has no name.
fn compression_text(compression: Compression, dialect: &Dialect) -> Option<String> {
    match compression {
        Compression::No => Some("NO_COMPRESSION".to_owned()),
        Compression::Configured => None,
        Compression::By(..) if dialect.version < MajorVersion::V2022 => Some("COMPRESSION".to_owned()),
        Compression::By(algorithm, level) => {
            let level = level.map_or_else(String::new, |level| format!(", LEVEL = {}", level.word()));
            Some(format!("COMPRESSION (ALGORITHM = {}{level})", algorithm.word()))
        }
    }
}

fn encryption_text(encryption: &AsymmetricEncryption) -> Result<String> {
    let encryptor = match &encryption.encryptor {
        Encryptor::Certificate(name) => format!("SERVER CERTIFICATE = {}", identifier(name)?),
        Encryptor::AsymmetricKey(name) => format!("SERVER ASYMMETRIC KEY = {}", identifier(name)?),
    };
    Ok(format!("ENCRYPTION (ALGORITHM = {}, {encryptor})", encryption.cipher.word()))
}

fn media(options: &BackupOptions) -> Vec<String> {
    let mut words: Vec<&str> = match options.media {
        None => vec![],
        Some(Media::Append) => vec!["NOINIT"],
        Some(Media::Overwrite) => vec!["INIT"],
        Some(Media::Format) => vec!["FORMAT", "INIT"],
    };
    words.extend(options.skip.map(|skips| if skips { "SKIP" } else { "NOSKIP" }));
    words.extend(options.checksum.map(|checks| if checks { "CHECKSUM" } else { "NO_CHECKSUM" }));
    words.extend(options.on_page_error.map(|choice| match choice {
        OnPageError::Stop => "STOP_ON_ERROR",
        OnPageError::Continue => "CONTINUE_AFTER_ERROR",
    }));
    words.extend(options.tape_end.map(|end| match end {
        TapeEnd::Rewind => "REWIND",
        TapeEnd::NoRewind => "NOREWIND",
        TapeEnd::Unload => "UNLOAD",
        TapeEnd::NoUnload => "NOUNLOAD",
    }));
    words.into_iter().map(str::to_owned).collect()
}

fn texts(options: &BackupOptions, list: &mut Vec<String>) -> Result<()> {
    let given = [
        ("NAME", &options.name, NAME_UNITS_MAX),
        ("DESCRIPTION", &options.description, DESCRIPTION_UNITS_MAX),
        ("MEDIANAME", &options.media_name, NAME_UNITS_MAX),
        ("MEDIADESCRIPTION", &options.media_description, DESCRIPTION_UNITS_MAX),
        ("CREDENTIAL", &options.credential, NAME_UNITS_MAX),
    ];
    for (word, text, units_max) in given {
        if let Some(text) = text {
            list.push(format!("{word} = {}", literal(&word.to_ascii_lowercase(), text, units_max)?));
        }
    }
    match &options.expiry {
        Some(Expiry::At(time)) => list.push(format!("EXPIREDATE = {}", literal("time", time, 40)?)),
        Some(Expiry::Days(days)) => list.push(format!("RETAINDAYS = {days}")),
        None => {}
    }
    Ok(())
}

fn numbers(options: &BackupOptions, list: &mut Vec<String>) {
    let given = [
        ("BLOCKSIZE", options.block_size),
        ("BUFFERCOUNT", options.buffer_count),
        ("MAXTRANSFERSIZE", options.max_transfer_size),
        ("STATS", options.stats),
    ];
    list.extend(given.iter().filter_map(|(word, number)| Some(format!("{word} = {}", (*number)?))));
}
