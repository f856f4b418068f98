//! The content of a frame as streams, in the order in which a frame holds them.

use crate::Part;
use crate::entropy::{DigitCoder, DigitDecoder, Effort, Reader, TextCoder, TextDecoder, put_varint};
use crate::error::{Damaged, Decoded};
use crate::layout::{ATTRIBUTES_MAX, Attribute, PAGE_SIZES_BYTES, RelationKind, RelationLayout, ValueType};
use crate::level::Level;
use crate::postgres::{ByteStream, Columns, Discovery, PageMaker, PageSource, PageStreams, PageTaker};
use crate::values::{Text, ValueCoders, ValueDecoders};
use crate::wal::{WalCoder, WalDecoder, WalMaker, WalSource, WalStreams, WalTaker};

/// The most layouts of one frame; further ones are taken for pages of which nothing is known.
const LAYOUTS_MAX: usize = 4096;

/// The most columns of all layouts of one frame together; a layout that goes beyond is taken for bytes. A frame of 4 MiB
/// in which every page is of another relation has about half of them.
const COLUMNS_MAX: usize = 8192;

/// A run of content as a frame tells of it. Runs follow one another without gaps.
#[derive(Clone, Copy, Debug)]
struct Run {
    length: usize,
    first_page: u32,
    /// Which layout, from 1; 0 for bytes that are not pages.
    layout: usize,
}

/// The layouts of one frame with the columns that were found by them; memory is kept from frame to frame.
#[derive(Debug, Default)]
struct Layouts {
    layouts: Vec<RelationLayout>,
    columns: Vec<Columns>,
    count: usize,
    /// Columns of all of them.
    column_count: usize,
}

/// Starts a frame. Streams of earlier frames, which had other relations in other places, are given back when they keep
/// more than `kept_bytes_max`: without that, memory would grow to the sum of all columns ever seen.
fn begin_frame(layouts: &mut Layouts, streams: &mut PageStreams, wal: &mut WalStreams, kept_bytes_max: usize) {
    let columns = layouts.columns.iter().map(Columns::held_bytes).sum::<usize>();
    if columns + streams.held_bytes() + wal.held_bytes() > kept_bytes_max {
        *layouts = Layouts::default();
        *streams = PageStreams::default();
        *wal = WalStreams::default();
    }
    wal.clear();
    layouts.count = 0;
    layouts.column_count = 0;
    streams.clear();
}

impl Layouts {
    /// Whether a layout is that of WAL.
    fn have_wal(&self) -> bool {
        self.layouts[..self.count].iter().any(|layout| layout.kind == RelationKind::Wal)
    }

    /// The number of `layout`, from 1; 0 if there is no room for another one.
    fn number_of(&mut self, layout: &RelationLayout) -> usize {
        if let Some(known) = self.layouts[..self.count].iter().position(|known| known == layout) {
            return known + 1;
        }
        let column_count = self.column_count + layout.attributes.len();
        if self.count == LAYOUTS_MAX || column_count > COLUMNS_MAX {
            return 0;
        }
        self.column_count = column_count;
        if self.layouts.len() == self.count {
            self.layouts.push(RelationLayout::default());
            self.columns.push(Columns::default());
        }
        self.layouts[self.count].clone_from(layout);
        self.columns[self.count]
            .begin(&layout.attributes, matches!(layout.kind, RelationKind::Index | RelationKind::Gin));
        self.count += 1;
        self.count
    }
}

/// Streams that frames leave behind, in bytes per byte of content: one frame's streams take up to twice its content, and
/// as much again in room to grow.
pub(crate) const KEPT_PER_CONTENT: usize = 4;

/// Whether pages of such a layout can be taken apart.
fn is_known(layout: &RelationLayout) -> bool {
    layout.kind != RelationKind::NotPages
        && PAGE_SIZES_BYTES.contains(&layout.page_size_bytes)
        && layout.attributes.len() <= ATTRIBUTES_MAX
}

/// How much is tried with values at `level`.
fn effort_of(level: Level) -> Effort {
    match level.number() {
        1 => Effort::Fast,
        2 | 3 => Effort::Default,
        _ => Effort::Small,
    }
}

/// Takes frames apart; one per thread.
pub(crate) struct FrameTaker {
    runs: Vec<Run>,
    layouts: Layouts,
    streams: PageStreams,
    pages: PageTaker,
    wal_streams: WalStreams,
    wal: WalTaker,
    wal_coder: WalCoder,
    coders: ValueCoders,
    text: Text,
    text_coder: DigitCoder,
    coded: Vec<u8>,
    /// What a layout is replaced by whose columns cannot be taken apart.
    plain_layout: RelationLayout,
    discovery: Discovery,
    kept_bytes_max: usize,
}

impl FrameTaker {
    /// None if there is no memory for zstd's context.
    pub(crate) fn new(level: Level, frame_size_bytes: usize) -> Option<Self> {
        let text_coder = TextCoder::new(level.zstd_level(), frame_size_bytes);
        text_coder.has_context().then(|| FrameTaker {
            runs: Vec::new(),
            layouts: Layouts::default(),
            streams: PageStreams::default(),
            pages: PageTaker::default(),
            wal_streams: WalStreams::default(),
            wal: WalTaker::default(),
            wal_coder: WalCoder::default(),
            coders: ValueCoders::new(effort_of(level)),
            text: Text::default(),
            text_coder: DigitCoder::new(text_coder),
            coded: Vec::new(),
            plain_layout: RelationLayout::default(),
            discovery: Discovery::default(),
            kept_bytes_max: KEPT_PER_CONTENT * frame_size_bytes,
        })
    }

    /// Works at `level` from the next frame on.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.coders.set_effort(effort_of(level));
        self.text_coder.set_level(level.zstd_level());
    }

    /// Appends all of `raw` to `out`; false, and nothing, if `parts` tell of no pages.
    pub(crate) fn take(&mut self, raw: &[u8], parts: &[Part<'_>], out: &mut Vec<u8>) -> bool {
        self.find_runs(raw, parts);
        if self.layouts.count == 0 {
            return false;
        }
        self.take_pages(raw);
        self.write_head(out);
        self.write_streams(out);
        true
    }

    /// Appends all of `raw` to `out` as one text.
    pub(crate) fn take_as_text(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        self.text_coder.encode(raw, &mut self.coders.bytes, out);
    }

    /// Turns parts into runs that cover the frame.
    fn find_runs(&mut self, raw: &[u8], parts: &[Part<'_>]) {
        let length = raw.len();
        self.runs.clear();
        begin_frame(&mut self.layouts, &mut self.streams, &mut self.wal_streams, self.kept_bytes_max);
        self.coders.begin(self.kept_bytes_max / 2);
        let mut end = 0;
        for part in parts {
            let fits = part.start >= end && part.length <= length && part.start <= length - part.length;
            if !fits || part.length == 0 || !is_known(part.layout) {
                continue;
            }
            if part.start > end {
                self.runs.push(Run { length: part.start - end, first_page: 0, layout: 0 });
            }
            let has_columns = matches!(part.layout.kind, RelationKind::Heap | RelationKind::Index | RelationKind::Gin);
            let mut found = 0;
            if has_columns && part.layout.attributes.is_empty() {
                let content = &raw[part.start..part.start + part.length];
                let layout = self.discovery.find(content, part.layout.kind, part.layout.page_size_bytes);
                found = layout.map_or(0, |layout| self.layouts.number_of(layout));
            }
            let layout = if found > 0 {
                found
            } else if has_columns && part.layout.attributes.iter().all(Attribute::is_supported) {
                self.layouts.number_of(part.layout)
            } else {
                self.plain_layout.kind = part.layout.kind;
                self.plain_layout.page_size_bytes = part.layout.page_size_bytes;
                self.layouts.number_of(&self.plain_layout)
            };
            self.runs.push(Run { length: part.length, first_page: part.first_page, layout });
            end = part.start + part.length;
        }
        if end < length {
            self.runs.push(Run { length: length - end, first_page: 0, layout: 0 });
        }
    }

    fn take_pages(&mut self, raw: &[u8]) {
        self.pages.begin();
        self.wal.begin();
        let mut rest = raw;
        for run in &self.runs {
            let (content, behind) = rest.split_at(run.length);
            rest = behind;
            let mut tail = content;
            if let Some(number) = run.layout.checked_sub(1) {
                let (layout, columns) = (&self.layouts.layouts[number], &mut self.layouts.columns[number]);
                if layout.kind == RelationKind::Wal {
                    let (wal, page_size) = (&mut self.wal_streams, layout.page_size_bytes as usize);
                    self.wal.take(content, page_size, wal, &mut self.pages, &mut self.streams);
                    continue;
                }
                let pages = content.chunks_exact(layout.page_size_bytes as usize);
                tail = pages.remainder();
                for (page, block) in pages.zip(0u32..) {
                    let block = run.first_page.wrapping_add(block);
                    self.pages.take(page, block, layout.kind, columns, &mut self.streams);
                }
            }
            self.streams.bytes[ByteStream::Raw as usize].values.extend_from_slice(tail);
        }
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        put_varint(self.layouts.count as u64, out);
        for layout in &self.layouts.layouts[..self.layouts.count] {
            out.push(layout.kind as u8);
            out.push(layout.page_size_bytes.trailing_zeros() as u8);
            put_varint(layout.attributes.len() as u64, out);
            for attribute in &layout.attributes {
                out.push(attribute.value_type as u8 | (attribute.alignment.trailing_zeros() as u8) << 4);
                // -1 becomes 0.
                put_varint((i32::from(attribute.length) + 1) as u64, out);
            }
        }
        put_varint(self.runs.len() as u64, out);
        for run in &self.runs {
            put_varint(run.length as u64, out);
            put_varint(run.layout as u64, out);
            if run.layout > 0 {
                put_varint(u64::from(run.first_page), out);
            }
        }
    }

    fn write_streams(&mut self, out: &mut Vec<u8>) {
        self.text.clear();
        self.coded.clear();
        for (number, stream) in self.streams.bytes.iter().enumerate() {
            if number >= ByteStream::FIRST_TEXT {
                self.text.store(&stream.values, &mut self.coded);
            } else {
                self.coders.bytes.encode(&stream.values, &mut self.coded);
            }
        }
        for stream in &self.streams.numbers {
            self.coders.numbers.encode_u32(&stream.values, None, &mut self.coded);
        }
        self.coders.numbers.encode_u64(&self.streams.lsns.values, None, &mut self.coded);
        for columns in &self.layouts.columns[..self.layouts.count] {
            self.coders.encode(columns, &mut self.text, &mut self.coded);
        }
        if self.layouts.have_wal() {
            self.wal_coder.encode(&self.wal_streams, &mut self.coders, &mut self.text, &mut self.coded);
        }
        // The decoder needs the text before the streams that are made of it.
        self.text_coder.encode(&self.text.bytes, &mut self.coders.bytes, out);
        out.extend_from_slice(&self.coded);
    }
}

/// Makes frames' content again; one per thread.
pub(crate) struct FrameMaker {
    runs: Vec<Run>,
    layouts: Layouts,
    streams: PageStreams,
    pages: PageMaker,
    wal_streams: WalStreams,
    wal: WalMaker,
    wal_decoder: WalDecoder,
    decoders: ValueDecoders,
    text: Text,
    text_decoder: DigitDecoder,
    scratch: RelationLayout,
    /// A page that is made to be compared.
    page: Vec<u8>,
    kept_bytes_max: usize,
}

impl FrameMaker {
    /// Larger frames than those of `frame_size_bytes` are made too; after them memory is given back. None if there is no
    /// memory for zstd's context.
    pub(crate) fn new(frame_size_bytes: usize) -> Option<Self> {
        let text_decoder = TextDecoder::new();
        text_decoder.has_context().then(|| FrameMaker {
            runs: Vec::new(),
            layouts: Layouts::default(),
            streams: PageStreams::default(),
            pages: PageMaker::default(),
            wal_streams: WalStreams::default(),
            wal: WalMaker::default(),
            wal_decoder: WalDecoder::default(),
            decoders: ValueDecoders::new(),
            text: Text::default(),
            text_decoder: DigitDecoder::new(text_decoder),
            scratch: RelationLayout::default(),
            page: Vec::new(),
            kept_bytes_max: KEPT_PER_CONTENT * frame_size_bytes,
        })
    }

    /// Fills `raw` from all of `coded`.
    pub(crate) fn make(&mut self, coded: &[u8], raw: &mut [u8]) -> Decoded<()> {
        self.read(coded, raw.len())?;
        self.make_pages(raw)
    }

    /// Whether [`FrameMaker::make`] would make `raw` of `coded`. Each page is made at the same place and compared at once, so
    /// that it never leaves the cache.
    pub(crate) fn proves(&mut self, coded: &[u8], raw: &[u8]) -> Decoded<bool> {
        self.read(coded, raw.len())?;
        self.compare_pages(raw)
    }

    fn read(&mut self, coded: &[u8], length: usize) -> Decoded<()> {
        let mut input = Reader::new(coded);
        self.read_head(&mut input, length)?;
        self.read_streams(&mut input, length)?;
        if !input.is_empty() || !self.text.is_spent() {
            return Err(Damaged("bytes are left over at the end of the frame"));
        }
        Ok(())
    }

    /// Fills `raw` from a frame that is one text.
    pub(crate) fn make_of_text(&mut self, coded: &[u8], raw: &mut [u8]) -> Decoded<()> {
        self.read_text(coded, raw.len())?;
        raw.copy_from_slice(&self.text.bytes);
        Ok(())
    }

    /// Whether [`FrameMaker::make_of_text`] would make `raw` of `coded`.
    pub(crate) fn proves_text(&mut self, coded: &[u8], raw: &[u8]) -> Decoded<bool> {
        self.read_text(coded, raw.len())?;
        Ok(self.text.bytes == raw)
    }

    fn read_text(&mut self, coded: &[u8], length: usize) -> Decoded<()> {
        let mut input = Reader::new(coded);
        self.text.clear();
        self.text_decoder.decode(&mut input, length, &mut self.decoders.bytes, &mut self.text.bytes)?;
        if self.text.bytes.len() != length || !input.is_empty() {
            return Err(Damaged("it holds more or less than its content"));
        }
        Ok(())
    }

    fn read_head(&mut self, input: &mut Reader<'_>, length: usize) -> Decoded<()> {
        self.runs.clear();
        begin_frame(&mut self.layouts, &mut self.streams, &mut self.wal_streams, self.kept_bytes_max);
        for _ in 0..input.count(LAYOUTS_MAX)? {
            self.read_layout(input)?;
        }
        let mut left = length;
        // A run has a byte at least.
        for _ in 0..input.count(length)? {
            let run_length = input.count(left)?;
            let layout = input.count(self.layouts.count)?;
            let first_page = if layout > 0 { input.count(u32::MAX as usize)? as u32 } else { 0 };
            if run_length == 0 {
                return Err(BAD_HEAD);
            }
            left -= run_length;
            self.runs.push(Run { length: run_length, first_page, layout });
        }
        if left == 0 { Ok(()) } else { Err(BAD_HEAD) }
    }

    fn read_layout(&mut self, input: &mut Reader<'_>) -> Decoded<()> {
        let layout = &mut self.scratch;
        layout.kind = RelationKind::from_u8(input.u8()?).ok_or(BAD_HEAD)?;
        layout.page_size_bytes = 1u32.checked_shl(input.u8()?.into()).ok_or(BAD_HEAD)?;
        layout.attributes.clear();
        for _ in 0..input.count(ATTRIBUTES_MAX)? {
            let packed = input.u8()?;
            let value_type = ValueType::from_u8(packed & 15).ok_or(BAD_HEAD)?;
            let alignment = 1u8.checked_shl((packed >> 4).into()).ok_or(BAD_HEAD)?;
            let length = i16::try_from(input.count(i16::MAX as usize + 1)? as i32 - 1).map_err(|_| BAD_HEAD)?;
            let attribute = Attribute { value_type, length, alignment };
            if !attribute.is_supported() {
                return Err(BAD_HEAD);
            }
            layout.attributes.push(attribute);
        }
        let before = self.layouts.count;
        if !is_known(&self.scratch) || self.layouts.number_of(&self.scratch) != before + 1 {
            return Err(BAD_HEAD);
        }
        Ok(())
    }

    fn read_streams(&mut self, input: &mut Reader<'_>, length: usize) -> Decoded<()> {
        self.text.clear();
        let decoders = &mut self.decoders;
        decoders.begin(length, self.kept_bytes_max / 2);
        // Text is content, byte for byte.
        self.text_decoder.decode(input, length, &mut decoders.bytes, &mut self.text.bytes)?;
        self.text.seal();
        for (number, stream) in self.streams.bytes.iter_mut().enumerate() {
            if number >= ByteStream::FIRST_TEXT {
                let range = self.text.next(input)?;
                stream.values.extend_from_slice(&self.text.bytes[range]);
            } else {
                decoders.decode_bytes(input, &mut stream.values)?;
            }
        }
        for stream in &mut self.streams.numbers {
            decoders.decode_u32(input, None, &mut stream.values)?;
        }
        decoders.decode_u64(input, None, &mut self.streams.lsns.values)?;
        for columns in &mut self.layouts.columns[..self.layouts.count] {
            decoders.decode(input, columns, &mut self.text)?;
        }
        if self.layouts.have_wal() {
            self.wal_decoder.decode(&mut self.wal_streams, decoders, input, &mut self.text)?;
        }
        Ok(())
    }

    fn make_pages(&mut self, raw: &mut [u8]) -> Decoded<()> {
        self.pages.begin();
        self.wal.begin();
        let mut rest = raw;
        for run in &self.runs {
            let (content, behind) = rest.split_at_mut(run.length);
            rest = behind;
            let mut tail = content;
            if let Some(number) = run.layout.checked_sub(1) {
                let (layout, columns) = (&self.layouts.layouts[number], &mut self.layouts.columns[number]);
                if layout.kind == RelationKind::Wal {
                    let (wal, pages, page_streams) = (&mut self.wal_streams, &mut self.pages, &mut self.streams);
                    let source = WalSource { wal, pages, page_streams, text: &self.text.bytes };
                    self.wal.make(tail, layout.page_size_bytes as usize, source)?;
                    continue;
                }
                let mut pages = tail.chunks_exact_mut(layout.page_size_bytes as usize);
                for (page, block) in pages.by_ref().zip(0u32..) {
                    let block = run.first_page.wrapping_add(block);
                    let (kind, streams, text) = (layout.kind, &mut self.streams, &self.text.bytes[..]);
                    self.pages.make(page, PageSource { block, kind, columns, streams, text })?;
                }
                tail = pages.into_remainder();
            }
            tail.copy_from_slice(self.streams.bytes[ByteStream::Raw as usize].take(tail.len())?);
        }
        Ok(())
    }

    /// As [`FrameMaker::make_pages`], and compares instead of filling.
    fn compare_pages(&mut self, raw: &[u8]) -> Decoded<bool> {
        self.pages.begin();
        self.wal.begin();
        let mut rest = raw;
        for run in &self.runs {
            let (content, behind) = rest.split_at(run.length);
            rest = behind;
            let mut tail = content;
            if let Some(number) = run.layout.checked_sub(1) {
                let (layout, columns) = (&self.layouts.layouts[number], &mut self.layouts.columns[number]);
                let size = layout.page_size_bytes as usize;
                if layout.kind == RelationKind::Wal {
                    let (wal, pages, page_streams) = (&mut self.wal_streams, &mut self.pages, &mut self.streams);
                    let source = WalSource { wal, pages, page_streams, text: &self.text.bytes };
                    self.page.resize(content.len(), 0);
                    self.wal.make(&mut self.page, size, source)?;
                    if self.page != content {
                        return Ok(false);
                    }
                    continue;
                }
                self.page.resize(size, 0);
                let pages = content.chunks_exact(size);
                tail = pages.remainder();
                for (page, block) in pages.zip(0u32..) {
                    let block = run.first_page.wrapping_add(block);
                    let (kind, streams, text) = (layout.kind, &mut self.streams, &self.text.bytes[..]);
                    self.pages.make(&mut self.page, PageSource { block, kind, columns, streams, text })?;
                    if self.page != page {
                        return Ok(false);
                    }
                }
            }
            if self.streams.bytes[ByteStream::Raw as usize].take(tail.len())? != tail {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

const BAD_HEAD: Damaged = Damaged("the frame's list of layouts and runs is not valid");
