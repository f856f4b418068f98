//! Making WAL pages.

use super::image::Images;
use super::pages::{SHORT_HEADER_BYTES, WalPage, address_of, expected_header, given_header_length, rest_of, state};
use super::record::{
    HAS_DATA, ID_MAIN_LONG, ID_MAIN_SHORT, ID_ORIGIN, ID_TOP_XID, ImageForm, MainForm, RECORD_HEADER_BYTES,
    SAME_RELATION, record_crc,
};
use super::shapes::{Shape, block_of};
use super::streams::{WalBytes, WalNumber, WalStreams, record_flag};
use super::tuples;
use crate::error::{Damaged, Decoded};
use crate::postgres::wire::{MAX_ALIGNMENT, align, put, put_bytes};
use crate::postgres::{PageMaker, PageStreams};

/// What pages are made of.
pub(crate) struct WalSource<'a> {
    pub(crate) wal: &'a mut WalStreams,
    pub(crate) pages: &'a mut PageMaker,
    pub(crate) page_streams: &'a mut PageStreams,
    /// The text of the frame.
    pub(crate) text: &'a [u8],
}

/// Makes WAL; kept from frame to frame.
#[derive(Debug, Default)]
pub(crate) struct WalMaker {
    images: Images,
    /// The LSN of the record before.
    previous: u64,
}

impl WalMaker {
    /// Starts a frame.
    pub(crate) fn begin(&mut self) {
        self.images.begin();
    }

    /// Fills `content`, pages of `page_size` of which the last one may be cut.
    pub(crate) fn make(&mut self, content: &mut [u8], page_size: usize, mut source: WalSource<'_>) -> Decoded<()> {
        self.previous = 0;
        make_outline(content, page_size, source.wal)?;
        let length = source.wal.body.len();
        let mut at = 0;
        while at < length {
            at = match source.wal.byte(WalBytes::Item).next()?.checked_sub(1) {
                None => make_raw(at, source.wal)?,
                Some(shape) => {
                    let end = self.make_record(at, shape.into(), &mut source)?;
                    align(end, MAX_ALIGNMENT).min(length)
                }
            };
        }
        lay_out(content, page_size, source.wal);
        Ok(())
    }

    /// Makes the next record, of the shape with this number, at `at` of the body; its end.
    fn make_record(&mut self, at: usize, number: usize, source: &mut WalSource<'_>) -> Decoded<usize> {
        let shape = *source.wal.shapes.list.get(number).ok_or(BAD_RECORD)?;
        let mut head = at + RECORD_HEADER_BYTES;
        let mut data = at + shape.header_length;
        let mut last_relation = None;
        for place in shape.first_block..shape.first_block + shape.block_count {
            (head, data) = self.make_block(place, &shape, head, data, &mut last_relation, source)?;
        }
        let wal = &mut *source.wal;
        if shape.has_origin {
            let origin = wal.number(WalNumber::Origin).next()? as u16;
            put(&mut wal.body, head, [ID_ORIGIN])?;
            put(&mut wal.body, head + 1, origin.to_le_bytes())?;
            head += 3;
        }
        if shape.has_top_xid {
            let xid = wal.number(WalNumber::TopXid).next()?;
            put(&mut wal.body, head, [ID_TOP_XID])?;
            put(&mut wal.body, head + 1, xid.to_le_bytes())?;
            head += 5;
        }
        if shape.main_form != MainForm::None {
            let (body, main) = (&mut wal.body, wal.mains[number].next()?);
            put_bytes(body, data, main)?;
            data += main.len();
            if shape.main_form == MainForm::Short {
                put(body, head, [ID_MAIN_SHORT, main.len() as u8])?;
            } else {
                put(body, head, [ID_MAIN_LONG])?;
                put(body, head + 1, (main.len() as u32).to_le_bytes())?;
            }
        }
        wal.outline.settle(at);
        wal.outline.reach(data);
        self.make_fixed(at..data, &shape, wal)?;
        Ok(data)
    }

    /// Makes a block: its header at `head` of the body, image and data at `data`; where the next ones go.
    fn make_block(
        &mut self,
        place: usize,
        shape: &Shape,
        head: usize,
        data: usize,
        last_relation: &mut Option<u32>,
        source: &mut WalSource<'_>,
    ) -> Decoded<(usize, usize)> {
        let WalSource { wal, pages, page_streams, text } = source;
        let mut block = block_of(*wal.shapes.blocks.get(place).ok_or(BAD_RECORD)?);
        let streams = wal.blocks.get_mut(place).ok_or(BAD_RECORD)?;
        if place == shape.first_block && shape.relation > 0 {
            *last_relation = Some(shape.relation - 1);
        } else if block.flags & SAME_RELATION == 0 {
            *last_relation = Some(streams.relations.next()?);
        }
        let relation =
            last_relation.filter(|number| (*number as usize) < wal.relations.list.len()).ok_or(BAD_RECORD)?;
        let last = wal.relations.last_block(relation, block.flags);
        block.number = streams.numbers.next()?;
        if streams.are_steps {
            let step = (block.number >> 1) ^ 0u32.wrapping_sub(block.number & 1);
            block.number = last.wrapping_add(step);
        }
        *last = block.number;
        block.relation = wal.relations.list[relation as usize];
        let mut data = data;
        if block.form != ImageForm::None {
            data += self.images.make(data, &mut block, wal, pages, page_streams, text)?;
        }
        if block.flags & HAS_DATA != 0 {
            let (body, streams) = (&mut wal.body, &mut wal.blocks[place]);
            let count = if shape.has_tuples() { streams.tuple_counts.next()? } else { 0 };
            let end = if count > 0 {
                tuples::make(body, data, count, streams)?
            } else {
                let bytes = streams.bodies.next()?;
                put_bytes(body, data, bytes)?;
                data + bytes.len()
            };
            block.data_length = u16::try_from(end - data).map_err(|_| BAD_RECORD)?;
            data = end;
        }
        let body = &mut wal.body;
        put(body, head, [block.id, block.flags])?;
        put(body, head + 2, block.data_length.to_le_bytes())?;
        let mut at = head + 4;
        if block.form != ImageForm::None {
            put(body, at, block.image_length.to_le_bytes())?;
            put(body, at + 2, block.hole_offset.to_le_bytes())?;
            put(body, at + 4, [block.image_flags])?;
            at += 5;
            if block.has_hole_length() {
                put(body, at, block.hole_length.to_le_bytes())?;
                at += 2;
            }
        }
        if block.flags & SAME_RELATION == 0 {
            for number in block.relation {
                put(body, at, number.to_le_bytes())?;
                at += 4;
            }
        }
        put(body, at, block.number.to_le_bytes())?;
        Ok((at + 4, data))
    }

    /// Makes the fixed header of a record whose other bytes are there.
    fn make_fixed(&mut self, place: std::ops::Range<usize>, shape: &Shape, wal: &mut WalStreams) -> Decoded<()> {
        let flags = wal.byte(WalBytes::RecordFlags).next()?;
        let xid = wal.number(WalNumber::Xid).next()?;
        let previous = if flags & record_flag::PREVIOUS != 0 { wal.previous.next()? } else { self.previous };
        let crc = if flags & record_flag::CRC != 0 { Some(wal.number(WalNumber::Crc).next()?) } else { None };
        self.previous = wal.outline.lsn_at(place.start);
        let length = u32::try_from(place.len()).map_err(|_| BAD_RECORD)?;
        let record = wal.body.get_mut(place).ok_or(BAD_RECORD)?;
        put(record, 0, length.to_le_bytes())?;
        put(record, 4, xid.to_le_bytes())?;
        put(record, 8, previous.to_le_bytes())?;
        put(record, 16, [shape.info, shape.manager])?;
        let crc = crc.unwrap_or_else(|| record_crc(record));
        put(record, 20, crc.to_le_bytes())
    }
}

/// Makes the next bytes of the body that are as they are, at `at`; their end.
fn make_raw(at: usize, wal: &mut WalStreams) -> Decoded<usize> {
    let length = wal.number(WalNumber::RawLength).next()? as usize;
    let WalStreams { bytes, outline, body, .. } = wal;
    let raw = bytes[WalBytes::RawBody as usize].take(length)?;
    if raw.is_empty() {
        return Err(BAD_RECORD);
    }
    put_bytes(body, at, raw)?;
    outline.settle(at);
    let reached = outline.end_of_raw(at, raw);
    outline.reach(reached);
    Ok(at + length)
}

/// Finds where the pages of `content` lie in the body, and makes room for that. Fills headers that are given, and pages
/// that are not in the body.
fn make_outline(content: &mut [u8], page_size: usize, wal: &mut WalStreams) -> Decoded<()> {
    let WalStreams { bytes, outline, body, .. } = wal;
    outline.clear();
    let mut at = 0;
    let mut before: Option<u64> = None;
    for content in content.chunks_mut(page_size) {
        let mut page = WalPage { at, ..WalPage::default() };
        match bytes[WalBytes::PageState as usize].next()? {
            state::EXPECTED => {
                let before = before.ok_or(Damaged("a page of WAL has no header"))?;
                page.address = before.wrapping_add(page_size as u64);
                page.header_length = SHORT_HEADER_BYTES;
            }
            state::GIVEN => {
                let headers = &mut bytes[WalBytes::PageHeader as usize];
                let length = given_header_length(headers.coming(SHORT_HEADER_BYTES)?);
                let header = headers.take(length)?;
                put_bytes(content, 0, header)?;
                page.is_given = true;
                (page.header_length, page.address, page.rest_given) = (length, address_of(header), rest_of(header));
            }
            state::ZERO => content.fill(0),
            state::RAW => content.copy_from_slice(bytes[WalBytes::Raw as usize].take(content.len())?),
            _ => return Err(Damaged("a page of WAL has a state that does not exist")),
        }
        before = (page.header_length > 0).then_some(page.address);
        if page.header_length > 0 {
            at += content.len().checked_sub(page.header_length).ok_or(BAD_RECORD)?;
        }
        outline.pages.push(page);
    }
    body.clear();
    body.resize(at, 0);
    Ok(())
}

/// Puts the body into the pages, and the headers that are expected.
fn lay_out(content: &mut [u8], page_size: usize, wal: &mut WalStreams) {
    wal.outline.settle(usize::MAX);
    for (number, page) in wal.outline.pages.iter().enumerate() {
        if page.header_length == 0 {
            continue;
        }
        let (before, rest) = content.split_at_mut(number * page_size);
        let length = rest.len().min(page_size);
        if !page.is_given {
            let before = &before[before.len().saturating_sub(page_size)..];
            rest[..SHORT_HEADER_BYTES].copy_from_slice(&expected_header(before, page_size, page.rest_expected));
        }
        let carried = length - page.header_length;
        rest[page.header_length..length].copy_from_slice(&wal.body[page.at..page.at + carried]);
    }
}

const BAD_RECORD: Damaged = Damaged("a record of WAL is not one that its shape can have");
