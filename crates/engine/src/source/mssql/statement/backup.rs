//! A BACKUP as data.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::source::mssql::buffers::{
    TRANSFER_SIZE_DEFAULT, TRANSFER_SIZE_S3, TRANSFER_SIZE_SMALL, buffer_bytes, buffer_count_default,
};
use crate::source::mssql::device::{Device, DeviceKind};
use crate::source::mssql::server_facts::ServerFacts;

/// BACKUP DATABASE, LOG, GROUP or SERVER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupStatement {
    /// What of which database.
    pub contents: Contents,
    /// The media set's files, 1 to 64.
    pub to: Vec<Device>,
    /// Up to three mirrors, each with as many files.
    pub mirrors: Vec<Vec<Device>>,
    /// Everything behind WITH.
    pub options: BackupOptions,
}

/// What is backed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A whole database.
    Database(String),
    /// Files and filegroups of one.
    Parts(String, Vec<Part>),
    /// Its primary filegroup, all that can be written to, and these besides.
    ReadWrite(String, Vec<String>),
    /// Its log.
    Log(String, LogTail),
    /// Several databases, suspended together: the metadata of a snapshot.
    Group(Vec<String>),
    /// All of them.
    Server,
}

/// A part of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A file, by its logical name.
    File(String),
    /// A filegroup.
    Filegroup(String),
}

/// What becomes of a database whose log is backed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTail {
    /// It goes on.
    #[default]
    GoesOn,
    /// It is left restoring.
    NoRecovery,
    /// It is left readable, with this file for what is undone.
    Standby(String),
}

/// Everything behind WITH; None and false leave it to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupOptions {
    /// What has changed since the last full one.
    pub differential: bool,
    /// Outside of the server's own sequence: no base for differentials, no part of the log chain.
    pub copy_only: bool,
    /// How pages are packed.
    pub compression: Option<Compression>,
    /// Transfer buffers.
    pub buffer_count: Option<u32>,
    /// Bytes of one.
    pub max_transfer_size: Option<u32>,
    /// Bytes of a physical block.
    pub block_size: Option<u32>,
    /// Whether pages are checked and the backup gets a checksum.
    pub checksum: Option<bool>,
    /// What a wrong page does.
    pub on_page_error: Option<OnPageError>,
    /// What becomes of what the media hold.
    pub media: Option<Media>,
    /// Whether expiry and names on the media do not matter.
    pub skip: Option<bool>,
    /// Name of the set.
    pub name: Option<String>,
    /// Description of the set.
    pub description: Option<String>,
    /// Name of the media set.
    pub media_name: Option<String>,
    /// Description of the media set.
    pub media_description: Option<String>,
    /// Until when it must not be overwritten.
    pub expiry: Option<Expiry>,
    /// Who can read it.
    pub encryption: Option<AsymmetricEncryption>,
    /// Credential of an Azure page blob.
    pub credential: Option<String>,
    /// A snapshot of files that lie in Azure.
    pub file_snapshot: bool,
    /// Only the metadata of a database that is suspended.
    pub metadata_only: bool,
    /// The log of a damaged database, whatever its state.
    pub no_truncate: bool,
    /// A message every so many per cent.
    pub stats: Option<u32>,
    /// What becomes of the tape.
    pub tape_end: Option<TapeEnd>,
}

/// How pages are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    No,
    /// As the server is configured.
    Configured,
    /// By this algorithm, and for ZSTD at this level.
    By(Algorithm, Option<Level>),
}

/// Algorithms of backup compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// LZ77 with Huffman codes, the only one before 2022.
    MsXpress,
    /// Intel QuickAssist, from 2022 on.
    QatDeflate,
    /// From 2025 on.
    Zstd,
}

/// Levels of ZSTD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The server's own choice.
    Low,
    /// Between.
    Medium,
    /// The smallest.
    High,
}

impl Compression {
    /// Whether pages are packed, as far as the statement says it.
    pub fn packs(self) -> bool {
        self != Compression::No
    }
}

impl Algorithm {
    pub(super) fn word(self) -> &'static str {
        match self {
            Algorithm::MsXpress => "MS_XPRESS",
            Algorithm::QatDeflate => "QAT_DEFLATE",
            Algorithm::Zstd => "ZSTD",
        }
    }
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Level::Low => "LOW",
            Level::Medium => "MEDIUM",
            Level::High => "HIGH",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::No => f.write_str("none"),
            Compression::Configured => f.write_str("server"),
            Compression::By(Algorithm::MsXpress, _) => f.write_str("ms_xpress"),
            Compression::By(Algorithm::QatDeflate, _) => f.write_str("qat_deflate"),
            Compression::By(Algorithm::Zstd, None) => f.write_str("zstd"),
            Compression::By(Algorithm::Zstd, Some(level)) => write!(f, "zstd:{}", level.word().to_ascii_lowercase()),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = [
            Compression::No,
            Compression::Configured,
            Compression::By(Algorithm::MsXpress, None),
            Compression::By(Algorithm::QatDeflate, None),
            Compression::By(Algorithm::Zstd, None),
            Compression::By(Algorithm::Zstd, Some(Level::Low)),
            Compression::By(Algorithm::Zstd, Some(Level::Medium)),
            Compression::By(Algorithm::Zstd, Some(Level::High)),
        ];
        known.into_iter().find(|compression| compression.to_string().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("use {text:?} as a compression"), "SQL Server has no such one").hint(
                "it is none, server (as configured there), ms_xpress, qat_deflate, zstd, zstd:low, zstd:medium or zstd:high",
            )
        })
    }
}

/// What a wrong page does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPageError {
    /// It ends the backup or restore.
    Stop,
    /// It is noted, and the set is called damaged.
    Continue,
}

/// What becomes of what the media hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// The set is appended.
    Append,
    /// Sets are overwritten, the media keep their header.
    Overwrite,
    /// Everything is written anew.
    Format,
}

/// Until when a set must not be overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Until this time, as the server reads it (`2026-12-24`, `2026-12-24T20:00:00`).
    At(String),
    /// For so many days.
    Days(u32),
}

/// Who can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsymmetricEncryption {
    /// How it is encrypted.
    pub cipher: Cipher,
    /// Whose key opens it.
    pub encryptor: Encryptor,
}

/// Ciphers of encrypted backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES with 128 bits.
    Aes128,
    /// With 192.
    Aes192,
    /// With 256.
    Aes256,
    /// Three keys of DES.
    TripleDes,
}

impl Cipher {
    pub(super) fn word(self) -> &'static str {
        match self {
            Cipher::Aes128 => "AES_128",
            Cipher::Aes192 => "AES_192",
            Cipher::Aes256 => "AES_256",
            Cipher::TripleDes => "TRIPLE_DES_3KEY",
        }
    }
}

impl FromStr for Cipher {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = [Cipher::Aes128, Cipher::Aes192, Cipher::Aes256, Cipher::TripleDes];
        known.into_iter().find(|cipher| cipher.word().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("use {text:?} as a cipher"), "backups have no such one")
                .hint("it is AES_128, AES_192, AES_256 or TRIPLE_DES_3KEY")
        })
    }
}

/// Whose key opens an encrypted backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encryptor {
    /// A certificate in master.
    Certificate(String),
    /// An asymmetric key of a key provider.
    AsymmetricKey(String),
}

/// What becomes of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapeEnd {
    /// It is rewound and given back.
    Rewind,
    /// It is kept for the next backup.
    NoRewind,
    /// It is rewound and ejected.
    Unload,
    /// It stays in the drive.
    NoUnload,
}

impl Contents {
    /// The one database that it is of.
    pub fn database(&self) -> Option<&str> {
        match self {
            Contents::Database(name)
            | Contents::Parts(name, _)
            | Contents::ReadWrite(name, _)
            | Contents::Log(name, _) => Some(name),
            Contents::Group(_) | Contents::Server => None,
        }
    }
}

impl BackupStatement {
    /// BACKUP DATABASE of `database` to `to`, as the server does it by itself.
    pub fn full(database: &str, to: Vec<Device>) -> Self {
        let contents = Contents::Database(database.to_owned());
        BackupStatement { contents, to, mirrors: Vec::new(), options: BackupOptions::default() }
    }

    /// Bytes that the server of `facts` takes for this statement's buffers.
    pub fn buffer_bytes(&self, facts: &ServerFacts) -> u64 {
        let files = self.to.len() as u32;
        let count = self.options.buffer_count.unwrap_or_else(|| buffer_count_default(files, facts.volume_count));
        let size = self.options.max_transfer_size.unwrap_or(match self.to.first().map(Device::kind) {
            Some(DeviceKind::S3) => TRANSFER_SIZE_S3,
            Some(DeviceKind::Tape) => TRANSFER_SIZE_SMALL,
            _ => TRANSFER_SIZE_DEFAULT,
        });
        let packs = match self.options.compression {
            None | Some(Compression::Configured) => facts.compresses_by_default,
            Some(other) => other.packs(),
        };
        buffer_bytes(count, size, packs || facts.is_encrypted)
    }

    pub(super) fn is_log(&self) -> bool {
        matches!(self.contents, Contents::Log(..))
    }
}
