//! No memory for the contexts at the start: both ends say so.
#![cfg(target_os = "linux")]

use std::alloc::{Layout, alloc, dealloc};
use std::process::Command;

use pagehaul_page::{Error, Level, PageDecoder, PageEncoder};

/// Set in the process that runs out of memory.
const CHILD: &str = "PAGEHAUL_TEST_NO_MEMORY";
/// What the ends leave for others' small allocations; zstd's smallest context takes more than twice as much.
const LEFT_BYTES: usize = 2048;

/// Takes all memory that can be had in pieces of [`LEFT_BYTES`] and more, and calls `work`.
fn without_memory<T>(work: impl FnOnce() -> T) -> T {
    let mut taken = Vec::with_capacity(1 << 16);
    let mut size = 1_usize << 28;
    while size >= LEFT_BYTES && taken.len() < taken.capacity() {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the layout has a size; what is taken is never read, and given back with the same layout.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            size /= 2;
        } else {
            taken.push((at, layout));
        }
    }
    let result = work();
    for (at, layout) in taken {
        // SAFETY: as above.
        unsafe { dealloc(at, layout) };
    }
    result
}

#[test]
fn without_memory_at_the_start_both_ends_say_so() {
    if std::env::var_os(CHILD).is_some() {
        let encoder = without_memory(|| PageEncoder::new(Level::DEFAULT, 1 << 20).err());
        let decoder = without_memory(|| PageDecoder::new().err());
        assert_eq!([encoder, decoder], [Some(Error::NoMemory); 2]);
        assert!(PageEncoder::new(Level::DEFAULT, 1 << 20).is_ok() && PageDecoder::new().is_ok());
        return;
    }
    // A process of its own with a limit of its own: 1 GiB of addresses.
    let child = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 1048576 && exec \"$0\" --exact no_memory::without_memory_at_the_start_both_ends_say_so",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    let complaints = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && told.contains("1 passed"), "{}: {told} {complaints}", child.status);
}
