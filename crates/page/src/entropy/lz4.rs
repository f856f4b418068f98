//! LZ4 blocks by the C library, its fast compressor. It keeps its table on the stack, 16 KiB.

use std::ffi::{c_char, c_int};

/// A length as the library counts; that of no frame is above it.
fn counted(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

/// The block of `text`, written to the start of `room`; None if that is too short for it.
pub(super) fn pack<'a>(text: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let (source, target): (*const c_char, *mut c_char) = (text.as_ptr().cast(), room.as_mut_ptr().cast());
    // SAFETY: it reads as many bytes as `text` has and writes at most as many as `room` has.
    let length = unsafe { lz4_sys::LZ4_compress_default(source, target, counted(text.len()), counted(room.len())) };
    usize::try_from(length).ok().filter(|length| *length > 0).and_then(|length| room.get(..length))
}

/// Appends what `packed` is the block of to `text`; false, and nothing, if that are not `count` bytes.
pub(super) fn unpack(packed: &[u8], count: usize, text: &mut Vec<u8>) -> bool {
    text.reserve(count);
    let (source, room): (*const c_char, _) = (packed.as_ptr().cast(), text.spare_capacity_mut());
    // SAFETY: this function is made for hostile input: it reads at most as many bytes as `packed` has and writes at most `count`, for
    // which `room` is large enough. It never reads bytes of the room that it has not written.
    let length = unsafe {
        lz4_sys::LZ4_decompress_safe(source, room.as_mut_ptr().cast(), counted(packed.len()), counted(count))
    };
    let is_whole = usize::try_from(length) == Ok(count);
    if is_whole {
        // SAFETY: `count` bytes behind the text have been reserved, and all of them were written.
        unsafe { text.set_len(text.len() + count) };
    }
    is_whole
}
