//! A segment of which there are only pieces: what they hold together, from its start on.

use std::collections::BTreeMap;

use super::repository::Repository;
use super::wal_bundle::{OpenBundle, open_bundle};
use super::wal_inventory::{TimelineWal, WalInventory};
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, SegmentNumber, TimelineId, WalFacts, WalSegmentName};

/// The beginning of a segment that is not there as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTail {
    /// Where it ends.
    pub end_lsn: Lsn,
    /// What the records in it say.
    pub facts: WalFacts,
}

/// Every beginning of a segment that pieces hold; one with damaged pieces is none, because nobody delivers it.
///
/// # Errors
/// Those of the storage.
pub fn tails(repository: &Repository, inventory: &WalInventory) -> Result<BTreeMap<(TimelineId, u64), SegmentTail>> {
    let mut tails = BTreeMap::new();
    let Some(size) = inventory.segment_size_bytes else { return Ok(tails) };
    for wal in inventory.timelines.values() {
        let mut numbers: Vec<SegmentNumber> = wal.pieces.iter().map(|piece| piece.segment).collect();
        numbers.dedup();
        for number in numbers.into_iter().filter(|number| !wal.covers(*number)) {
            let start = Lsn(number.0.saturating_mul(size));
            match open_pieces(repository, inventory, wal, number) {
                Ok(pieces) => drop(tail_of(&pieces, start).map(|tail| tails.insert((wal.timeline, number.0), tail))),
                Err(error) if error.kind() == ErrorKind::Damage => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(tails)
}

/// The pieces of a segment, in order of offset; those that were removed meanwhile are left out.
///
/// # Errors
/// `Damage` if one does not read, or is of something else; those of the storage.
pub fn open_pieces(
    repository: &Repository,
    inventory: &WalInventory,
    wal: &TimelineWal,
    number: SegmentNumber,
) -> Result<Vec<OpenBundle>> {
    let Some(size) = inventory.segment_size_bytes else { return Ok(Vec::new()) };
    let name = WalSegmentName::new(wal.timeline, number, size).to_string();
    let mut opened = Vec::new();
    // The inventory has them in order.
    for piece in wal.pieces.iter().filter(|piece| piece.segment == number) {
        let Some(bundle) = open_bundle(repository, &piece.object)? else { continue };
        bundle.check_holds(inventory.system_identifier, [name.clone()].into_iter())?;
        if u64::from(bundle.table.segment_size_bytes) != size {
            return Err(Error::new(ErrorKind::Damage, format!("use {}", piece.object), "it is of other segments"));
        }
        opened.push(bundle);
    }
    Ok(opened)
}

/// What pieces of one segment hold together; None if that is nothing of which it is known what it says.
fn tail_of(pieces: &[OpenBundle], start: Lsn) -> Option<SegmentTail> {
    let mut tail: Option<SegmentTail> = None;
    for (piece, _) in chain_of(pieces) {
        let Some(facts) = piece.table.members.first().and_then(|member| member.wal_facts()) else { break };
        let end_lsn = Lsn(start.0 + range_of(piece).end);
        match &mut tail {
            Some(tail) => {
                tail.facts.append(facts);
                tail.end_lsn = end_lsn;
            }
            None => tail = Some(SegmentTail { end_lsn, facts: facts.clone() }),
        }
    }
    tail
}

/// The pieces that reach furthest without a gap from the segment's start, each with how many of its bytes the ones
/// before it have; `pieces` are in order of offset.
pub fn chain_of(pieces: &[OpenBundle]) -> Vec<(&OpenBundle, u64)> {
    let mut chain = Vec::new();
    let mut reached = 0;
    loop {
        let reachable = pieces.iter().filter(|piece| range_of(piece).start <= reached && range_of(piece).end > reached);
        let Some(next) = reachable.max_by_key(|piece| range_of(piece).end) else { return chain };
        chain.push((next, reached - range_of(next).start));
        reached = range_of(next).end;
    }
}

/// As [`chain_of`], with the pieces themselves.
pub fn into_chain(pieces: Vec<OpenBundle>) -> Vec<(OpenBundle, u64)> {
    let skips: BTreeMap<String, u64> =
        chain_of(&pieces).into_iter().map(|(piece, skip)| (piece.name.clone(), skip)).collect();
    // One that goes further begins later, so the order stays.
    let with_skip = |piece: OpenBundle| skips.get(&piece.name).map(|skip| (piece, *skip));
    pieces.into_iter().filter_map(with_skip).collect()
}

/// How far [`chain_of`] goes, in bytes from the segment's start.
pub fn reach_of(pieces: &[OpenBundle]) -> u64 {
    chain_of(pieces).last().map_or(0, |(piece, _)| range_of(piece).end)
}

fn range_of(piece: &OpenBundle) -> std::ops::Range<u64> {
    let member = &piece.table.members[0];
    let start = u64::from(member.piece_offset);
    start..start + member.size_bytes
}
