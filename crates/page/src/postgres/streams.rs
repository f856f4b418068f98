//! The streams that all pages of a frame share, whatever their columns.

use super::page::any_has_copies;
use crate::stream::Stream;

/// Streams of bytes, in the order in which a frame holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteStream {
    /// What each page is.
    PageKind,
    /// How a page that was taken apart differs from the plain case; the bits are [`flag`]'s.
    PageFlags,
    /// States of line pointers.
    ItemState,
    /// How each tuple is stored, of pages where not all are stored the same way.
    TupleState,
    /// Bitmaps of columns that are not null.
    Nulls,
    /// Bytes between tuples that are not zero.
    Padding,
    /// Space that no tuple uses, where it is not zero; see [`super::hole`].
    Hole,
    /// Pages as they are, and tuples as they are, and what follows the last known column of tuples.
    Raw,
}

impl ByteStream {
    /// How many there are.
    pub(crate) const COUNT: usize = 8;
    /// The first of those that are text: long, and compressed together.
    pub(crate) const FIRST_TEXT: usize = ByteStream::Padding as usize;
}

/// Streams of numbers of up to 32 bits, in the order in which a frame holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberStream {
    /// `pd_checksum` where it is neither right nor zero.
    Checksum,
    /// `pd_flags`.
    HeaderFlags,
    /// `pd_prune_xid`.
    PruneXid,
    /// How many line pointers.
    PointerCount,
    /// `pd_lower`, `pd_upper`, `pd_special` of pages whose tuples are not looked at.
    Lower,
    Upper,
    Special,
    /// See [`super::items`].
    Rank,
    Redirect,
    OddItem,
    /// Bytes of a tuple that is stored as it is.
    RawLength,
    /// Bytes behind the last known column.
    RestLength,
    /// Fields of heap tuples.
    Xmin,
    Xmax,
    CommandId,
    NextBlock,
    NextNumber,
    Infomask2,
    Infomask,
    /// Fields of B-tree pages.
    Previous,
    Next,
    TreeLevel,
    TreeFlags,
    TreeCycle,
    /// Fields of index tuples.
    Info,
    RowBlock,
    RowNumber,
    RowCount,
    ListBlock,
    ListNumber,
    /// See [`super::remains`]; a frame without copies does not have them.
    CopyCount,
    CopySkip,
    CopyLength,
    CopyDistance,
}

impl NumberStream {
    /// How many there are.
    pub(crate) const COUNT: usize = NumberStream::CopyDistance as usize + 1;
    /// How many of them every frame has.
    const ALWAYS: usize = NumberStream::CopyCount as usize;
}

/// Bits of a page's flags.
pub(super) mod flag {
    /// The checksum field is not what the content gives: it is zero, or [`CHECKSUM_STORED`].
    pub(in crate::postgres) const CHECKSUM_ZERO: u8 = 1;
    /// The checksum field stands in its stream.
    pub(in crate::postgres) const CHECKSUM_STORED: u8 = 2;
    /// The space that no tuple uses is not zero.
    pub(in crate::postgres) const HOLE: u8 = 4;
    /// Line pointers are not all normal.
    pub(in crate::postgres) const STATES: u8 = 8;
    /// The first tuple is the last on the page, the others lie in order.
    pub(in crate::postgres) const FIRST_IS_LAST: u8 = 16;
    /// Places of tuples stand in the stream of ranks.
    pub(in crate::postgres) const RANKS: u8 = 32;
    /// Bytes between tuples are not zero.
    pub(in crate::postgres) const PADDING: u8 = 64;
    /// Tuples are not all stored the plain way: their states stand in a stream.
    pub(in crate::postgres) const TUPLE_STATES: u8 = 128;
}

/// What the pages of a frame have in common.
#[derive(Debug)]
pub(crate) struct PageStreams {
    pub(crate) bytes: [Stream<u8>; ByteStream::COUNT],
    pub(crate) numbers: [Stream<u32>; NumberStream::COUNT],
    /// `pd_lsn`.
    pub(crate) lsns: Stream<u64>,
}

impl Default for PageStreams {
    fn default() -> Self {
        PageStreams {
            bytes: Default::default(),
            numbers: std::array::from_fn(|_| Stream::default()),
            lsns: Stream::default(),
        }
    }
}

impl PageStreams {
    pub(crate) fn clear(&mut self) {
        self.bytes.iter_mut().for_each(Stream::clear);
        self.numbers.iter_mut().for_each(Stream::clear);
        self.lsns.clear();
    }

    /// The memory they keep.
    pub(crate) fn held_bytes(&self) -> usize {
        let bytes = self.bytes.iter().map(Stream::held_bytes).sum::<usize>();
        bytes + self.numbers.iter().map(Stream::held_bytes).sum::<usize>() + self.lsns.held_bytes()
    }

    /// The streams of numbers that the frame has, as its pages' kinds tell.
    pub(crate) fn numbers_there(&mut self) -> &mut [Stream<u32>] {
        let kinds = &self.bytes[ByteStream::PageKind as usize].values;
        let count = if any_has_copies(kinds) { NumberStream::COUNT } else { NumberStream::ALWAYS };
        &mut self.numbers[..count]
    }

    #[inline]
    pub(super) fn byte(&mut self, stream: ByteStream) -> &mut Stream<u8> {
        &mut self.bytes[stream as usize]
    }

    /// Appends `count` places to each of some streams of numbers; these places.
    #[inline]
    pub(super) fn extended<const N: usize>(&mut self, streams: [NumberStream; N], count: usize) -> [&mut [u32]; N] {
        // They differ: every caller names each once.
        match self.numbers.get_disjoint_mut(streams.map(|stream| stream as usize)) {
            Ok(streams) => streams.map(|stream| {
                let start = stream.values.len();
                stream.values.resize(start + count, 0);
                &mut stream.values[start..]
            }),
            Err(_) => unreachable!("a stream is named twice"),
        }
    }

    #[inline]
    pub(super) fn number(&mut self, stream: NumberStream) -> &mut Stream<u32> {
        &mut self.numbers[stream as usize]
    }
}
