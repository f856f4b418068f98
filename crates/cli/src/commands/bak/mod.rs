//! `pagehaul bak`: SQL Server's backup files without a server.

mod chain;
mod extract;
mod inspect;
mod recompress;
mod unpack;
mod verify;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::damage::Damage;
use pagehaul_engine::error::{ErrorKind, Result};

use super::listed;
use crate::args::BakVerb;
use crate::exit_code::ExitCode;
use crate::output::red;
use crate::progress::{ByteBar, Console};

/// Runs one of them.
pub(crate) fn run(verb: &BakVerb, console: &Console) -> Result<ExitCode> {
    match verb {
        BakVerb::Inspect(args) => inspect::run(args, console),
        BakVerb::Verify(args) => verify::run(args, console),
        BakVerb::Chain(args) => chain::run(args, console),
        BakVerb::Unpack(args) => unpack::run(args, console),
        BakVerb::Recompress(args) => recompress::run(args, console),
        BakVerb::Extract(args) => extract::run(args, console),
    }
}

/// Shows damage, if there is any, and gives the code that it means.
fn verdict(damage: &[Damage], count: u64, console: &Console) -> ExitCode {
    if count == 0 {
        return ExitCode::Done;
    }
    let text = listed(damage, count, ToString::to_string);
    console.warn(&format!("{} {count} found\n{}", red("DAMAGE:"), text.trim_end()));
    ExitCode::Failed(ErrorKind::Damage)
}

/// Bytes of all `files`.
fn total_bytes(files: &[BakFile]) -> Result<u64> {
    files.iter().map(BakFile::size_bytes).sum()
}

/// Moves `bar` on, unless a signal asked to stop.
fn step(bar: &ByteBar<'_>, console: &Console, action: &str, bytes: u64) -> Result<()> {
    bar.add(bytes);
    console.stop_if_interrupted(action)
}
