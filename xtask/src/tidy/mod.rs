//! `cargo xtask tidy`: the rules of the house that no compiler knows, each with what to do instead.
//!
//! Every rule is a pure function from files to findings, so that its tests need no disk. The rules:
//! - `arrows`: which part of the engine, and which crate, may use which other;
//! - `bans`: calls that have a better door (threads, renames, prints, unwraps);
//! - `sizes`: files and functions that are long may stay but not grow;
//! - `manifests`: each dependency has its reason above it;
//! - `format_doc`: FORMAT.md moves with the format's sources;
//! - `fault_doc`: docs/faults.md names tests that there are;
//! - `texts`: how files begin, and what no file may mention.

mod arrows;
mod bans;
mod fault_doc;
mod format_doc;
mod lexer;
mod manifests;
mod scan;
mod sizes;
mod source;
mod texts;

use source::File;
use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// One breach of a rule, at a place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    /// What is wrong and what to do instead.
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks the tree and prints each finding on a line of its own.
pub(crate) fn run(root: &Path) -> ExitCode {
    let files = match read_tree(root) {
        Ok(files) => files,
        Err(message) => return failure(&message),
    };
    let findings = check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    failure(&format!("tidy: {} to mend", findings.len()))
}

/// Writes the hash of today's format sources into FORMAT.md.
pub(crate) fn accept_format(root: &Path) -> ExitCode {
    let accepted = read_tree(root).and_then(|files| {
        let text = format_doc::accepted(&files)?;
        std::fs::write(root.join(format_doc::DOCUMENT), text)
            .map_err(|error| format!("unable to write {}: {error}", format_doc::DOCUMENT))
    });
    match accepted {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => failure(&message),
    }
}

fn failure(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}

/// All rules over all files, sorted by place.
fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(arrows::check(files));
    findings.extend(bans::check(files));
    findings.extend(sizes::check(files));
    findings.extend(manifests::check(files));
    findings.extend(format_doc::check(files));
    findings.extend(fault_doc::check(files));
    findings.extend(texts::check(files));
    findings.sort();
    findings.dedup();
    findings
}

/// The text files that are, or would be, in the repository. Binary files are left out.
fn read_tree(root: &Path) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    for path in paths_in_git(root)? {
        // A file that is deleted but not yet committed is still listed.
        let Ok(bytes) = std::fs::read(root.join(&path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\0')
        {
            files.push(File::new(&path, &text));
        }
    }
    Ok(files)
}

fn paths_in_git(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("unable to run git, which lists the files to check: {error}"))?;
    if !output.status.success() {
        return Err(format!("unable to list the files to check: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}

/// For the rules' tests: runs `rule` over made-up files and compares the findings, shown as `path:line: message`
/// and cut to the length of what is expected, so that a test need not repeat the advice.
#[cfg(test)]
fn check_rule(rule: fn(&[File]) -> Vec<Finding>, files: &[(&str, &str)], expected: &[&str]) {
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
    let mut found: Vec<String> = rule(&files).iter().map(ToString::to_string).collect();
    found.sort();
    let matches = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.starts_with(e));
    assert!(matches, "found {found:#?}\nexpected {expected:#?}");
}
