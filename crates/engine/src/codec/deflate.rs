//! Raw DEFLATE streams, by whichever engine is fastest on this system; any engine reads any other's output.
//!
//! libdeflate is linked and has levels 1 to 12. ISA-L is loaded if the system has it, and then takes levels 1 to 3
//! and all decoding. QATzip is loaded if it is asked for.

use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_alloc_decompressor, libdeflate_compressor, libdeflate_decompressor,
    libdeflate_deflate_compress, libdeflate_deflate_decompress_ex, libdeflate_free_compressor,
    libdeflate_free_decompressor, libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE,
    libdeflate_result_LIBDEFLATE_SHORT_OUTPUT, libdeflate_result_LIBDEFLATE_SUCCESS,
};

use super::isal::{self, Isal, IsalDecoder, IsalEncoder};
use super::qatzip::{self, QatEncoder, Qatzip};
use super::state_memory::{OutputAnchor, anchored};
use super::{
    CodecId, CodecSpec, Decoder, Encoder, check_frame_size, check_raw_len, damaged_frame, no_memory, wrong_length,
};
use crate::error::{Error, ErrorKind, Result};

/// Which library does the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeflateEngine {
    /// ISA-L for what it can do, if it is installed; libdeflate for the rest. Never QATzip.
    #[default]
    Auto,
    /// ISA-L: levels 1 to 3 and decoding.
    Isal,
    /// libdeflate: all levels and decoding.
    Libdeflate,
    /// QATzip: levels 1 to 9, by QuickAssist hardware or its own software; others decode.
    Qat,
}

impl DeflateEngine {
    /// All there are.
    pub const ALL: [DeflateEngine; 4] =
        [DeflateEngine::Auto, DeflateEngine::Isal, DeflateEngine::Libdeflate, DeflateEngine::Qat];

    /// The engine that [`DeflateEngine::Auto`] means at `level` on this system, for reports; never `Auto`.
    pub fn for_level(level: i32) -> Self {
        if level <= isal::LEVEL_MAX && Isal::installed().is_some() {
            DeflateEngine::Isal
        } else {
            DeflateEngine::Libdeflate
        }
    }

    /// The name in settings, manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            DeflateEngine::Auto => "auto",
            DeflateEngine::Isal => "isal",
            DeflateEngine::Libdeflate => "libdeflate",
            DeflateEngine::Qat => "qat",
        }
    }
}

impl fmt::Display for DeflateEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DeflateEngine {
    type Err = Error;

    /// # Errors
    /// `Usage` for anything else than the names; the hint lists them.
    fn from_str(text: &str) -> Result<Self> {
        DeflateEngine::ALL.into_iter().find(|engine| engine.name() == text).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("use {text:?} as DEFLATE engine"), "there is none of that name").hint(
                "valid are auto (ISA-L if it is installed, otherwise libdeflate), isal, libdeflate and qat (QATzip)",
            )
        })
    }
}

/// The engine that works for `spec` on this system, for reports: `isal`, `libdeflate`, or `qat` and who works for it.
///
/// None for a codec without engines.
///
/// # Errors
/// `Configuration` if QATzip is asked for and cannot be used.
pub fn deflate_engine_at_work(spec: CodecSpec) -> Result<Option<String>> {
    if spec.is_auto() || spec.codec() != CodecId::Deflate {
        return Ok(None);
    }
    Ok(Some(match spec.resolved().engine() {
        DeflateEngine::Qat => format!("qat ({})", Qatzip::installed()?.worker()),
        engine => engine.to_string(),
    }))
}

/// An encoder of one engine.
///
/// # Errors
/// `Usage` for a level that does not exist; `Configuration` if an engine is asked for that is not installed or has no
/// such level, if the frame size is out of range, or if there is no memory.
pub fn new_deflate_encoder(engine: DeflateEngine, level: i32, frame_size_bytes: usize) -> Result<Box<dyn Encoder>> {
    CodecSpec::new(CodecId::Deflate, level)?;
    check_frame_size(frame_size_bytes)?;
    let without_level = |name: &str, hint: &str| {
        let cause = format!("{name} has no level {level}");
        Err(Error::new(ErrorKind::Configuration, "make a deflate encoder", cause).hint(hint))
    };
    match if engine == DeflateEngine::Auto { DeflateEngine::for_level(level) } else { engine } {
        DeflateEngine::Isal => match installed_isal()? {
            _ if level > isal::LEVEL_MAX => without_level("ISA-L", "use level 1, 2 or 3, or libdeflate"),
            functions => Ok(Box::new(IsalEncoder::new(functions, level, frame_size_bytes))),
        },
        DeflateEngine::Qat if level > qatzip::LEVEL_MAX => without_level("QATzip", "use level 1 to 9, or libdeflate"),
        DeflateEngine::Qat => Ok(Box::new(QatEncoder::new(Qatzip::installed()?, level, frame_size_bytes)?)),
        _ => Ok(Box::new(LibdeflateEncoder::new(level, frame_size_bytes)?)),
    }
}

/// A decoder of one engine.
///
/// # Errors
/// `Configuration` if ISA-L is asked for and not installed, or if there is no memory.
pub fn new_deflate_decoder(engine: DeflateEngine) -> Result<Box<dyn Decoder>> {
    match engine {
        // QATzip would hand raw DEFLATE to zlib, which is slower than both.
        DeflateEngine::Qat => new_deflate_decoder(DeflateEngine::Auto),
        DeflateEngine::Isal => Ok(Box::new(IsalDecoder::new(installed_isal()?))),
        DeflateEngine::Libdeflate => Ok(Box::new(LibdeflateDecoder::new()?)),
        DeflateEngine::Auto => match Isal::installed() {
            Some(functions) => Ok(Box::new(IsalDecoder::new(functions))),
            None => Ok(Box::new(LibdeflateDecoder::new()?)),
        },
    }
}

/// ISA-L, or the error that tells how to get it.
fn installed_isal() -> Result<Isal> {
    Isal::installed().ok_or_else(|| {
        Error::new(ErrorKind::Configuration, "use ISA-L for deflate", "no usable libisal.so.2 is installed")
            .hint("install the package libisal2 (isa-l on some systems), or let libdeflate do the work")
    })
}

/// What an encoder of `spec` holds.
pub(super) fn encoder_state_size_bytes(spec: CodecSpec, frame_size_bytes: usize) -> u64 {
    match spec.resolved().engine() {
        DeflateEngine::Isal => isal::encoder_state_size_bytes(),
        DeflateEngine::Qat => qatzip::encoder_state_size_bytes(frame_size_bytes),
        _ => libdeflate_compressor_size_bytes(spec.level()),
    }
}

/// What a decoder of any engine holds.
pub(super) fn decoder_state_size_bytes() -> u64 {
    isal::decoder_state_size_bytes().max(LIBDEFLATE_DECOMPRESSOR_SIZE_BYTES)
}

/// libdeflate 1.26 allocates 202 759, 668 295 and 9 011 751 bytes on x86-64; a test holds these bounds against it.
fn libdeflate_compressor_size_bytes(level: i32) -> u64 {
    match level {
        ..=1 => 208 << 10,
        2..=9 => 672 << 10,
        _ => 9 << 20,
    }
}

/// libdeflate 1.26 allocates 11 568 bytes on x86-64.
const LIBDEFLATE_DECOMPRESSOR_SIZE_BYTES: u64 = 16 << 10;

/// Compresses with one libdeflate compressor.
struct LibdeflateEncoder {
    compressor: NonNull<libdeflate_compressor>,
    frame_size_bytes: usize,
}

// SAFETY: the compressor is owned, used through `&mut self` only, and not bound to the thread that made it.
unsafe impl Send for LibdeflateEncoder {}

impl LibdeflateEncoder {
    fn new(level: i32, frame_size_bytes: usize) -> Result<Self> {
        // SAFETY: takes any level and returns null for one it does not have or without memory.
        let compressor = unsafe { libdeflate_alloc_compressor(level) };
        let compressor = NonNull::new(compressor).ok_or_else(|| no_memory("a deflate encoder"))?;
        Ok(LibdeflateEncoder { compressor, frame_size_bytes })
    }
}

impl Drop for LibdeflateEncoder {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once.
        unsafe { libdeflate_free_compressor(self.compressor.as_ptr()) };
    }
}

impl Encoder for LibdeflateEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Deflate, raw, self.frame_size_bytes)?;
        // No codec has an empty result, and no library has to show that it knows.
        if stored.is_empty() {
            return Ok(None);
        }
        let raw = anchored(raw);
        let (source, target) = (raw.as_ptr().cast(), stored.as_mut_ptr().cast());
        // SAFETY: the compressor is alive, the pointers and lengths are those of the two slices.
        let stored_len =
            unsafe { libdeflate_deflate_compress(self.compressor.as_ptr(), source, raw.len(), target, stored.len()) };
        // No stream is empty: 0 means that it does not fit.
        Ok((stored_len > 0).then_some(stored_len))
    }
}

/// Decompresses with one libdeflate decompressor.
pub(super) struct LibdeflateDecoder {
    decompressor: NonNull<libdeflate_decompressor>,
}

// SAFETY: the decompressor is owned, used through `&mut self` only, and not bound to the thread that made it.
unsafe impl Send for LibdeflateDecoder {}

impl LibdeflateDecoder {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: takes nothing and returns null without memory.
        let decompressor = unsafe { libdeflate_alloc_decompressor() };
        let decompressor = NonNull::new(decompressor).ok_or_else(|| no_memory("a deflate decoder"))?;
        Ok(LibdeflateDecoder { decompressor })
    }
}

impl Drop for LibdeflateDecoder {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once.
        unsafe { libdeflate_free_decompressor(self.decompressor.as_ptr()) };
    }
}

impl Decoder for LibdeflateDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        let (stored, mut anchor) = (anchored(stored), OutputAnchor::new());
        let raw = anchor.hold(raw);
        let (source, target) = (stored.as_ptr().cast(), raw.as_mut_ptr().cast());
        let (mut stored_used, mut raw_len) = (0usize, 0usize);
        // SAFETY: the decompressor is alive, the pointers and lengths are those of the two slices, the results are
        // written to two integers of ours.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                self.decompressor.as_ptr(),
                source,
                stored.len(),
                target,
                raw.len(),
                &raw mut stored_used,
                &raw mut raw_len,
            )
        };
        let damaged = |cause| Err(damaged_frame(CodecId::Deflate, cause));
        #[expect(non_upper_case_globals, reason = "the library's constants keep their C names")]
        match result {
            libdeflate_result_LIBDEFLATE_SUCCESS if stored_used == stored.len() && raw_len == raw.len() => Ok(()),
            libdeflate_result_LIBDEFLATE_SUCCESS | libdeflate_result_LIBDEFLATE_SHORT_OUTPUT => {
                Err(wrong_length(CodecId::Deflate, stored.len().saturating_sub(stored_used), raw_len, raw.len()))
            }
            libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => {
                damaged(format!("it holds more than {} bytes", raw.len()))
            }
            _ => damaged("the stream is not valid or ends too early".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::c_void;

    use libdeflate_sys::{libdeflate_alloc_compressor_ex, libdeflate_alloc_decompressor_ex, libdeflate_options};

    use super::*;

    const TEXT: &[u8] = b"pagehaul stores pages, pagehaul restores pages. ";

    /// Streams made by zlib 1.2.13 as hexadecimal digits, with what they hold.
    fn zlib_streams() -> Vec<(&'static str, &'static str, Vec<u8>)> {
        let letters: Vec<u8> = (0..200u32).map(|position| ((position * position) >> 3) as u8 & 0x1F | 0x40).collect();
        vec![
            ("empty", "0300", Vec::new()),
            ("stored block", "010300fcff616263", b"abc".to_vec()),
            ("fixed codes", "2b484c4fcd482ccd51282ec92f4a2d562800f28b75c0145818288624a187901824ea01", TEXT.repeat(4)),
            (
                "dynamic codes, no matches",
                "05c1010244300c04c0afad0816e5228aa0f8ff2f6e064025b5b61cd2cfb728504e7e14e19c6fe92d403b65cc2fbd74fe302345e3\
                 5fbab8eb2a0b0c864556dd79a5cf9b48c87cbc2bce378f721a11d6cb9d674a397ca2a2c4e6bf34b0d55a2a004025b5b61cd2cfb7\
                 28504e7e14e19c6fe92d403b65cc2fbd74fe302345e35fbab8eb2a0b0c864556ddff",
                letters,
            ),
            (
                "full flush between blocks",
                "2a484c4fcd482ccd51282ec92f4a2d562800f28b75c0145818288624a1a700000000ffff2b484c4fcd482ccd51282ec92f4a2d56\
                 2800f28b75c0145818288624a18790a0917a00",
                TEXT.repeat(4),
            ),
        ]
    }

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits: Vec<u8> = hexadecimal.bytes().map(|digit| (digit as char).to_digit(16).unwrap() as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn every_engine_reads_what_zlib_wrote() {
        let mut engines = vec![DeflateEngine::Auto, DeflateEngine::Libdeflate];
        match new_deflate_decoder(DeflateEngine::Isal) {
            Ok(_) => engines.push(DeflateEngine::Isal),
            Err(error) => eprintln!("skipped: ISA-L: {error}"),
        }
        for engine in engines {
            let mut decoder = new_deflate_decoder(engine).unwrap();
            for (name, stream, expected) in zlib_streams() {
                let mut raw = vec![0; expected.len()];
                decoder.decode(&bytes(stream), &mut raw).unwrap_or_else(|error| panic!("{engine:?} {name}: {error}"));
                assert_eq!(raw, expected, "{engine:?} {name}");
            }
        }
    }

    #[test]
    fn headers_of_zlib_and_gzip_are_not_deflate() {
        let zlib = bytes("789c2b484c4fcd482ccd51c8482d4a050023cb050c");
        let gzip = bytes("1f8b08000000000002032b484c4fcd482ccd51c8482d4a05005a9254230d000000");
        for engine in [DeflateEngine::Auto, DeflateEngine::Libdeflate] {
            let mut decoder = new_deflate_decoder(engine).unwrap();
            for stream in [&zlib, &gzip] {
                assert_eq!(decoder.decode(stream, &mut [0; 13]).unwrap_err().kind(), ErrorKind::Damage);
            }
        }
    }

    #[test]
    fn an_engine_that_cannot_is_said_so() {
        for (engine, level) in [(DeflateEngine::Isal, 4), (DeflateEngine::Isal, 12), (DeflateEngine::Qat, 10)] {
            let error = new_deflate_encoder(engine, level, 1).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.hint_text().is_some());
        }
        for level in [0, 13, -1] {
            assert_eq!(new_deflate_encoder(DeflateEngine::Auto, level, 1).err().unwrap().kind(), ErrorKind::Usage);
        }
        assert_eq!(DeflateEngine::for_level(4), DeflateEngine::Libdeflate);
    }

    thread_local! {
        /// What the allocator below was asked for on this thread.
        static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
    }

    unsafe extern "C" fn counting_malloc(size: usize) -> *mut c_void {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + size as u64);
        // Memory that is never given back suffices for objects that are made but never used.
        let memory = vec![0u64; size.div_ceil(8)].leak();
        memory.as_mut_ptr().cast()
    }

    unsafe extern "C" fn keeping_free(_memory: *mut c_void) {}

    #[test]
    fn libdeflate_takes_no_more_than_promised() {
        let options = libdeflate_options {
            sizeof_options: size_of::<libdeflate_options>(),
            malloc_func: Some(counting_malloc),
            free_func: Some(keeping_free),
        };
        for level in 1..=12 {
            ALLOCATED_BYTES.set(0);
            // SAFETY: the options are complete and outlive the call; the object is never used.
            let compressor = unsafe { libdeflate_alloc_compressor_ex(level, &raw const options) };
            assert!(!compressor.is_null());
            let taken = ALLOCATED_BYTES.get();
            assert!(taken > 0 && taken <= libdeflate_compressor_size_bytes(level), "level {level}: {taken}");
        }
        ALLOCATED_BYTES.set(0);
        // SAFETY: as above.
        let decompressor = unsafe { libdeflate_alloc_decompressor_ex(&raw const options) };
        assert!(!decompressor.is_null());
        assert!((1..=LIBDEFLATE_DECOMPRESSOR_SIZE_BYTES).contains(&ALLOCATED_BYTES.get()));
    }
}
