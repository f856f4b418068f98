//! Memory asked for before it is needed.
//!
//! A frame's content is read twice, when it is taken apart and when what was made of it is compared, and each time it has left
//! the nearest caches. What a processor fetches ahead by itself ends with the page of memory.

/// Asks for all of `bytes`; nobody waits for them.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    prefetch_behind(bytes, 0);
}

/// Asks for what lies `distance` bytes behind each line of `bytes`, if anything does.
#[inline(always)]
pub(crate) fn prefetch_behind(bytes: &[u8], distance: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of every x86-64, and asking neither reads nor writes, wherever the address points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(distance).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (bytes, distance);
}
