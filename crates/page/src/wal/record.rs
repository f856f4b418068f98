//! One record, read: XLogRecord and the headers behind it. What is not as a server writes it is refused.

use crate::postgres::wire::{u16_at, u32_at};

/// SizeOfXLogRecord.
pub(super) const RECORD_HEADER_BYTES: usize = 24;
/// XLR_MAX_BLOCK_ID.
pub(super) const BLOCK_ID_MAX: u8 = 32;
/// Ids of what is no block: the transaction above, the origin, main data.
pub(super) const ID_TOP_XID: u8 = 252;
pub(super) const ID_ORIGIN: u8 = 253;
pub(super) const ID_MAIN_LONG: u8 = 254;
pub(super) const ID_MAIN_SHORT: u8 = 255;

/// Bits of a block's flags; the low four are the fork.
pub(super) const HAS_IMAGE: u8 = 0x10;
pub(super) const HAS_DATA: u8 = 0x20;
pub(super) const SAME_RELATION: u8 = 0x80;
/// A bit of an image's flags.
pub(super) const HAS_HOLE: u8 = 1;

/// XLOG_PAGE_MAGIC of version 14: the last one that has a single bit for compressed images, another than later ones.
const MAGIC_14: u16 = 0xD10D;

/// Tablespace, database and file number of a relation.
pub(super) type Relation = [u32; 3];

/// How an image is stored in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ImageForm {
    #[default]
    None = 0,
    Plain = 1,
    Compressed = 2,
}

impl ImageForm {
    pub(super) fn from_u8(number: u8) -> Option<Self> {
        [ImageForm::None, ImageForm::Plain, ImageForm::Compressed].into_iter().find(|form| *form as u8 == number)
    }
}

/// A block that a record refers to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) id: u8,
    pub(super) flags: u8,
    pub(super) data_length: u16,
    pub(super) form: ImageForm,
    pub(super) image_flags: u8,
    pub(super) image_length: u16,
    pub(super) hole_offset: u16,
    pub(super) hole_length: u16,
    pub(super) relation: Relation,
    pub(super) number: u32,
}

impl Block {
    /// Whether the length of the hole stands in the header.
    pub(super) fn has_hole_length(&self) -> bool {
        self.form == ImageForm::Compressed && self.image_flags & HAS_HOLE != 0
    }

    /// Bytes of its header.
    pub(super) fn header_length(&self) -> usize {
        4 + if self.form == ImageForm::None { 0 } else { 5 }
            + if self.has_hole_length() { 2 } else { 0 }
            + if self.flags & SAME_RELATION == 0 { 12 } else { 0 }
            + 4
    }
}

/// How the length of the main data stands in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MainForm {
    #[default]
    None = 0,
    Short = 1,
    Long = 2,
}

impl MainForm {
    pub(super) fn from_u8(number: u8) -> Option<Self> {
        [MainForm::None, MainForm::Short, MainForm::Long].into_iter().find(|form| *form as u8 == number)
    }

    /// Bytes of its header.
    pub(super) fn header_length(self) -> usize {
        [0, 2, 5][self as usize]
    }
}

/// A record; kept and used again for every one.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) info: u8,
    pub(super) manager: u8,
    pub(super) blocks: Vec<Block>,
    pub(super) origin: Option<u16>,
    pub(super) top_xid: Option<u32>,
    pub(super) main_form: MainForm,
    pub(super) main_length: u32,
    /// All headers together.
    pub(super) header_length: usize,
}

impl Record {
    /// Reads `record`, which is all of a record; false if it is not one as servers write them. `magic` is that of its page.
    pub(super) fn read(&mut self, record: &[u8], magic: u16) -> bool {
        self.read_headers(record, magic).is_some()
    }

    fn read_headers(&mut self, record: &[u8], magic: u16) -> Option<()> {
        (self.info, self.manager) = (record[16], record[17]);
        if u16_at(record, 18) != 0 {
            return None;
        }
        self.blocks.clear();
        (self.origin, self.top_xid, self.main_form, self.main_length) = (None, None, MainForm::None, 0);
        let mut at = RECORD_HEADER_BYTES;
        let mut data_length = 0;
        let mut relation = None;
        // As the server reads it: headers end where only data is left.
        while record.len() - at > data_length {
            let id = record[at];
            match id {
                ID_MAIN_SHORT => {
                    self.main_form = MainForm::Short;
                    self.main_length = u32::from(*record.get(at + 1)?);
                }
                ID_MAIN_LONG => {
                    self.main_form = MainForm::Long;
                    self.main_length = field_u32(record, at + 1)?;
                }
                ID_ORIGIN if self.origin.is_none() && self.top_xid.is_none() => {
                    self.origin = Some(field_u16(record, at + 1)?);
                    at += 3;
                    continue;
                }
                ID_TOP_XID if self.top_xid.is_none() => {
                    self.top_xid = Some(field_u32(record, at + 1)?);
                    at += 5;
                    continue;
                }
                0..=BLOCK_ID_MAX if self.origin.is_none() && self.top_xid.is_none() => {
                    let block = read_block(record, at, magic, &mut relation)?;
                    if self.blocks.last().is_some_and(|last| last.id >= id) {
                        return None;
                    }
                    at += block.header_length();
                    data_length += usize::from(block.data_length) + usize::from(block.image_length);
                    self.blocks.push(block);
                    if at > record.len() {
                        return None;
                    }
                    continue;
                }
                _ => return None,
            }
            at += self.main_form.header_length();
            break;
        }
        self.header_length = at;
        let length = at.checked_add(data_length)?.checked_add(self.main_length as usize)?;
        (length == record.len()).then_some(())
    }
}

fn read_block(record: &[u8], at: usize, magic: u16, relation: &mut Option<Relation>) -> Option<Block> {
    let head = record.get(at..at + 4)?;
    let mut block = Block { id: head[0], flags: head[1], data_length: u16_at(head, 2), ..Block::default() };
    let mut at = at + 4;
    if block.flags & HAS_IMAGE != 0 {
        let head = record.get(at..at + 5)?;
        (block.image_length, block.hole_offset, block.image_flags) = (u16_at(head, 0), u16_at(head, 2), head[4]);
        let is_compressed = block.image_flags & if magic <= MAGIC_14 { 0x02 } else { 0x1C } != 0;
        block.form = if is_compressed { ImageForm::Compressed } else { ImageForm::Plain };
        at += 5;
        if block.has_hole_length() {
            block.hole_length = field_u16(record, at)?;
            at += 2;
        }
    }
    if block.flags & SAME_RELATION == 0 {
        *relation = Some([field_u32(record, at)?, field_u32(record, at + 4)?, field_u32(record, at + 8)?]);
        at += 12;
    }
    block.relation = (*relation)?;
    block.number = field_u32(record, at)?;
    (block.flags & HAS_DATA != 0 || block.data_length == 0).then_some(block)
}

fn field_u16(record: &[u8], at: usize) -> Option<u16> {
    record.get(at..at + 2).map(|field| u16_at(field, 0))
}

fn field_u32(record: &[u8], at: usize) -> Option<u32> {
    record.get(at..at + 4).map(|field| u32_at(field, 0))
}

/// The CRC32C that `record` should carry: of what follows its header, then of the header up to the CRC itself.
pub(super) fn record_crc(record: &[u8]) -> u32 {
    let (header, rest) = record.split_at(RECORD_HEADER_BYTES);
    let header = &header[..RECORD_HEADER_BYTES - 4];
    // Most records are short: one sum of both in order is less than two.
    const SHORT: usize = 256;
    let length = rest.len() + header.len();
    if length <= SHORT {
        let mut turned = [0; SHORT];
        turned[..rest.len()].copy_from_slice(rest);
        turned[rest.len()..length].copy_from_slice(header);
        return crc_fast::crc32_iscsi(&turned[..length]);
    }
    let words = header.as_chunks::<4>().0;
    !words.iter().fold(!crc_fast::crc32_iscsi(rest), |sum, word| {
        let [first, second, third, fourth] = (sum ^ u32::from_le_bytes(*word)).to_le_bytes().map(usize::from);
        CRC_TABLES[3][first] ^ CRC_TABLES[2][second] ^ CRC_TABLES[1][third] ^ CRC_TABLES[0][fourth]
    })
}

/// `CRC_TABLES[k][b]`: what byte `b` with k bytes behind it contributes to a CRC32C.
static CRC_TABLES: [[u32; 256]; 4] = {
    /// The reflected Castagnoli polynomial.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut tables = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        let (table, byte) = (at / 256, at % 256);
        let mut sum = if table == 0 { byte as u32 } else { tables[table - 1][byte] };
        let mut bit = 0;
        while bit < 8 {
            sum = sum >> 1 ^ POLYNOMIAL & 0u32.wrapping_sub(sum & 1);
            bit += 1;
        }
        tables[table][byte] = sum;
        at += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_that_of_the_rest_and_then_the_header() {
        let record: Vec<u8> = (0..300u32).map(|at| (at * at / 7) as u8).collect();
        for length in [24, 25, 80, 300] {
            let turned = [&record[24..length], &record[..20]].concat();
            assert_eq!(record_crc(&record[..length]), crc_fast::crc32_iscsi(&turned));
        }
    }
}
