//! The parts of an upload, and the memory they are made of: what transfer buffers leave with it, and blocks that the rest is
//! copied into.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::Result;
use crate::io::AlignedBytes;
use crate::storage::HeadedBytes;

/// What is copied goes into blocks of this share of the part's size. So much of its memory may be unused in buffers and blocks that are
/// followed by buffers, and less than another block at its end.
const BLOCK_SHARE: u64 = 32;

/// Memory that so many parts of that size take at most, besides the two buffers in which the first begins and the last ends.
pub(super) fn memory_bytes(parts: u64, size: u64) -> u64 {
    parts * (size + 2 * block_bytes(size))
}

fn block_bytes(size: u64) -> u64 {
    size.div_ceil(BLOCK_SHARE)
}

/// Memory of one upload; what parts were made of goes round once they have arrived. It is never more than what parts held at once.
#[derive(Default)]
pub(super) struct PartMemory {
    free: Mutex<Vec<AlignedBytes>>,
}

impl PartMemory {
    fn free(&self) -> MutexGuard<'_, Vec<AlignedBytes>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of `size`.
    fn take(self: &Arc<Self>, size: usize) -> Result<Block> {
        let mut free = self.free();
        // The one that came back last is still in the processor's caches, perhaps.
        let bytes = match free.iter().rposition(|free| free.len() == size) {
            Some(place) => free.remove(place),
            None => {
                // Those of other sizes give way.
                let mut gone = 0;
                while gone < size && !free.is_empty() {
                    gone += free.remove(0).len();
                }
                AlignedBytes::new(size)?
            }
        };
        Ok(Block { bytes, length: 0, memory: Arc::clone(self) })
    }

    /// Memory that waits to be used again.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.free().iter().map(|free| free.len()).sum()
    }
}

/// Memory that is filled, or that requests send; it goes back when nobody needs it.
struct Block {
    bytes: AlignedBytes,
    length: usize,
    memory: Arc<PartMemory>,
}

impl Block {
    fn room(&self) -> usize {
        self.bytes.len() - self.length
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.memory.free().push(bytes);
    }
}

/// A part that is being made.
pub(super) struct Part {
    memory: Arc<PartMemory>,
    size: u64,
    length: u64,
    pieces: Vec<Bytes>,
    /// What is copied goes in here.
    open: Option<Block>,
    /// Of the buffers and the blocks before them what holds nothing.
    unused_bytes: u64,
}

impl Part {
    /// An empty part that is to have `size` bytes.
    pub(super) fn new(memory: &Arc<PartMemory>, size: u64) -> Self {
        Part { memory: Arc::clone(memory), size, length: 0, pieces: Vec::new(), open: None, unused_bytes: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.length == self.size
    }

    /// Copies what it has room for; gives the rest.
    ///
    /// # Errors
    /// `Configuration` if there is no memory for it.
    pub(super) fn copy<'b>(&mut self, mut bytes: &'b [u8]) -> Result<&'b [u8]> {
        while !bytes.is_empty() && !self.is_full() {
            let size = block_bytes(self.size) as usize;
            let block = match &mut self.open {
                Some(block) => block,
                open => open.insert(self.memory.take(size)?),
            };
            let room = block.room().min((self.size - self.length) as usize);
            let (now, rest) = bytes.split_at(bytes.len().min(room));
            block.bytes[block.length..block.length + now.len()].copy_from_slice(now);
            block.length += now.len();
            self.length += now.len() as u64;
            if block.room() == 0 {
                self.close();
            }
            bytes = rest;
        }
        Ok(bytes)
    }

    /// Takes what it has room for off the front of `bytes`, which stay where they are.
    pub(super) fn share(&mut self, bytes: &mut Bytes) {
        self.close();
        let now = bytes.split_to(bytes.len().min((self.size - self.length) as usize));
        self.length += now.len() as u64;
        self.pieces.push(now);
    }

    /// Keeps the memory of a transfer buffer, and leaves other memory in its place; None where it would hold more than the part.
    ///
    /// # Errors
    /// `Configuration` if there is no other memory.
    pub(super) fn keep(&mut self, memory: &mut AlignedBytes, pieces: &[HeadedBytes]) -> Result<Option<Bytes>> {
        let used: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let unused_bytes = memory.len() - used + self.open.as_ref().map_or(0, Block::room);
        let unused_bytes = self.unused_bytes + unused_bytes as u64;
        if memory.len() as u64 > self.size || unused_bytes > block_bytes(self.size) {
            return Ok(None);
        }
        self.unused_bytes = unused_bytes;
        let mut block = self.memory.take(memory.len())?;
        std::mem::swap(&mut block.bytes, memory);
        block.length = block.bytes.len();
        Ok(Some(Bytes::from_owner(block)))
    }

    fn close(&mut self) {
        self.pieces.extend(self.open.take().map(Bytes::from_owner));
    }

    /// What it is made of, in order.
    pub(super) fn into_pieces(mut self) -> Vec<Bytes> {
        self.close();
        self.pieces
    }
}
