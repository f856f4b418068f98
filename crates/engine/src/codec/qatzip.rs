//! QATzip's DEFLATE, loaded at run time where the system has the library: Intel's QuickAssist hardware, or zlib behind
//! the same interface where QATzip finds none.
//!
//! Built to documentation, not run against hardware: layouts and return values are those of qatzip.h 1.0.2 to 1.3.1 on
//! 64-bit Linux (the soname libqatzip.so.3 stands for that interface), and the tests load a library of their own that
//! has it. A session asks for raw DEFLATE, so every engine reads the frames. QATzip compresses only: its documents say
//! that raw DEFLATE is decompressed by zlib unless a stream is a single block that fits the device's buffer, and the
//! other engines are faster than zlib.

use std::ffi::{OsStr, c_int, c_long, c_uint, c_ulong, c_void};
use std::fmt;
use std::mem::offset_of;
use std::sync::{Arc, OnceLock};

use libloading::Library;

use super::deflate::LibdeflateDecoder;
use super::state_memory::anchored;
use super::{CodecId, Decoder, Encoder, check_raw_len};
use crate::error::{Error, ErrorKind, Result};

/// The highest level that all devices and QATzip's own software have.
pub(super) const LEVEL_MAX: i32 = 9;

/// The names the loader looks for.
const LIBRARY_NAMES: [&str; 2] = ["libqatzip.so.3", "libqatzip.so"];

const QZ_OK: c_int = 0;
const QZ_DEFLATE_RAW: c_int = 3;
const QZ_DIR_COMPRESS: c_int = 0;
const QZ_DEFLATE: u8 = 8;
const SOFTWARE_IS_ALLOWED: u8 = 1;
/// All of the input ends here.
const LAST: c_uint = 1;

/// `QzSession_T`, and room for what a release may add.
#[repr(C)]
struct Session {
    hw_session_stat: c_long,
    thd_sess_stat: c_int,
    internal: *mut c_void,
    total_in: c_ulong,
    total_out: c_ulong,
    reserve: [u64; 8],
}

/// `QzSessionParams_T`, and room for what a release may add.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    huffman_hdr: c_int,
    direction: c_int,
    data_fmt: c_int,
    comp_lvl: c_uint,
    comp_algorithm: u8,
    max_forks: c_uint,
    sw_backup: u8,
    hw_buff_sz: c_uint,
    strm_buff_sz: c_uint,
    input_sz_thrshold: c_uint,
    req_cnt_thrshold: c_uint,
    wait_cnt_thrshold: c_uint,
    reserve: [u64; 16],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(Session, internal) == 16);
    assert!(offset_of!(Session, reserve) == 40);
    assert!(offset_of!(Parameters, comp_algorithm) == 16);
    assert!(offset_of!(Parameters, max_forks) == 20);
    assert!(offset_of!(Parameters, sw_backup) == 24);
    assert!(offset_of!(Parameters, hw_buff_sz) == 28);
    assert!(offset_of!(Parameters, reserve) == 48);
};

type SessionFunction = unsafe extern "C" fn(*mut Session) -> c_int;
type Compress = unsafe extern "C" fn(*mut Session, *const u8, *mut c_uint, *mut u8, *mut c_uint, c_uint) -> c_int;

/// The six functions used; sessions are independent of each other, and not bound to a thread.
#[derive(Clone, Copy)]
struct Functions {
    init: unsafe extern "C" fn(*mut Session, u8) -> c_int,
    get_defaults: unsafe extern "C" fn(*mut Parameters) -> c_int,
    setup_session: unsafe extern "C" fn(*mut Session, *mut Parameters) -> c_int,
    compress: Compress,
    teardown_session: SessionFunction,
    close: SessionFunction,
}

/// Who does the work behind QATzip's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    /// A QuickAssist device.
    Hardware,
    /// QATzip's own software, for this reason (its status).
    Software(i64),
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Worker::Hardware => f.write_str("hardware"),
            Worker::Software(status) => write!(f, "QATzip's own software: {}", status_text(*status)),
        }
    }
}

/// The library, tried out.
#[derive(Clone)]
pub(super) struct Qatzip {
    functions: Functions,
    worker: Worker,
    /// Keeps the functions where they are.
    _library: Arc<Library>,
}

impl Qatzip {
    /// The library of this system; it is loaded and tried out at the first call, and stays loaded.
    ///
    /// # Errors
    /// `Configuration` if there is none, it has no session for us, or what it makes is not DEFLATE.
    pub(super) fn installed() -> Result<Qatzip> {
        static LOADED: OnceLock<std::result::Result<Qatzip, (String, String)>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| {
            let mut causes = Vec::new();
            for name in LIBRARY_NAMES {
                match Qatzip::open(name) {
                    Ok(library) => return Ok(library),
                    Err(OpenError::Absent(cause)) => causes.push(cause),
                    Err(OpenError::Unusable(cause)) => return Err((cause, HINT_SERVICE.to_owned())),
                }
            }
            Err((causes.join("; "), HINT_INSTALL.to_owned()))
        });
        loaded.clone().map_err(|(cause, hint)| unusable(&cause, &hint))
    }

    /// Loads `name`, a file or what the loader finds under it, and tries it out.
    fn open(name: impl AsRef<OsStr>) -> std::result::Result<Qatzip, OpenError> {
        if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
            return Err(OpenError::Absent("QATzip is only used on 64-bit Linux".to_owned()));
        }
        // SAFETY: QATzip's initialisers set up its own state and read its own environment.
        let library = unsafe { Library::new(name.as_ref()) }.map_err(|error| OpenError::Absent(loader_text(&error)))?;
        let functions = functions_of(&library).map_err(|error| OpenError::Unusable(loader_text(&error)))?;
        let mut qatzip = Qatzip { functions, worker: Worker::Hardware, _library: Arc::new(library) };
        qatzip.worker = qatzip.try_out().map_err(|error| OpenError::Unusable(error.cause().to_owned()))?;
        Ok(qatzip)
    }

    /// Who does the work.
    pub(super) fn worker(&self) -> Worker {
        self.worker
    }

    /// Whether what it makes of a sample is raw DEFLATE of that sample.
    fn try_out(&self) -> Result<Worker> {
        // More than one of the buffers that QATzip cuts its input into.
        let sample: Vec<u8> = (0..200_000u32).map(|position| (position.wrapping_mul(position) >> 9) as u8).collect();
        let mut encoder = QatEncoder::new(self.clone(), 1, sample.len())?;
        let mut stored = vec![0; room_for(sample.len())];
        let stored_len = encoder.encode(&sample, &mut stored)?.unwrap_or(0);
        let mut back = vec![0; sample.len()];
        let decoded = LibdeflateDecoder::new()?.decode(&stored[..stored_len], &mut back);
        if decoded.is_err() || back != sample {
            return Err(unusable("what it made of a sample is not raw DEFLATE of it", HINT_SERVICE));
        }
        Ok(encoder.worker())
    }
}

/// Why a library is not used.
enum OpenError {
    /// There is none of that name.
    Absent(String),
    /// There is one, and it does not do what is needed.
    Unusable(String),
}

fn functions_of(library: &Library) -> std::result::Result<Functions, libloading::Error> {
    Ok(Functions {
        // SAFETY: the type is that of the declaration in qatzip.h; the structs begin as there.
        init: *unsafe { library.get(b"qzInit\0") }?,
        // SAFETY: as above.
        get_defaults: *unsafe { library.get(b"qzGetDefaults\0") }?,
        // SAFETY: as above.
        setup_session: *unsafe { library.get(b"qzSetupSession\0") }?,
        // SAFETY: as above.
        compress: *unsafe { library.get(b"qzCompress\0") }?,
        // SAFETY: as above.
        teardown_session: *unsafe { library.get(b"qzTeardownSession\0") }?,
        // SAFETY: as above.
        close: *unsafe { library.get(b"qzClose\0") }?,
    })
}

/// What the system's loader said.
fn loader_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

const HINT_INSTALL: &str = "install Intel's QATzip (libqatzip.so.3) and the driver of the device, or use another \
    engine: --deflate-engine auto";
const HINT_SERVICE: &str = "see that the QAT service runs, that this user may use the device (group qat) and that \
    QATzip is 1.0.2 or newer, or use another engine: --deflate-engine auto";

fn unusable(cause: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Configuration, "use QATzip for deflate", cause).hint(hint)
}

/// What QATzip's statuses mean, after its header.
fn status_text(status: i64) -> String {
    let meaning = match status {
        -1 => "it refuses the parameters",
        -2 => "it failed without saying why",
        -3 => "its buffer was too small",
        -5 => "the device did not answer in time",
        11 | -101 => "no QAT device was found",
        12 | -102 => "the memory driver was not found",
        13 | -103 => "no instance of the device could be attached to",
        14 | -104 => "not enough pinned memory",
        16 | -116 => "the device does not have this format",
        -105 => "software was needed, and there is none",
        _ => "a status that is not in its documents",
    };
    format!("{meaning} (QATzip status {status})")
}

/// Room for whatever QATzip may make of `raw_len` bytes: an eighth more, and something for each of its buffers.
const fn room_for(raw_len: usize) -> usize {
    raw_len + raw_len / 8 + raw_len / 512 + (64 << 10)
}

/// What an encoder holds, without what QATzip pins for its devices.
pub(super) fn encoder_state_size_bytes(frame_size_bytes: usize) -> u64 {
    // zlib's compressor, in case QATzip works in software, takes 268 KiB.
    (room_for(frame_size_bytes) + size_of::<Session>() + (512 << 10)) as u64
}

/// Compresses with one session.
pub(super) struct QatEncoder {
    qatzip: Qatzip,
    level: c_uint,
    session: Box<Session>,
    /// QATzip tells a frame that does not fit from a failure only where the room is always enough.
    made: Vec<u8>,
    frame_size_bytes: usize,
}

// SAFETY: the session is owned, used through `&mut self` only, and not bound to the thread that made it.
unsafe impl Send for QatEncoder {}

impl QatEncoder {
    /// `level` is 1 to [`LEVEL_MAX`].
    ///
    /// # Errors
    /// `Configuration` if QATzip has no session for us.
    pub(super) fn new(qatzip: Qatzip, level: i32, frame_size_bytes: usize) -> Result<Self> {
        let (level, session) = (level.unsigned_abs(), Box::new(empty_session()));
        let mut encoder =
            QatEncoder { qatzip, level, session, made: vec![0; room_for(frame_size_bytes)], frame_size_bytes };
        encoder.begin()?;
        Ok(encoder)
    }

    /// Opens the session.
    fn begin(&mut self) -> Result<()> {
        let functions = self.qatzip.functions;
        let session = &raw mut *self.session;
        let checked = |what: &str, status: c_int| match status {
            // Above 0 are "done before" and "in software".
            QZ_OK.. => Ok(()),
            _ => Err(unusable(&format!("{what}: {}", status_text(status.into())), HINT_SERVICE)),
        };
        // SAFETY: the session is ours, zeroed or torn down.
        checked("it does not start", unsafe { (functions.init)(session, SOFTWARE_IS_ALLOWED) })?;
        let mut parameters = Parameters::default();
        // SAFETY: the struct is as large as any release's.
        checked("it has no defaults", unsafe { (functions.get_defaults)(&raw mut parameters) })?;
        parameters.direction = QZ_DIR_COMPRESS;
        parameters.data_fmt = QZ_DEFLATE_RAW;
        parameters.comp_lvl = self.level;
        parameters.comp_algorithm = QZ_DEFLATE;
        parameters.sw_backup = SOFTWARE_IS_ALLOWED;
        // SAFETY: both structs are ours; the library copies what it needs.
        checked("it refuses a session", unsafe { (functions.setup_session)(session, &raw mut parameters) })
    }

    /// Closes the session.
    fn end(&mut self) {
        let session = &raw mut *self.session;
        // SAFETY: the session was zeroed or opened before; tearing down an empty one does nothing.
        unsafe { (self.qatzip.functions.teardown_session)(session) };
        // SAFETY: as above.
        unsafe { (self.qatzip.functions.close)(session) };
        *self.session = empty_session();
    }

    /// Who does the work in this session.
    fn worker(&self) -> Worker {
        match self.session.hw_session_stat {
            0 => Worker::Hardware,
            status => Worker::Software(status),
        }
    }
}

impl Drop for QatEncoder {
    fn drop(&mut self) {
        self.end();
    }
}

fn empty_session() -> Session {
    Session {
        hw_session_stat: 0,
        thd_sess_stat: 0,
        internal: std::ptr::null_mut(),
        total_in: 0,
        total_out: 0,
        reserve: [0; 8],
    }
}

impl Encoder for QatEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Deflate, raw, self.frame_size_bytes)?;
        // No codec has an empty result, and no library has to show that it knows.
        if stored.is_empty() {
            return Ok(None);
        }
        // A frame of nothing: one empty block with fixed codes. QATzip takes no request without bytes.
        if raw.is_empty() {
            const EMPTY: [u8; 2] = [3, 0];
            let Some(place) = stored.first_chunk_mut() else { return Ok(None) };
            *place = EMPTY;
            return Ok(Some(EMPTY.len()));
        }
        let source = anchored(raw);
        // Frames are at most 1 GiB, and the room for them is little more.
        let (mut raw_len, mut made_len) = (source.len() as c_uint, self.made.len() as c_uint);
        let session = &raw mut *self.session;
        // SAFETY: the session is open; the pointers and lengths are those of a slice and of our buffer.
        let status = unsafe {
            (self.qatzip.functions.compress)(
                session,
                source.as_ptr(),
                &raw mut raw_len,
                self.made.as_mut_ptr(),
                &raw mut made_len,
                LAST,
            )
        };
        if status < QZ_OK || raw_len as usize != raw.len() {
            // A session that failed may hold half a stream.
            self.end();
            self.begin()?;
            let cause = format!("QATzip took {raw_len} of {} bytes: {}", raw.len(), status_text(status.into()));
            return Err(Error::new(ErrorKind::Configuration, "encode a deflate frame", cause).hint(HINT_SERVICE));
        }
        let Some(made) = self.made.get(..made_len as usize) else {
            let cause = format!("QATzip says that it made {made_len} bytes, which is more than it had room for");
            return Err(Error::new(ErrorKind::Bug, "encode a deflate frame", cause));
        };
        let Some(place) = stored.get_mut(..made.len()) else { return Ok(None) };
        place.copy_from_slice(made);
        Ok(Some(made.len()))
    }
}

#[cfg(test)]
#[path = "qatzip_tests.rs"]
mod tests;
