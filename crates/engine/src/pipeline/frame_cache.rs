//! Decoded frames of which several files, or parts of a file, are wanted: the last ones used, shared by all readers.

use std::sync::{Arc, Mutex, PoisonError};

use super::frame_store::FrameAt;

/// A fixed number of decoded frames.
pub(super) struct FrameCache {
    frames_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    frames: Vec<KeptFrame>,
    /// Counts uses.
    uses: u64,
}

struct KeptFrame {
    at: FrameAt,
    last_use: u64,
    raw: Arc<Vec<u8>>,
}

impl FrameCache {
    /// Room for so many frames, at least one.
    pub(super) fn new(frames_max: usize) -> Self {
        FrameCache { frames_max: frames_max.max(1), kept: Mutex::default() }
    }

    /// The frame's decoded bytes, if they are kept.
    pub(super) fn get(&self, at: FrameAt) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let now = kept.uses;
        let frame = kept.frames.iter_mut().find(|frame| frame.at == at)?;
        frame.last_use = now;
        Some(Arc::clone(&frame.raw))
    }

    /// Memory to decode a frame into: that of the one which was not used for the longest time, if all room is taken.
    pub(super) fn take_room(&self) -> Vec<u8> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.frames.len() < self.frames_max {
            return Vec::new();
        }
        let oldest = kept.frames.iter().enumerate().min_by_key(|(_, frame)| frame.last_use).map(|(at, _)| at);
        let Some(oldest) = oldest else { return Vec::new() };
        // One that a reader still copies from is that reader's.
        Arc::try_unwrap(kept.frames.swap_remove(oldest).raw).unwrap_or_default()
    }

    /// Keeps a decoded frame.
    pub(super) fn keep(&self, at: FrameAt, raw: Vec<u8>) -> Arc<Vec<u8>> {
        let raw = Arc::new(raw);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let last_use = kept.uses;
        if kept.frames.len() < self.frames_max && !kept.frames.iter().any(|frame| frame.at == at) {
            kept.frames.push(KeptFrame { at, last_use, raw: Arc::clone(&raw) });
        }
        raw
    }

    /// Most frames that are in memory at once, with those in the hands of `readers`.
    pub(super) fn frames_in_memory_max(frames_max: usize, readers: u16) -> u64 {
        frames_max as u64 + 2 * u64::from(readers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_that_was_not_used_for_longest_makes_room() {
        let cache = FrameCache::new(2);
        let at = |sequence| FrameAt { position: 0, sequence };
        cache.keep(at(1), vec![1; 8]);
        cache.keep(at(2), vec![2; 8]);
        assert_eq!(cache.get(at(1)).as_deref(), Some(&vec![1; 8]));
        assert_eq!(cache.take_room(), vec![2; 8], "its memory is used again");
        assert!(cache.get(at(2)).is_none());
        cache.keep(at(3), vec![3; 8]);
        let held = cache.get(at(1));
        cache.get(at(3));
        assert!(cache.take_room().is_empty(), "somebody still holds the oldest");
        assert_eq!(held.as_deref(), Some(&vec![1; 8]));
        cache.keep(at(3), vec![3; 8]);
        assert_eq!(cache.kept.lock().unwrap().frames.len(), 1, "no frame is kept twice");
    }
}
