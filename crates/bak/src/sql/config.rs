//! The records of an MQCI stream: SCIN (server and database), SFGI (file groups), SFIN (files).
//!
//! Offsets were worked out from files of 2008 R2 and 2016, where they agree with each other, with the blocks around
//! them and with the data. What is not known is not read.

use serde::Serialize;

use super::ids::{Guid, SqlLsn};
use crate::mtf::MtfDate;
use crate::wire::{Fields, Parsed, tag_text};

/// Records of one description at most: a database has at most 32,767 files.
const RECORDS_MAX: usize = 1 << 17;
/// Bytes of SCIN that are read, and that every version seen so far has.
const SERVER_RECORD_BYTES: usize = 0x104;
/// Bytes of SFIN that are read.
const FILE_RECORD_BYTES: usize = 0x102;

/// What an MQCI stream says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Configuration {
    /// Bits as RESTORE HEADERONLY shows them: 0x10 is "has checksums".
    pub flags: u32,
    /// Version of the server: major, minor, build.
    pub server_version: (u8, u8, u16),
    /// First log record that a restore needs.
    pub first_lsn: SqlLsn,
    /// Log record behind the last one in the set.
    pub last_lsn: SqlLsn,
    /// Newest checkpoint when the set was made.
    pub checkpoint_lsn: SqlLsn,
    /// Checkpoint of the newest full backup before it.
    pub database_backup_lsn: SqlLsn,
    /// When the database was made.
    pub database_created_at: MtfDate,
    /// When the backup began.
    pub started_at: MtfDate,
    /// When it ended; only known to the description at a set's end.
    pub finished_at: MtfDate,
    /// The kind as one letter, `D` for a full backup of a database.
    pub type_letter: char,
    /// The database's compatibility level, such as 130.
    pub compatibility_level: u8,
    /// Version of the database's pages, such as 852.
    pub database_version: u16,
    /// Bytes of the backup before compression.
    pub backup_size_bytes: u64,
    /// Name of the database.
    pub database_name: String,
    /// Name of the server.
    pub server_name: String,
    /// The database as such: stays when it is restored elsewhere.
    pub binding_guid: Guid,
    /// The line of history that the set is on.
    pub recovery_fork_guid: Guid,
    /// Id of the full backup that a differential is built on; of other sets, the newest full backup before.
    pub base_guid: Guid,
    /// The line of history that the database began with.
    pub family_guid: Guid,
    /// The database's file groups.
    pub file_groups: Vec<FileGroup>,
    /// The database's files.
    pub files: Vec<DatabaseFile>,
}

/// A file group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileGroup {
    /// Its name.
    pub name: String,
}

/// A file of the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DatabaseFile {
    /// Its number.
    pub file_id: u32,
    /// Number of its file group; 0 for log files.
    pub file_group_id: u32,
    /// Its name inside the database.
    pub logical_name: String,
    /// Where it was on the server.
    pub physical_path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of its pages in this set.
    pub backup_size_bytes: u64,
    /// Its own id.
    pub file_guid: Guid,
    /// Where the base of differentials of this file is.
    pub base_lsn: SqlLsn,
    /// The set that is the base of differentials of this file.
    pub base_guid: Guid,
}

impl DatabaseFile {
    /// Whether it holds log instead of pages.
    pub fn is_log(&self) -> bool {
        self.file_group_id == 0
    }
}

impl Configuration {
    /// What the content of an MQCI stream says.
    ///
    /// # Errors
    /// A record that is not known, or does not hold what it should.
    pub fn parse(content: &[u8]) -> Parsed<Self> {
        let mut config = None;
        let (mut groups, mut files) = (Vec::new(), Vec::new());
        let mut at = 0;
        for _ in 0..RECORDS_MAX {
            if at == content.len() {
                break;
            }
            let head = Fields(content);
            let (tag, size) = (head.tag(at)?, head.u32(at + 4)? as usize);
            if size < 8 {
                return Err(format!("record {} of {size} bytes cannot be", tag_text(tag)));
            }
            let record = Fields(head.bytes(at, size)?);
            match &tag {
                b"SCIN" if config.is_none() => config = Some(parse_server(record)?),
                b"SFGI" => groups.push(FileGroup { name: record.text(16)? }),
                b"SFIN" => files.push(parse_file(record)?),
                _ => return Err(format!("record {} at byte {at} of the configuration is not known", tag_text(tag))),
            }
            at += size;
        }
        let mut config = config.ok_or("the configuration has no record SCIN")?;
        config.file_groups = groups;
        config.files = files;
        Ok(config)
    }

    /// Whether pages and log have checksums beside them.
    pub fn has_checksums(&self) -> bool {
        self.flags & 0x10 != 0
    }
}

fn parse_server(record: Fields<'_>) -> Parsed<Configuration> {
    record.bytes(0, SERVER_RECORD_BYTES)?;
    Ok(Configuration {
        flags: record.u32(8)?,
        server_version: (record.u8(27)?, record.u8(26)?, record.u16(24)?),
        first_lsn: SqlLsn::parse(record, 32)?,
        last_lsn: SqlLsn::parse(record, 42)?,
        checkpoint_lsn: SqlLsn::parse(record, 52)?,
        database_backup_lsn: SqlLsn::parse(record, 62)?,
        database_created_at: date(record, 72)?,
        started_at: date(record, 77)?,
        finished_at: date(record, 82)?,
        type_letter: char::from(record.u8(87)?),
        compatibility_level: record.u8(91)?,
        database_version: record.u16(94)?,
        backup_size_bytes: record.u64(96)?,
        database_name: record.text(104)?,
        server_name: record.text(108)?,
        binding_guid: Guid::parse(record, 0x7c)?,
        recovery_fork_guid: Guid::parse(record, 0x9c)?,
        base_guid: Guid::parse(record, 0xc8)?,
        family_guid: Guid::parse(record, 0xe0)?,
        file_groups: Vec::new(),
        files: Vec::new(),
    })
}

fn parse_file(record: Fields<'_>) -> Parsed<DatabaseFile> {
    record.bytes(0, FILE_RECORD_BYTES)?;
    Ok(DatabaseFile {
        file_id: record.u32(20)?,
        file_group_id: record.u32(36)?,
        logical_name: record.text(48)?,
        physical_path: record.text(52)?,
        size_bytes: record.u64(40)?,
        backup_size_bytes: record.u64(0xfa)?,
        file_guid: Guid::parse(record, 0xba)?,
        base_lsn: SqlLsn::parse(record, 0x9e)?,
        base_guid: Guid::parse(record, 0xaa)?,
    })
}

fn date(record: Fields<'_>, at: usize) -> Parsed<MtfDate> {
    let mut bytes = [0; 5];
    bytes.copy_from_slice(record.bytes(at, 5)?);
    Ok(MtfDate::from_bytes(bytes))
}
