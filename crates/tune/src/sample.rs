//! A sample of the real relation files, in strata with the shares that the source has.
//!
//! The bytes of a stratum are a row of units, in the order of the files: a piece of 4 MiB of a large file, cut where
//! frames are cut, or several small files together, as the pipeline packs them. From that row units are taken at equal
//! distances. So 4 MiB frames can be measured, every part of every large file has the same chance, and the same source
//! gives the same sample.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pagehaul_engine::codec::{Part as ContentPart, RelationLayout};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::io;
use pagehaul_engine::limits::{FRAME_SIZE_BYTES_MAX, FRAME_SIZE_BYTES_MIN, TRANSFER_SIZE_BYTES_DEFAULT};
use pagehaul_engine::source::postgres::path_class::PathClass;
use pagehaul_engine::source::postgres::relation_layouts::RelationLayouts;

use crate::figures::Stratum;
use crate::source_files::SourceFiles;
use crate::stratum::{StratumKind, kind_of_class, kind_of_page};
use crate::threads::next_random;

/// Default size of a sample: 32 of the largest frames, and read in a tenth of a second where it is cached.
pub const SAMPLE_SIZE_BYTES_DEFAULT: u64 = 128 << 20;
/// A unit of the sample: the largest frame.
const UNIT_BYTES: u64 = FRAME_SIZE_BYTES_MAX as u64;
/// This share of the sample's size may go into looking at first pages: one part in so many.
const PROBE_PART: u64 = 16;

/// How to take a sample.
#[derive(Clone, Debug)]
pub struct SampleOptions {
    /// Most bytes that are read, first pages of relations included; of a smaller source they come on top.
    pub sample_size_bytes: u64,
    /// Another seed takes other pieces.
    pub seed: u64,
    /// Kinds that the server told, by (database oid, file number); asked before any page is looked at.
    pub known: BTreeMap<(u32, u32), StratumKind>,
    /// What the relations hold, for a codec that wants to know.
    pub layouts: Option<RelationLayouts>,
}

impl Default for SampleOptions {
    fn default() -> Self {
        SampleOptions { sample_size_bytes: SAMPLE_SIZE_BYTES_DEFAULT, seed: 1, known: BTreeMap::new(), layouts: None }
    }
}

/// A part of one file within a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of it.
    pub length: usize,
    /// Whether it is all of its file, which therefore shares frames if it is small.
    pub is_whole_file: bool,
    /// Block number of its first page; None if it has no pages.
    pub first_block: Option<u32>,
    /// What its pages hold, if that is known.
    pub layout: Option<Arc<RelationLayout>>,
}

/// Up to 4 MiB of one stratum.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The stratum.
    pub kind: StratumKind,
    /// The relation that it is a part of, as (database oid, file number); None for several small files.
    pub relation: Option<(u32, u32)>,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What they are of, in order.
    pub segments: Vec<Segment>,
}

/// Pieces of one kind and one relation, which are much alike.
pub type Group = (StratumKind, Option<(u32, u32)>);

/// A group with this share of the sample is large: codecs should not be judged without it.
pub const GROUP_SHARE_MIN: f64 = 0.02;

impl Piece {
    /// What it is like.
    pub fn group(&self) -> Group {
        (self.kind, self.relation)
    }

    /// The frames that the pipeline would make of it: small files share them, others are cut at the frame size.
    pub fn frames(&self, frame_size_bytes: u32) -> Vec<Range<usize>> {
        let frame_size = frame_size_bytes as usize;
        let (mut frames, mut start, mut packing): (Vec<Range<usize>>, usize, bool) = (Vec::new(), 0, false);
        for segment in self.segments.iter().filter(|segment| segment.length > 0) {
            let end = start + segment.length;
            if segment.is_whole_file && segment.length <= frame_size / 2 {
                match frames.last_mut() {
                    Some(last) if packing && end - last.start <= frame_size => last.end = end,
                    _ => frames.push(start..end),
                }
                packing = true;
            } else {
                let cuts = (start..end).step_by(frame_size);
                frames.extend(cuts.map(|cut| cut..end.min(cut + frame_size)));
                packing = false;
            }
            start = end;
        }
        frames
    }

    /// What is in one of its frames, as the pipeline tells it to the codec.
    pub fn parts_of(&self, frame: &Range<usize>) -> Vec<ContentPart<'_>> {
        let mut segment_end = 0;
        let mut parts = Vec::new();
        for segment in &self.segments {
            let segment_start = segment_end;
            segment_end += segment.length;
            let (from, to) = (segment_start.max(frame.start), segment_end.min(frame.end));
            let (Some(layout), Some(first_block), true) = (segment.layout.as_deref(), segment.first_block, from < to)
            else {
                continue;
            };
            let (page, before) = (layout.page_size_bytes as usize, from - segment_start);
            if page > 0 && before.is_multiple_of(page) && to - from >= page {
                let first_page = first_block.wrapping_add((before / page) as u32);
                parts.push(ContentPart { start: from - frame.start, length: to - from, first_page, layout });
            }
        }
        parts
    }
}

/// A sample in memory.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The pieces: first one of each large group, then any number of them is spread evenly over strata and positions.
    pub pieces: Vec<Piece>,
    /// The strata that the source has.
    pub strata: Vec<Stratum>,
    /// Bytes that were read, first pages of relations included.
    pub read_bytes: u64,
    /// Page size of the cluster.
    pub block_size_bytes: u32,
    /// Whether its pages have checksums.
    pub data_checksums: bool,
}

impl Sample {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    /// Share of the source's bytes that are of this kind, 0 to 1.
    pub fn share(&self, kind: StratumKind) -> f64 {
        let total: u64 = self.strata.iter().map(|stratum| stratum.source_bytes).sum();
        let own = self.strata.iter().find(|stratum| stratum.name == kind.name());
        own.map_or(0.0, |own| own.source_bytes as f64 / total.max(1) as f64)
    }
}

/// A part of a file that is to be read.
#[derive(Clone, Copy, Debug)]
struct Part {
    file: usize,
    offset: u64,
    length: u64,
    is_whole_file: bool,
}

/// Reads a sample of `source`; all of it if it is smaller than the sample's size.
///
/// # Errors
/// `Usage` if the sample would be smaller than a transfer buffer; `Source` if a file cannot be read; `Interrupted`.
pub fn take_sample(source: &SourceFiles, options: &SampleOptions, cancelled: &dyn Fn() -> bool) -> Result<Sample> {
    let least = u64::from(TRANSFER_SIZE_BYTES_DEFAULT);
    if options.sample_size_bytes < least {
        let action = format!("take a sample of {} bytes", options.sample_size_bytes);
        let hint = "use 64MiB or more: small samples say little about large frames";
        return Err(Error::new(ErrorKind::Usage, action, "it is smaller than one transfer buffer of 1 MiB").hint(hint));
    }
    let mut taking = Taking { source, layouts: options.layouts.as_ref(), read_bytes: 0, cancelled };
    let takes_all = source.bytes <= options.sample_size_bytes;
    let probe_bytes_max = if takes_all { u64::MAX } else { options.sample_size_bytes / PROBE_PART };
    let strata = taking.classify(&options.known, probe_bytes_max)?;
    let budget = if takes_all { source.bytes } else { options.sample_size_bytes - taking.read_bytes };
    let mut state = options.seed;
    let mut ranked = Vec::new();
    let mut reported = Vec::new();
    for (kind, files) in strata {
        let source_bytes: u64 = files.iter().map(|file| source.files[*file].size_bytes).sum();
        let share = u128::from(budget) * u128::from(source_bytes) / u128::from(source.bytes.max(1));
        let start = (next_random(&mut state) >> 11) as f64 / (1u64 << 53) as f64;
        let units = choose_units(source, &files, source_bytes, share as u64, start);
        let pieces = taking.load(kind, &units)?;
        let sample_bytes = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        reported.push(Stratum { name: kind.name().to_owned(), source_bytes, sample_bytes });
        let count = pieces.len();
        let keyed = pieces.into_iter().enumerate().map(|(index, piece)| (place_in_order(index, count), piece));
        ranked.extend(keyed.map(|(key, piece)| (key, source_bytes, piece)));
    }
    // The largest strata first among those that are as far.
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    Ok(Sample {
        pieces: one_of_each_first(ranked.into_iter().map(|(_, _, piece)| piece).collect()),
        strata: reported,
        read_bytes: taking.read_bytes,
        block_size_bytes: source.control_file.block_size_bytes,
        data_checksums: source.control_file.has_data_checksums(),
    })
}

/// Puts one piece of each large group in front, the largest groups first; the others stay in their order.
fn one_of_each_first(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut groups: BTreeMap<Group, u64> = BTreeMap::new();
    for piece in &pieces {
        *groups.entry(piece.group()).or_default() += piece.bytes.len() as u64;
    }
    let total: u64 = groups.values().sum();
    groups.retain(|_, bytes| *bytes as f64 >= GROUP_SHARE_MIN * total as f64);
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for piece in pieces {
        match groups.remove(&piece.group()) {
            Some(bytes) => first.push((bytes, piece)),
            None => rest.push(piece),
        }
    }
    first.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    first.into_iter().map(|(_, piece)| piece).chain(rest).collect()
}

/// Where the piece with this index comes, 0 to 1, so that any first part of all pieces lies far apart.
fn place_in_order(index: usize, count: usize) -> f64 {
    let bits = usize::BITS - count.next_power_of_two().leading_zeros() - 1;
    let reversed = if bits == 0 { 0 } else { index.reverse_bits() >> (usize::BITS - bits) };
    reversed as f64 / count.next_power_of_two() as f64
}

/// The units of a stratum at equal distances, together at most `share_bytes`; the last one may be cut.
fn choose_units(
    source: &SourceFiles,
    files: &[usize],
    source_bytes: u64,
    share_bytes: u64,
    start: f64,
) -> Vec<Vec<Part>> {
    if share_bytes >= source_bytes {
        let mut all = Vec::new();
        walk_units(source, files, &mut |_, unit| all.push(unit.to_vec()));
        return all;
    }
    let (full, rest) = (share_bytes / UNIT_BYTES, share_bytes % UNIT_BYTES);
    let count = full + u64::from(rest >= u64::from(FRAME_SIZE_BYTES_MIN));
    let distance = source_bytes as f64 / count.max(1) as f64;
    let mut chosen: Vec<Vec<Part>> = Vec::new();
    walk_units(source, files, &mut |position, unit| {
        let end = position + unit.iter().map(|part| part.length).sum::<u64>();
        let next = (chosen.len() as f64 + start) * distance;
        if (chosen.len() as u64) < count && next < end as f64 {
            let room = if chosen.len() as u64 == full { rest } else { UNIT_BYTES };
            chosen.push(cut(unit, room));
        }
    });
    chosen
}

/// The first `room` bytes of a unit.
fn cut(unit: &[Part], mut room: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    for part in unit {
        let length = part.length.min(room);
        if length > 0 {
            parts.push(Part { length, is_whole_file: part.is_whole_file && length == part.length, ..*part });
        }
        room -= length;
    }
    parts
}

/// Calls `visit` for every unit of the files with its position among all their bytes.
fn walk_units(source: &SourceFiles, files: &[usize], visit: &mut dyn FnMut(u64, &[Part])) {
    let (mut position, mut packed, mut packed_bytes): (u64, Vec<Part>, u64) = (0, Vec::new(), 0);
    let mut flush = |packed: &mut Vec<Part>, packed_bytes: &mut u64, position: &mut u64| {
        if *packed_bytes > 0 {
            visit(*position, packed);
            *position += *packed_bytes;
        }
        packed.clear();
        *packed_bytes = 0;
    };
    for &file in files {
        let size_bytes = source.files[file].size_bytes;
        if packed_bytes + size_bytes > UNIT_BYTES {
            flush(&mut packed, &mut packed_bytes, &mut position);
        }
        if size_bytes <= UNIT_BYTES {
            packed.push(Part { file, offset: 0, length: size_bytes, is_whole_file: true });
            packed_bytes += size_bytes;
            continue;
        }
        for offset in (0..size_bytes).step_by(UNIT_BYTES as usize) {
            packed_bytes = (size_bytes - offset).min(UNIT_BYTES);
            packed.push(Part { file, offset, length: packed_bytes, is_whole_file: false });
            flush(&mut packed, &mut packed_bytes, &mut position);
        }
    }
    flush(&mut packed, &mut packed_bytes, &mut position);
}

/// The reading of one sample.
struct Taking<'a> {
    source: &'a SourceFiles,
    layouts: Option<&'a RelationLayouts>,
    read_bytes: u64,
    cancelled: &'a dyn Fn() -> bool,
}

impl Taking<'_> {
    /// The files of each kind. Of each relation one page is looked at, of the largest relations first, as long as
    /// `probe_bytes_max` lasts; the kind of the others is not known and counts as heap.
    fn classify(
        &mut self,
        known: &BTreeMap<(u32, u32), StratumKind>,
        probe_bytes_max: u64,
    ) -> Result<BTreeMap<StratumKind, Vec<usize>>> {
        let mut relations: HashMap<(u32, u32), (u64, usize)> = HashMap::new();
        for (file, entry) in self.source.files.iter().enumerate() {
            if let (None, Some(key)) = (kind_of_class(entry.class), relation_key(entry.class))
                && entry.size_bytes > 0
            {
                let relation = relations.entry(key).or_insert((0, file));
                relation.0 += entry.size_bytes;
            }
        }
        let mut by_size: Vec<_> = relations.into_iter().collect();
        by_size.sort_unstable_by_key(|(key, (bytes, _))| (std::cmp::Reverse(*bytes), *key));
        let mut page = vec![0u8; self.source.control_file.block_size_bytes as usize];
        let mut kinds = HashMap::new();
        for (key, (_, file)) in by_size {
            if let Some(kind) = known.get(&key) {
                kinds.insert(key, *kind);
            } else if self.read_bytes + page.len() as u64 <= probe_bytes_max {
                let length = self.read_part(file, 0, &mut page)?;
                kinds.insert(key, kind_of_page(&page[..length]));
            }
        }
        let mut strata: BTreeMap<StratumKind, Vec<usize>> = BTreeMap::new();
        for (file, entry) in self.source.files.iter().enumerate().filter(|(_, entry)| entry.size_bytes > 0) {
            let looked_at = || relation_key(entry.class).and_then(|key| kinds.get(&key).copied());
            let kind = kind_of_class(entry.class).or_else(looked_at).unwrap_or(StratumKind::Heap);
            strata.entry(kind).or_default().push(file);
        }
        Ok(strata)
    }

    /// Reads the chosen units; what the server dropped meanwhile is left out.
    fn load(&mut self, kind: StratumKind, units: &[Vec<Part>]) -> Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(units.len());
        for unit in units {
            if (self.cancelled)() {
                return Err(crate::threads::interrupted("take a sample"));
            }
            let length: u64 = unit.iter().map(|part| part.length).sum();
            let relation = match unit.as_slice() {
                [part] => relation_key(self.source.files[part.file].class),
                _ => None,
            };
            let mut piece = Piece { kind, relation, bytes: vec![0u8; length as usize], segments: Vec::new() };
            let mut end = 0;
            for part in unit {
                let length =
                    self.read_part(part.file, part.offset, &mut piece.bytes[end..end + part.length as usize])?;
                let first_block = self.first_block(part);
                let known = self.layouts.and_then(|layouts| layouts.of_path(&self.source.files[part.file].path));
                let layout = known.map(|(layout, _)| Arc::new(layout.clone()));
                piece.segments.push(Segment { length, is_whole_file: part.is_whole_file, first_block, layout });
                end += length;
            }
            piece.bytes.truncate(end);
            if end > 0 {
                pieces.push(piece);
            }
        }
        Ok(pieces)
    }

    fn first_block(&self, part: &Part) -> Option<u32> {
        let control = &self.source.control_file;
        match self.source.files[part.file].class {
            PathClass::Relation { segment_number, .. } => {
                let page = (part.offset / u64::from(control.block_size_bytes)) as u32;
                Some(segment_number.wrapping_mul(control.segment_blocks).wrapping_add(page))
            }
            PathClass::Other => None,
        }
    }

    fn read_part(&mut self, file: usize, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let Some(descriptor): Option<OwnedFd> = self.source.open(file)? else { return Ok(0) };
        let mut supported = true;
        let length = io::read_full_at_cache_neutral(descriptor.as_fd(), buffer, offset, &mut supported)
            .map_err(|cause| self.source.read_error(file, cause))?;
        self.read_bytes += length as u64;
        Ok(length)
    }
}

fn relation_key(class: PathClass) -> Option<(u32, u32)> {
    match class {
        PathClass::Relation { database_oid, file_number, .. } => Some((database_oid, file_number)),
        PathClass::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(lengths: &[(usize, bool)]) -> Piece {
        let segments = lengths.iter().map(|(length, is_whole_file)| Segment {
            length: *length,
            is_whole_file: *is_whole_file,
            first_block: None,
            layout: None,
        });
        let bytes = vec![0; lengths.iter().map(|(length, _)| length).sum()];
        Piece { kind: StratumKind::Heap, relation: None, bytes, segments: segments.collect() }
    }

    #[test]
    fn parts_are_what_a_frame_has_of_segments_with_a_layout() {
        let mut piece = piece(&[(100, true), (8192, true), (5 * 8192 + 10, false)]);
        for segment in &mut piece.segments[1..] {
            segment.layout = Some(Arc::new(RelationLayout::other(8192)));
            segment.first_block = Some(40);
        }
        let parts = |frame: Range<usize>| {
            let parts = piece.parts_of(&frame);
            parts.iter().map(|part| (part.start, part.length, part.first_page)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0..100), []);
        assert_eq!(parts(0..8292), [(100, 8192, 40)]);
        let third = 8292;
        assert_eq!(parts(third..third + 16_384), [(0, 16_384, 40)]);
        assert_eq!(parts(third + 16_384..third + 5 * 8192 + 10), [(0, 3 * 8192 + 10, 42)]);
        assert_eq!(parts(third + 5 * 8192..third + 5 * 8192 + 10), [], "no whole page");
        assert_eq!(parts(third + 1..third + 8193), [], "no page starts there");
    }

    #[test]
    fn frames_are_those_of_the_pipeline() {
        let large = piece(&[(2_500_000, false)]);
        assert_eq!(large.frames(1 << 20), [0..1 << 20, 1 << 20..2 << 20, 2 << 20..2_500_000]);
        assert_eq!(large.frames(4 << 20).first(), Some(&(0..2_500_000)));
        // 40 KiB three times share a frame of 128 KiB, the fourth starts the next; 100 KiB gets its own.
        let small = piece(&[
            (40 << 10, true),
            (0, true),
            (40 << 10, true),
            (40 << 10, true),
            (40 << 10, true),
            (100 << 10, true),
        ]);
        assert_eq!(small.frames(128 << 10), [0..120 << 10, 120 << 10..160 << 10, 160 << 10..260 << 10]);
        let mixed = piece(&[(10, true), (70_000, false), (10, true)]);
        assert_eq!(mixed.frames(65_536), [0..10, 10..65_546, 65_546..70_010, 70_010..70_020]);
    }

    #[test]
    fn any_first_part_lies_far_apart() {
        let mut order: Vec<usize> = (0..8).collect();
        order.sort_by(|a, b| place_in_order(*a, 8).total_cmp(&place_in_order(*b, 8)));
        assert_eq!(order, [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(place_in_order(0, 1), 0.0);
        assert!((0..5).all(|index| (0.0..1.0).contains(&place_in_order(index, 5))));
    }

    #[test]
    fn a_cut_unit_has_no_more_than_its_room() {
        let unit = [
            Part { file: 0, offset: 0, length: 100, is_whole_file: true },
            Part { file: 1, offset: 0, length: 100, is_whole_file: true },
        ];
        let parts = cut(&unit, 150);
        assert_eq!(
            parts.iter().map(|part| (part.length, part.is_whole_file)).collect::<Vec<_>>(),
            [(100, true), (50, false)]
        );
    }
}
