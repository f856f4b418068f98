//! Shapes: what records have in common whose headers say the same but for numbers.
//!
//! A frame of thousands of records has a few dozen shapes. Values are kept by shape, so like comes to like.

use super::record::{Block, ImageForm, MainForm, RECORD_HEADER_BYTES, Record};

/// The most shapes of a frame; a record of a further one is stored as it is. A shape's number + 1 is a byte, 0 is no record.
pub(super) const SHAPES_MAX: usize = 255;
/// So many may be of one relation each.
const KEYED_SHAPES_MAX: usize = 160;
/// Slots of the table in which shapes are looked up: at least twice as many.
const SLOT_COUNT: usize = 1 << 10;

/// What of a block its shape says: id, flags, form and flags of its image.
pub(super) type BlockShape = [u8; 4];

/// A shape.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) info: u8,
    pub(super) manager: u8,
    pub(super) has_origin: bool,
    pub(super) has_top_xid: bool,
    pub(super) main_form: MainForm,
    /// The number + 1 of the relation of its first block; 0 if they differ.
    pub(super) relation: u32,
    /// Its first block among those of all shapes, and how many it has.
    pub(super) first_block: usize,
    pub(super) block_count: usize,
    pub(super) header_length: usize,
}

impl Shape {
    /// Whether the data of its blocks is a list of tuples: XLOG_HEAP2_MULTI_INSERT, from all versions.
    pub(super) fn has_tuples(&self) -> bool {
        self.manager == 9 && self.info & 0x70 == 0x50
    }
}

/// The shapes of a frame.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    pub(super) list: Vec<Shape>,
    pub(super) blocks: Vec<BlockShape>,
    /// Number + 1 of a shape, 0 for none.
    slots: Vec<u16>,
}

impl Shapes {
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.blocks.clear();
        self.slots.fill(0);
    }

    /// The number of the shape of `record`, whose first block is of the relation with number `relation`; None if there is
    /// no room for another one. Records with data of a relation have a shape of their own, for data of one relation is alike.
    pub(super) fn number_of(&mut self, record: &Record, relation: Option<u32>) -> Option<usize> {
        if self.slots.is_empty() {
            self.slots.resize(SLOT_COUNT, 0);
        }
        let has_data = record.blocks.first().is_some_and(|block| block.data_length > 0);
        let keyed = relation.filter(|_| has_data).and_then(|relation| {
            self.find(record, Shape { relation: relation + 1, ..shape_of(record, self.blocks.len()) }, KEYED_SHAPES_MAX)
        });
        keyed.or_else(|| self.find(record, shape_of(record, self.blocks.len()), SHAPES_MAX))
    }

    fn find(&mut self, record: &Record, shape: Shape, count_max: usize) -> Option<usize> {
        let mut slot = slot_of(&shape, record);
        loop {
            match self.slots[slot] {
                0 if self.list.len() < count_max => {
                    self.blocks.extend(record.blocks.iter().map(block_shape));
                    self.list.push(shape);
                    self.slots[slot] = self.list.len() as u16;
                    return Some(self.list.len() - 1);
                }
                0 => return None,
                number => {
                    let number = usize::from(number) - 1;
                    if self.is_same(number, &shape, record) {
                        return Some(number);
                    }
                    slot = (slot + 1) % SLOT_COUNT;
                }
            }
        }
    }

    fn is_same(&self, number: usize, shape: &Shape, record: &Record) -> bool {
        let known = &self.list[number];
        let blocks = &self.blocks[known.first_block..known.first_block + known.block_count];
        head_of(known) == head_of(shape) && blocks.iter().copied().eq(record.blocks.iter().map(block_shape))
    }

    /// Appends a shape that a frame tells of, with its blocks; its lengths are computed.
    pub(super) fn push(&mut self, mut shape: Shape, blocks: impl Iterator<Item = BlockShape>) {
        shape.first_block = self.blocks.len();
        self.blocks.extend(blocks);
        let blocks = &self.blocks[shape.first_block..];
        shape.block_count = blocks.len();
        let of_blocks = blocks.iter().map(|block| block_of(*block).header_length()).sum::<usize>();
        shape.header_length = RECORD_HEADER_BYTES
            + of_blocks
            + if shape.has_origin { 3 } else { 0 }
            + if shape.has_top_xid { 5 } else { 0 }
            + shape.main_form.header_length();
        self.list.push(shape);
    }
}

fn shape_of(record: &Record, first_block: usize) -> Shape {
    Shape {
        info: record.info,
        manager: record.manager,
        has_origin: record.origin.is_some(),
        has_top_xid: record.top_xid.is_some(),
        main_form: record.main_form,
        relation: 0,
        first_block,
        block_count: record.blocks.len(),
        header_length: record.header_length,
    }
}

/// All that is not about blocks, in one number.
fn head_of(shape: &Shape) -> u64 {
    let bits = u64::from(shape.has_origin) | u64::from(shape.has_top_xid) << 1 | (shape.main_form as u64) << 2;
    let head = bits | u64::from(shape.info) << 8 | u64::from(shape.manager) << 16 | (shape.block_count as u64) << 24;
    head | u64::from(shape.relation) << 32
}

fn block_shape(block: &Block) -> BlockShape {
    [block.id, block.flags, block.form as u8, block.image_flags]
}

/// A block of which only the shape is known.
pub(super) fn block_of([id, flags, form, image_flags]: BlockShape) -> Block {
    Block { id, flags, form: ImageForm::from_u8(form).unwrap_or_default(), image_flags, ..Block::default() }
}

fn slot_of(shape: &Shape, record: &Record) -> usize {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut mixed = head_of(shape).wrapping_mul(MIX);
    for block in &record.blocks {
        mixed = (mixed.rotate_left(29) ^ u64::from(u32::from_le_bytes(block_shape(block)))).wrapping_mul(MIX);
    }
    (mixed >> 54) as usize
}
