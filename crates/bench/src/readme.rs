//! The README.md of a run: what was run where, medians, ratios, and what did not work.

use std::fmt::Write as _;
use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};

use crate::machine::Facts;
use crate::results::{COLUMNS, Results};
use crate::targets::Targets;

/// What a run was, beside its results.
pub(crate) struct About<'a> {
    pub(crate) bench: &'a str,
    pub(crate) date: String,
    /// As typed, without places.
    pub(crate) command: String,
    pub(crate) machine: Facts,
    pub(crate) versions: Facts,
    pub(crate) data: String,
    pub(crate) targets: &'a Targets,
}

/// How whole commands run, where a bench says nothing else.
const METHOD: &str = "\
Contestants ran in turns (A B C A B C), each after a `sync` of all file systems. All of them ran as the OS user that \
owns the cluster. All source files were read once before the first run, so that the source was in the page cache \
wherever it fits; nothing was dropped between runs, so every restore read a repository that had just been written \
(a warm repository).
";

/// When a timed run of a whole command ends, and what is counted.
pub(crate) const DURABLE: &str = "\
A timed run ends when its output is durable, for every contestant: pagehaul syncs its stripes and manifest and reads \
the WAL it stored back, pg_basebackup syncs what it wrote before it ends (its default), pgBackRest syncs every file, \
and where a restore is `zstd -dc | tar x` a sync of the file system follows inside the timed command. CPU time of the \
client is that of the command and all its children; what the server did for it stands beside it. Source bytes of \
pagehaul include the WAL segments it stores, usually one of 16 MiB; those of the others do not.
";

/// Writes README.md into `directory`.
///
/// # Errors
/// `Target` if it cannot be written.
pub(crate) fn write(directory: &Path, about: &About<'_>, results: &Results) -> Result<()> {
    let path = directory.join("README.md");
    std::fs::write(&path, text(about, results))
        .map_err(|cause| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause))
}

fn text(about: &About<'_>, results: &Results) -> String {
    let mut text = format!("# Bench `{}`, {}\n\n    {}\n\n", about.bench, about.date, about.command);
    let facts = about.machine.iter().chain(&about.versions).map(|(name, value)| (*name, value.as_str()));
    text += "| what | which |\n|---|---|\n";
    for (name, value) in facts.chain([("data", about.data.as_str())]) {
        text += &format!("| {name} | {value} |\n");
    }
    let method = results.method.clone().unwrap_or_else(|| format!("{METHOD}\n{DURABLE}"));
    text += &format!("\n## How\n\n{method}\n");
    text += &ratios(about.targets, results);
    for (title, section) in &results.sections {
        text += &format!("## {title}\n\n{section}\n");
    }
    text += &format!(
        "## Medians\n\nMB is a million bytes; MB/s is source bytes over wall time.\n\n{}\n",
        results.medians_table()
    );
    if !results.failures.is_empty() {
        text += "## What did not work\n\n";
        for failure in &results.failures {
            text += &format!("- {}\n", without_places(failure).replace('\n', " / "));
        }
        text.push('\n');
    }
    text += "## Columns of raw.csv\n\n";
    for (name, meaning) in COLUMNS {
        text += &format!("- `{name}`: {meaning}\n");
    }
    text
}

/// The table of ratios with targets.
fn ratios(targets: &Targets, results: &Results) -> String {
    if results.ratios.is_empty() {
        return String::new();
    }
    let mut text = "## Ratios\n\nPagehaul over the other, of medians; above 1 pagehaul is better.\n\n".to_owned();
    text += "| pagehaul / other | ratio | target | holds | limit that pagehaul named |\n|---|---|---|---|---|\n";
    let mut used: Vec<&'static str> = Vec::new();
    for ratio in &results.ratios {
        let asked = targets.ratio(ratio.target);
        let holds = if ratio.value >= asked { "yes" } else { "**no**" };
        let row = writeln!(
            text,
            "| {} | {:.3} | {asked:.2} ({}) | {holds} | {} |",
            ratio.what, ratio.value, ratio.target, ratio.limit
        );
        debug_assert!(row.is_ok(), "a String takes everything");
        if !used.contains(&ratio.target) {
            used.push(ratio.target);
        }
    }
    text.push('\n');
    for name in used {
        text += &format!("- `{name}`: {}\n", targets.meaning(name));
    }
    text + "\n"
}

/// `text` with absolute paths cut to their last part: a README names no places of one machine.
pub(crate) fn without_places(text: &str) -> String {
    let shorten = |word: &str| {
        let (head, path) = word.split_at(word.find('/').unwrap_or(word.len()));
        let is_absolute = path.len() > 1 && (head.is_empty() || head.ends_with(['=', '"', '\'', '(']));
        if !is_absolute {
            return word.to_owned();
        }
        format!("{head}{}", path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(""))
    };
    text.split(' ').map(shorten).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_cut_short() {
        assert_eq!(
            without_places("run pagehaul --repo /a/b/repo --x=/c/d and/or MB/s"),
            "run pagehaul --repo repo --x=d and/or MB/s"
        );
    }
}
