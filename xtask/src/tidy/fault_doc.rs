//! docs/faults.md names the tests that hold each promise; a test that is renamed or removed takes its line along.

use super::source::File;
use super::{Finding, scan};
use std::collections::BTreeSet;

const DOCUMENT: &str = "docs/faults.md";
const SEPARATOR: &str = "::";

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else { return Vec::new() };
    let tests: BTreeSet<(&str, &str)> = files.iter().filter(|file| file.is_rust()).flat_map(tests_of).collect();
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        let named = references(line);
        let mut report = |message: String| findings.push(Finding::new(DOCUMENT, index + 1, message));
        for (path, function) in &named {
            if !tests.contains(&(*path, *function)) {
                report(format!("`{path}::{function}` is no test in the tree, instead name the one that holds this"));
            }
        }
        if let Some(fault) = fault_of_row(line).filter(|_| named.is_empty()) {
            report(format!("{fault} has no test, instead name one as `path/file.rs::function`"));
        }
    }
    findings
}

/// The fault of a row of the table: `| F07 | ... |`.
fn fault_of_row(line: &str) -> Option<&str> {
    let cell = line.strip_prefix("| ")?.split(" |").next()?;
    let is_fault =
        cell.len() == 3 && cell.starts_with(['F', 'B']) && cell[1..].bytes().all(|byte| byte.is_ascii_digit());
    is_fault.then_some(cell)
}

/// Every `path/file.rs::function` between backquotes.
fn references(line: &str) -> Vec<(&str, &str)> {
    line.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once(SEPARATOR)).collect()
}

/// The functions of a file that carry `#[test]`, with the file's path.
fn tests_of(file: &File) -> Vec<(&str, &str)> {
    let attributes = file.code.match_indices("#[test]").map(|(at, attribute)| at + attribute.len());
    let names = attributes.filter_map(|from| {
        let next = scan::occurrences(&file.code[from..], "fn ").next()?;
        Some(scan::word_at(&file.code, from + next + "fn ".len()))
    });
    names.map(|name| (file.path.as_str(), name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    const TESTS: &str = "//! What.\n#[test]\nfn f07_a() {}\nfn helper() {}\n#[test]\n#[ignore]\nfn f07_b() {}\n";

    fn check_document(document: &str, expected: &[&str]) {
        check_rule(check, &[("crates/x/tests/t.rs", TESTS), (DOCUMENT, document)], expected);
    }

    #[test]
    fn named_tests_have_to_be_there() {
        check_document("| F07 | holds | `crates/x/tests/t.rs::f07_a`, `crates/x/tests/t.rs::f07_b` |\n", &[]);
        check_document(
            "\n| F07 | holds | `crates/x/tests/t.rs::f07_c` |\n",
            &["docs/faults.md:2: `crates/x/tests/t.rs::f07_c` is no test"],
        );
        check_document(
            "| F07 | holds | `crates/x/tests/u.rs::f07_a` |",
            &["docs/faults.md:1: `crates/x/tests/u.rs::f07_a`"],
        );
    }

    #[test]
    fn a_helper_or_a_comment_is_no_test() {
        check_document(
            "| F07 | holds | `crates/x/tests/t.rs::helper` |",
            &["docs/faults.md:1: `crates/x/tests/t.rs::helper`"],
        );
        let commented = "//! What.\n// #[test]\n// fn f07_a() {}\n";
        let document = "| F07 | holds | `a.rs::f07_a` |";
        check_rule(
            check,
            &[("a.rs", commented), (DOCUMENT, document)],
            &["docs/faults.md:1: `a.rs::f07_a` is no test"],
        );
    }

    #[test]
    fn every_fault_has_a_test() {
        check_document("| F07 | holds | |\n| fault | what |\n|---|---|\n", &["docs/faults.md:1: F07 has no test"]);
        check_rule(check, &[("a.rs", TESTS)], &[]);
    }
}
