//! Where the system gives no more memory, the command ends with an error like any other, not with an abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Arguments;
use std::io::{Cursor, Write as _};
use std::os::fd::BorrowedFd;
use std::panic::PanicHookInfo;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pagehaul_engine::error::{ErrorKind, NO_MEMORY_HINT, NO_THREAD_HINT};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use signal_hook::consts::SIGABRT;

use crate::exit_code::{ExitCode, kind_name};
use crate::output::is_document_expected;

/// The system's allocator for whoever gets memory from it, and the end of the command for whoever does not.
///
/// Nothing is taken back then, as after a kill: what is left is what every next run finds and clears away.
pub(crate) struct OrEnd;

// What a command ends with of which nothing is known yet: a `wal get` may be meant, and for the server other codes than
// this would say that WAL ends here.
static CODE: AtomicU8 = AtomicU8::new(126);

/// What the command is to end with from now on.
pub(crate) fn end_with(code: ExitCode) {
    CODE.store(code.number(), Relaxed);
}

/// Says what there was no memory for, without memory, and ends the process.
#[cold]
fn end(lack: Arguments<'_>, hint: &str) -> ! {
    // Whoever comes second waits for the end, so that it is said once.
    static SAYING: Mutex<()> = Mutex::new(());
    let _saying = SAYING.lock();
    let code = CODE.load(Relaxed);
    let message = format_args!("unable to go on: the system has no {lack}");
    let hint = format_args!("{hint}; earlier backups are not touched");
    write_to(rustix::stdio::stderr(), format_args!("error: {message}\nhint: {hint}\n"));
    if is_document_expected() {
        // As errors with memory are told; none of these words needs an escape.
        let kind = kind_name(ErrorKind::Configuration);
        let document = format_args!(
            "{{\"error\": {{\"kind\": \"{kind}\", \"message\": \"{message}\", \"hint\": \"{hint}\", \
             \"attached\": [], \"exit_code\": {code}}}}}\n"
        );
        write_to(rustix::stdio::stdout(), document);
    }
    signal_hook::low_level::exit(i32::from(code))
}

/// Nobody is left to be told of what cannot be written.
fn write_to(output: BorrowedFd<'_>, text: Arguments<'_>) {
    let mut buffer = Cursor::new([0; 640]);
    // It has room.
    buffer.write_fmt(text).ok();
    let length = buffer.position() as usize;
    rustix::io::write(output, &buffer.get_ref()[..length]).ok();
}

#[cold]
fn end_without(bytes: usize) -> ! {
    end(format_args!("{bytes} bytes of memory for this process"), NO_MEMORY_HINT)
}

/// Returns unless this panic is for want of a thread, where no caller could be handed an error: the standard library's in a
/// thread that has no memory for the stack of its signals, and from which to unwind is to abort, or tokio's, which gets
/// none for work, though there was one when it was asked for.
pub(crate) fn end_if_without_thread(panic: &PanicHookInfo<'_>) {
    let said = panic.payload_as_str().unwrap_or_default();
    let is_stack = panic.location().is_some_and(|at| at.file().ends_with("sys/pal/unix/stack_overflow.rs"));
    // As an `io::Error` is written.
    let lack = format!("(os error {})", Errno::NOMEM.raw_os_error());
    if is_stack && said.contains(&lack) || said.starts_with("OS can't spawn worker thread") {
        end(format_args!("memory for another thread of this process, or no other thread"), NO_THREAD_HINT);
    }
}

/// What glibc asks for when a thread allocates for the first time.
const ARENA_BYTES: usize = 64 << 20;

/// From now on a library that ends the process itself for want of memory, as glibc does where it finds none for what a thread
/// has to tidy up at its end, ends it as everybody else is ended. Any other abort is one.
pub(crate) fn catch_aborts() {
    // SAFETY: what runs asks the system for pages, writes and ends the process, or raises the signal again; a signal's handler may do all
    // of it, and nothing here allocates.
    let caught = unsafe { signal_hook::low_level::register(SIGABRT, aborted) };
    // Without it such an end is an abort, as it was.
    debug_assert!(caught.is_ok(), "nobody forbids to catch an abort");
}

fn aborted() {
    // SAFETY: the pages are new, and nobody uses them.
    let pages =
        unsafe { mmap_anonymous(null_mut(), ARENA_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    if pages.is_err() {
        end_without(ARENA_BYTES);
    }
    signal_hook::low_level::emulate_default_handler(SIGABRT).ok();
}

fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() { end_without(bytes) } else { memory }
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

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, setrlimit};
    use serde_json::Value;

    use super::*;
    use crate::output::expect_document;

    /// Says to the test's own program, started once more, that it is to ask for more than there is, and as which command.
    const ASKS_AS: &str = "PAGEHAUL_TEST_ASKS_AS";

    #[test]
    fn f38_what_is_not_there_ends_each_command_with_its_code() {
        if let Ok(command) = std::env::var(ASKS_AS) {
            if command != "not known yet" {
                end_with(ExitCode::of(ErrorKind::Configuration, command == "wal get"));
            }
            expect_document(command == "backup --json");
            catch_aborts();
            if command.ends_with("aborted by a library") {
                std::process::abort();
            }
            // No allocator has half of all addresses.
            black_box(Vec::<u8>::with_capacity(isize::MAX as usize));
            return;
        }
        for (command, code) in [("not known yet", 126), ("wal get", 126), ("backup", 10), ("backup --json", 10)] {
            let name = "memory::tests::f38_what_is_not_there_ends_each_command_with_its_code";
            let mut again = Command::new(std::env::current_exe().unwrap());
            let ended = again.args(["--exact", name]).env(ASKS_AS, command).output().unwrap();
            assert_eq!(ended.status.code(), Some(code), "{command}: {ended:?}");
            let said = String::from_utf8(ended.stderr).unwrap();
            let (message, hint) = said.strip_suffix('\n').and_then(|said| said.split_once('\n')).unwrap();
            assert!(message.starts_with("error: unable to go on: the system has no "), "{command}: {said}");
            assert!(message.contains(&isize::MAX.to_string()), "{command}: {said}");
            assert!(
                hint.starts_with("hint: ") && hint.ends_with("earlier backups are not touched"),
                "{command}: {said}"
            );
            // The test's own words come before it.
            let printed = String::from_utf8(ended.stdout).unwrap();
            let document = printed.find('{').map(|start| serde_json::from_str::<Value>(&printed[start..]).unwrap());
            let expected = serde_json::json!({"error": {
                "kind": "configuration",
                "message": message.strip_prefix("error: "),
                "hint": hint.strip_prefix("hint: "),
                "attached": [],
                "exit_code": code,
            }});
            assert_eq!(document, (command == "backup --json").then_some(expected), "{command}");
        }
    }

    #[test]
    fn f38_a_library_that_aborts_is_told_of_as_want_of_memory_only_where_there_is_none() {
        let name = "memory::tests::f38_what_is_not_there_ends_each_command_with_its_code";
        // Without a limit, and with less than an arena left of one.
        for (limit, has_memory) in [("unlimited", true), ("67108864", false)] {
            let mut again = Command::new("prlimit");
            let program = std::env::current_exe().unwrap();
            again.arg(format!("--as={limit}:{limit}")).arg(program).args(["--exact", name, "--test-threads", "1"]);
            let Ok(ended) = again.env(ASKS_AS, "aborted by a library").output() else {
                eprintln!("SKIPPED: no prlimit: an abort for want of memory is not tested");
                return;
            };
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(said.contains("hint: "), !has_memory, "{limit}: {ended:?}");
            assert_eq!(ended.status.code(), (!has_memory).then_some(10), "{limit}: {ended:?}");
        }
    }

    /// Says to the test's own program, started once more, whose thread it is to begin, and how much memory it has for more
    /// than the stack.
    const BEGINS: &str = "PAGEHAUL_TEST_BEGINS";
    const STACK_BYTES: usize = 1 << 20;

    fn begin_thread(begins: &str) -> bool {
        let (whose, besides) = begins.split_once(' ').unwrap();
        end_with(ExitCode::of(ErrorKind::Configuration, false));
        catch_aborts();
        std::panic::set_hook(Box::new(|panic| {
            end_if_without_thread(panic);
            signal_hook::low_level::exit(70);
        }));
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').next().unwrap().parse().unwrap();
        let bytes = pages * rustix::param::page_size() + STACK_BYTES + besides.parse::<usize>().unwrap();
        setrlimit(Resource::As, Rlimit { current: Some(bytes as u64), maximum: None }).unwrap();
        if whose == "tokio" {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            return builder.worker_threads(1).thread_stack_size(STACK_BYTES).build().is_ok();
        }
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())
    }

    #[test]
    fn f38_a_thread_that_cannot_begin_is_told_of_as_want_of_memory() {
        if let Ok(begins) = std::env::var(BEGINS) {
            signal_hook::low_level::exit(i32::from(!begin_thread(&begins)));
        }
        let name = "memory::tests::f38_a_thread_that_cannot_begin_is_told_of_as_want_of_memory";
        for whose in ["std", "tokio"] {
            let mut seen = Vec::new();
            // Not even its stack, its stack alone, and all that it takes.
            for besides in (0..256 << 10).step_by(4096) {
                let mut again = Command::new(std::env::current_exe().unwrap());
                again.args(["--exact", name]).env(BEGINS, format!("{whose} {besides}"));
                let ended = again.output().unwrap();
                let said = String::from_utf8(ended.stderr).unwrap();
                let code = ended.status.code().unwrap_or_else(|| panic!("{whose} {besides}: {said}"));
                let is_told = said.contains("error: unable to go on: the system has no ") && said.contains("\nhint: ");
                assert!(is_told == (code == 10) && matches!(code, 0 | 1 | 10), "{whose} {besides}: {code}: {said}");
                seen.push((code, said));
            }
            assert!(seen.iter().any(|(_, said)| said.contains("no memory for another thread")), "{whose}: {seen:?}");
            assert_eq!(seen.last().unwrap().0, 0, "{whose}: {seen:?}");
        }
    }
}
