//! `pagehaul bak chain`.

use std::path::{Path, PathBuf};

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::chain::{Chain, ChainReport, ChainStep, DatabaseChains, chains};
use pagehaul_bak::container::MAGIC;
use pagehaul_bak::damage::Damage;
use pagehaul_bak::facts::{FileFacts, read_facts};
use pagehaul_bak::inspect::inspect_facts;
use pagehaul_bak::mtf::BlockKind;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde::Serialize;

use super::verdict;
use crate::args::BakChainArgs;
use crate::exit_code::ExitCode;
use crate::output::table::{Align, table};
use crate::output::{self, red};
use crate::progress::Console;

/// Directories below the one that was named, at most this deep.
const DEPTH_MAX: usize = 32;

/// The keys of `bak chain --json`.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    chains: ChainReport,
    /// Files that do not begin as backup files do.
    ignored_files: Vec<String>,
    /// Backup files whose begin does not read, or is of a version that is not known; and why.
    unreadable_files: Vec<String>,
    damage: Vec<Damage>,
}

/// Orders the sets of a directory.
pub(super) fn run(args: &BakChainArgs, console: &Console) -> Result<ExitCode> {
    let mut paths = Vec::new();
    collect(&args.directory, 0, &mut paths)?;
    paths.sort();
    let (mut facts, mut ignored_files, mut unreadable_files) = (Vec::<FileFacts>::new(), Vec::new(), Vec::new());
    for path in paths {
        console.stop_if_interrupted("read backup files")?;
        let file = BakFile::open(&path)?;
        if !begins_as_backup(&file)? {
            ignored_files.push(path.display().to_string());
            continue;
        }
        match read_facts(&file) {
            Ok(read) => facts.push(read),
            Err(error) if error.kind() == ErrorKind::Damage => {
                unreadable_files.push(format!("{}: {}", path.display(), error.cause()));
            }
            Err(error) => return Err(error),
        }
    }
    let inspected = inspect_facts(&facts);
    let document = Document { chains: chains(&inspected), ignored_files, unreadable_files, damage: inspected.damage };
    if args.json {
        output::json(&document)?;
    } else {
        output::data(&text(&document))?;
    }
    let code = verdict(&document.damage, document.damage.len() as u64, console);
    let is_whole = document.chains.is_whole && document.unreadable_files.is_empty();
    Ok(if is_whole { code } else { ExitCode::Failed(ErrorKind::Damage) })
}

/// Whether a file says that it is a backup; what it says besides may be wrong.
fn begins_as_backup(file: &BakFile) -> Result<bool> {
    let mut head = [0; MAGIC.len()];
    let length = file.read_full_at(&mut head, 0)?;
    let head = &head[..length];
    Ok(head.starts_with(&MAGIC) || head.starts_with(&BlockKind::Tape.tag()))
}

fn collect(directory: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<()> {
    let failed =
        |cause: std::io::Error| Error::new(ErrorKind::Source, format!("read directory {}", directory.display()), cause);
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && depth < DEPTH_MAX {
            collect(&entry.path(), depth + 1, paths)?;
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
    Ok(())
}

fn text(document: &Document) -> String {
    let mut text: String = document.chains.databases.iter().map(database_text).collect();
    if document.chains.databases.is_empty() {
        text.push_str("no backup sets\n");
    }
    for file in &document.ignored_files {
        text.push_str(&format!("ignored, no backup file: {file}\n"));
    }
    for file in &document.unreadable_files {
        text.push_str(&format!("{} {file}\n", red("NOT READABLE:")));
    }
    text
}

fn database_text(database: &DatabaseChains) -> String {
    let mut text = format!("database {}\n", database.database);
    database.chains.iter().for_each(|chain| text.push_str(&chain_text(chain)));
    for unusable in &database.unusable {
        let (kind, files) = (unusable.set.kind.name(), unusable.set.in_files.join(", "));
        let at = format!("{kind} backup of {} in {files}", unusable.set.started_at);
        text.push_str(&format!("  {} {at}: {}\n", red("not usable:"), unusable.cause));
    }
    text
}

fn chain_text(chain: &Chain) -> String {
    let header = [
        ("  restore", Align::Left),
        ("made", Align::Left),
        ("from LSN", Align::Left),
        ("to LSN", Align::Left),
        ("FILE", Align::Right),
        ("files", Align::Left),
    ];
    let rows: Vec<Vec<String>> = chain.steps.iter().map(row).collect();
    let end = match &chain.gap {
        None => format!("  restorable to {} (LSN {})\n", chain.restorable_to, chain.restorable_to_lsn),
        Some(gap) => format!(
            "  {} log from LSN {} to {} is missing: restorable only to {}\n",
            red("GAP:"),
            gap.from_lsn,
            gap.to_lsn,
            chain.restorable_to
        ),
    };
    table(&header, &rows) + &end
}

fn row(step: &ChainStep) -> Vec<String> {
    vec![
        format!("  {}", step.kind.name()),
        step.started_at.to_string(),
        step.first_lsn.to_string(),
        step.last_lsn.to_string(),
        step.position.to_string(),
        step.in_files.join(", "),
    ]
}
