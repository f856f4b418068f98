//! Cargo.toml files: every dependency has its reason on a comment line directly above it.

use super::Finding;
use super::source::File;

/// Which table of a Cargo.toml a dependency stands in. `[workspace.dependencies]` counts as none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Normal,
    Build,
    Dev,
}

/// One dependency as a Cargo.toml states it.
#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) table: Table,
    /// Counted from 1.
    pub(super) line: usize,
    has_reason: bool,
}

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml")) {
        for dependency in dependencies(&file.text) {
            let ours = dependency.name.starts_with("pagehaul-");
            if dependency.table != Table::Dev && !dependency.has_reason && !ours {
                let message = format!(
                    "`{}` has no reason, instead say on a comment line above it why it is needed",
                    dependency.name
                );
                findings.push(Finding::new(&file.path, dependency.line, message));
            }
        }
    }
    findings
}

/// The dependencies in a Cargo.toml, in order. Reads just as much TOML as such files use.
pub(super) fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut table = None;
    let mut depth = 0_i32;
    let mut above = "";
    for (index, line) in text.lines().map(str::trim).enumerate() {
        let is_inside_value = depth > 0;
        let mut name = None;
        if !is_inside_value && line.starts_with('[') {
            (table, name) = header(line);
        } else if !line.starts_with('#') {
            depth += brackets(line);
            name = line.split(['=', '.']).next().filter(|_| !is_inside_value && line.contains('='));
        }
        if let (Some(table), Some(name)) = (table, name) {
            let name = name.trim().trim_matches('"').to_owned();
            found.push(Dependency { name, table, line: index + 1, has_reason: above.starts_with('#') });
        }
        // `[dependencies.name]` is one dependency; the lines below it are its settings.
        if line.starts_with('[') && name.is_some() {
            table = None;
        }
        above = line;
    }
    found
}

/// What `[header]` opens: a table of dependencies, and in `[dependencies.name]` the one it is about.
fn header(line: &str) -> (Option<Table>, Option<&str>) {
    let line = line.trim_matches(['[', ']']);
    let inner =
        if line.starts_with("target.") { line.rsplit_once("'.").map_or(line, |(_, inner)| inner) } else { line };
    let (kind, name) = inner.split_once('.').map_or((inner, None), |(kind, name)| (kind, Some(name)));
    match kind {
        "dependencies" => (Some(Table::Normal), name),
        "build-dependencies" => (Some(Table::Build), name),
        "dev-dependencies" => (Some(Table::Dev), name),
        _ => (None, None),
    }
}

fn brackets(line: &str) -> i32 {
    line.chars().map(|sign| i32::from("[{".contains(sign)) - i32::from("]}".contains(sign))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    fn check_text(text: &str, expected: &[&str]) {
        check_rule(check, &[("crates/cli/Cargo.toml", text)], expected);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        check_text("[dependencies]\nserde = \"1\"\n", &["crates/cli/Cargo.toml:2: `serde` has no reason"]);
        let second = "[dependencies]\n# Why.\na = { version = \"1\",\n features = [\"x\"] }\nb.workspace = true\n";
        check_text(second, &["crates/cli/Cargo.toml:5: `b` has no reason"]);
        check_text("[target.'cfg(unix)'.dependencies]\na = \"1\"\n", &["crates/cli/Cargo.toml:2: `a` has no reason"]);
        check_text("[dependencies.a]\nversion = \"1\"\n", &["crates/cli/Cargo.toml:1: `a` has no reason"]);
    }

    #[test]
    fn reasons_own_crates_and_test_dependencies_pass() {
        check_text("[package]\nname = \"x\"\n[dependencies]\n# Why.\nserde = \"1\"\n", &[]);
        check_text("[dependencies]\npagehaul-engine.workspace = true\n[dev-dependencies]\ntempfile = \"3\"\n", &[]);
        check_text("# Why.\n[dependencies.a]\nversion = \"1\"\n", &[]);
    }
}
