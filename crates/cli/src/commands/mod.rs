//! One file a verb: asks the engine, shows what it said, gives the exit code.

pub(crate) mod backup;
pub(crate) mod bak;
pub(crate) mod check;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod expire;
pub(crate) mod extract_table;
pub(crate) mod head;
pub(crate) mod info;
mod info_wal;
pub(crate) mod key;
pub(crate) mod metrics;
pub(crate) mod mssql;
pub(crate) mod pin;
pub(crate) mod protect;
pub(crate) mod prove;
pub(crate) mod record;
pub(crate) mod repair;
pub(crate) mod restore;
pub(crate) mod shell;
pub(crate) mod synthesize;
pub(crate) mod tune;
pub(crate) mod verify;
pub(crate) mod wal;
mod wal_receive;

use pagehaul_engine::encryption::Keys;
use pagehaul_engine::pipeline::ceiling::PROGRAM_ALLOWANCE_BYTES;

use crate::output::figures::{bytes, duration};
use pagehaul_tune::recommend::shell_word;

/// How many damaged things a report lists; the JSON document has all that the engine named.
const LISTED_MAX: usize = 20;

/// CPU time, as every report shows it.
fn cpu_text(user_s: f64, system_s: f64) -> String {
    format!("{} user, {} system", duration(user_s), duration(system_s))
}

/// The peak beside what was promised.
fn memory_text(rss_bytes_max: u64, ceiling_bytes: u64) -> String {
    let (peak, ceiling) = (bytes(rss_bytes_max), bytes(ceiling_bytes));
    format!("peak {peak}; the ceiling was {ceiling} and {} for the program itself", bytes(PROGRAM_ALLOWANCE_BYTES))
}

/// A repository as the next command has it behind `--repo`, with what reads there what `keys` wrote or read.
fn repo_words(repo: &str, keys: &Keys) -> String {
    let flags = keys.sources().reading_flags();
    let reads = flags.iter().any(|flag| ["--identity", "--passphrase-file", "--key-command"].contains(&flag.as_str()));
    let words: Vec<String> = std::iter::once(repo).chain(flags.iter().map(String::as_str)).map(shell_word).collect();
    let unknown = if keys.encrypts() && !reads { " --identity FILE" } else { "" };
    words.join(" ") + unknown
}

/// `150020` is "15.20".
fn version_text(version_num: u32) -> String {
    format!("{}.{}", version_num / 10_000, version_num % 10_000)
}

/// The first of a long list, one a line, and how many more there are.
fn listed<T>(items: &[T], count: u64, show: impl Fn(&T) -> String) -> String {
    let shown = items.iter().take(LISTED_MAX);
    let mut text: String = shown.map(|item| format!("  {}\n", show(item))).collect();
    let left = count.saturating_sub(items.len().min(LISTED_MAX) as u64);
    if left > 0 {
        text.push_str(&format!("  ... and {left} more\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    use pagehaul_engine::encryption::{KeySources, new_identity};

    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let items: Vec<u32> = (0..30).collect();
        let text = listed(&items, 100, u32::to_string);
        assert_eq!(text.lines().count(), LISTED_MAX + 1);
        assert!(text.ends_with("  ... and 80 more\n"), "{text}");
        assert_eq!(listed(&[1], 1, u32::to_string), "  1\n");
        assert_eq!(version_text(150_020), "15.20");
    }

    #[test]
    fn the_next_command_has_the_keys_of_this_one() {
        let keys = |sources: &KeySources| Keys::load(sources).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a key");
        let (secret, recipient) = new_identity();
        let mut new_file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).unwrap();
        new_file.write_all(secret.text().as_bytes()).unwrap();
        let mut sources = KeySources { recipients: vec![recipient], ..KeySources::default() };
        assert_eq!(repo_words("/b", &Keys::default()), "/b");
        assert_eq!(repo_words("/my backup", &keys(&sources)), "'/my backup' --identity FILE");
        sources.identity_files = vec![file.clone()];
        assert_eq!(repo_words("/b", &keys(&sources)), format!("/b --identity '{}'", file.display()));
    }
}
