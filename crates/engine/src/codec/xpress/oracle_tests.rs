//! Other people's XPRESS against ours: libwim reads what we write and writes what we read, dissect.util reads it too.
//!
//! Both are only for tests, and their tests say so and pass where they are not installed.

use std::ffi::{c_int, c_uint, c_void};
use std::io::Write;
use std::process::{Command, Stdio};

use libloading::Library;

use super::tests::sample_blocks;
use super::*;
use crate::codec::conformance::sample_data::noise;

/// libwim's number for this codec.
const XPRESS: c_int = 1;

type CreateCompressor = unsafe extern "C" fn(c_int, usize, c_uint, *mut *mut c_void) -> c_int;
type Compress = unsafe extern "C" fn(*const u8, usize, *mut u8, usize, *mut c_void) -> usize;
type CreateDecompressor = unsafe extern "C" fn(c_int, usize, *mut *mut c_void) -> c_int;
type Decompress = unsafe extern "C" fn(*const u8, usize, *mut u8, usize, *mut c_void) -> c_int;

/// libwim's functions for one compressor and one decompressor, which live until the process ends.
struct Libwim {
    library: Library,
    compressor: *mut c_void,
    decompressor: *mut c_void,
}

impl Libwim {
    /// The library with a compressor of `level`; None, and a line that says so, if it is not installed.
    fn open(level: c_uint) -> Option<Self> {
        // SAFETY: initializers of libwim only fill its own tables.
        let Ok(library) = (unsafe { Library::new("libwim.so.15") }) else {
            eprintln!("skipped: libwim.so.15 is not installed (package libwim15)");
            return None;
        };
        let mut libwim = Libwim { library, compressor: std::ptr::null_mut(), decompressor: std::ptr::null_mut() };
        let create = libwim.function::<CreateCompressor>(b"wimlib_create_compressor");
        // SAFETY: the prototype is that of wimlib.h; the result is written to a pointer of ours.
        let result = unsafe { create(XPRESS, BLOCK_SIZE_BYTES_MAX, level, &raw mut libwim.compressor) };
        assert_eq!(result, 0);
        let create = libwim.function::<CreateDecompressor>(b"wimlib_create_decompressor");
        // SAFETY: as above.
        let result = unsafe { create(XPRESS, BLOCK_SIZE_BYTES_MAX, &raw mut libwim.decompressor) };
        assert_eq!(result, 0);
        Some(libwim)
    }

    fn function<F: Copy>(&self, name: &[u8]) -> F {
        // SAFETY: every caller names the type that wimlib.h gives the function, and the library stays loaded.
        unsafe { *self.library.get::<F>(name).unwrap() }
    }

    /// A block; None if it would not be smaller than `raw`.
    fn compress(&self, raw: &[u8]) -> Option<Vec<u8>> {
        let mut stored = vec![0; raw.len()];
        let compress = self.function::<Compress>(b"wimlib_compress");
        // SAFETY: pointers and lengths of two slices; the compressor is alive.
        let len = unsafe { compress(raw.as_ptr(), raw.len(), stored.as_mut_ptr(), stored.len() - 1, self.compressor) };
        stored.truncate(len);
        (len > 0).then_some(stored)
    }

    fn decompress(&self, stored: &[u8], raw_len: usize) -> Vec<u8> {
        let mut raw = vec![0xEE; raw_len];
        let decompress = self.function::<Decompress>(b"wimlib_decompress");
        // SAFETY: pointers and lengths of two slices; the decompressor is alive.
        let result =
            unsafe { decompress(stored.as_ptr(), stored.len(), raw.as_mut_ptr(), raw.len(), self.decompressor) };
        assert_eq!(result, 0, "libwim refuses a block of {} bytes", stored.len());
        raw
    }
}

#[test]
fn libwim_and_we_read_each_other() {
    for level in [1, 20, 60] {
        let Some(libwim) = Libwim::open(level) else { return };
        for raw in sample_blocks() {
            if let Some(stored) = libwim.compress(&raw) {
                let mut back = vec![0xEE; raw.len()];
                let used = decode_block(&stored, &mut back, &mut DecodeState::new()).unwrap();
                // Libwim writes no symbol at the end and at times a unit more than is needed.
                assert!(back == raw && used + 2 >= stored.len(), "{} of {}", used, stored.len());
            }
        }
    }
    let Some(libwim) = Libwim::open(1) else { return };
    for level in [1, 2] {
        let mut state = EncodeState::new(level);
        for raw in sample_blocks() {
            let mut stored = vec![0; 2 * raw.len() + 1024];
            let len = encode_block(&raw, &mut stored, &mut state).unwrap();
            assert!(libwim.decompress(&stored[..len], raw.len()) == raw, "level {level}, {} bytes", raw.len());
        }
    }
}

#[test]
fn blocks_are_at_most_a_twentieth_larger_than_those_of_libwims_fastest_level() {
    let Some(libwim) = Libwim::open(1) else { return };
    for level in [1, 2] {
        let mut state = EncodeState::new(level);
        let mut sums = [0, 0];
        for raw in sample_blocks().into_iter().filter(|raw| raw.len() > 4000) {
            let mut stored = vec![0; raw.len()];
            let ours = encode_block(&raw, &mut stored, &mut state).unwrap_or(raw.len());
            let theirs = libwim.compress(&raw).map_or(raw.len(), |stored| stored.len());
            // 64 bytes more are allowed: a block of nothing but one byte is two hundred.
            assert!(ours <= theirs + theirs / 20 + 64, "level {level}: {ours} and {theirs} of {} bytes", raw.len());
            sums = [sums[0] + ours, sums[1] + theirs];
        }
        assert!(sums[0] <= sums[1] + sums[1] / 20, "level {level}: {sums:?}");
    }
}

#[test]
fn dissect_reads_what_we_write() {
    const PROGRAM: &str = "import sys, struct
from dissect.util.compression import lzxpress_huffman
data = sys.stdin.buffer.read()
at = 0
while at < len(data):
    stored, raw = struct.unpack_from('<II', data, at)
    block = data[at + 8:at + 8 + stored]
    expected = data[at + 8 + stored:at + 8 + stored + raw]
    read = lzxpress_huffman.decompress(block)
    assert len(read) >= raw - 40 and expected.startswith(read[:raw]), at
    at += 8 + stored + raw
print('read', at)";
    let importable = Command::new("python3").args(["-c", "import dissect.util.compression.lzxpress_huffman"]).output();
    if !importable.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 has no dissect.util");
        return;
    }
    let mut input = Vec::new();
    for (number, mut raw) in sample_blocks().into_iter().enumerate().filter(|(number, _)| number % 7 == 0) {
        // It stops when it has read all bytes, up to 31 bits early or behind the symbol at the end.
        raw.truncate(BLOCK_SIZE_BYTES_MAX - 100);
        raw.extend_from_slice(&noise(40));
        let mut stored = vec![0; 2 * raw.len() + 1024];
        let len = encode_block(&raw, &mut stored, &mut EncodeState::new(1 + number as i32 % 2)).unwrap();
        input.extend([len as u32, raw.len() as u32].iter().flat_map(|len| len.to_le_bytes()));
        input.extend_from_slice(&stored[..len]);
        input.extend_from_slice(&raw);
    }
    let mut python =
        Command::new("python3").args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(&input).unwrap();
    let output = python.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("read {}", input.len()));
}
