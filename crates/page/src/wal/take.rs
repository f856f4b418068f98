//! Taking WAL pages apart.

use super::image::Images;
use super::pages::{WalPage, address_of, expected_header, header_length, rest_of, state};
use super::record::{HAS_DATA, ImageForm, MainForm, RECORD_HEADER_BYTES, Record, SAME_RELATION, record_crc};
use super::streams::{WalBytes, WalNumber, WalStreams, record_flag};
use super::tuples;
use crate::postgres::wire::{MAX_ALIGNMENT, align, append, is_zero, u32_at, u64_at};
use crate::postgres::{PageStreams, PageTaker};

/// Takes WAL apart; kept from frame to frame.
#[derive(Debug, Default)]
pub(crate) struct WalTaker {
    images: Images,
    record: Record,
    /// Numbers of the relations of a record's blocks.
    relations: Vec<u32>,
    /// Of each page where it begins in the body, and where its first record does.
    starts: Vec<(usize, usize)>,
}

/// The part that is taken apart, and where it goes.
struct Taking<'t> {
    content: &'t [u8],
    page_size: usize,
    wal: &'t mut WalStreams,
    pages: &'t mut PageTaker,
    page_streams: &'t mut PageStreams,
    /// XLOG_PAGE_MAGIC of the first page.
    magic: u16,
    /// The LSN of the record before; 0 if there was none.
    previous: u64,
}

impl WalTaker {
    /// Starts a frame.
    pub(crate) fn begin(&mut self) {
        self.images.begin();
    }

    /// Appends all of `content`, pages of `page_size` of which the last one may be cut, to the streams.
    pub(crate) fn take(
        &mut self,
        content: &[u8],
        page_size: usize,
        wal: &mut WalStreams,
        pages: &mut PageTaker,
        page_streams: &mut PageStreams,
    ) {
        let mut body = std::mem::take(&mut wal.body);
        self.find_pages(content, page_size, wal, &mut body);
        let magic = content.first_chunk().map_or(0, |magic| u16::from_le_bytes(*magic));
        let mut taking = Taking { content, page_size, wal, pages, page_streams, magic, previous: 0 };
        self.take_body(&body, &mut taking);
        taking.settle(usize::MAX);
        wal.body = body;
    }

    fn find_pages(&mut self, content: &[u8], page_size: usize, wal: &mut WalStreams, body: &mut Vec<u8>) {
        body.clear();
        wal.outline.clear();
        self.starts.clear();
        for page in content.chunks(page_size) {
            let at = body.len();
            let mut outlined = WalPage { at, ..WalPage::default() };
            if let Some(length) = header_length(page) {
                (outlined.header_length, outlined.address) = (length, address_of(page));
                body.extend_from_slice(&page[length..]);
                self.starts.push((at, at + align(rest_of(page) as usize, MAX_ALIGNMENT)));
            }
            wal.outline.pages.push(outlined);
        }
    }

    fn take_body(&mut self, body: &[u8], taking: &mut Taking<'_>) {
        // The beginning is the rest of a record that began before.
        let mut at = 0;
        let mut found = self.starts.first().map_or(body.len(), |(_, record)| (*record).min(body.len()));
        let mut next = 0;
        loop {
            if found > at {
                taking.take_raw(body, at, found);
                at = found;
            }
            while at < body.len() {
                let Some(length) = record_length(&body[at..]) else { break };
                let end = body.len().min(at + align(length, MAX_ALIGNMENT));
                if !self.take_record(body, at..at + length, end, taking) {
                    if record_crc(&body[at..at + length]) != u32_at(body, at + 20) {
                        break;
                    }
                    taking.take_raw(body, at, end);
                }
                at = end;
            }
            if at == body.len() {
                break;
            }
            // What is no record, or not all of one: on to the next page on which one begins.
            while self.starts.get(next).is_some_and(|(begin, record)| *begin < at || *record <= at) {
                next += 1;
            }
            found = self.starts.get(next).map_or(body.len(), |(_, record)| (*record).min(body.len()));
        }
    }

    /// Takes the record that lies at `place` of the body and is padded up to `end`; false, and nothing, if it is not as
    /// servers write them or there is no room for its shape or its relations.
    fn take_record(&mut self, body: &[u8], place: std::ops::Range<usize>, end: usize, taking: &mut Taking<'_>) -> bool {
        let (at, bytes) = (place.start, &body[place.clone()]);
        let WalTaker { images, record, relations, .. } = self;
        if !record.read(bytes, taking.magic) || !is_zero(&body[place.end..end]) {
            return false;
        }
        relations.clear();
        for block in &record.blocks {
            let Some(number) = taking.wal.relations.number_of(&block.relation) else { return false };
            relations.push(number);
        }
        let Some(number) = taking.wal.shapes.number_of(record, relations.first().copied()) else { return false };
        taking.wal.fit_shapes();
        taking.settle(at);
        taking.wal.outline.reach(place.end);
        taking.take_fixed(bytes, at, number);
        let wal = &mut *taking.wal;
        if let Some(origin) = record.origin {
            wal.number(WalNumber::Origin).values.push(origin.into());
        }
        if let Some(xid) = record.top_xid {
            wal.number(WalNumber::TopXid).values.push(xid);
        }
        let shape = wal.shapes.list[number];
        let first_block = shape.first_block;
        let mut data = at + record.header_length;
        for ((block, relation), place) in record.blocks.iter().zip(&*relations).zip(first_block..) {
            let last = wal.relations.last_block(*relation, block.flags);
            let step = block.number.wrapping_sub(*last) as i32;
            *last = block.number;
            let streams = &mut wal.blocks[place];
            if block.flags & SAME_RELATION == 0 && (place > first_block || shape.relation == 0) {
                streams.relations.values.push(*relation);
            }
            streams.numbers.values.push(block.number);
            streams.steps.push((step << 1 ^ step >> 31) as u32);
            let image_end = data + usize::from(block.image_length);
            let data_end = image_end + usize::from(block.data_length);
            if block.flags & HAS_DATA != 0 {
                let is_apart = shape.has_tuples() && tuples::take(&body[image_end..data_end], streams);
                if !is_apart {
                    streams.bodies.lengths.values.push(block.data_length.into());
                    append(&mut streams.bodies.data.values, body, image_end, data_end);
                }
            }
            if block.form != ImageForm::None {
                images.take(&body[data..image_end], block, wal, taking.pages, taking.page_streams);
            }
            data = data_end;
        }
        if record.main_form != MainForm::None {
            let main = &mut wal.mains[number];
            main.lengths.values.push(record.main_length);
            append(&mut main.data.values, body, data, place.end);
        }
        true
    }
}

/// How long the record says it is that `bytes` begin with; None if they do not hold all of it.
fn record_length(bytes: &[u8]) -> Option<usize> {
    let length = if bytes.len() < RECORD_HEADER_BYTES { 0 } else { u32_at(bytes, 0) as usize };
    (RECORD_HEADER_BYTES..=bytes.len()).contains(&length).then_some(length)
}

impl Taking<'_> {
    /// Stores how all pages are that start at or before `at` of the body.
    fn settle(&mut self, at: usize) {
        while let Some(number) = self.wal.outline.next_settled(at) {
            let start = number * self.page_size;
            let content = &self.content[start..self.content.len().min(start + self.page_size)];
            let WalPage { header_length, rest_expected, .. } = self.wal.outline.pages[number];
            let state = if header_length == 0 {
                if is_zero(content) {
                    state::ZERO
                } else {
                    self.wal.byte(WalBytes::Raw).values.extend_from_slice(content);
                    state::RAW
                }
            } else {
                let header = &content[..header_length];
                let has_one_before = number > 0 && self.wal.outline.pages[number - 1].header_length > 0;
                let before = &self.content[start.saturating_sub(self.page_size)..];
                if has_one_before && *header == expected_header(before, self.page_size, rest_expected) {
                    state::EXPECTED
                } else {
                    self.wal.byte(WalBytes::PageHeader).values.extend_from_slice(header);
                    self.wal.outline.pages[number].rest_given = rest_of(header);
                    state::GIVEN
                }
            };
            self.wal.byte(WalBytes::PageState).values.push(state);
        }
    }

    /// Stores bytes of the body as they are.
    fn take_raw(&mut self, body: &[u8], start: usize, end: usize) {
        self.settle(start);
        let bytes = &body[start..end];
        let reached = self.wal.outline.end_of_raw(start, bytes);
        self.wal.outline.reach(reached);
        self.wal.byte(WalBytes::Item).values.push(0);
        self.wal.number(WalNumber::RawLength).values.push(bytes.len() as u32);
        self.wal.byte(WalBytes::RawBody).values.extend_from_slice(bytes);
    }

    /// Stores the fixed header of `record`, which is at `at` of the body and has the shape with this number.
    fn take_fixed(&mut self, record: &[u8], at: usize, shape: usize) {
        let wal = &mut *self.wal;
        wal.byte(WalBytes::Item).values.push(shape as u8 + 1);
        let mut flags = 0;
        let (previous, crc) = (u64_at(record, 8), u32_at(record, 20));
        if previous != self.previous {
            flags |= record_flag::PREVIOUS;
            wal.previous.values.push(previous);
        }
        if crc != record_crc(record) {
            flags |= record_flag::CRC;
            wal.number(WalNumber::Crc).values.push(crc);
        }
        wal.byte(WalBytes::RecordFlags).values.push(flags);
        wal.number(WalNumber::Xid).values.push(u32_at(record, 4));
        self.previous = wal.outline.lsn_at(at);
    }
}
