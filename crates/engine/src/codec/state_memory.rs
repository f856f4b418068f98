//! What C code needs from memory and Rust does not give by itself: aligned zeroes for its state, and real addresses
//! for empty slices.

/// 64 bytes: the alignment the C headers ask for, and the largest any of them needs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Memory for the state of one C library object; it never moves or grows.
pub(super) struct StateMemory {
    lines: Box<[CacheLine]>,
}

impl StateMemory {
    /// At least `size_bytes` of zeroes.
    pub(super) fn new(size_bytes: usize) -> Self {
        let line_count = size_bytes.div_ceil(size_of::<CacheLine>());
        StateMemory { lines: vec![CacheLine([0; 64]); line_count].into_boxed_slice() }
    }

    /// What [`StateMemory::new`] takes for `size_bytes`.
    pub(super) const fn size_bytes_for(size_bytes: usize) -> usize {
        size_bytes.next_multiple_of(size_of::<CacheLine>())
    }

    /// How much there is.
    pub(super) fn size_bytes(&self) -> usize {
        self.lines.len() * size_of::<CacheLine>()
    }

    /// The first byte, 64-byte aligned; valid as long as `self` and for all of [`StateMemory::size_bytes`].
    pub(super) fn as_mut_ptr<T>(&mut self) -> *mut T {
        const { assert!(align_of::<T>() <= align_of::<CacheLine>()) };
        self.lines.as_mut_ptr().cast()
    }
}

/// Bytes on both sides of an empty slice, more than any library looks back or ahead.
const ANCHOR_SIZE_BYTES: usize = 64;

/// The same bytes at an address that C code can calculate with.
///
/// The address of an empty slice may be 1. Libraries stop their loops at addresses like "12 bytes before the end",
/// which wraps around there: LZ4HC 1.10 at level 10 crashes on it.
pub(super) fn anchored(bytes: &[u8]) -> &[u8] {
    static ANCHOR: [u8; 2 * ANCHOR_SIZE_BYTES] = [0; 2 * ANCHOR_SIZE_BYTES];
    if bytes.is_empty() { &ANCHOR[ANCHOR_SIZE_BYTES..ANCHOR_SIZE_BYTES] } else { bytes }
}

/// Where an empty output gets its address from; see [`anchored`].
pub(super) struct OutputAnchor([u8; 2 * ANCHOR_SIZE_BYTES]);

impl OutputAnchor {
    pub(super) fn new() -> Self {
        OutputAnchor([0; 2 * ANCHOR_SIZE_BYTES])
    }

    /// The same bytes at an address that C code can calculate with.
    pub(super) fn hold<'a>(&'a mut self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        if bytes.is_empty() { &mut self.0[ANCHOR_SIZE_BYTES..ANCHOR_SIZE_BYTES] } else { bytes }
    }
}
