//! Pagehaul's own chores: `cargo xtask ci`, `cargo xtask tidy`, `cargo xtask bench`.
//!
//! Depends on the standard library only, so that it builds in a second on any machine.

mod bench;
mod ci;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask CHORE

  ci [build|tests]        format, lints, tidy and tests, as the build machine runs them; or those up to
                          the build of the tests, or the tests alone
  tidy                    fast checks of the rules no compiler knows
  tidy --accept-format    write into FORMAT.md that it describes today's format sources
  bench NAME [OPTIONS]    measure, paired with a baseline, into bench/runs/; without NAME it lists them";

/// Exit code of a command line that makes no sense, as in `pagehaul` itself.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ci"] => ci::run(&root(), ci::ALL),
        ["ci", "build"] => ci::run(&root(), ci::TO_BUILD),
        ["ci", "tests"] => ci::run(&root(), ci::FROM_TESTS),
        ["tidy"] => tidy::run(&root()),
        ["tidy", "--accept-format"] => tidy::accept_format(&root()),
        ["bench", rest @ ..] => bench::run(&root(), rest),
        _ => usage_error(USAGE),
    }
}

/// Says on stderr what is wrong with the command line; returns the code to exit with.
fn usage_error(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(EXIT_USAGE)
}

/// The workspace's directory: the parent of this crate's own.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}
