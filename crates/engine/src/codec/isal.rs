//! ISA-L's DEFLATE, loaded at run time where the system has the library: several times faster at levels 1 to 3.
//!
//! The layouts, sizes and return values are those of igzip_lib.h 2.30.0 on 64-bit Linux, checked with a C program;
//! the soname libisal.so.2 stands for that interface. A library that lacks a symbol, or that does not bring
//! a sample back, counts as not installed. States are larger than the header says, should a release have grown them.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use super::state_memory::{OutputAnchor, StateMemory, anchored};
use super::{CodecId, Decoder, Encoder, check_raw_len, damaged_frame, wrong_length};
use crate::error::{Error, ErrorKind, Result};

/// ISA-L's highest level; its level 0 has no use here.
pub(super) const LEVEL_MAX: i32 = 3;

/// The name the loader looks for.
const LIBRARY_NAME: &str = "libisal.so.2";

/// `struct isal_zstream` has 82 384 bytes.
const STREAM_SIZE_BYTES: usize = 128 << 10;

/// `struct inflate_state` has 87 368 bytes.
const INFLATE_STATE_SIZE_BYTES: usize = 128 << 10;

/// `ISAL_DEF_LVL3_LARGE`, the header's default for level 3, which is enough for 1 and 2.
const LEVEL_BUFFER_SIZE_BYTES: usize = 348_160;

const COMP_OK: c_int = 0;
const STATELESS_OVERFLOW: c_int = -1;
const ISAL_DECOMP_OK: c_int = 0;
const ISAL_END_INPUT: c_int = 1;
const ISAL_OUT_OVERFLOW: c_int = 2;

/// The fields of `struct isal_zstream` that callers set; the library's own state follows.
#[repr(C)]
struct StreamHead {
    next_in: *const u8,
    avail_in: u32,
    total_in: u32,
    next_out: *mut u8,
    avail_out: u32,
    total_out: u32,
    hufftables: *mut c_void,
    level: u32,
    level_buf_size: u32,
    level_buf: *mut u8,
    end_of_stream: u16,
    flush: u16,
    gzip_flag: u16,
    hist_bits: u16,
}

/// The fields of `struct inflate_state` that callers set; the library's own state follows.
#[repr(C)]
struct InflateHead {
    next_out: *mut u8,
    avail_out: u32,
    total_out: u32,
    next_in: *const u8,
    read_in: u64,
    avail_in: u32,
    read_in_length: i32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(StreamHead, next_out) == 16);
    assert!(offset_of!(StreamHead, hufftables) == 32);
    assert!(offset_of!(StreamHead, level) == 40);
    assert!(offset_of!(StreamHead, level_buf) == 48);
    assert!(offset_of!(StreamHead, end_of_stream) == 56);
    assert!(offset_of!(StreamHead, hist_bits) == 62);
    assert!(size_of::<StreamHead>() == 64);
    assert!(offset_of!(InflateHead, next_in) == 16);
    assert!(offset_of!(InflateHead, avail_in) == 32);
    assert!(size_of::<InflateHead>() == 40);
};

/// The four functions used, all of them safe to call from several threads on different states.
#[derive(Clone, Copy)]
pub(super) struct Isal {
    deflate_init: unsafe extern "C" fn(*mut StreamHead),
    deflate: unsafe extern "C" fn(*mut StreamHead) -> c_int,
    inflate_init: unsafe extern "C" fn(*mut InflateHead),
    inflate: unsafe extern "C" fn(*mut InflateHead) -> c_int,
}

impl Isal {
    /// The library, if this system has one that works; it is loaded at the first call and stays loaded.
    pub(super) fn installed() -> Option<Isal> {
        static LOADED: OnceLock<Option<(libloading::Library, Isal)>> = OnceLock::new();
        LOADED.get_or_init(load).as_ref().map(|(_, functions)| *functions)
    }
}

/// Loads the library and tries it out.
fn load() -> Option<(libloading::Library, Isal)> {
    if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
        return None;
    }
    // SAFETY: ISA-L's initialisers do nothing but set pointers to the variants for this processor.
    let library = unsafe { libloading::Library::new(LIBRARY_NAME) }.ok()?;
    // SAFETY: the type is that of the declaration in igzip_lib.h, with the struct's head for the struct.
    let deflate_init = *unsafe { library.get(b"isal_deflate_stateless_init\0") }.ok()?;
    // SAFETY: as above.
    let deflate = *unsafe { library.get(b"isal_deflate_stateless\0") }.ok()?;
    // SAFETY: as above.
    let inflate_init = *unsafe { library.get(b"isal_inflate_init\0") }.ok()?;
    // SAFETY: as above.
    let inflate = *unsafe { library.get(b"isal_inflate_stateless\0") }.ok()?;
    let functions = Isal { deflate_init, deflate, inflate_init, inflate };
    brings_sample_back(functions).then_some((library, functions))
}

/// Whether every level encodes a sample and decoding returns it.
fn brings_sample_back(functions: Isal) -> bool {
    let sample: Vec<u8> = (0..4096u32).map(|position| ((position * position) >> 7) as u8).collect();
    (1..=LEVEL_MAX).all(|level| {
        let mut stored = [0u8; 8192];
        let mut back = vec![0u8; sample.len()];
        match IsalEncoder::new(functions, level, sample.len()).encode(&sample, &mut stored) {
            Ok(Some(len)) => IsalDecoder::new(functions).decode(&stored[..len], &mut back).is_ok() && back == sample,
            _ => false,
        }
    })
}

/// What an encoder holds.
pub(super) fn encoder_state_size_bytes() -> u64 {
    (STREAM_SIZE_BYTES + LEVEL_BUFFER_SIZE_BYTES) as u64
}

/// What a decoder holds.
pub(super) fn decoder_state_size_bytes() -> u64 {
    INFLATE_STATE_SIZE_BYTES as u64
}

/// A length as the library counts; longer ones are cut, which only makes less of a buffer usable.
fn clamped(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Compresses with one stream state and one level buffer.
pub(super) struct IsalEncoder {
    functions: Isal,
    level: u32,
    stream: StateMemory,
    level_buffer: StateMemory,
    frame_size_bytes: usize,
}

impl IsalEncoder {
    /// `level` is 1 to [`LEVEL_MAX`].
    pub(super) fn new(functions: Isal, level: i32, frame_size_bytes: usize) -> Self {
        IsalEncoder {
            functions,
            level: level.unsigned_abs(),
            stream: StateMemory::new(STREAM_SIZE_BYTES),
            level_buffer: StateMemory::new(LEVEL_BUFFER_SIZE_BYTES),
            frame_size_bytes,
        }
    }
}

impl Encoder for IsalEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Deflate, raw, self.frame_size_bytes)?;
        // No codec has an empty result, and no library has to show that it knows.
        if stored.is_empty() {
            return Ok(None);
        }
        let raw = anchored(raw);
        let stream: *mut StreamHead = self.stream.as_mut_ptr();
        // SAFETY: the memory is larger than the struct and aligned; the call only sets fields.
        unsafe { (self.functions.deflate_init)(stream) };
        // SAFETY: the head lies in our memory, is initialised, and nothing else refers to it while `head` lives.
        let head = unsafe { &mut *stream };
        head.next_in = raw.as_ptr();
        head.avail_in = clamped(raw.len());
        head.next_out = stored.as_mut_ptr();
        head.avail_out = clamped(stored.len());
        head.level = self.level;
        head.level_buf = self.level_buffer.as_mut_ptr();
        head.level_buf_size = clamped(self.level_buffer.size_bytes());
        head.end_of_stream = 1;
        // SAFETY: input, output and level buffer are slices that outlive the call, with their lengths.
        let result = unsafe { (self.functions.deflate)(stream) };
        // SAFETY: as for the first reference; the call is over.
        let head = unsafe { &*stream };
        match result {
            COMP_OK if head.avail_in == 0 => Ok(Some(stored.len() - head.avail_out as usize)),
            COMP_OK | STATELESS_OVERFLOW => Ok(None),
            _ => Err(Error::new(ErrorKind::Bug, "encode a deflate frame", format!("ISA-L result {result}"))),
        }
    }
}

/// Decompresses with one state.
pub(super) struct IsalDecoder {
    functions: Isal,
    state: StateMemory,
}

impl IsalDecoder {
    pub(super) fn new(functions: Isal) -> Self {
        let mut state = StateMemory::new(INFLATE_STATE_SIZE_BYTES);
        // SAFETY: the memory is larger than the struct and aligned; the call only sets fields.
        unsafe { (functions.inflate_init)(state.as_mut_ptr()) };
        IsalDecoder { functions, state }
    }
}

impl Decoder for IsalDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        let (Ok(stored_len), Ok(raw_len)) = (u32::try_from(stored.len()), u32::try_from(raw.len())) else {
            return Err(damaged_frame(CodecId::Deflate, "the frame is larger than ISA-L can count"));
        };
        let (stored, mut anchor) = (anchored(stored), OutputAnchor::new());
        let raw = anchor.hold(raw);
        let state: *mut InflateHead = self.state.as_mut_ptr();
        // SAFETY: the head lies in our memory, is initialised, and nothing else refers to it while `head` lives.
        let head = unsafe { &mut *state };
        head.next_in = stored.as_ptr();
        head.avail_in = stored_len;
        head.next_out = raw.as_mut_ptr();
        head.avail_out = raw_len;
        // SAFETY: the call resets its own state first, reads at most `avail_in` and writes at most `avail_out` bytes,
        // which are the lengths of the slices.
        let result = unsafe { (self.functions.inflate)(state) };
        // SAFETY: as for the first reference; the call is over.
        let head = unsafe { &*state };
        let (stored_left, raw_left) = (head.avail_in as usize, head.avail_out as usize);
        let damaged = |cause| Err(damaged_frame(CodecId::Deflate, cause));
        match result {
            ISAL_DECOMP_OK if stored_left == 0 && raw_left == 0 => Ok(()),
            ISAL_DECOMP_OK => {
                Err(wrong_length(CodecId::Deflate, stored_left, raw.len().saturating_sub(raw_left), raw.len()))
            }
            ISAL_END_INPUT => damaged("the stored bytes end too early".to_owned()),
            ISAL_OUT_OVERFLOW => damaged(format!("it holds more than {} bytes", raw.len())),
            _ => damaged(format!("the stream is not valid (ISA-L result {result})")),
        }
    }
}
