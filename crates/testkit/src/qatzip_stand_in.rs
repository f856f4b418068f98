//! A library with QATzip's interface and zlib behind it, built by the test that loads it.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("qatzip_stand_in.c");

/// What the library does when it is asked for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QatzipBehaviour {
    /// Works, and says that a device does.
    Hardware,
    /// Works, and says that there is no device.
    Software,
    /// Has no device and no software.
    NoDevice,
    /// Refuses the parameters of every session.
    Refuses,
    /// Works, and makes something else than raw DEFLATE.
    OtherFormat,
    /// Works, and gets a bit of every third longer result wrong.
    WrongBits,
}

/// Builds `libqatzip.so.3` in `directory`; None, and a line that says so, if there is no C compiler or no zlib to build
/// it with.
///
/// # Panics
/// If the directory cannot be written.
pub fn build_qatzip(directory: &Path, behaviour: QatzipBehaviour) -> Option<PathBuf> {
    let (source, library) = (directory.join("qatzip.c"), directory.join("libqatzip.so.3"));
    std::fs::write(&source, SOURCE).expect("a scratch directory can be written");
    let built = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", &format!("-DBEHAVIOUR={}", behaviour as u8), "-o"])
        .args([&library, &source])
        .arg("-lz")
        .output();
    match built {
        Ok(output) if output.status.success() => Some(library),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            println!("skipped: the stand-in for QATzip cannot be built: {why}");
            None
        }
        Err(error) => {
            println!("skipped: no C compiler (cc) for the stand-in for QATzip: {error}");
            None
        }
    }
}
