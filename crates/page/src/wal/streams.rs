//! The streams of all WAL of a frame, and their coding.

use super::bodies::{Bodies, BodyCoder};
use super::pages::Outline;
use super::record::{BLOCK_ID_MAX, ImageForm, MainForm, Relation, SAME_RELATION};
use super::relations::{RELATIONS_MAX, Relations};
use super::shapes::{BlockShape, SHAPES_MAX, Shape, Shapes};
use crate::entropy::{Reader, put_varint};
use crate::error::{Damaged, Decoded};
use crate::stream::{Stream, held_bytes};
use crate::values::{Text, ValueCoders, ValueDecoders};

/// Streams of bytes, in the order in which a frame holds them.
#[derive(Clone, Copy, Debug)]
pub(super) enum WalBytes {
    /// How each page is stored.
    PageState,
    /// What comes next in the body: 0 bytes as they are, else a record of the shape with this number - 1.
    Item,
    /// How a record differs from the plain case; the bits are [`record_flag`]'s.
    RecordFlags,
    /// What each image is stored as: see [`super::image`].
    ImageKind,
    /// Headers of pages that were not expected.
    PageHeader,
    /// Pages as they are.
    Raw,
    /// Bytes of the body as they are.
    RawBody,
    /// Images as they are.
    RawImage,
}

impl WalBytes {
    const COUNT: usize = 8;
    /// The first of those that are text.
    const FIRST_TEXT: usize = WalBytes::PageHeader as usize;
}

/// Streams of numbers of 32 bits, in the order in which a frame holds them.
#[derive(Clone, Copy, Debug)]
pub(super) enum WalNumber {
    /// Bytes of the body that are as they are.
    RawLength,
    Xid,
    /// CRCs that are not right.
    Crc,
    Origin,
    TopXid,
    /// Of images as they are.
    ImageLength,
    HoleOffset,
    HoleLength,
}

impl WalNumber {
    const COUNT: usize = WalNumber::HoleLength as usize + 1;
}

/// Bits of a record's flags.
pub(super) mod record_flag {
    /// `xl_prev` is not where the record before starts, and stands in its stream.
    pub(in crate::wal) const PREVIOUS: u8 = 1;
    /// The CRC is not right, and stands in its stream.
    pub(in crate::wal) const CRC: u8 = 2;
}

/// What all blocks in one place of one shape say.
#[derive(Debug, Default)]
pub(super) struct BlockStreams {
    /// Numbers of relations; none with the flag for the same relation as before.
    pub(super) relations: Stream<u32>,
    /// Numbers of blocks, or how far they are from the relation's last one, zigzag.
    pub(super) numbers: Stream<u32>,
    /// The other of the two, while records are taken.
    pub(super) steps: Vec<u32>,
    /// Whether `numbers` are steps, while records are made.
    pub(super) are_steps: bool,
    pub(super) bodies: Bodies,
    /// How many tuples the data of each record is a list of, where it may be one; 0 if it is a body as it is.
    pub(super) tuple_counts: Stream<u32>,
    pub(super) tuples: Bodies,
    /// The byte before each tuple that would start at an odd place.
    pub(super) tuple_gaps: Stream<u8>,
}

impl BlockStreams {
    fn clear(&mut self) {
        self.relations.clear();
        self.numbers.clear();
        self.steps.clear();
        self.bodies.clear();
        self.tuple_counts.clear();
        self.tuples.clear();
        self.tuple_gaps.clear();
    }

    fn held_bytes(&self) -> usize {
        let numbers = self.relations.held_bytes() + self.numbers.held_bytes() + held_bytes(&self.steps);
        let tuples = self.tuple_counts.held_bytes() + self.tuples.held_bytes() + self.tuple_gaps.held_bytes();
        numbers + self.bodies.held_bytes() + tuples
    }
}

/// All WAL of a frame, as streams.
#[derive(Debug, Default)]
pub(crate) struct WalStreams {
    pub(super) shapes: Shapes,
    pub(super) relations: Relations,
    /// The size of the pages that images are of; 0 if none was met.
    pub(super) image_page_size: usize,
    pub(super) bytes: [Stream<u8>; WalBytes::COUNT],
    pub(super) numbers: [Stream<u32>; WalNumber::COUNT],
    /// `xl_prev` that was not expected.
    pub(super) previous: Stream<u64>,
    /// Of each block of each shape; those behind the last one are left from other frames.
    pub(super) blocks: Vec<BlockStreams>,
    /// Main data, of each shape.
    pub(super) mains: Vec<Bodies>,
    pub(super) outline: Outline,
    /// What the pages of a part carry.
    pub(super) body: Vec<u8>,
}

impl WalStreams {
    pub(crate) fn clear(&mut self) {
        self.shapes.clear();
        self.relations.clear();
        self.image_page_size = 0;
        self.bytes.iter_mut().for_each(Stream::clear);
        self.numbers.iter_mut().for_each(Stream::clear);
        self.previous.clear();
        self.blocks.iter_mut().for_each(BlockStreams::clear);
        self.mains.iter_mut().for_each(Bodies::clear);
    }

    /// The memory they keep.
    pub(crate) fn held_bytes(&self) -> usize {
        let bytes = self.bytes.iter().map(Stream::held_bytes).sum::<usize>();
        let numbers = self.numbers.iter().map(Stream::held_bytes).sum::<usize>() + self.previous.held_bytes();
        let blocks = held_bytes(&self.blocks) + self.blocks.iter().map(BlockStreams::held_bytes).sum::<usize>();
        let mains = held_bytes(&self.mains) + self.mains.iter().map(Bodies::held_bytes).sum::<usize>();
        bytes + numbers + blocks + mains + held_bytes(&self.body) + held_bytes(&self.outline.pages)
    }

    #[inline]
    pub(super) fn byte(&mut self, stream: WalBytes) -> &mut Stream<u8> {
        &mut self.bytes[stream as usize]
    }

    #[inline]
    pub(super) fn number(&mut self, stream: WalNumber) -> &mut Stream<u32> {
        &mut self.numbers[stream as usize]
    }

    /// Makes room for the streams of all shapes.
    pub(super) fn fit_shapes(&mut self) {
        if self.blocks.len() < self.shapes.blocks.len() {
            self.blocks.resize_with(self.shapes.blocks.len(), BlockStreams::default);
        }
        if self.mains.len() < self.shapes.list.len() {
            self.mains.resize_with(self.shapes.list.len(), Bodies::default);
        }
    }
}

/// Codes the streams; keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct WalCoder {
    bodies: BodyCoder,
}

/// Bits of a shape's third byte; the two above are the form of its main data.
const HAS_ORIGIN: u8 = 1;
const HAS_TOP_XID: u8 = 2;

impl WalCoder {
    /// Appends all of `wal` to `out`, and its text to `text`.
    pub(crate) fn encode(&mut self, wal: &WalStreams, coders: &mut ValueCoders, text: &mut Text, out: &mut Vec<u8>) {
        out.push(if wal.image_page_size > 0 { wal.image_page_size.trailing_zeros() as u8 } else { 0 });
        put_varint(wal.shapes.list.len() as u64, out);
        for shape in &wal.shapes.list {
            let has = if shape.has_origin { HAS_ORIGIN } else { 0 } | if shape.has_top_xid { HAS_TOP_XID } else { 0 };
            let blocks = &wal.shapes.blocks[shape.first_block..shape.first_block + shape.block_count];
            out.extend_from_slice(&[shape.manager, shape.info, has | (shape.main_form as u8) << 2, blocks.len() as u8]);
            put_varint(shape.relation.into(), out);
            blocks.iter().for_each(|block| out.extend_from_slice(block));
        }
        put_varint(wal.relations.list.len() as u64, out);
        wal.relations.list.as_flattened().iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        for (number, stream) in wal.bytes.iter().enumerate() {
            if number >= WalBytes::FIRST_TEXT {
                text.store(&stream.values, out);
            } else {
                coders.bytes.encode(&stream.values, out);
            }
        }
        for stream in &wal.numbers {
            coders.numbers.encode_u32(&stream.values, None, out);
        }
        coders.numbers.encode_u64(&wal.previous.values, None, out);
        for (shape, main) in wal.shapes.list.iter().zip(&wal.mains) {
            let blocks = shape.first_block..shape.first_block + shape.block_count;
            for (block, of_block) in wal.blocks[blocks.clone()].iter().zip(&wal.shapes.blocks[blocks]) {
                self.encode_block(*of_block, block, coders, text, out);
                if shape.has_tuples() && has_data(*of_block) {
                    coders.numbers.encode_u32(&block.tuple_counts.values, None, out);
                    self.bodies.encode(&block.tuples, coders, text, out);
                    coders.bytes.encode(&block.tuple_gaps.values, out);
                }
            }
            if shape.main_form != MainForm::None {
                self.bodies.encode(main, coders, text, out);
            }
        }
    }

    fn encode_block(
        &mut self,
        shape: BlockShape,
        block: &BlockStreams,
        coders: &mut ValueCoders,
        text: &mut Text,
        out: &mut Vec<u8>,
    ) {
        if shape[1] & SAME_RELATION == 0 {
            coders.numbers.encode_u32(&block.relations.values, None, out);
        }
        let bits =
            |values: &[u32]| values.iter().map(|value| u64::from(u32::BITS - value.leading_zeros())).sum::<u64>();
        let are_steps = bits(&block.steps) < bits(&block.numbers.values);
        out.push(u8::from(are_steps));
        let values = if are_steps { &block.steps } else { &block.numbers.values };
        coders.numbers.encode_u32(values, None, out);
        if has_data(shape) {
            self.bodies.encode(&block.bodies, coders, text, out);
        }
    }
}

fn has_data(shape: BlockShape) -> bool {
    shape[1] & super::record::HAS_DATA != 0
}

/// Decodes the streams; keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct WalDecoder {
    bodies: BodyCoder,
}

impl WalDecoder {
    /// Fills `wal`, which was cleared.
    pub(crate) fn decode(
        &mut self,
        wal: &mut WalStreams,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
    ) -> Decoded<()> {
        wal.image_page_size = match input.u8()? {
            0 => 0,
            bits @ 12..=15 => 1 << bits,
            _ => return Err(BAD_SHAPES),
        };
        read_shapes(wal, input)?;
        for _ in 0..input.count(RELATIONS_MAX)? {
            let mut relation = Relation::default();
            for number in &mut relation {
                let bytes = input.take(4)?;
                *number = crate::postgres::wire::u32_at(bytes, 0);
            }
            wal.relations.push(relation);
        }
        for (number, stream) in wal.bytes.iter_mut().enumerate() {
            if number >= WalBytes::FIRST_TEXT {
                let range = text.next(input)?;
                stream.values.extend_from_slice(&text.bytes[range]);
            } else {
                decoders.decode_bytes(input, &mut stream.values)?;
            }
        }
        for stream in &mut wal.numbers {
            decoders.decode_u32(input, None, &mut stream.values)?;
        }
        decoders.decode_u64(input, None, &mut wal.previous.values)?;
        for (shape, main) in wal.shapes.list.iter().zip(&mut wal.mains) {
            let blocks = shape.first_block..shape.first_block + shape.block_count;
            for (block, of_block) in wal.blocks[blocks.clone()].iter_mut().zip(&wal.shapes.blocks[blocks]) {
                if of_block[1] & SAME_RELATION == 0 {
                    decoders.decode_u32(input, None, &mut block.relations.values)?;
                }
                block.are_steps = input.u8()? != 0;
                decoders.decode_u32(input, None, &mut block.numbers.values)?;
                if has_data(*of_block) {
                    self.bodies.decode(&mut block.bodies, decoders, input, text)?;
                }
                if shape.has_tuples() && has_data(*of_block) {
                    decoders.decode_u32(input, None, &mut block.tuple_counts.values)?;
                    self.bodies.decode(&mut block.tuples, decoders, input, text)?;
                    decoders.decode_bytes(input, &mut block.tuple_gaps.values)?;
                }
            }
            if shape.main_form != MainForm::None {
                self.bodies.decode(main, decoders, input, text)?;
            }
        }
        Ok(())
    }
}

fn read_shapes(wal: &mut WalStreams, input: &mut Reader<'_>) -> Decoded<()> {
    for _ in 0..input.count(SHAPES_MAX)? {
        let [manager, info, has, block_count] = [input.u8()?, input.u8()?, input.u8()?, input.u8()?];
        let main_form = MainForm::from_u8(has >> 2).ok_or(BAD_SHAPES)?;
        let relation = input.count(RELATIONS_MAX)? as u32;
        let (has_origin, has_top_xid) = (has & HAS_ORIGIN != 0, has & HAS_TOP_XID != 0);
        let shape = Shape { info, manager, has_origin, has_top_xid, main_form, relation, ..Shape::default() };
        let (blocks, _) = input.take(4 * usize::from(block_count))?.as_chunks::<4>();
        let is_too_many = blocks.len() > usize::from(BLOCK_ID_MAX) + 1;
        if is_too_many || blocks.iter().any(|block| ImageForm::from_u8(block[2]).is_none()) {
            return Err(BAD_SHAPES);
        }
        wal.shapes.push(shape, blocks.iter().copied());
    }
    wal.fit_shapes();
    Ok(())
}

const BAD_SHAPES: Damaged = Damaged("the frame's list of record shapes is not valid");
