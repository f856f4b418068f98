//! Frames rebuilt from the others of their rows.
//!
//! Where reads wait for answers from elsewhere, the parts of a row are asked for at the same time, and with each what the
//! next rows have of its member: frames of pages are small, and a request for each would take most of a repair's time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::parity_rows::Rows;
use super::parity_set::ParitySet;
use crate::error::{Error, ErrorKind, Result};
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::parity::{put_row_table, row_frame_header, row_table_bytes};
use crate::format::row_code::{Repair, add_product, memory_bytes};
use crate::storage::{ObjectReader, at_once};
use crate::terms::SetIndex;

/// Most threads that rebuild at the same time.
const ROOMS: usize = 4;
/// What each of them reads ahead at most, of all members together.
const AHEAD_BYTES: usize = 4 << 20;
/// Memory of one of them where members are elsewhere: what is read ahead, the answers that it comes in, and where those of encrypted
/// members are decrypted, two chunks more for each of sixteen.
const REMOTE_ROOM_BYTES: u64 = 3 * AHEAD_BYTES as u64 + (2 << 20);

/// Rebuilds frames of one member, one after the other.
pub(super) struct Rebuilder<'a> {
    set: &'a ParitySet,
    member: usize,
    room: Room,
}

/// Where a part of a row lies in its member.
struct Place {
    sequence: u64,
    offset: u64,
    size: usize,
    /// Where what the next rows have of the member ends.
    ahead: u64,
}

impl<'a> Rebuilder<'a> {
    /// Waits for room.
    pub(super) fn new(set: &'a ParitySet, member: usize) -> Self {
        Rebuilder { set, member, room: set.rooms().take(set.index()) }
    }

    /// Rebuilds frame `sequence` into `into`, which has its size, and notes why. So many frames behind it are wanted next.
    ///
    /// # Errors
    /// `Damage` that names what else is lost, if that is too much; that of a store that does not answer, where that decides.
    pub(super) fn rebuild(&mut self, sequence: u64, upcoming: u64, cause: &Error, into: &mut [u8]) -> Result<()> {
        self.rebuild_in(sequence, upcoming, into).map_err(|error| {
            if error.kind() != ErrorKind::Damage {
                return error;
            }
            let action = format!("read frame {sequence} of {}", self.set.name_of(self.member));
            let more = format!("{}; parity does not give it back: {}", cause.cause(), error.cause());
            Error::new(cause.kind(), action, more).hint(
                "take another copy of the set, or another set; `pagehaul verify` lists all damage, `pagehaul info` all sets",
            )
        })?;
        self.set.note_rebuilt(self.member, sequence, cause);
        Ok(())
    }

    fn rebuild_in(&mut self, sequence: u64, upcoming: u64, into: &mut [u8]) -> Result<()> {
        let (set, wanted) = (self.set, self.member);
        let (stripe_count, parity_count) = set.counts();
        let rows = set.rows()?;
        let parity = wanted.checked_sub(stripe_count);
        let row = match parity {
            None => rows.row_of(wanted, sequence),
            Some(_) => Some(sequence),
        };
        let bad = |cause: String| Error::new(ErrorKind::Damage, "rebuild a frame", cause);
        let row = row.ok_or_else(|| bad("its row is lost, too".to_owned()))?;
        let shards = rows.shards(row);
        let has_frame = |stripe: usize| shards.get(stripe).is_some_and(Option::is_some);
        let mut missing: Vec<usize> =
            (0..stripe_count).filter(|stripe| has_frame(*stripe) && !set.is_there(*stripe)).collect();
        if parity.is_none() && !missing.contains(&wanted) {
            missing.push(wanted);
        }
        let is_usable = |number: &usize| set.is_there(stripe_count + number) && Some(*number) != parity;
        let mut parities: Vec<usize> = (0..parity_count).filter(is_usable).collect();
        (self.room.unanswered, self.room.wrong) = (None, None);
        loop {
            let repair = Repair::of(wanted, stripe_count, parity_count, &missing, &parities).map_err(|_| {
                let lost: Vec<String> = missing.iter().map(|stripe| set.name_of(*stripe)).collect();
                let why = self.room.wrong.take();
                let why = why.map(|(part, error)| format!("; in {}: {}", set.name_of(part), error.cause()));
                let cause = format!(
                    "its row has lost the frames of {}, and {} of {parity_count} parity frames are there{}",
                    lost.join(", "),
                    parities.len(),
                    why.unwrap_or_default(),
                );
                // What could not be asked for is not lost.
                self.room.unanswered.take().unwrap_or_else(|| bad(cause))
            })?;
            match self.sum(rows, (row, upcoming), &repair, into)? {
                None => break,
                Some(lost) if lost < stripe_count => missing.push(lost),
                Some(lost) => parities.retain(|parity| *parity + stripe_count != lost),
            }
        }
        match parity {
            None => set.check_frame(wanted, sequence, into),
            Some(parity) => {
                let header = row_frame_header(&set.parity_header(parity), row, &into[FRAME_HEADER_BYTES..]);
                into[..FRAME_HEADER_BYTES].copy_from_slice(&header);
                Ok(())
            }
        }
    }

    /// Sums the parts of a repair up; gives the first member that turns out to be lost as well.
    fn sum(
        &mut self,
        rows: &Rows,
        (row, upcoming): (u64, u64),
        repair: &Repair,
        into: &mut [u8],
    ) -> Result<Option<usize>> {
        let (set, (stripe_count, _)) = (self.set, self.set.counts());
        let table = row_table_bytes(stripe_count);
        let sum = if self.member >= stripe_count {
            put_row_table(&mut into[FRAME_HEADER_BYTES..], rows.shards(row));
            &mut into[FRAME_HEADER_BYTES + table..]
        } else {
            into
        };
        let mut parts = Vec::new();
        for (part, factor) in repair.parts() {
            if part < stripe_count && rows.shards(row)[part].is_none() {
                continue;
            }
            let (Some(object), Some(place)) = (set.member(part), self.place(rows, row, upcoming, part)) else {
                return Ok(Some(part));
            };
            parts.push((part, factor, object, place));
        }
        if let Some(lost) =
            self.room.read_ahead(set, parts.iter().map(|(part, _, object, place)| (*part, *object, place)))?
        {
            return Ok(Some(lost));
        }
        sum.fill(0);
        for (part, factor, object, place) in parts {
            let Some(frame) = self.room.read(set, part, object, &place) else { return Ok(Some(part)) };
            let shard = if part >= stripe_count { &frame[FRAME_HEADER_BYTES + table..] } else { frame };
            // Where the sum is shorter, the others have what is beyond it, and it adds up to nothing.
            add_product(sum, shard, factor);
        }
        Ok(None)
    }

    /// Where a member's part of a row lies; None if that is not known.
    fn place(&self, rows: &Rows, row: u64, upcoming: u64, part: usize) -> Option<Place> {
        let set = self.set;
        if part >= set.counts().0 {
            let (offset, size) = rows.place(row)?;
            let last = (row + upcoming).min(set.record(part).frame_count.saturating_sub(1));
            let ahead = rows.place(last).map_or(0, |(offset, size)| offset + size as u64);
            return Some(Place { sequence: row, offset, size, ahead });
        }
        let (shard, offsets) = ((*rows.shards(row).get(part)?)?, set.stripe_offsets(part)?);
        let offset = *offsets.get(shard.sequence as usize)?;
        let next = (shard.sequence + upcoming + 1) as usize;
        let ahead = offsets[next.min(offsets.len() - 1)];
        Some(Place { sequence: shard.sequence, offset, size: shard.size_bytes(), ahead })
    }
}

impl Drop for Rebuilder<'_> {
    fn drop(&mut self) {
        self.set.rooms().give_back(std::mem::take(&mut self.room));
    }
}

/// Room for those who rebuild frames of a chain: a bounded number at the same time.
pub(super) struct RebuildRooms {
    free: Mutex<Vec<Room>>,
    given_back: Condvar,
}

impl RebuildRooms {
    pub(super) fn new() -> Arc<Self> {
        let free = (0..ROOMS).map(|_| Room::default()).collect();
        Arc::new(RebuildRooms { free: Mutex::new(free), given_back: Condvar::new() })
    }

    /// Memory that they take at most with so many parity stripes, when a full frame has `frame_size_bytes`; more where members are
    /// elsewhere.
    pub(super) fn memory_bytes(parity_count: usize, frame_size_bytes: u32, is_remote: bool) -> u64 {
        let remote = if is_remote { REMOTE_ROOM_BYTES } else { 0 };
        memory_bytes(parity_count) + ROOMS as u64 * (u64::from(frame_size_bytes) + row_table_bytes(256) as u64 + remote)
    }

    /// Waits for room to rebuild frames of that set of the chain.
    fn take(&self, set: SetIndex) -> Room {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(mut room) = free.pop() {
                if room.set.replace(set) != Some(set) {
                    room.windows.clear();
                }
                return room;
            }
            free = self.given_back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_back(&self, room: Room) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(room);
        self.given_back.notify_one();
    }
}

/// What one rebuilder reads into.
#[derive(Default)]
struct Room {
    /// Whose the windows are.
    set: Option<SetIndex>,
    /// One part.
    bytes: Vec<u8>,
    /// For each member what was read of it ahead.
    windows: Vec<Window>,
    /// What the first member said that could not be asked for a part of the row.
    unanswered: Option<Error>,
    /// The first member whose part of the row nobody has as it should be, and what is wrong with it.
    wrong: Option<(usize, Error)>,
}

impl Room {
    /// Fills the windows of those members that are elsewhere and whose part is in none, all at the same time; gives one that
    /// does not answer.
    fn read_ahead<'p>(
        &mut self,
        set: &ParitySet,
        parts: impl Iterator<Item = (usize, &'p dyn ObjectReader, &'p Place)>,
    ) -> Result<Option<usize>> {
        if !set.is_remote() {
            return Ok(None);
        }
        let members = set.counts().0 + set.counts().1;
        let most = AHEAD_BYTES / members;
        self.windows.resize_with(members, Window::default);
        let mut wanted: Vec<Option<(&dyn ObjectReader, &Place)>> = vec![None; members];
        for (part, object, place) in parts {
            let is_wanted = object.is_remote() && place.size <= most && self.windows[part].get(place).is_none();
            wanted[part] = is_wanted.then_some((object, place));
        }
        let fills = self.windows.iter_mut().zip(wanted).enumerate();
        let fills = fills.filter_map(|(part, (window, wanted))| wanted.map(|wanted| (part, window, wanted))).collect();
        let failed = at_once(fills, |(part, window, (object, place)): (usize, &mut Window, _)| {
            Ok(window
                .fill(object, place, most)
                .err()
                .filter(|error| object.is_unanswered(error))
                .map(|error| (part, error)))
        })?;
        let Some((part, error)) = failed.into_iter().flatten().next() else { return Ok(None) };
        self.unanswered.get_or_insert(error);
        Ok(Some(part))
    }

    /// One part of a row, if it is what it should be; of an older object of the member if need be. None if none has it.
    fn read(&mut self, set: &ParitySet, part: usize, object: &dyn ObjectReader, place: &Place) -> Option<&[u8]> {
        let Room { bytes, windows, unanswered, wrong, .. } = self;
        let mut cause = None;
        let mut is_right = |bytes: &[u8]| {
            let checked = set.check_frame(part, place.sequence, bytes);
            checked.map_err(|error| cause.get_or_insert(error)).is_ok()
        };
        if let Some(bytes) = windows.get(part).and_then(|window| window.get(place)).filter(|bytes| is_right(bytes)) {
            set.note_sound(part, place.sequence);
            return Some(bytes);
        }
        bytes.resize(place.size, 0);
        let read_from = std::iter::once(object).chain(set.older(part)).map(|object| {
            let read = object.read_at(bytes, place.offset);
            if let Err(error) = read {
                if object.is_unanswered(&error) {
                    unanswered.get_or_insert(error);
                }
                return false;
            }
            is_right(bytes)
        });
        let Some(found) = { read_from }.position(|is_right| is_right) else {
            *wrong = wrong.take().or(cause.map(|cause| (part, cause)));
            return None;
        };
        if found == 0 {
            set.note_sound(part, place.sequence);
        }
        Some(bytes)
    }
}

/// Bytes of a member, and where they begin.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn get(&self, place: &Place) -> Option<&[u8]> {
        let at = usize::try_from(place.offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..at.checked_add(place.size)?)
    }

    /// Reads a part and what is behind it, `most` bytes at most.
    fn fill(&mut self, object: &dyn ObjectReader, place: &Place, most: usize) -> Result<()> {
        let ahead = place.ahead.saturating_sub(place.offset).min(most as u64) as usize;
        self.start = place.offset;
        self.bytes.resize(ahead.max(place.size), 0);
        let read = object.read_at(&mut self.bytes, self.start);
        if read.is_err() {
            self.bytes.clear();
        }
        read
    }
}
