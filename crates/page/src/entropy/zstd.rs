//! zstd's context for encoding, with what the library's wrapper leaves out: frames of repeats that somebody else has found.

use std::ffi::c_int;
use std::ptr::NonNull;

use zstd_safe::zstd_sys::{self, ZSTD_CCtx, ZSTD_ResetDirective, ZSTD_Sequence};

pub(super) use zstd_safe::zstd_sys::ZSTD_cParameter as Parameter;

// What zstd.h names as below, and the bindings by number.
/// Whether frames have a magic number.
pub(super) const FORMAT: Parameter = Parameter::ZSTD_c_experimentalParam2;
/// Whether input and output are copied.
const STABLE_IN_BUFFER: Parameter = Parameter::ZSTD_c_experimentalParam9;
const STABLE_OUT_BUFFER: Parameter = Parameter::ZSTD_c_experimentalParam10;
/// Whether each block's sequences end with one that has no repeat.
const BLOCK_DELIMITERS: Parameter = Parameter::ZSTD_c_experimentalParam11;
const VALIDATE_SEQUENCES: Parameter = Parameter::ZSTD_c_experimentalParam12;
/// Whether offsets of sequences are compared with those of the sequences before.
const REPCODE_RESOLUTION: Parameter = Parameter::ZSTD_c_experimentalParam19;

/// A sequence is some literals and the repeat behind them.
pub(super) type Sequence = ZSTD_Sequence;

/// Makes frames.
pub(super) struct ZstdContext(NonNull<ZSTD_CCtx>);

// SAFETY: nothing of a context is kept by thread.
unsafe impl Send for ZstdContext {}

impl Drop for ZstdContext {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and is used here for the last time.
        unsafe { zstd_sys::ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

impl ZstdContext {
    /// None if there is no memory for it.
    pub(super) fn try_create() -> Option<Self> {
        // SAFETY: it takes nothing, and gives a context that nobody else has, or null.
        NonNull::new(unsafe { zstd_sys::ZSTD_createCCtx() }).map(ZstdContext)
    }

    /// Forgets all parameters.
    pub(super) fn reset(&mut self) -> Option<()> {
        self.reset_what(ZSTD_ResetDirective::ZSTD_reset_parameters)
    }

    fn reset_what(&mut self, what: ZSTD_ResetDirective) -> Option<()> {
        // SAFETY: the context is there until it is dropped.
        succeeded(unsafe { zstd_sys::ZSTD_CCtx_reset(self.0.as_ptr(), what) }).map(|_| ())
    }

    /// None if zstd takes no such value.
    fn set(&mut self, parameter: Parameter, value: c_int) -> Option<()> {
        // SAFETY: as above; the value is checked by the library.
        succeeded(unsafe { zstd_sys::ZSTD_CCtx_setParameter(self.0.as_ptr(), parameter, value) }).map(|_| ())
    }

    /// As [`ZstdContext::set`], one after another.
    pub(super) fn set_all(&mut self, parameters: &[(Parameter, c_int)]) -> Option<()> {
        parameters.iter().try_for_each(|(parameter, value)| self.set(*parameter, *value))
    }

    /// The frame of `text`, in place of what is in `out`.
    pub(super) fn compress(&mut self, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
        make_room(text, out)?;
        let (source, target) = (text.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: it reads `text` and writes to the room of `out`, no more than that.
        let written = unsafe { zstd_sys::ZSTD_compress2(self.0.as_ptr(), target, out.capacity(), source, text.len()) };
        self.finish(written, out)
    }

    /// As [`ZstdContext::compress`], of the sequences of `text`, each block's with an end of its own. Wrong ones are refused.
    pub(super) fn compress_sequences(&mut self, sequences: &[Sequence], text: &[u8], out: &mut Vec<u8>) -> Option<()> {
        self.set_all(&[
            (VALIDATE_SEQUENCES, 1),
            (BLOCK_DELIMITERS, 1),
            (REPCODE_RESOLUTION, 1),
            (STABLE_IN_BUFFER, 1),
            (STABLE_OUT_BUFFER, 1),
        ])?;
        make_room(text, out)?;
        let (source, target) = (text.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: it reads `sequences`, which are validated, and `text`, and writes to the room of `out`, no more than that.
        let written = unsafe {
            zstd_sys::ZSTD_compressSequences(
                self.0.as_ptr(),
                target,
                out.capacity(),
                sequences.as_ptr(),
                sequences.len(),
                source,
                text.len(),
            )
        };
        self.finish(written, out)
    }

    /// Takes in what the library has written to the room of `out`.
    fn finish(&mut self, written: usize, out: &mut Vec<u8>) -> Option<()> {
        // A frame of sequences is left open, and one that failed: no parameter could be set any more.
        self.reset_what(ZSTD_ResetDirective::ZSTD_reset_session_only)?;
        let length = succeeded(written)?;
        assert!(length <= out.capacity());
        // SAFETY: so many bytes there have been written.
        unsafe { out.set_len(length) };
        Some(())
    }

    #[cfg(test)]
    pub(super) fn size_bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { zstd_sys::ZSTD_sizeof_CCtx(self.0.as_ptr()) }
    }
}

fn make_room(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    out.try_reserve(zstd_safe::compress_bound(text.len())).ok()
}

fn succeeded(code: usize) -> Option<usize> {
    // SAFETY: it looks at the number.
    (unsafe { zstd_sys::ZSTD_isError(code) } == 0).then_some(code)
}
