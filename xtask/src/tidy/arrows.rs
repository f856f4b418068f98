//! Which module of the engine may use which other, and which crate may depend on which other.
//!
//! The arrows are the ones of ARCHITECTURE.md: data and calls go one way, and no verb knows another verb.

use super::lexer::is_word;
use super::manifests::{Table, dependencies};
use super::source::File;
use super::{Finding, scan};
use std::collections::BTreeSet;

/// For each module of the engine the modules it may use besides itself and `EVERYONE_MAY_USE`.
const ARROWS: &[(&str, &[&str])] = &[
    ("backup", &["pipeline", "catalog", "source", "storage", "format", "io"]),
    ("restore", &["pipeline", "catalog", "source", "storage", "format", "io"]),
    ("verify", &["pipeline", "catalog", "source", "storage", "format"]),
    ("check", &["pipeline", "catalog", "source", "storage", "format"]),
    ("wal", &["catalog", "encryption", "source", "storage", "format", "pipeline", "io"]),
    ("kept", &["pipeline", "catalog", "storage", "format"]),
    ("copy", &["pipeline", "catalog", "storage", "format"]),
    ("repair", &["pipeline", "catalog", "storage", "format"]),
    ("protect", &["pipeline", "catalog", "storage", "format"]),
    ("drill", &["pipeline", "catalog", "source", "format", "io"]),
    ("retention", &["catalog", "storage", "format", "pipeline"]),
    ("pipeline", &["codec", "storage", "format", "io"]),
    ("codec", &[]),
    ("format", &[]),
    ("catalog", &["encryption", "storage", "format"]),
    ("encryption", &["storage", "format"]),
    ("source", &["io", "secrets"]),
    ("storage", &["io"]),
    ("io", &[]),
    ("secrets", &[]),
    ("terms", &[]),
    ("limits", &[]),
    ("error", &[]),
];

const EVERYONE_MAY_USE: &[&str] = &["terms", "limits", "error"];

/// For each crate the crates of ours it may ship with.
const CRATE_ARROWS: &[(&str, &[&str])] = &[
    ("cli", &["pagehaul-engine", "pagehaul-tune", "pagehaul-bak"]),
    ("tune", &["pagehaul-engine"]),
    ("bak", &["pagehaul-engine"]),
    ("bench", &["pagehaul-engine", "pagehaul-tune", "pagehaul-bak", "pagehaul-page"]),
    ("testkit", &["pagehaul-engine", "pagehaul-tune", "pagehaul-bak"]),
    ("engine", &["pagehaul-page"]),
    ("page", &[]),
];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        match file.in_engine() {
            Some("lib.rs") => check_facade(file, &mut findings),
            Some(path) => check_module(file, path, &mut findings),
            None => check_crate(file, &mut findings),
        }
    }
    findings
}

/// The facade only names modules and what they offer.
fn check_facade(file: &File, findings: &mut Vec<Finding>) {
    let code = scan::blank(&file.shipped, &attributes(&file.shipped));
    let mut at = 0;
    for statement in code.split_inclusive(';') {
        let start = at + (statement.len() - statement.trim_start().len());
        at += statement.len();
        let words = statement.trim();
        let declares = ["mod ", "pub mod ", "pub(crate) mod ", "pub use "].iter().any(|begin| words.starts_with(begin));
        let is_plain = declares && words.ends_with(';');
        if !words.is_empty() && !is_plain {
            let message =
                "lib.rs is the facade (modules, `pub use`, docs), instead put code into the module it belongs to";
            findings.push(Finding::new(&file.path, scan::line_of(&code, start), message));
        }
    }
}

fn attributes(code: &str) -> Vec<std::ops::Range<usize>> {
    let starts = code.match_indices('#').map(|(at, _)| at);
    starts.filter_map(|at| code[at..].find('[').map(|open| at..scan::closing(code, at + open))).collect()
}

fn check_module(file: &File, path: &str, findings: &mut Vec<Finding>) {
    let own = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == own) else {
        let message = format!(
            "`{own}` is not in the map of arrows, instead add it to xtask/src/tidy/arrows.rs with what it may use"
        );
        findings.push(Finding::new(&file.path, 1, message));
        return;
    };
    for (line, used) in root_paths(&file.shipped, module_depth(path)) {
        if used == own || EVERYONE_MAY_USE.contains(&used.as_str()) || allowed.contains(&used.as_str()) {
            continue;
        }
        findings.push(Finding::new(&file.path, line, breach(own, &used, allowed)));
    }
}

fn breach(own: &str, used: &str, allowed: &[&str]) -> String {
    if !ARROWS.iter().any(|(name, _)| *name == used) {
        return format!(
            "`crate::{used}` hides which module is used, instead name the module (`crate::module::{used}`)"
        );
    }
    let others = if allowed.is_empty() { "no other module".to_owned() } else { allowed.join(", ") };
    format!("{own} must not use {used}, instead go through what it may use ({others}) or hand the value in")
}

/// How many `super::` lead from a module to the crate's root.
fn module_depth(path: &str) -> usize {
    let parts = path.split('/').count();
    if path.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// The names used right below the crate's root, each with its line: by `crate::` or by enough `super::`.
fn root_paths(code: &str, depth: usize) -> BTreeSet<(usize, String)> {
    let to_root = "super::".repeat(depth);
    let by_crate = scan::occurrences(code, "crate::").map(|at| at + "crate::".len());
    let by_super = scan::occurrences(code, &to_root).map(|at| at + to_root.len());
    let mut names = BTreeSet::new();
    for start in by_crate.chain(by_super) {
        collect_names(code, start, &mut names);
    }
    names
}

/// The first names of the path or `{group}` of paths at `start`.
fn collect_names(code: &str, start: usize, names: &mut BTreeSet<(usize, String)>) {
    let at = start + (code[start..].len() - code[start..].trim_start().len());
    if code[at..].starts_with('{') {
        let end = scan::closing(code, at);
        for member in group_members(code, at + 1, end.saturating_sub(1)) {
            collect_names(code, member, names);
        }
        return;
    }
    let word = scan::word_at(code, at);
    let is_macro = code[at + word.len()..].starts_with('!');
    if !is_macro && !matches!(word, "self" | "super") && (!word.is_empty() || code[at..].starts_with('*')) {
        let name = if word.is_empty() { "*" } else { word };
        names.insert((scan::line_of(code, at), name.to_owned()));
    }
}

/// Where the members of a `{group}` start.
fn group_members(code: &str, start: usize, end: usize) -> Vec<usize> {
    let mut members = Vec::new();
    let mut depth = 0;
    let mut wanted = true;
    for (at, byte) in code.bytes().enumerate().take(end).skip(start) {
        if wanted && depth == 0 && (is_word(byte) || byte == b'*') {
            members.push(at);
            wanted = false;
        }
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => wanted = true,
            _ => {}
        }
    }
    members
}

fn check_crate(file: &File, findings: &mut Vec<Finding>) {
    let Some(own) = file.path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else { return };
    let allowed = CRATE_ARROWS.iter().find(|(name, _)| *name == own).map_or(&[][..], |(_, allowed)| *allowed);
    for dependency in dependencies(&file.text) {
        let name = dependency.name.as_str();
        if !name.starts_with("pagehaul-") || dependency.table == Table::Dev || allowed.contains(&name) {
            continue;
        }
        let message = if name == "pagehaul-testkit" {
            "pagehaul-testkit is for tests, instead list it under [dev-dependencies]".to_owned()
        } else {
            format!("crate {own} must not depend on {name}, instead move the shared part down or hand it in")
        };
        findings.push(Finding::new(&file.path, dependency.line, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    fn check_one(path: &str, text: &str, expected: &[&str]) {
        let path = format!("crates/{path}");
        check_rule(check, &[(&path, text)], expected);
    }

    #[test]
    fn a_breach_is_found_in_every_spelling() {
        let bad = ["crates/engine/src/restore/mod.rs:2: restore must not use backup"];
        check_one("engine/src/restore/mod.rs", "\nuse crate::backup::plan;", &bad);
        check_one("engine/src/restore/mod.rs", "\nuse crate::{error::Error, backup};", &bad);
        check_one("engine/src/restore/mod.rs", "use crate::{format::{a, b},\n backup::plan::{c}};", &bad);
        check_one("engine/src/restore/mod.rs", "fn f() {\n crate::backup::run(); }", &bad);
        check_one("engine/src/restore/mod.rs", "\nuse super::backup;", &bad);
        let deeper = ["crates/engine/src/restore/plan.rs:1: restore must not use backup"];
        check_one("engine/src/restore/plan.rs", "use super::super::backup;", &deeper);
    }

    #[test]
    fn allowed_arrows_comments_strings_and_tests_are_left_alone() {
        check_one("engine/src/restore/plan.rs", "use crate::{catalog::Chain, terms, restore::x};", &[]);
        check_one("engine/src/restore/plan.rs", "use super::backup; // crate::backup", &[]);
        check_one("engine/src/codec/zstd.rs", "f(\"crate::io\"); use crate::error::{Error, io};", &[]);
        check_one("engine/src/codec/zstd.rs", "#[cfg(test)] mod tests { use crate::io; }", &[]);
        check_one("engine/src/codec/conformance.rs", "use crate::io;", &[]);
        check_one("engine/src/codec/zstd.rs", "crate::ensure!(x);", &[]);
    }

    #[test]
    fn unknown_modules_and_facade_names_are_found() {
        check_one("engine/src/misc/mod.rs", "", &["crates/engine/src/misc/mod.rs:1: `misc` is not in the map"]);
        check_one("engine/src/io.rs", "use crate::Error;", &["crates/engine/src/io.rs:1: `crate::Error` hides"]);
        check_one("engine/src/io.rs", "use crate::*;", &["crates/engine/src/io.rs:1: `crate::*` hides"]);
    }

    #[test]
    fn the_facade_holds_no_code() {
        let facade = "//! Docs.\n#![warn(x)]\npub mod io;\n/// Doc.\npub use io::{a, b};\n";
        check_one("engine/src/lib.rs", facade, &[]);
        check_one(
            "engine/src/lib.rs",
            &format!("{facade}fn f() {{}}"),
            &["crates/engine/src/lib.rs:6: lib.rs is the facade"],
        );
    }

    #[test]
    fn crates_point_one_way_and_the_testkit_stays_in_tests() {
        let good =
            "[dependencies]\npagehaul-engine.workspace = true\n[dev-dependencies]\npagehaul-testkit.workspace = true\n";
        check_one("cli/Cargo.toml", good, &[]);
        let bad = "[dependencies]\npagehaul-testkit.workspace = true\n";
        check_one("cli/Cargo.toml", bad, &["crates/cli/Cargo.toml:2: pagehaul-testkit is for tests"]);
        let bad = "[dependencies]\npagehaul-tune = { path = \"../tune\" }\n";
        check_one(
            "engine/Cargo.toml",
            bad,
            &["crates/engine/Cargo.toml:2: crate engine must not depend on pagehaul-tune"],
        );
    }
}
