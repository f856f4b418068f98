//! Parity beside the stripes: each stripe writer adds its frames to rows, and one more writer for each parity stripe writes
//! what comes of it.
//!
//! A frame goes to the oldest row that is open and has none of its stripe. A row is closed when it has a frame of every
//! stripe, or when there is no room for one more: so no stripe waits for another that is slower, and gets no frames at all
//! perhaps. The sums lie in a fixed number of slots. A stripe writer that finds none free waits for the parity writers,
//! which wait for nobody but their stores.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::PipelineSettings;
use super::control::{Control, Progress};
use super::errands::Errand;
use super::stripe_writer::FinishedStripe;
use crate::error::Result;
use crate::format::frame::FRAME_HEADER_BYTES;
use crate::format::parity::{ParityHeader, RowIndex, RowShard, put_row_table, row_frame_header, row_table_bytes};
use crate::format::row_code::{BLOCK_BYTES, add_product, coefficient, memory_bytes};
use crate::storage::{ObjectWriter, at_once};
use crate::terms::StripeIndex;

/// How often a waiting thread looks whether the run was stopped.
const LOOK: Duration = Duration::from_millis(100);
/// Slots beyond the open rows: one that is written, and one that waits behind it.
const SLOTS_BEHIND: usize = 2;

/// The parity of a set that is being written; it lives through several runs of the pipeline.
pub struct Parity {
    stripe_count: usize,
    open_rows_max: usize,
    window: Mutex<Window>,
    /// A slot was given back.
    freed: Condvar,
    /// A row was closed, or a stripe writer has ended.
    closed: Condvar,
    slots: Vec<Slot>,
    stripes: Vec<Mutex<ParityStripe>>,
}

struct ParityStripe {
    header: ParityHeader,
    object: Box<dyn ObjectWriter>,
}

/// Room for the sums of one row.
struct Slot {
    sums: Vec<Mutex<Sum>>,
    /// Parity stripes that have not written it yet.
    left: AtomicUsize,
}

/// What one parity stripe has of a row: the table, then the sum, then zeros.
struct Sum {
    body: Vec<u8>,
    /// Where the sum ends: behind the longest frame so far, in whole blocks.
    end: usize,
}

/// The rows that are open, the oldest first.
struct Window {
    first_row: u64,
    rows: VecDeque<Row>,
    /// For each stripe the row that takes its next frame, if it is still open.
    next_row: Vec<u64>,
    /// For each slot what its row is of.
    shards: Vec<Option<RowShard>>,
    free: Vec<usize>,
    /// For each parity stripe the rows to write.
    ready: Vec<VecDeque<(u64, usize)>>,
    index: RowIndex,
    writers_left: usize,
}

struct Row {
    slot: usize,
    /// Stripe writers that add to it just now.
    at_work: usize,
    is_closed: bool,
}

impl Parity {
    /// Begins the parity stripes by writing their headers; `objects` has one for each.
    ///
    /// # Errors
    /// Those of the storages.
    pub fn begin(
        first: ParityHeader,
        objects: Vec<Box<dyn ObjectWriter>>,
        settings: &PipelineSettings,
    ) -> Result<Self> {
        let stripe_count = usize::from(first.stripe_count);
        let open_rows_max = open_rows_max(settings);
        let slot_count = open_rows_max + SLOTS_BEHIND;
        let begin = |(number, mut object): (usize, Box<dyn ObjectWriter>)| {
            let header = ParityHeader { parity: StripeIndex(number as u16), ..first };
            object.append(&header.to_bytes())?;
            Ok(Mutex::new(ParityStripe { header, object }))
        };
        let stripes: Vec<Mutex<ParityStripe>> = objects.into_iter().enumerate().map(begin).collect::<Result<_>>()?;
        let body = body_bytes_max(settings, stripe_count);
        let slot = |_| Slot {
            sums: stripes.iter().map(|_| Mutex::new(Sum { body: vec![0; body], end: 0 })).collect(),
            left: AtomicUsize::new(0),
        };
        let window = Window {
            first_row: 0,
            rows: VecDeque::with_capacity(open_rows_max),
            next_row: vec![0; stripe_count],
            shards: vec![None; slot_count * stripe_count],
            free: (0..slot_count).collect(),
            ready: stripes.iter().map(|_| VecDeque::with_capacity(slot_count)).collect(),
            index: RowIndex::new(stripe_count),
            writers_left: 0,
        };
        let slots = (0..slot_count).map(slot).collect();
        let (window, freed, closed) = (Mutex::new(window), Condvar::new(), Condvar::new());
        Ok(Parity { stripe_count, open_rows_max, window, freed, closed, slots, stripes })
    }

    /// Memory of the sums of `parity_count` parity stripes, for the ceiling.
    pub fn memory_bytes(settings: &PipelineSettings, parity_count: u16) -> u64 {
        let slots = (open_rows_max(settings) + SLOTS_BEHIND) as u64;
        let sums = slots * u64::from(parity_count) * body_bytes_max(settings, usize::from(settings.writers)) as u64;
        sums + memory_bytes(usize::from(parity_count))
    }

    /// How many parity stripes.
    pub(super) fn stripe_count(&self) -> usize {
        self.stripes.len()
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how many stripe writers a run has.
    pub(super) fn begin_run(&self, writers: usize) {
        self.window().writers_left = writers;
    }

    /// Until it is dropped, a stripe writer may add frames.
    pub(super) fn writer(&self) -> WriterAtWork<'_> {
        WriterAtWork(self)
    }

    /// Adds a frame to a row: its `header` and its `stored` bytes. Once the run is stopped it may do nothing.
    pub(super) fn add(&self, stripe: StripeIndex, shard: RowShard, header: &[u8], stored: &[u8], control: &Control) {
        let stripe = usize::from(stripe.0);
        let Some((row, slot)) = self.take_place(stripe, shard, control) else { return };
        for (parity, sum) in self.slots[slot].sums.iter().enumerate() {
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            let factor = coefficient(parity, stripe);
            let table = row_table_bytes(self.stripe_count);
            sum.add(table, header, factor);
            sum.add(table + FRAME_HEADER_BYTES, stored, factor);
        }
        let mut window = self.window();
        let place = (row - window.first_row) as usize;
        let is_whole = window.shards_of(slot, self.stripe_count).iter().all(Option::is_some);
        window.rows[place].at_work -= 1;
        window.rows[place].is_closed |= is_whole;
        self.pass_on(&mut window);
    }

    /// The row that takes the next frame of `stripe`, and its slot; None if the run was stopped.
    fn take_place(&self, stripe: usize, shard: RowShard, control: &Control) -> Option<(u64, usize)> {
        let mut window = self.window();
        loop {
            let row = window.next_row[stripe].max(window.first_row);
            let place = (row - window.first_row) as usize;
            if place < window.rows.len() && window.rows[place].is_closed {
                window.next_row[stripe] = row + 1;
                continue;
            }
            if place == window.rows.len() {
                if window.rows.len() == self.open_rows_max {
                    // The stripes that it has nothing of are behind; their frames go to later rows.
                    window.rows[0].is_closed = true;
                    self.pass_on(&mut window);
                }
                let has_room = window.rows.len() < self.open_rows_max;
                let Some(slot) = has_room.then(|| window.free.pop()).flatten() else {
                    if control.stopped() {
                        return None;
                    }
                    window =
                        self.freed.wait_timeout(window, LOOK).map_or_else(|lost| lost.into_inner().0, |woken| woken.0);
                    continue;
                };
                window.rows.push_back(Row { slot, at_work: 0, is_closed: false });
                continue;
            }
            let slot = window.rows[place].slot;
            window.rows[place].at_work += 1;
            window.next_row[stripe] = row + 1;
            window.shards[slot * self.stripe_count + stripe] = Some(shard);
            return Some((row, slot));
        }
    }

    /// Hands the oldest rows to the parity writers, as long as they are closed and nobody adds to them.
    fn pass_on(&self, window: &mut Window) {
        while let Some(Row { slot, .. }) = window.rows.pop_front_if(|row| row.is_closed && row.at_work == 0) {
            let row = window.first_row;
            window.first_row += 1;
            let shards = slot * self.stripe_count..(slot + 1) * self.stripe_count;
            window.index.push(&window.shards[shards.clone()]);
            for sum in &self.slots[slot].sums {
                let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                put_row_table(&mut sum.body, &window.shards[shards.clone()]);
            }
            window.shards[shards].fill(None);
            self.slots[slot].left.store(self.stripes.len(), Ordering::Release);
            window.ready.iter_mut().for_each(|ready| ready.push_back((row, slot)));
            self.closed.notify_all();
            self.freed.notify_all();
        }
    }

    /// Writes the rows of one parity stripe until the stripe writers are gone and none is left, or the run stops.
    pub(super) fn write_rows(&self, number: usize, control: &Control, progress: &Progress) {
        let (post, errand) = (control.post(), Errand::WriteParityStripe(number as u16));
        while let Some((row, slot)) = self.next_ready(number, control) {
            match post.during(errand, || self.write_row(number, row, slot)) {
                Ok(written) => drop(progress.stored_bytes.fetch_add(written, Ordering::Relaxed)),
                Err(error) => return control.fail(error),
            }
        }
    }

    fn next_ready(&self, number: usize, control: &Control) -> Option<(u64, usize)> {
        let mut window = self.window();
        loop {
            if control.stopped() {
                return None;
            }
            if let Some(ready) = window.ready[number].pop_front() {
                return Some(ready);
            }
            if window.writers_left == 0 {
                return None;
            }
            window = self.closed.wait_timeout(window, LOOK).map_or_else(|lost| lost.into_inner().0, |woken| woken.0);
        }
    }

    /// Gives the bytes that were written.
    fn write_row(&self, number: usize, row: u64, slot: usize) -> Result<u64> {
        let mut stripe = self.stripes[number].lock().unwrap_or_else(PoisonError::into_inner);
        let slot_sums = &self.slots[slot];
        let mut sum = slot_sums.sums[number].lock().unwrap_or_else(PoisonError::into_inner);
        let Sum { body, end } = &mut *sum;
        let body = &mut body[..*end];
        let header = row_frame_header(&stripe.header, row, body);
        stripe.object.append(&header)?;
        stripe.object.append(body)?;
        let written = (header.len() + body.len()) as u64;
        body.fill(0);
        *end = 0;
        drop(sum);
        if slot_sums.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.window().free.push(slot);
            self.freed.notify_all();
        }
        Ok(written)
    }

    /// Closes the rows that are open, writes the trailers and makes the parity stripes durable; gives the first one's trailer
    /// as well.
    ///
    /// # Errors
    /// Those of the storages.
    pub fn finish(self) -> Result<(Vec<FinishedStripe>, Vec<u8>)> {
        let mut window = self.window();
        window.rows.iter_mut().for_each(|row| row.is_closed = true);
        self.pass_on(&mut window);
        let rows: Vec<_> = window.ready.iter_mut().map(std::mem::take).collect();
        let index = std::mem::take(&mut window.index);
        drop(window);
        for (number, rows) in rows.into_iter().enumerate() {
            for (row, slot) in rows {
                self.write_row(number, row, slot)?;
            }
        }
        let finish = |stripe: Mutex<ParityStripe>| {
            let ParityStripe { header, mut object } = stripe.into_inner().unwrap_or_else(PoisonError::into_inner);
            object.append(&index.to_trailer(&header))?;
            let (frame_count, index_xxh3) = (index.row_count(), index.hash(&header));
            Ok(FinishedStripe { size_bytes: object.finish()?, frame_count, index_xxh3, sums: None, digests: None })
        };
        let first = self.stripes[0].lock().unwrap_or_else(PoisonError::into_inner).header;
        let trailer = index.to_trailer(&first);
        Ok((at_once(self.stripes, finish)?, trailer))
    }
}

/// A stripe writer that has not ended.
pub(super) struct WriterAtWork<'a>(&'a Parity);

impl Drop for WriterAtWork<'_> {
    fn drop(&mut self) {
        self.0.window().writers_left -= 1;
        self.0.closed.notify_all();
    }
}

impl Window {
    fn shards_of(&self, slot: usize, stripe_count: usize) -> &[Option<RowShard>] {
        &self.shards[slot * stripe_count..(slot + 1) * stripe_count]
    }
}

impl Sum {
    /// Adds `bytes` times `factor` at `start` of the body, where a block of the sum begins.
    fn add(&mut self, start: usize, bytes: &[u8], factor: u16) {
        add_product(&mut self.body[start..], bytes, factor);
        self.end = self.end.max(start + bytes.len().next_multiple_of(BLOCK_BYTES));
    }
}

/// Encoders hand on a buffer's frames together, to a stripe that may then be two buffers ahead of another.
fn open_rows_max(settings: &PipelineSettings) -> usize {
    2 * (settings.transfer_size_bytes / settings.frame_size_bytes.max(1)) as usize + 2
}

fn body_bytes_max(settings: &PipelineSettings, stripe_count: usize) -> usize {
    let shard = FRAME_HEADER_BYTES + settings.frame_size_bytes as usize;
    row_table_bytes(stripe_count) + shard.next_multiple_of(BLOCK_BYTES)
}
