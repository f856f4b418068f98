//! The bytes of a frame to streams, and streams to content.

use std::hash::Hasher as _;

use twox_hash::XxHash3_64;
use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, RawHasher, SecretBuffer};

use super::{Computed, FrameStreams, LAYOUTS_MAX, Layouts, Run, is_known};
use crate::entropy::{MixedDecoder, Reader, TextDecoder};
use crate::error::{Damaged, Decoded};
use crate::layout::{ATTRIBUTES_MAX, Attribute, RelationKind, RelationLayout, ValueType};
use crate::postgres::{ByteStream, PageMaker, PageSource, steps};
use crate::prefetch::Ahead;
use crate::values::{Text, ValueDecoders};
use crate::wal::{WalDecoder, WalMaker, WalSource};

/// Makes frames' content again; one per thread.
pub(crate) struct FrameMaker {
    pages: PageMaker,
    wal: WalMaker,
    wal_decoder: WalDecoder,
    decoders: ValueDecoders,
    text_decoder: MixedDecoder,
    scratch: RelationLayout,
    /// What is made to be compared.
    piece: Vec<u8>,
}

impl FrameMaker {
    /// None if there is no memory for zstd's context.
    pub(crate) fn new() -> Option<Self> {
        let text_decoder = TextDecoder::new();
        text_decoder.has_context().then(|| FrameMaker {
            pages: PageMaker::default(),
            wal: WalMaker::default(),
            wal_decoder: WalDecoder::default(),
            decoders: ValueDecoders::new(),
            text_decoder: MixedDecoder::new(text_decoder),
            scratch: RelationLayout::default(),
            piece: Vec::new(),
        })
    }

    /// Fills `raw` from all of `coded`; its digest.
    pub(crate) fn make(&mut self, coded: &[u8], streams: &mut FrameStreams, raw: &mut [u8]) -> Decoded<u64> {
        self.read(coded, raw.len(), streams)?;
        let mut place = Filled { raw, at: 0, hasher: hasher() };
        self.make_pages(streams, &mut place)?;
        Ok(place.hasher.finish())
    }

    /// The digest of `raw` if [`FrameMaker::make`] would make it of `coded`. Each page is compared as soon as it is made. `computed` are
    /// the pages of `raw` whose checksums are known to be right.
    pub(crate) fn proves(
        &mut self,
        coded: &[u8],
        streams: &mut FrameStreams,
        raw: &[u8],
        computed: &[Computed],
    ) -> Decoded<Option<u64>> {
        self.read(coded, raw.len(), streams)?;
        let mut piece = std::mem::take(&mut self.piece);
        let mut place = Compared { piece: &mut piece, raw, at: 0, computed, hasher: hasher() };
        let proven = self.make_pages(streams, &mut place);
        let digest = place.hasher.finish();
        self.piece = piece;
        Ok(proven?.then_some(digest))
    }

    fn read(&mut self, coded: &[u8], length: usize, streams: &mut FrameStreams) -> Decoded<()> {
        streams.begin();
        let mut input = Reader::new(coded);
        self.read_head(&mut input, length, streams)?;
        self.read_streams(&mut input, length, streams)?;
        if !input.is_empty() || !streams.text.is_spent() {
            return Err(Damaged("bytes are left over at the end of the frame"));
        }
        Ok(())
    }

    /// Fills `raw` from a frame that is one text.
    pub(crate) fn make_of_text(&mut self, coded: &[u8], streams: &mut FrameStreams, raw: &mut [u8]) -> Decoded<u64> {
        let text = &mut streams.text;
        self.read_text(coded, raw.len(), text)?;
        raw.copy_from_slice(&text.bytes);
        Ok(XxHash3_64::oneshot(raw))
    }

    /// The digest of `raw` if [`FrameMaker::make_of_text`] would make it of `coded`.
    pub(crate) fn proves_text(&mut self, coded: &[u8], streams: &mut FrameStreams, raw: &[u8]) -> Decoded<Option<u64>> {
        let text = &mut streams.text;
        self.read_text(coded, raw.len(), text)?;
        Ok((text.bytes == raw).then(|| XxHash3_64::oneshot(raw)))
    }

    fn read_text(&mut self, coded: &[u8], length: usize, text: &mut Text) -> Decoded<()> {
        let mut input = Reader::new(coded);
        text.clear();
        let ValueDecoders { bytes, numbers, floats, .. } = &mut self.decoders;
        self.text_decoder.decode(&mut input, length, bytes, numbers, floats, &mut text.bytes)?;
        if text.bytes.len() != length || !input.is_empty() {
            return Err(Damaged("it holds more or less than its content"));
        }
        Ok(())
    }

    fn read_head(&mut self, input: &mut Reader<'_>, length: usize, streams: &mut FrameStreams) -> Decoded<()> {
        for _ in 0..input.count(LAYOUTS_MAX)? {
            self.read_layout(input, &mut streams.layouts)?;
        }
        let mut left = length;
        // A run has a byte at least.
        for _ in 0..input.count(length)? {
            let run_length = input.count(left)?;
            let layout = input.count(streams.layouts.count)?;
            let first_page = if layout > 0 { input.count(u32::MAX as usize)? as u32 } else { 0 };
            if run_length == 0 {
                return Err(BAD_HEAD);
            }
            left -= run_length;
            streams.runs.push(Run { length: run_length, first_page, layout });
        }
        if left == 0 { Ok(()) } else { Err(BAD_HEAD) }
    }

    fn read_layout(&mut self, input: &mut Reader<'_>, layouts: &mut Layouts) -> Decoded<()> {
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
        let before = layouts.count;
        if !is_known(&self.scratch) || layouts.number_of(&self.scratch) != before + 1 {
            return Err(BAD_HEAD);
        }
        Ok(())
    }

    fn read_streams(&mut self, input: &mut Reader<'_>, length: usize, streams: &mut FrameStreams) -> Decoded<()> {
        let kept_bytes_max = streams.kept_documents_bytes_max();
        let FrameStreams { layouts, pages, wal, text, .. } = streams;
        let decoders = &mut self.decoders;
        decoders.begin(length, kept_bytes_max);
        // Text is content, byte for byte.
        let ValueDecoders { bytes, numbers, floats, .. } = &mut *decoders;
        self.text_decoder.decode(input, length, bytes, numbers, floats, &mut text.bytes)?;
        text.seal();
        for (number, stream) in pages.bytes.iter_mut().enumerate() {
            if number >= ByteStream::FIRST_TEXT {
                let range = text.next(input)?;
                stream.values.extend_from_slice(&text.bytes[range]);
            } else {
                decoders.decode_bytes(input, &mut stream.values)?;
            }
        }
        for stream in pages.numbers_there() {
            decoders.decode_u32(input, None, &mut stream.values)?;
        }
        decoders.decode_u64(input, None, &mut pages.lsns.values)?;
        for columns in &mut layouts.columns[..layouts.count] {
            decoders.decode(input, columns, text)?;
        }
        if layouts.have_wal() {
            self.wal_decoder.decode(wal, decoders, input, text)?;
        }
        Ok(())
    }

    /// Makes the content piece by piece, each where `place` says; false as soon as `place` does not take one.
    fn make_pages(&mut self, streams: &mut FrameStreams, place: &mut impl Place) -> Decoded<bool> {
        let FrameStreams { runs, layouts, pages: page_streams, wal: wal_streams, text, .. } = streams;
        self.pages.begin();
        self.wal.begin();
        for run in &*runs {
            let mut left = run.length;
            if let Some(number) = run.layout.checked_sub(1) {
                let (layout, columns) = (&layouts.layouts[number], &mut layouts.columns[number]);
                let (kind, size) = (layout.kind, layout.page_size_bytes as usize);
                if kind == RelationKind::Wal {
                    // What is longer would push itself out again.
                    place.needed(left.min(ASKED_BYTES_MAX)).finish();
                    let (wal, pages) = (&mut *wal_streams, &mut self.pages);
                    let source = WalSource { wal, pages, page_streams, text: &text.bytes };
                    self.wal.make(place.next(left), size, source)?;
                    if !place.takes(left) {
                        return Ok(false);
                    }
                    continue;
                }
                for block in (0..(left / size) as u32).map(|page| run.first_page.wrapping_add(page)) {
                    let (streams, text) = (&mut *page_streams, &text.bytes[..]);
                    let right_checksum = place.right_checksum(block);
                    let ahead = place.needed(size).in_steps(steps(columns));
                    let source = PageSource { block, kind, columns, streams, text, right_checksum, ahead };
                    self.pages.make(place.next(size), source)?;
                    if !place.takes(size) {
                        return Ok(false);
                    }
                }
                left %= size;
            }
            place.next(left).copy_from_slice(page_streams.bytes[ByteStream::Raw as usize].take(left)?);
            if !place.takes(left) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// So much of a run of WAL is asked for, which is made as a whole.
const ASKED_BYTES_MAX: usize = 32 << 10;

/// Where content is made, piece by piece.
trait Place {
    /// Room for the next `length` bytes.
    fn next(&mut self, length: usize) -> &mut [u8];

    /// The checksum of the next page, whose number is `block`, if there is no need to compute it.
    fn right_checksum(&mut self, block: u32) -> Option<u16>;

    /// What will be read once the next `length` bytes are made.
    fn needed(&self, length: usize) -> Ahead;

    /// Whether these bytes are as they are to be; the next piece follows behind them.
    fn takes(&mut self, length: usize) -> bool;
}

/// Digests pieces right after they were made, while they are in the nearest cache.
type Hasher = RawHasher<&'static [u8; DEFAULT_SECRET_LENGTH]>;

fn hasher() -> Hasher {
    RawHasher::new(SecretBuffer::default())
}

/// The content itself.
struct Filled<'a> {
    raw: &'a mut [u8],
    at: usize,
    hasher: Hasher,
}

impl Place for Filled<'_> {
    fn next(&mut self, length: usize) -> &mut [u8] {
        &mut self.raw[self.at..self.at + length]
    }

    fn right_checksum(&mut self, _: u32) -> Option<u16> {
        None
    }

    fn needed(&self, _: usize) -> Ahead {
        Ahead::default()
    }

    fn takes(&mut self, length: usize) -> bool {
        self.hasher.write(&self.raw[self.at..self.at + length]);
        self.at += length;
        true
    }
}

/// One piece after the other in the same place, so that it never leaves the cache, compared with the content.
struct Compared<'a> {
    piece: &'a mut Vec<u8>,
    raw: &'a [u8],
    at: usize,
    /// Those that are left.
    computed: &'a [Computed],
    hasher: Hasher,
}

impl Place for Compared<'_> {
    fn next(&mut self, length: usize) -> &mut [u8] {
        self.piece.resize(length, 0);
        self.piece
    }

    fn right_checksum(&mut self, block: u32) -> Option<u16> {
        self.computed = &self.computed[self.computed.partition_point(|computed| computed.at < self.at)..];
        // If all other bytes of the page come out as they are, so would this.
        let computed = self.computed.first()?;
        (computed.at == self.at && computed.block == block).then_some(computed.checksum)
    }

    fn needed(&self, length: usize) -> Ahead {
        Ahead::of(&self.raw[self.at..self.at + length])
    }

    fn takes(&mut self, length: usize) -> bool {
        let expected = &self.raw[self.at..self.at + length];
        self.at += length;
        self.hasher.write(self.piece);
        self.piece.as_slice() == expected
    }
}

const BAD_HEAD: Damaged = Damaged("the frame's list of layouts and runs is not valid");
