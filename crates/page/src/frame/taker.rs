//! Content to streams, and streams to the bytes of a frame.

use super::{Computed, FrameStreams, Layouts, Run, is_known};
use crate::Part;
use crate::checksum::CHECKSUM_OFFSET;
use crate::entropy::{Effort, MixedCoder, TextCoder, put_varint};
use crate::layout::{Attribute, RelationKind, RelationLayout};
use crate::level::Level;
use crate::postgres::wire::u16_at;
use crate::postgres::{ByteStream, Discovery, PageTaker, kind_of_pages};
use crate::values::ValueCoders;
use crate::wal::{WalCoder, WalTaker};

/// How much is tried with values at `level`.
fn effort_of(level: Level) -> Effort {
    match level.number() {
        1 => Effort::Fast,
        2 => Effort::Default,
        3 => Effort::Thorough,
        _ => Effort::Small,
    }
}

/// At page:1 rows of more columns are left to the text coder: a page holds one to twenty of them, and to visit each column for so few
/// takes longer than LZ4 takes for all. What else pages have is taken apart all the same.
const FAST_COLUMNS_MAX: usize = 128;

/// Takes frames apart; one per thread.
pub(crate) struct FrameTaker {
    /// What is asked for, and what the coders are at: of WAL another one.
    level: Level,
    level_at_work: Level,
    pages: PageTaker,
    wal: WalTaker,
    wal_coder: WalCoder,
    coders: ValueCoders,
    text_coder: MixedCoder,
    coded: Vec<u8>,
    /// What a layout is replaced by whose columns cannot be taken apart.
    plain_layout: RelationLayout,
    discovery: Discovery,
    computed: Vec<Computed>,
}

impl FrameTaker {
    /// None if there is no memory for zstd's context.
    pub(crate) fn new(level: Level, frame_size_bytes: usize) -> Option<Self> {
        let text_coder = TextCoder::new(level.zstd_level(), frame_size_bytes);
        text_coder.has_context().then(|| FrameTaker {
            level,
            level_at_work: level,
            pages: PageTaker::default(),
            wal: WalTaker::default(),
            wal_coder: WalCoder::default(),
            coders: ValueCoders::new(effort_of(level)),
            text_coder: MixedCoder::new(text_coder),
            coded: Vec::new(),
            plain_layout: RelationLayout::default(),
            discovery: Discovery::default(),
            computed: Vec::new(),
        })
    }

    /// Works at `level` from the next frame on.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    fn work_at(&mut self, level: Level) {
        if level != self.level_at_work {
            self.level_at_work = level;
            self.coders.set_effort(effort_of(level));
            self.text_coder.set_zstd_level(level.zstd_level());
        }
    }

    /// Appends all of `raw` to `out`; false, and nothing, if `parts` tell of no pages. Its streams are left in `streams`.
    pub(crate) fn take(
        &mut self,
        raw: &[u8],
        parts: &[Part<'_>],
        streams: &mut FrameStreams,
        out: &mut Vec<u8>,
    ) -> bool {
        streams.begin();
        self.coders.begin(streams.kept_documents_bytes_max());
        self.find_runs(raw, parts, streams);
        self.work_at(if streams.layouts.have_wal() { self.level.of_wal() } else { self.level });
        if streams.layouts.count == 0 {
            return false;
        }
        self.take_pages(raw, streams);
        write_head(streams, out);
        self.write_streams(streams, out);
        true
    }

    /// Of the last frame.
    pub(crate) fn computed_checksums(&self) -> &[Computed] {
        &self.computed
    }

    /// Appends all of `raw` to `out` as one text.
    pub(crate) fn take_as_text(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let ValueCoders { bytes, numbers, floats, .. } = &mut self.coders;
        self.text_coder.encode(raw, bytes, numbers, floats, out);
    }

    /// Turns parts into runs that cover the frame.
    fn find_runs(&mut self, raw: &[u8], parts: &[Part<'_>], streams: &mut FrameStreams) {
        let length = raw.len();
        let mut end = 0;
        for part in parts {
            let fits = part.start >= end && part.length <= length && part.start <= length - part.length;
            if !fits || part.length == 0 || !is_known(part.layout) {
                continue;
            }
            if part.start > end {
                streams.runs.push(Run { length: part.start - end, first_page: 0, layout: 0 });
            }
            let layout = self.layout_of(part, &raw[part.start..part.start + part.length], &mut streams.layouts);
            streams.runs.push(Run { length: part.length, first_page: part.first_page, layout });
            end = part.start + part.length;
        }
        if end < length {
            streams.runs.push(Run { length: length - end, first_page: 0, layout: 0 });
        }
    }

    /// The number of the layout by which `content` is taken apart: as told, or as found where nobody told.
    fn layout_of(&mut self, part: &Part<'_>, content: &[u8], layouts: &mut Layouts) -> usize {
        let (attributes, page_size_bytes) = (&part.layout.attributes, part.layout.page_size_bytes);
        let kind = match part.layout.kind {
            RelationKind::Other => kind_of_pages(content, page_size_bytes as usize),
            kind => kind,
        };
        let columns_max = if self.level.number() == 1 { FAST_COLUMNS_MAX } else { usize::MAX };
        if attributes.is_empty()
            && matches!(kind, RelationKind::Heap | RelationKind::Index)
            && let Some(found) = self.discovery.find(content, kind, page_size_bytes)
            && found.attributes.len() <= columns_max
        {
            let number = layouts.number_of(found);
            if number > 0 {
                return number;
            }
        }
        if part.layout.kind.has_columns()
            && (1..=columns_max).contains(&attributes.len())
            && attributes.iter().all(Attribute::is_supported)
        {
            return layouts.number_of(part.layout);
        }
        self.plain_layout.kind = kind;
        self.plain_layout.page_size_bytes = page_size_bytes;
        layouts.number_of(&self.plain_layout)
    }

    fn take_pages(&mut self, raw: &[u8], streams: &mut FrameStreams) {
        self.pages.begin();
        self.wal.begin();
        self.computed.clear();
        let mut rest = raw;
        for run in &streams.runs {
            let (content, behind) = rest.split_at(run.length);
            let start = raw.len() - rest.len();
            rest = behind;
            let mut tail = content;
            if let Some(number) = run.layout.checked_sub(1) {
                let (layout, columns) = (&streams.layouts.layouts[number], &mut streams.layouts.columns[number]);
                if layout.kind == RelationKind::Wal {
                    let (wal, page_size) = (&mut streams.wal, layout.page_size_bytes as usize);
                    self.wal.take(content, page_size, wal, &mut self.pages, &mut streams.pages);
                    continue;
                }
                let pages = content.chunks_exact(layout.page_size_bytes as usize);
                tail = pages.remainder();
                for (page, number) in pages.zip(0u32..) {
                    let block = run.first_page.wrapping_add(number);
                    let at = start + number as usize * page.len();
                    if self.pages.take(page, block, layout.kind, columns, &mut streams.pages) {
                        let checksum = u16_at(page, CHECKSUM_OFFSET);
                        self.computed.push(Computed { at, block, checksum });
                    }
                }
            }
            streams.pages.bytes[ByteStream::Raw as usize].values.extend_from_slice(tail);
        }
    }

    fn write_streams(&mut self, streams: &mut FrameStreams, out: &mut Vec<u8>) {
        let FrameStreams { layouts, pages, wal, text, .. } = streams;
        self.coded.clear();
        for (number, stream) in pages.bytes.iter().enumerate() {
            if number >= ByteStream::FIRST_TEXT {
                text.store(&stream.values, &mut self.coded);
            } else {
                self.coders.bytes.encode(&stream.values, &mut self.coded);
            }
        }
        for stream in pages.numbers_there() {
            self.coders.numbers.encode_u32(&stream.values, None, &mut self.coded);
        }
        self.coders.numbers.encode_u64(&pages.lsns.values, None, &mut self.coded);
        for columns in &layouts.columns[..layouts.count] {
            self.coders.encode(columns, text, &mut self.coded);
        }
        if layouts.have_wal() {
            self.wal_coder.encode(wal, &mut self.coders, text, &mut self.coded);
        }
        // The decoder needs the text before the streams that are made of it.
        let ValueCoders { bytes, numbers, floats, .. } = &mut self.coders;
        self.text_coder.encode(&text.bytes, bytes, numbers, floats, out);
        out.extend_from_slice(&self.coded);
    }
}

fn write_head(streams: &FrameStreams, out: &mut Vec<u8>) {
    put_varint(streams.layouts.count as u64, out);
    for layout in &streams.layouts.layouts[..streams.layouts.count] {
        out.push(layout.kind as u8);
        out.push(layout.page_size_bytes.trailing_zeros() as u8);
        put_varint(layout.attributes.len() as u64, out);
        for attribute in &layout.attributes {
            out.push(attribute.value_type as u8 | (attribute.alignment.trailing_zeros() as u8) << 4);
            // -1 becomes 0.
            put_varint((i32::from(attribute.length) + 1) as u64, out);
        }
    }
    put_varint(streams.runs.len() as u64, out);
    for run in &streams.runs {
        put_varint(run.length as u64, out);
        put_varint(run.layout as u64, out);
        if run.layout > 0 {
            put_varint(u64::from(run.first_page), out);
        }
    }
}
