//! Calls that have a better door. Each ban names what to do instead.

use super::source::File;
use super::{Finding, scan};

/// Words that must not stand in certain files, and what to do instead.
struct Ban {
    words: &'static [&'static str],
    /// Whether the ban holds in this file.
    holds_in: fn(&File) -> bool,
    /// What of the file is searched.
    text: fn(&File) -> &str,
    instead: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        words: &["std::thread", "thread::", "crossbeam_channel", "mpsc", "sleep("],
        holds_in: |file| {
            file.in_engine().is_some_and(|path| !path.starts_with("pipeline/") && !path.starts_with("storage/"))
        },
        text: shipped,
        instead: "instead hand the work to pipeline/, where all threads, channels and waits live",
    },
    Ban {
        words: &["pagehaul_page"],
        holds_in: |file| {
            file.in_engine().is_some_and(|path| !path.starts_with("codec/") && !path.starts_with("source/"))
        },
        text: shipped,
        instead: "instead take what codec/ has of it; only codec/ and source/ know the page codec's crate",
    },
    Ban {
        words: &["std::thread", "thread::"],
        holds_in: |file| file.path.starts_with("crates/cli/src/") && !file.path.ends_with("/progress.rs"),
        text: shipped,
        instead: "instead leave threads to the engine's pipeline (the command has one, in progress.rs)",
    },
    Ban {
        words: &["fs::rename", "fs::write", "File::create"],
        holds_in: |file| file.in_engine().is_some_and(|path| path != "io.rs" && !path.starts_with("io/")),
        text: shipped,
        instead: "instead use io::durable_rename and the other calls of io.rs, which sync and name the path in errors",
    },
    Ban {
        words: &["println!", "eprintln!", "print!", "eprint!"],
        holds_in: |file| file.in_engine().is_some(),
        text: shipped,
        instead: "instead return the value or the error; only the command talks to people",
    },
    Ban {
        words: &[".unwrap()", ".expect("],
        holds_in: File::is_shipped_source,
        text: shipped,
        instead: "instead return an error that names object and cause",
    },
    Ban {
        words: &["todo!", "unimplemented!"],
        holds_in: File::is_shipped_source,
        text: shipped,
        instead: "instead write it, or return an error that says it is not supported",
    },
    Ban {
        words: &["FIXME"],
        holds_in: File::is_shipped_source,
        text: |file| &file.text,
        instead: "instead mend it or describe the limit in the documentation",
    },
    Ban {
        words: &["#[ignore"],
        holds_in: |file| file.path.starts_with("crates/"),
        text: |file| &file.code,
        instead: "instead let the test say why it skips, at run time",
    },
];

fn shipped(file: &File) -> &str {
    &file.shipped
}

/// One finding per ban and line, for the first of the ban's words.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for ban in BANS.iter().filter(|ban| (ban.holds_in)(file)) {
            for (index, line) in (ban.text)(file).lines().enumerate() {
                if let Some(word) = ban.words.iter().find(|word| scan::occurrences(line, word).next().is_some()) {
                    findings.push(Finding::new(&file.path, index + 1, format!("`{word}` here, {}", ban.instead)));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::check_rule;

    fn check_one(path: &str, text: &str, expected: &[&str]) {
        check_rule(check, &[(path, text)], expected);
    }

    #[test]
    fn threads_live_in_the_pipeline() {
        let code = "use std::thread;\nfn f() { thread::sleep(x); }";
        let found = ["crates/engine/src/wal/mod.rs:1: `std::thread`", "crates/engine/src/wal/mod.rs:2: `thread::`"];
        check_one("crates/engine/src/wal/mod.rs", code, &found);
        check_one("crates/engine/src/pipeline/mod.rs", code, &[]);
        check_one("crates/engine/src/storage/retry.rs", code, &[]);
        check_one("crates/engine/src/wal/wal_tests.rs", code, &[]);
        check_one("crates/cli/src/main.rs", "use std::thread;", &["crates/cli/src/main.rs:1: `std::thread`"]);
        check_one("crates/cli/src/progress.rs", "use std::thread;", &[]);
    }

    #[test]
    fn the_page_codec_is_behind_codec() {
        let code = "use pagehaul_page::Part;";
        check_one("crates/engine/src/codec/page.rs", code, &[]);
        check_one("crates/engine/src/source/postgres/relation_layouts/mod.rs", code, &[]);
        check_one("crates/engine/src/pipeline/mod.rs", code, &["crates/engine/src/pipeline/mod.rs:1: `pagehaul_page`"]);
    }

    #[test]
    fn files_are_created_and_renamed_in_io() {
        let code = "fn f() { std::fs::rename(a, b); }";
        check_one("crates/engine/src/storage/local.rs", code, &["crates/engine/src/storage/local.rs:1: `fs::rename`"]);
        check_one("crates/engine/src/io.rs", code, &[]);
        check_one("crates/engine/src/storage/local.rs", "#[cfg(test)] mod t { fn f() { File::create(a); } }", &[]);
    }

    #[test]
    fn the_engine_does_not_print() {
        check_one("crates/engine/src/io.rs", "fn f() { eprintln!(); }", &["crates/engine/src/io.rs:1: `eprintln!`"]);
        check_one("crates/engine/src/io.rs", "// println!\nfn f() { g(\"print!\"); }", &[]);
        check_one("crates/cli/src/output.rs", "fn f() { println!(); }", &[]);
    }

    #[test]
    fn shipped_code_returns_errors_and_is_finished() {
        let path = "crates/cli/src/main.rs";
        check_one(path, "fn f() { x.unwrap(); }", &["crates/cli/src/main.rs:1: `.unwrap()`"]);
        check_one(path, "fn f() { x\n.expect(\"y\"); }", &["crates/cli/src/main.rs:2: `.expect(`"]);
        check_one(path, "fn f() { todo!() }", &["crates/cli/src/main.rs:1: `todo!`"]);
        check_one(path, "// FIXME later", &["crates/cli/src/main.rs:1: `FIXME`"]);
        check_one(path, "#[test] #[ignore] fn f() {}", &["crates/cli/src/main.rs:1: `#[ignore`"]);
        check_one(path, "fn f() { x.unwrap_or(y); self.expect_byte(z); }", &[]);
        check_one(path, "#[cfg(test)] mod tests { fn f() { x.unwrap(); } }", &[]);
        check_one("crates/testkit/src/lib.rs", "fn f() { x.unwrap(); }", &[]);
        check_one("crates/cli/tests/all.rs", "fn f() { x.unwrap(); }", &[]);
    }
}
