//! Descriptor blocks: a common header of 52 bytes, then fields of the block's own kind.

use serde::Serialize;

use super::date::MtfDate;
use crate::checksum::header_sum;
use crate::sql::Guid;
use crate::wire::{Fields, Parsed, tag_text};

/// Bytes of the header that all descriptor blocks share.
pub const BLOCK_HEADER_BYTES: usize = 52;

/// SQL Server's number in the field for the operating system.
const OS_ID: u8 = 14;
/// The only version of MTF there is.
const MTF_VERSION: u8 = 1;

/// What a descriptor block is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum BlockKind {
    /// The medium: one file of a media set.
    Tape,
    /// A soft filemark, between sets.
    Filemark,
    /// A backup set begins.
    SetStart,
    /// The volume of the database.
    Volume,
    /// What the set is: server, database, files.
    Configuration,
    /// Extents of data pages.
    Data,
    /// A piece of the log.
    Log,
    /// The configuration again, as it was at the end.
    LastConfiguration,
    /// A backup set ends.
    SetEnd,
    /// The medium was full.
    EndOfMedium,
}

const KINDS: &[([u8; 4], BlockKind)] = &[
    (*b"TAPE", BlockKind::Tape),
    (*b"SFMB", BlockKind::Filemark),
    (*b"SSET", BlockKind::SetStart),
    (*b"VOLB", BlockKind::Volume),
    (*b"MSCI", BlockKind::Configuration),
    (*b"MSDA", BlockKind::Data),
    (*b"MSTL", BlockKind::Log),
    (*b"MSLS", BlockKind::LastConfiguration),
    (*b"ESET", BlockKind::SetEnd),
    (*b"EOTM", BlockKind::EndOfMedium),
];

impl BlockKind {
    /// The kind of a block by its first four bytes.
    pub fn from_tag(tag: [u8; 4]) -> Option<Self> {
        KINDS.iter().find(|(known, _)| *known == tag).map(|(_, kind)| *kind)
    }

    /// The block's first four bytes.
    pub fn tag(self) -> [u8; 4] {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or(*b"    ", |(tag, _)| *tag)
    }

    /// The four letters, as text.
    pub fn name(self) -> String {
        tag_text(self.tag())
    }
}

/// A descriptor block whose checksum is right.
#[derive(Clone, Debug)]
pub struct Block {
    /// What it is about.
    pub kind: BlockKind,
    /// Bits of the common header.
    pub attributes: u32,
    /// Where the first stream begins, from the block's start.
    pub stream_offset: u16,
    /// The block's place in its set, in logical blocks of the medium.
    pub logical_address: u64,
    /// The block's number in its set.
    pub control_block_id: u32,
    /// Header and own fields: `stream_offset` bytes.
    pub bytes: Vec<u8>,
}

impl Block {
    /// The block whose header is in `header`, so far without its own fields.
    ///
    /// # Errors
    /// A wrong checksum, a kind or version that is not known, or a header that contradicts itself.
    pub fn parse_header(header: &[u8]) -> Parsed<Block> {
        let fields = Fields(header);
        let tag = fields.tag(0)?;
        let (stored, right) = (fields.u16(50)?, header_sum(fields.bytes(0, 50)?));
        if stored != right {
            let tag = tag_text(tag);
            return Err(format!("descriptor block {tag} has checksum {stored:#06x}, its bytes have {right:#06x}"));
        }
        let Some(kind) = BlockKind::from_tag(tag) else {
            return Err(format!("descriptor block of the unknown kind {}", tag_text(tag)));
        };
        let (os_id, os_version) = (fields.u8(10)?, fields.u8(11)?);
        if os_id != OS_ID || os_version != 1 {
            let name = kind.name();
            return Err(format!("descriptor block {name} is of system {os_id} version {os_version}, not SQL Server's"));
        }
        let stream_offset = fields.u16(8)?;
        if usize::from(stream_offset) < BLOCK_HEADER_BYTES {
            return Err(format!("descriptor block {} has streams at byte {stream_offset}", kind.name()));
        }
        Ok(Block {
            kind,
            attributes: fields.u32(4)?,
            stream_offset,
            logical_address: fields.u64(20)?,
            control_block_id: fields.u32(36)?,
            bytes: header.to_vec(),
        })
    }
}

/// Fields of a TAPE block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TapeHeader {
    /// The file's own number; another one for each family of a media set.
    pub media_family_id: u32,
    /// The medium's place in its family: 1 for files.
    pub media_sequence: u16,
    /// The name given by MEDIANAME.
    pub media_name: String,
    /// The text given by MEDIADESCRIPTION.
    pub media_description: String,
    /// Who wrote it.
    pub software_name: String,
    /// Bytes of a soft filemark.
    pub filemark_bytes: u32,
    /// Bytes of a logical block, the unit of logical addresses.
    pub logical_block_bytes: u16,
    /// When the medium was formatted.
    pub written_at: MtfDate,
}

impl TapeHeader {
    /// The fields of a TAPE block.
    ///
    /// # Errors
    /// Another version of MTF, a strange block size, or text beyond the block.
    pub fn parse(block: &Block) -> Parsed<Self> {
        let fields = Fields(&block.bytes);
        let version = fields.u8(93)?;
        if version != MTF_VERSION {
            return Err(format!("MTF version {version} is not known"));
        }
        let filemark_bytes = u32::from(fields.u16(64)?) * 512;
        if !matches!(filemark_bytes, 512 | 4096) {
            return Err(format!("soft filemarks of {filemark_bytes} bytes are not known"));
        }
        Ok(TapeHeader {
            media_family_id: fields.u32(52)?,
            media_sequence: fields.u16(60)?,
            media_name: fields.text(68)?,
            media_description: fields.text(72)?,
            software_name: fields.text(80)?,
            filemark_bytes,
            logical_block_bytes: fields.u16(84)?,
            written_at: date(fields, 88)?,
        })
    }
}

/// How a set was made, by the bits of its SSET block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttributes(pub u32);

impl SetAttributes {
    /// Made WITH `COPY_ONLY`.
    pub fn is_copy(self) -> bool {
        self.0 & 2 != 0
    }

    /// Only what changed since a base.
    pub fn is_differential(self) -> bool {
        self.0 & 8 != 0
    }
}

/// Fields of an SSET block.
#[derive(Clone, Debug)]
pub struct SetStart {
    /// How it was made.
    pub attributes: SetAttributes,
    /// The set's number in its file, from 1.
    pub position: u16,
    /// NAME of the set.
    pub name: String,
    /// DESCRIPTION of the set.
    pub description: String,
    /// Who made it.
    pub user_name: String,
    /// When it began.
    pub started_at: MtfDate,
    /// The set's own id; a differential names its base by it.
    pub set_guid: Guid,
}

impl SetStart {
    /// The fields of an SSET block.
    ///
    /// # Errors
    /// Passwords and text beyond the block.
    pub fn parse(block: &Block) -> Parsed<Self> {
        let fields = Fields(&block.bytes);
        let (os_size, os_offset) = (fields.u16(44)?, fields.u16(46)?);
        if os_size < 16 {
            return Err(format!("set without an id: {os_size} bytes where 16 or more are expected"));
        }
        Ok(SetStart {
            attributes: SetAttributes(fields.u32(52)?),
            position: fields.u16(62)?,
            name: fields.text(64)?,
            description: fields.text(68)?,
            user_name: fields.text(76)?,
            started_at: date(fields, 88)?,
            set_guid: Guid::parse(fields, os_offset.into())?,
        })
    }
}

/// The date in five bytes at `at`.
pub(crate) fn date(fields: Fields<'_>, at: usize) -> Parsed<MtfDate> {
    let mut bytes = [0; 5];
    bytes.copy_from_slice(fields.bytes(at, 5)?);
    Ok(MtfDate::from_bytes(bytes))
}
