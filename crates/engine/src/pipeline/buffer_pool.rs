//! The transfer buffers: allocated once, owned by exactly one stage at a time. What they are made of may be exchanged by a writer.
//!
//! Who may hold a buffer, at most: each reader 1 (filling), each encoder 2 (its input and its output), each writer 1,
//! and the queues between them all the rest. Progress needs that an encoder with a full input gets an output: readers
//! therefore never take the last `reserve` buffers. Writers always give back, so encoders always get one, so the pool
//! cannot dead-lock as long as `reserve >= 1` and one buffer is left for readers. The same holds for the way back
//! (stripe readers, decoders, file writers).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::io::AlignedBytes;
use crate::terms::FileId;

/// One transfer buffer and the list of what is in it.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// The bytes: raw content, or stored frames.
    pub(crate) bytes: AlignedBytes,
    /// The frames in it, in order.
    pub(crate) frames: Vec<FrameSlot>,
    /// The pieces of files that the frames hold; each frame names its range.
    pub(crate) pieces: Vec<Piece>,
    /// The CRC32C of each whole page of each frame, if they are wanted (backup only).
    pub(crate) sums: Vec<u32>,
    /// Which stripe the frames came from (restore only).
    pub(crate) stripe: u16,
}

/// One frame within a buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameSlot {
    /// Where its bytes start in the buffer.
    pub(crate) start: usize,
    /// How many bytes it has there, as they are now: raw or stored.
    pub(crate) length: usize,
    /// Decoded length.
    pub(crate) raw_length: usize,
    /// Sequence on the stripe (restore only).
    pub(crate) sequence: u64,
    /// Its pieces are `pieces[piece_start..piece_end]`.
    pub(crate) piece_start: usize,
    /// See `piece_start`.
    pub(crate) piece_end: usize,
    /// Where the sums of its pages start.
    pub(crate) sums_start: usize,
    /// Its bytes are stored ones of another set already, with codec and checksums: nothing is encoded (synthetic full).
    pub(crate) is_stored: bool,
    /// Codec number of the stored bytes.
    pub(crate) codec: u8,
    /// All bytes are zero: nothing is stored.
    pub(crate) zeros: bool,
    /// CRC32C of the raw bytes.
    pub(crate) raw_crc32c: u32,
    /// XXH3-64 of the stored bytes.
    pub(crate) stored_xxh3: u64,
}

/// A piece of a file within a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Whose bytes.
    pub(crate) file: FileId,
    /// Where in the file.
    pub(crate) file_offset: u64,
    /// Where in the frame's raw bytes.
    pub(crate) offset_in_frame: u32,
    /// How many.
    pub(crate) length: u32,
    /// CRC32C of them.
    pub(crate) crc32c: u32,
}

impl Buffer {
    fn new(size_bytes: usize) -> Result<Self> {
        let bytes = AlignedBytes::new(size_bytes)?;
        Ok(Buffer { bytes, frames: Vec::new(), pieces: Vec::new(), sums: Vec::new(), stripe: 0 })
    }

    /// Forgets the content; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.pieces.clear();
        self.sums.clear();
    }

    /// Bytes of all frames as they are now.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.length as u64).sum()
    }
}

/// Who asks for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A stage that brings new work: it leaves the reserve alone.
    First,
    /// A stage that already holds a full buffer and needs another one to go on.
    Middle,
}

/// The fixed set of buffers.
#[derive(Debug)]
pub(crate) struct BufferPool {
    state: Mutex<State>,
    freed: Condvar,
    reserve: usize,
}

#[derive(Debug)]
struct State {
    free: Vec<Buffer>,
    /// Free buffers that the first stage leaves alone.
    kept: usize,
    closed: bool,
}

impl BufferPool {
    /// `count` buffers of `size_bytes`, of which the last `reserve` are for the middle stage.
    ///
    /// # Errors
    /// `Configuration` if there is no memory for them.
    pub(crate) fn new(count: usize, size_bytes: usize, reserve: usize) -> Result<Self> {
        Self::with_ahead(count, 0, size_bytes, reserve)
    }

    /// As [`BufferPool::new`], and `ahead` more that the first stage has only once somebody said [`BufferPool::read_ahead`]. What
    /// nobody fills takes no memory.
    ///
    /// # Errors
    /// As [`BufferPool::new`].
    pub(crate) fn with_ahead(count: usize, ahead: usize, size_bytes: usize, reserve: usize) -> Result<Self> {
        debug_assert!(reserve >= 1 && count > reserve);
        let free = (0..count + ahead).map(|_| Buffer::new(size_bytes)).collect::<Result<_>>()?;
        let state = State { free, kept: reserve + ahead, closed: false };
        Ok(BufferPool { state: Mutex::new(state), freed: Condvar::new(), reserve })
    }

    /// From now on the first stage has all buffers but the reserve.
    pub(crate) fn read_ahead(&self) {
        self.lock().kept = self.reserve;
        self.freed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot happen while the lock is held: nothing in here calls out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a buffer; None once the pool is closed.
    pub(crate) fn acquire(&self, asker: Asker) -> Option<Buffer> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let kept = if asker == Asker::First { state.kept } else { 0 };
            if state.free.len() > kept {
                return state.free.pop();
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a buffer back.
    pub(crate) fn release(&self, mut buffer: Buffer) {
        buffer.clear();
        self.lock().free.push(buffer);
        // Both kinds of askers wait on one condition, and only some may take this buffer.
        self.freed.notify_all();
    }

    /// Wakes everybody who waits; from now on nobody gets a buffer.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_askers_leave_the_reserve() {
        let pool = BufferPool::new(3, 4096, 2).unwrap();
        let first = pool.acquire(Asker::First).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.acquire(Asker::First).is_some());
            let second = pool.acquire(Asker::Middle).unwrap();
            let third = pool.acquire(Asker::Middle).unwrap();
            pool.release(second);
            pool.release(third);
            assert!(!waiting.is_finished(), "two are free, both are reserved");
            pool.release(first);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn what_is_for_reading_ahead_is_given_out_only_then() {
        let pool = BufferPool::with_ahead(2, 2, 4096, 1).unwrap();
        let first = pool.acquire(Asker::First).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| [(); 2].map(|()| pool.acquire(Asker::First).unwrap()).len());
            let middle = pool.acquire(Asker::Middle).unwrap();
            pool.release(middle);
            assert!(!waiting.is_finished(), "three are free, one is reserved, two are not for now");
            pool.read_ahead();
            assert_eq!(waiting.join().unwrap(), 2);
        });
        pool.release(first);
    }

    #[test]
    fn close_wakes_everybody() {
        let pool = BufferPool::new(2, 4096, 1).unwrap();
        let _held = [pool.acquire(Asker::Middle).unwrap(), pool.acquire(Asker::Middle).unwrap()];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.acquire(Asker::Middle).is_none());
            pool.close();
            assert!(waiting.join().unwrap());
        });
    }
}
