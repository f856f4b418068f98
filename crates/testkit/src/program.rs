//! Programs that tests put somewhere to start them there.

use std::path::Path;
use std::process::Command;

/// Copies a program by another process. One that this process has written cannot be started as long as a child that
/// another thread has just begun holds the file open for writing, too ("text file busy").
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "{} to {}", from.display(), to.display());
}
