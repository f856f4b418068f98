//! Memory asked for before it is needed.
//!
//! A frame's content is read twice, when it is taken apart and when what was made of it is compared, and each time it has left
//! the nearest caches. What a processor fetches ahead by itself ends with the page of memory.

/// Bytes of a line of the caches.
const LINE_BYTES: usize = 64;

/// A stretch of memory that is asked for piece by piece, while something else is done.
///
/// A core waits for a dozen or two of lines at a time: who asks for more at once waits himself. When all of the next page was asked for
/// while the checksum of this one was computed, that took twice as long (bench/runs/2026-11-30-page-ahead).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead {
    next: usize,
    end: usize,
    step: usize,
}

impl Ahead {
    /// All of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let next = bytes.as_ptr().addr();
        Ahead { next, end: next + bytes.len(), step: 0 }
    }

    /// As much as `page` has, right behind it; whether there is anything does not matter.
    #[inline]
    pub(crate) fn behind(page: &[u8]) -> Self {
        let next = page.as_ptr().addr().wrapping_add(page.len());
        Ahead { next, end: next.wrapping_add(page.len()), step: 0 }
    }

    /// What is left in so many steps.
    pub(crate) fn in_steps(mut self, steps: usize) -> Self {
        self.step = (self.end.saturating_sub(self.next) / steps.max(1)).next_multiple_of(LINE_BYTES);
        self
    }

    /// Asks for so many lines; the caller knows that they are left.
    #[inline(always)]
    pub(crate) fn ask<const LINES: usize>(&mut self) {
        for _ in 0..LINES {
            prefetch(self.next);
            self.next = self.next.wrapping_add(LINE_BYTES);
        }
    }

    /// Asks for the next step, or for what is left of it.
    #[inline]
    pub(crate) fn step(&mut self) {
        let end = self.end.min(self.next.saturating_add(self.step));
        while self.next < end {
            self.ask::<1>();
        }
    }

    /// Asks for all that is left.
    pub(crate) fn finish(&mut self) {
        self.step = usize::MAX;
        self.step();
    }
}

/// Asks for the line at `address`; nobody waits for it.
#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of every x86-64, and asking neither reads nor writes, wherever the address points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_asked_for_and_nothing_beyond_it() {
        let page = [0_u8; 8192];
        let start = page.as_ptr().addr();
        for steps in [0, 1, 3, 7, 22, 1000] {
            let mut ahead = Ahead::of(&page).in_steps(steps);
            for number in 1..=steps.min(100) {
                let before = ahead.next;
                ahead.step();
                assert!(
                    ahead.next <= ahead.end && ahead.next - before <= (page.len() / steps).next_multiple_of(LINE_BYTES)
                );
                assert!(number < steps || ahead.end - ahead.next < LINE_BYTES * steps);
            }
            ahead.finish();
            assert_eq!(ahead.next, start + page.len(), "{steps}");
            ahead.step();
            assert_eq!(ahead.next, start + page.len(), "{steps}");
        }
        let mut behind = Ahead::behind(&page);
        behind.ask::<32>();
        assert_eq!(behind.next, start + page.len() + 32 * LINE_BYTES);
        behind.finish();
        assert_eq!(behind.next, start + 2 * page.len());
    }

    #[test]
    fn at_the_end_of_memory_nothing_is_asked_for() {
        let mut ahead = Ahead { next: usize::MAX - 63, end: 100, step: 640 };
        ahead.step();
        ahead.finish();
        assert_eq!(ahead.next, usize::MAX - 63);
        let mut nothing = Ahead::default();
        nothing.finish();
        assert_eq!(nothing.next, 0);
    }
}
