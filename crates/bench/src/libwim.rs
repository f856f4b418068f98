//! libwim's XPRESS, the reference encoder: loaded where it is installed (package libwim15), for measuring beside ours.
//!
//! A frame is cut into blocks as in `xpress`: each 64 KiB behind its stored length, raw if it does not get smaller.

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;
use pagehaul_engine::codec::xpress::BLOCK_SIZE_BYTES_MAX;
use pagehaul_engine::codec::{Decoder, Encoder};
use pagehaul_engine::error::{Error, ErrorKind, Result};

/// What the name of such a codec begins with: `libwim:LEVEL`.
pub(crate) const PREFIX: &str = "libwim:";

/// libwim's number for this codec.
const XPRESS: c_int = 1;
const LENGTH_BYTES: usize = 4;

type CreateCompressor = unsafe extern "C" fn(c_int, usize, c_uint, *mut *mut c_void) -> c_int;
type CreateDecompressor = unsafe extern "C" fn(c_int, usize, *mut *mut c_void) -> c_int;
type Compress = unsafe extern "C" fn(*const u8, usize, *mut u8, usize, *mut c_void) -> usize;
type Decompress = unsafe extern "C" fn(*const u8, usize, *mut u8, usize, *mut c_void) -> c_int;

fn failed(cause: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, "use libwim", cause).hint("install the package libwim15")
}

/// One compressor and one decompressor, which live as long as the process.
pub(crate) struct Libwim {
    compress: Compress,
    decompress: Decompress,
    compressor: *mut c_void,
    decompressor: *mut c_void,
    _library: Library,
}

// SAFETY: both objects are owned, used through `&mut self` only, and not bound to the thread that made them.
unsafe impl Send for Libwim {}

impl Libwim {
    /// With a compressor of `level`.
    ///
    /// # Errors
    /// `Configuration` if the library is not installed or has no such level.
    pub(crate) fn new(level: u32) -> Result<Self> {
        // SAFETY: its initializers only fill its own tables.
        let library = unsafe { Library::new("libwim.so.15") }
            .map_err(|error| failed(format!("libwim.so.15 cannot be loaded ({error})")))?;
        // SAFETY: the types are those of wimlib.h.
        let create = *unsafe { library.get::<CreateCompressor>(b"wimlib_create_compressor\0") }.map_err(failed)?;
        let mut compressor = std::ptr::null_mut();
        // SAFETY: the object is written to a pointer of ours.
        let status = unsafe { create(XPRESS, BLOCK_SIZE_BYTES_MAX, level, &raw mut compressor) };
        if status != 0 {
            return Err(failed(format!("no compressor of level {level}: status {status}")));
        }
        // SAFETY: as above.
        let create = *unsafe { library.get::<CreateDecompressor>(b"wimlib_create_decompressor\0") }.map_err(failed)?;
        let mut decompressor = std::ptr::null_mut();
        // SAFETY: as above.
        let status = unsafe { create(XPRESS, BLOCK_SIZE_BYTES_MAX, &raw mut decompressor) };
        if status != 0 {
            return Err(failed(format!("no decompressor: status {status}")));
        }
        // SAFETY: as above.
        let compress = *unsafe { library.get(b"wimlib_compress\0") }.map_err(failed)?;
        // SAFETY: as above.
        let decompress = *unsafe { library.get(b"wimlib_decompress\0") }.map_err(failed)?;
        Ok(Libwim { compress, decompress, compressor, decompressor, _library: library })
    }
}

impl Encoder for Libwim {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        let mut used = 0;
        for block in raw.chunks(BLOCK_SIZE_BYTES_MAX) {
            let Some((length, room)) = stored[used..].split_first_chunk_mut::<LENGTH_BYTES>() else { return Ok(None) };
            let shorter = room.len().min(block.len() - 1);
            // SAFETY: pointers and lengths of two slices; the compressor is alive.
            let mut made =
                unsafe { (self.compress)(block.as_ptr(), block.len(), room.as_mut_ptr(), shorter, self.compressor) };
            if made == 0 {
                let Some(place) = room.get_mut(..block.len()) else { return Ok(None) };
                place.copy_from_slice(block);
                made = block.len();
            }
            *length = (made as u32).to_le_bytes();
            used += LENGTH_BYTES + made;
        }
        Ok(Some(used))
    }
}

impl Decoder for Libwim {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        let damaged = || Error::new(ErrorKind::Damage, "decode a frame of libwim", "it is not what was encoded");
        let mut rest = stored;
        for block in raw.chunks_mut(BLOCK_SIZE_BYTES_MAX) {
            let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(damaged)?;
            let (made, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(damaged)?;
            rest = behind;
            if made.len() == block.len() {
                block.copy_from_slice(made);
                continue;
            }
            // SAFETY: pointers and lengths of two slices; the decompressor is alive.
            let status = unsafe {
                (self.decompress)(made.as_ptr(), made.len(), block.as_mut_ptr(), block.len(), self.decompressor)
            };
            if status != 0 {
                return Err(damaged());
            }
        }
        Ok(())
    }
}
