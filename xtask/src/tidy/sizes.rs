//! Long files and functions: those in xtask/allowances.txt may stay but not grow; new ones are findings.

use super::source::File;
use super::{Finding, scan};
use std::collections::BTreeMap;

const ALLOWANCES: &str = "xtask/allowances.txt";
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// Something with a size: a file, or a function of a file.
#[derive(Debug, PartialEq)]
struct Sized {
    path: String,
    /// As the allowances name it: `path` or `path::function`.
    name: String,
    line: usize,
    size_lines: usize,
    size_lines_max: usize,
}

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let allowances = files.iter().find(|file| file.path == ALLOWANCES).map_or("", |file| file.text.as_str());
    let mut findings = Vec::new();
    let mut allowed = parse_allowances(allowances, &mut findings);
    for item in files.iter().filter(|file| file.is_rust()).flat_map(long_items) {
        let allowance = allowed.remove(&item.name);
        findings.extend(judge(&item, allowance));
    }
    for (name, (line, _)) in allowed {
        findings.push(Finding::new(
            ALLOWANCES,
            line,
            format!("`{name}` is not long any more, instead remove this line"),
        ));
    }
    findings
}

/// Name to line number and size, from lines `name size`; empty lines and `#` comments are skipped.
fn parse_allowances(text: &str, findings: &mut Vec<Finding>) -> BTreeMap<String, (usize, usize)> {
    let mut allowed = BTreeMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        if let Some((name, Ok(size_lines))) = line.split_once(' ').map(|(name, size)| (name, size.trim().parse())) {
            allowed.insert(name.to_owned(), (index + 1, size_lines));
        } else {
            findings.push(Finding::new(ALLOWANCES, index + 1, "not understood, instead write `name size_in_lines`"));
        }
    }
    allowed
}

fn judge(item: &Sized, allowance: Option<(usize, usize)>) -> Option<Finding> {
    let Sized { path, name, line, size_lines, size_lines_max } = item;
    match allowance {
        None => {
            let message = format!(
                "`{name}` has {size_lines} lines (over {size_lines_max}), instead split it, or add `{name} {size_lines}` to {ALLOWANCES}"
            );
            Some(Finding::new(path, *line, message))
        }
        Some((_, allowed)) if *size_lines > allowed => {
            let message = format!("`{name}` grew from {allowed} to {size_lines} lines, instead split something off");
            Some(Finding::new(path, *line, message))
        }
        Some((listed, allowed)) if *size_lines < allowed => {
            let message = format!("`{name}` shrank, instead of {allowed} write {size_lines}");
            Some(Finding::new(ALLOWANCES, listed, message))
        }
        Some(_) => None,
    }
}

/// The file if it is too long, and its functions that are; of functions with one name only the longest.
fn long_items(file: &File) -> Vec<Sized> {
    let mut long: BTreeMap<String, Sized> = BTreeMap::new();
    let size_lines = file.text.lines().count();
    let whole = (file.path.clone(), 1, size_lines, FILE_LINES_MAX);
    let functions = functions(&file.code);
    let functions = functions
        .into_iter()
        .map(|(name, line, size)| (format!("{}::{name}", file.path), line, size, FUNCTION_LINES_MAX));
    for (name, line, size_lines, size_lines_max) in std::iter::once(whole).chain(functions) {
        let is_longest = long.get(&name).is_none_or(|other| other.size_lines < size_lines);
        if size_lines > size_lines_max && is_longest {
            let path = file.path.clone();
            long.insert(name.clone(), Sized { path, name, line, size_lines, size_lines_max });
        }
    }
    long.into_values().collect()
}

/// Every function with a body: name, line and length in lines from `fn` to the closing brace.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for start in scan::occurrences(code, "fn ") {
        let name = scan::word_at(code, start + "fn ".len());
        if let Some(end) = body_end(code, start).filter(|_| !name.is_empty()) {
            let line = scan::line_of(code, start);
            found.push((name.to_owned(), line, scan::line_of(code, end - 1) + 1 - line));
        }
    }
    found
}

/// Just after the body of the function that starts at `start`; none for a declaration without one.
fn body_end(code: &str, start: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => return Some(scan::closing(code, at)),
            b'(' | b'[' => at = scan::closing(code, at),
            b';' | b'}' => return None,
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    fn check_sizes(source: &str, allowances: &str, expected: &[&str]) {
        check_rule(check, &[("a.rs", source), (ALLOWANCES, allowances)], expected);
    }

    fn function(lines: usize) -> String {
        format!("fn f(a: [u8; 2]) {{{}}}", "\n".repeat(lines - 1))
    }

    #[test]
    fn long_files_are_found_unless_allowed() {
        check_sizes(&"\n".repeat(500), "", &[]);
        check_sizes(&"\n".repeat(501), "", &["a.rs:1: `a.rs` has 501 lines (over 500)"]);
        check_sizes(&"\n".repeat(501), "# Why.\n\na.rs 501\n", &[]);
        check_sizes(&"\n".repeat(502), "a.rs 501", &["a.rs:1: `a.rs` grew from 501 to 502 lines"]);
    }

    #[test]
    fn long_functions_are_found_unless_allowed() {
        check_sizes(&function(70), "", &[]);
        check_sizes(&format!("\n{}", function(71)), "", &["a.rs:2: `a.rs::f` has 71 lines (over 70)"]);
        check_sizes(&function(71), "a.rs::f 71", &[]);
        check_sizes(&format!("trait T {{ fn f();\n{} }}", "\n".repeat(80)), "", &[]);
    }

    #[test]
    fn allowances_only_go_down() {
        check_sizes("", "a.rs 501", &["xtask/allowances.txt:1: `a.rs` is not long any more"]);
        check_sizes(&function(71), "a.rs::f 80", &["xtask/allowances.txt:1: `a.rs::f` shrank, instead of 80 write 71"]);
        check_sizes("", "a.rs many", &["xtask/allowances.txt:1: not understood"]);
    }
}
