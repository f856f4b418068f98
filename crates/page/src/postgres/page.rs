//! One page: its header, its free space, and who looks at the rest.

use super::bounds::{Bounds, LAYOUT_VERSION};
use super::columns::Columns;
use super::gin::{self, GinPage, GinScratch};
use super::grid::Grid;
use super::heap::{self, HeapPage, HeapScratch};
use super::hole;
use super::index::{self, IndexPage, IndexScratch, LastRow};
use super::items::{HEADER_BYTES, Items, POINTER_BYTES};
use super::remains::{self, Remains};
use super::spgist::{self, SpGistPage, SpGistScratch};
use super::streams::{ByteStream, NumberStream, PageStreams, flag};
use super::wire::{OUTSIDE, is_zero, put, put_bytes, u16_at, u32_at};
use crate::checksum::{CHECKSUM_OFFSET, page_checksum, page_checksum_ahead};
use crate::error::{Damaged, Decoded};
use crate::layout::RelationKind;
use crate::prefetch::Ahead;

/// The most columns times tuples of a page: what bounds the table of where they are, to half a MiB. Tuples that have all
/// columns of their layout cannot be more, whatever the page's size.
const CELLS_MAX: usize = 1 << 18;

/// What a page is; its number in the stream of kinds.
mod kind {
    /// All zero.
    pub(super) const ZERO: u8 = 0;
    /// Stored as it is.
    pub(super) const RAW: u8 = 1;
    /// Header and free space taken apart, the rest as it is.
    pub(super) const SHELL: u8 = 2;
    /// Tuples taken apart, as the kind of the relation says.
    pub(super) const TUPLES: u8 = 3;
    /// The same, and what tuples have in common is stored once: of a heap all headers; of an index, the first tuple is
    /// stored as it is and no other one.
    pub(super) const ALIKE: u8 = 4;
    /// With one of the last three: its free space is stored without its zeros.
    pub(super) const SPARSE: u8 = 8;
    /// With one of the last two: parts of its free space are copies of its tuples.
    pub(super) const COPIES: u8 = 16;
}

/// Whether some of these pages have copies of tuples in their free space.
pub(super) fn any_has_copies(kinds: &[u8]) -> bool {
    kinds.iter().fold(0, |all, kind| all | kind) & kind::COPIES != 0
}

/// Takes pages apart.
#[derive(Debug, Default)]
pub(crate) struct PageTaker {
    items: Items,
    grid: Grid,
    last_row: LastRow,
    remains: Remains,
}

impl PageTaker {
    /// Starts a frame.
    pub(crate) fn begin(&mut self) {
        self.last_row = LastRow::default();
    }

    /// Appends all of `page`, which is page `block` of a relation of `kind`, to the streams. Gives whether its checksum was
    /// computed, and is the one it carries.
    pub(crate) fn take(
        &mut self,
        page: &[u8],
        block: u32,
        kind: RelationKind,
        columns: &mut Columns,
        streams: &mut PageStreams,
    ) -> bool {
        if is_zero(page) {
            streams.byte(ByteStream::PageKind).values.push(kind::ZERO);
            return false;
        }
        let Some(bounds) = Bounds::of(page) else {
            streams.byte(ByteStream::PageKind).values.push(kind::RAW);
            streams.byte(ByteStream::Raw).values.extend_from_slice(page);
            return false;
        };
        let mut ahead = Ahead::behind(page);
        let of_checksum = checksum_flags(page, block, streams, &mut ahead);
        self.grid.full.ahead = ahead.in_steps(steps(columns));
        let mut flags = of_checksum;
        store_header(page, streams);
        let name_pointers = kind == RelationKind::Heap;
        let kind = match self.take_tuples(page, block, bounds, kind, columns, streams) {
            Some((of_tuples, are_alike)) => {
                flags |= of_tuples;
                if are_alike { kind::ALIKE } else { kind::TUPLES }
            }
            None => {
                for (stream, bound) in [
                    (NumberStream::Lower, bounds.lower),
                    (NumberStream::Upper, bounds.upper),
                    (NumberStream::Special, bounds.special),
                ] {
                    streams.number(stream).values.push(bound as u32);
                }
                let raw = streams.byte(ByteStream::Raw);
                raw.values.extend_from_slice(&page[HEADER_BYTES..bounds.lower]);
                raw.values.extend_from_slice(&page[bounds.upper..]);
                kind::SHELL
            }
        };
        let mut of_hole = 0;
        if !is_zero(&page[bounds.lower..bounds.upper]) {
            flags |= flag::HOLE;
            of_hole = self.take_hole(page, bounds, kind, name_pointers, streams);
        }
        streams.byte(ByteStream::PageKind).values.push(kind | of_hole);
        streams.byte(ByteStream::PageFlags).values.push(flags);
        self.grid.full.ahead.finish();
        of_checksum == 0
    }

    /// Stores what is between line pointers and tuples of a page of kind `of_page`, whose tuples may have left their remains there;
    /// how that went, as it is told with the page's kind. Tuples of heaps name their line pointers.
    fn take_hole(
        &mut self,
        page: &[u8],
        bounds: Bounds,
        of_page: u8,
        name_pointers: bool,
        streams: &mut PageStreams,
    ) -> u8 {
        let mut of_hole = 0;
        let mut rest = &page[bounds.lower..bounds.upper];
        let items = if name_pointers { &self.items.spans[..] } else { &[] };
        if of_page != kind::SHELL && self.remains.find(page, bounds, items) {
            of_hole |= kind::COPIES;
            rest = self.remains.store(page, bounds, streams);
        }
        if !rest.is_empty() && hole::store(rest, &mut streams.byte(ByteStream::Hole).values) {
            of_hole |= kind::SPARSE;
        }
        of_hole
    }

    /// Takes line pointers and tuples apart; None, and nothing stored, if the page does not look like one of its kind. The
    /// flags, and whether the page is [`kind::ALIKE`].
    fn take_tuples(
        &mut self,
        page: &[u8],
        block: u32,
        bounds: Bounds,
        kind: RelationKind,
        columns: &mut Columns,
        streams: &mut PageStreams,
    ) -> Option<(u8, bool)> {
        let fits = match kind {
            RelationKind::Heap => bounds.special == page.len(),
            RelationKind::Index => index::has_tuples(page, bounds.special),
            RelationKind::Gin => gin::has_tuples(page, bounds.special, columns),
            RelationKind::SpGist => spgist::has_tuples(page, bounds.special, columns),
            RelationKind::NotPages | RelationKind::Other | RelationKind::Wal => false,
        };
        if !fits || !(bounds.lower - HEADER_BYTES).is_multiple_of(POINTER_BYTES) {
            return None;
        }
        let count = bounds.pointer_count();
        if !self.items.find(page, count, bounds.upper, bounds.special) || !fits_grid(&self.items, columns) {
            return None;
        }
        self.grid.full.ahead.step();
        let flags = self.items.store(page, count, bounds.upper, bounds.special, streams)?;
        streams.number(NumberStream::PointerCount).values.push(count as u32);
        let (items, grid) = (&self.items, &mut self.grid);
        grid.full.ahead.step();
        Some(match kind {
            RelationKind::Heap => {
                let (of_tuples, are_alike) = heap::store(page, block, items, columns, grid, streams);
                (flags | of_tuples, are_alike)
            }
            RelationKind::Gin => (flags | gin::store(page, block, items, columns, grid, streams), false),
            RelationKind::SpGist => {
                (flags | spgist::store(page, items, columns, grid, streams, &mut self.last_row), false)
            }
            _ => {
                index::store_opaque(page, block, streams);
                let (of_tuples, are_alike) = index::store(page, items, columns, grid, streams, &mut self.last_row);
                (flags | of_tuples, are_alike)
            }
        })
    }
}

const LOWER_OFFSET: usize = 12;
const SPECIAL_OFFSET: usize = 16;

/// What a page seems to be of, by the room at its end that its access method has for itself.
pub(crate) fn kind_of_page(page: &[u8]) -> RelationKind {
    match page.len().checked_sub(usize::from(u16_at(page, SPECIAL_OFFSET))) {
        Some(0) => RelationKind::Heap,
        Some(index::OPAQUE_BYTES) => RelationKind::Index,
        _ => RelationKind::Other,
    }
}

/// What a run of pages of `page_size` seems to be of, by its first page with line pointers. Maps of free space and of
/// visibility have none.
pub(crate) fn kind_of_pages(content: &[u8], page_size: usize) -> RelationKind {
    let has_pointers = |page: &&[u8]| usize::from(u16_at(page, LOWER_OFFSET)) > HEADER_BYTES;
    content.chunks_exact(page_size).find(has_pointers).map_or(RelationKind::Other, kind_of_page)
}

/// In how many steps memory is asked for while a page of these columns is taken apart or made: there is one with each column, and
/// there are two besides. More than these are a few lines each.
pub(crate) fn steps(columns: &Columns) -> usize {
    columns.attributes.len().min(20) + 2
}

fn fits_grid(items: &Items, columns: &Columns) -> bool {
    items.spans.len() * columns.attributes.len() <= CELLS_MAX
}

/// How the checksum field is stored.
fn checksum_flags(page: &[u8], block: u32, streams: &mut PageStreams, ahead: &mut Ahead) -> u8 {
    match u16_at(page, CHECKSUM_OFFSET) {
        0 => flag::CHECKSUM_ZERO,
        checksum if checksum == page_checksum_ahead(page, block, ahead) => 0,
        checksum => {
            streams.number(NumberStream::Checksum).values.push(u32::from(checksum));
            flag::CHECKSUM_STORED
        }
    }
}

fn store_header(page: &[u8], streams: &mut PageStreams) {
    let lsn = u64::from(u32_at(page, 0)) << 32 | u64::from(u32_at(page, 4));
    streams.lsns.values.push(lsn);
    streams.number(NumberStream::HeaderFlags).values.push(u32::from(u16_at(page, 10)));
    streams.number(NumberStream::PruneXid).values.push(u32_at(page, 20));
}

/// What a page is made of.
pub(crate) struct PageSource<'a> {
    /// Its number.
    pub(crate) block: u32,
    pub(crate) kind: RelationKind,
    pub(crate) columns: &'a mut Columns,
    pub(crate) streams: &'a mut PageStreams,
    /// The text of the frame.
    pub(crate) text: &'a [u8],
    /// What computing its checksum would give if all its other bytes come out right, where somebody has computed it.
    pub(crate) right_checksum: Option<u16>,
    /// What will be needed once it is made.
    pub(crate) ahead: Ahead,
}

/// Makes pages.
#[derive(Debug, Default)]
pub(crate) struct PageMaker {
    items: Items,
    grid: Grid,
    last_row: LastRow,
    heap: HeapScratch,
    index: IndexScratch,
    gin: GinScratch,
    spgist: SpGistScratch,
}

impl PageMaker {
    /// Starts a frame.
    pub(crate) fn begin(&mut self) {
        self.last_row = LastRow::default();
    }

    /// Fills `page`.
    pub(crate) fn make(&mut self, page: &mut [u8], mut source: PageSource<'_>) -> Decoded<()> {
        let streams = &mut *source.streams;
        let page_kind = streams.byte(ByteStream::PageKind).next()?;
        self.grid.full.ahead = source.ahead;
        self.grid.full.ahead.step();
        page.fill(0);
        match page_kind {
            kind::ZERO => return Ok(()),
            kind::RAW => return put_bytes(page, 0, streams.byte(ByteStream::Raw).take(page.len())?),
            _ => {}
        }
        let flags = streams.byte(ByteStream::PageFlags).next()?;
        let [is_sparse, has_copies] = [kind::SPARSE, kind::COPIES].map(|bit| page_kind & bit != 0);
        let page_kind = page_kind & !(kind::SPARSE | kind::COPIES);
        if !(kind::SHELL..=kind::ALIKE).contains(&page_kind)
            || (is_sparse || has_copies) && flags & flag::HOLE == 0
            || has_copies && page_kind == kind::SHELL
        {
            return Err(Damaged("a page has a kind that does not exist"));
        }
        let lsn = streams.lsns.next()?;
        put(page, 0, ((lsn >> 32) as u32).to_le_bytes())?;
        put(page, 4, (lsn as u32).to_le_bytes())?;
        put(page, 10, (streams.number(NumberStream::HeaderFlags).next()? as u16).to_le_bytes())?;
        put(page, 18, ((page.len() + LAYOUT_VERSION) as u16).to_le_bytes())?;
        put(page, 20, streams.number(NumberStream::PruneXid).next()?.to_le_bytes())?;
        let bounds = if page_kind == kind::SHELL {
            make_shell(page, streams)?
        } else {
            self.make_tuples(page, flags, page_kind == kind::ALIKE, &mut source)?
        };
        for (at, bound) in [(12, bounds.lower), (14, bounds.upper), (16, bounds.special)] {
            put(page, at, (bound as u16).to_le_bytes())?;
        }
        self.grid.full.ahead.finish();
        let streams = &mut *source.streams;
        if flags & flag::HOLE != 0 {
            let load = |room: &mut [u8], streams: &mut PageStreams| {
                let stream = streams.byte(ByteStream::Hole);
                if is_sparse { hole::load(room, stream) } else { put_bytes(room, 0, stream.take(room.len())?) }
            };
            if has_copies {
                remains::load(page, bounds, streams, load)?;
            } else {
                load(page.get_mut(bounds.lower..bounds.upper).ok_or(OUTSIDE)?, streams)?;
            }
        }
        let checksum = if flags & flag::CHECKSUM_STORED != 0 {
            streams.number(NumberStream::Checksum).next()? as u16
        } else if flags & flag::CHECKSUM_ZERO != 0 {
            0
        } else {
            source.right_checksum.unwrap_or_else(|| page_checksum(page, source.block))
        };
        put(page, CHECKSUM_OFFSET, checksum.to_le_bytes())
    }

    fn make_tuples(
        &mut self,
        page: &mut [u8],
        flags: u8,
        are_alike: bool,
        source: &mut PageSource<'_>,
    ) -> Decoded<Bounds> {
        let PageSource { block, kind, columns, streams, text, .. } = source;
        let (block, kind, text) = (*block, *kind, *text);
        let special = match kind {
            RelationKind::Heap => page.len(),
            RelationKind::Index => page.len() - index::OPAQUE_BYTES,
            RelationKind::Gin if columns.attributes.len() == 1 && !are_alike => page.len() - gin::OPAQUE_BYTES,
            RelationKind::SpGist if !columns.attributes.is_empty() && !are_alike => page.len() - spgist::OPAQUE_BYTES,
            _ => return Err(Damaged("a page of tuples is of a relation that has no such tuples")),
        };
        let count = streams.number(NumberStream::PointerCount).next()? as usize;
        let lower = count.checked_mul(POINTER_BYTES).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        let lower = lower.filter(|lower| *lower <= special).ok_or(Damaged("a page has too many line pointers"))?;
        self.items.load_states(page, count, flags, streams)?;
        if !fits_grid(&self.items, columns) {
            return Err(Damaged("a page has more tuples than its columns allow"));
        }
        self.grid.full.ahead.step();
        let (items, grid, last) = (&mut self.items, &mut self.grid, &mut self.last_row);
        let upper = match kind {
            RelationKind::Heap => {
                let scratch = &mut self.heap;
                HeapPage { block, lower, special, flags, are_alike, items, columns, grid, streams, text, scratch }
                    .load(page)?
            }
            RelationKind::Gin => {
                let scratch = &mut self.gin;
                GinPage { lower, special, flags, items, columns, grid, streams, text, scratch }.load(page, block)?
            }
            RelationKind::SpGist => {
                let scratch = &mut self.spgist;
                SpGistPage { lower, special, flags, items, columns, grid, streams, text, scratch, last }.load(page)?
            }
            _ => {
                index::load_opaque(page, block, streams)?;
                let (has_key, scratch) = (are_alike, &mut self.index);
                IndexPage { lower, special, flags, has_key, items, columns, grid, streams, text, scratch, last }
                    .load(page)?
            }
        };
        Ok(Bounds { lower, upper, special })
    }
}

/// Fills everything but header and free space.
fn make_shell(page: &mut [u8], streams: &mut PageStreams) -> Decoded<Bounds> {
    let mut next = |stream| streams.number(stream).next().map(|bound| bound as usize);
    let bounds = Bounds {
        lower: next(NumberStream::Lower)?,
        upper: next(NumberStream::Upper)?,
        special: next(NumberStream::Special)?,
    };
    if bounds.lower < HEADER_BYTES
        || bounds.lower > bounds.upper
        || bounds.upper > bounds.special
        || bounds.special > page.len()
    {
        return Err(Damaged("a page's bounds are not in order"));
    }
    let raw = streams.byte(ByteStream::Raw);
    put_bytes(page, HEADER_BYTES, raw.take(bounds.lower - HEADER_BYTES)?)?;
    let length = page.len() - bounds.upper;
    put_bytes(page, bounds.upper, raw.take(length)?)?;
    Ok(bounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Attribute, ValueType};

    const PAGE_BYTES: usize = 4096;
    /// Of the page that all streams below tell of, which has no line pointer and no tuple.
    const UPPER: usize = 4000;

    /// A page of this kind and flags, from streams that have enough of everything.
    fn make(page_kind: u8, flags: u8, kind: RelationKind) -> Decoded<Vec<u8>> {
        let mut streams = PageStreams::default();
        streams.bytes.iter_mut().for_each(|stream| stream.values.resize(PAGE_BYTES, 0));
        streams.numbers.iter_mut().for_each(|stream| stream.values.push(0));
        streams.lsns.values.push(7);
        streams.byte(ByteStream::PageKind).values[0] = page_kind;
        streams.byte(ByteStream::PageFlags).values[0] = flags;
        // Sparse: all zeros, in 255 blocks and less.
        streams.byte(ByteStream::Hole).values[0] = 255;
        for (stream, bound) in
            [(NumberStream::Lower, HEADER_BYTES), (NumberStream::Upper, UPPER), (NumberStream::Special, UPPER)]
        {
            streams.number(stream).values[0] = bound as u32;
        }
        let (mut columns, text, right_checksum) = (Columns::default(), &[][..], None);
        let attribute = Attribute { value_type: ValueType::Integer, length: 4, alignment: 4 };
        columns.begin(&[attribute], kind.is_index());
        let source = PageSource {
            block: 1,
            kind,
            columns: &mut columns,
            streams: &mut streams,
            text,
            right_checksum,
            ahead: Ahead::default(),
        };
        let mut page = vec![0xA5; PAGE_BYTES];
        PageMaker::default().make(&mut page, source).map(|()| page)
    }

    #[test]
    fn kinds_of_pages_that_do_not_exist_are_damage() {
        use RelationKind::{Gin, Heap, Index, Other, SpGist};
        let hole = flag::HOLE | flag::CHECKSUM_ZERO;
        let there = [
            (kind::ZERO, hole),
            (kind::RAW, hole),
            (kind::SHELL, 0),
            (kind::SHELL, hole),
            (kind::SHELL | kind::SPARSE, hole),
            (kind::TUPLES, hole),
            (kind::TUPLES | kind::SPARSE, hole),
            (kind::TUPLES | kind::COPIES, hole),
            (kind::TUPLES | kind::SPARSE | kind::COPIES, hole),
        ];
        for (page_kind, flags) in there {
            assert!(make(page_kind, flags, Heap).is_ok(), "{page_kind} {flags}");
        }
        // Copies are of tuples, and both need a hole.
        let not_there = [
            (kind::SHELL | kind::COPIES, hole),
            (kind::SHELL | kind::SPARSE | kind::COPIES, hole),
            (kind::SHELL | kind::SPARSE, 0),
            (kind::TUPLES | kind::COPIES, 0),
            (kind::ZERO | kind::SPARSE, hole),
            (kind::RAW | kind::COPIES, hole),
            (kind::ALIKE + 1, hole),
            (32 | kind::TUPLES, hole),
            (u8::MAX, hole),
        ];
        for (page_kind, flags) in not_there {
            assert!(make(page_kind, flags, Heap).is_err(), "{page_kind} {flags}");
        }
        for kind in [Heap, Index, Gin, SpGist] {
            assert!(make(kind::TUPLES, hole, kind).is_ok(), "{kind:?}");
        }
        assert!(make(kind::TUPLES, hole, Other).is_err());
        // What tuples have in common is stored for heaps and for indexes of the first kind only.
        for kind in [Gin, SpGist, Other] {
            let cause = make(kind::ALIKE, hole, kind).unwrap_err().0;
            assert_eq!(cause, "a page of tuples is of a relation that has no such tuples", "{kind:?}");
        }
    }
}
