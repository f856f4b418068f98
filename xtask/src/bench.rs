//! `cargo xtask bench NAME`: builds what is measured and what measures, both in release, and runs the bench.
//!
//! The benches themselves are in crates/bench.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Every bench there is.
const BENCHES: &[&str] =
    &["engine", "auto", "tune", "frames", "peers", "files", "memory", "wal", "incremental", "xpress", "bak", "page"];

/// Runs the bench named by the first word with the words after it; an unknown name is a usage error that lists the
/// known ones.
pub(crate) fn run(root: &Path, args: &[&str]) -> ExitCode {
    let Some((name, rest)) = args.split_first() else {
        return crate::usage_error(&format!("usage: cargo xtask bench NAME [--help]\n{}", known()));
    };
    if !BENCHES.contains(name) {
        return crate::usage_error(&format!("unknown bench `{name}`\n{}", known()));
    }
    match build(root).and_then(|()| bench(root, name, rest)) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn known() -> String {
    format!("benches: {}", BENCHES.join(", "))
}

fn build(root: &Path) -> Result<(), String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // One after the other: built together they share the features of their crates, and the pagehaul that is measured would
    // have those of the bench.
    for package in ["pagehaul", "pagehaul-bench"] {
        let arguments = ["build", "--release", "--locked", "-p", package];
        match Command::new(&program).args(arguments).current_dir(root).status() {
            Ok(status) if status.success() => {}
            Ok(_) => return Err(format!("unable to build {package}")),
            Err(error) => return Err(format!("unable to run cargo: {error}")),
        }
    }
    Ok(())
}

fn bench(root: &Path, name: &str, rest: &[&str]) -> Result<ExitCode, String> {
    let programs = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = root.join(programs).join("release").join("pagehaul-bench");
    let pagehaul = program.with_file_name("pagehaul");
    let status = Command::new(&program)
        .arg(name)
        .args(rest)
        .env("PAGEHAUL_BENCH_PROGRAM", pagehaul)
        .current_dir(root)
        .status()
        .map_err(|error| format!("unable to run {}: {error}", program.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
