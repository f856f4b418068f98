//! Where the system gives no more memory, the command ends with an error like any other, not with an abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Cursor, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pagehaul_engine::error::ErrorKind;

use crate::exit_code::ExitCode;

/// The system's allocator for whoever gets memory from it, and the end of the command for whoever does not.
///
/// Nothing is taken back then, as after a kill: what is left is what every next run finds and clears away.
pub(crate) struct OrEnd;

// What a command ends with of which nothing is known yet: a `wal get` may be meant, and for the server other codes than
// this would say that WAL ends here.
static CODE: AtomicU8 = AtomicU8::new(126);

/// Says which command it is.
pub(crate) fn is_wal_get(is_get: bool) {
    CODE.store(ExitCode::of(ErrorKind::Configuration, is_get).number(), Relaxed);
}

/// Says how much there was none of, without memory, and ends the process.
#[cold]
fn end(bytes: usize) -> ! {
    // Whoever comes second waits for the end, so that it is said once.
    static SAYING: Mutex<()> = Mutex::new(());
    let _saying = SAYING.lock();
    let mut text = Cursor::new([0; 512]);
    // It has room.
    writeln!(
        text,
        "error: unable to go on: the system has no {bytes} bytes of memory for this process\n\
         hint: use fewer or smaller transfer buffers, fewer threads or a lower level, or allow it more: the limits of its shell \
         (ulimit -v), service or container, and of the system (vm.overcommit_memory); earlier backups are not touched"
    )
    .ok();
    let length = text.position() as usize;
    // Nobody is left to be told that it could not be said.
    rustix::io::write(rustix::stdio::stderr(), &text.get_ref()[..length]).ok();
    signal_hook::low_level::exit(i32::from(CODE.load(Relaxed)))
}

fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() { end(bytes) } else { memory }
}

// SAFETY: every call is the system's allocator's, with the same arguments, and so is every result.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same promises.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same promises.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the same promises.
        checked(unsafe { System.realloc(memory, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same promises.
        unsafe { System.dealloc(memory, layout) }
    }
}
