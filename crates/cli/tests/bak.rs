//! `pagehaul bak` on files that the writer of the tests made.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::Path;
use std::process::{Command, Output};

use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::sql::Guid;
use serde_json::Value;

/// A directory with backup files.
struct Bench(tempfile::TempDir);

impl Bench {
    /// A full backup on two plain files, a differential and two pieces of log in compressed ones.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("b")).unwrap();
        let bench = Bench(directory);
        let database = Database::new(6);
        let full = Set { has_checksum: true, ..Set::full(database) };
        let differential = Set::differential(&full, Database { version: 2, ..database }, vec![1, 4]);
        bench.write("full", &Media { family_count: 2, ..Media::plain() }, &full);
        let compressed = |number| Media { guid: Guid([number; 16]), ..Media::compressed() };
        bench.write("diff", &compressed(2), &differential);
        bench.write("log1", &compressed(3), &Set::log(&full, 0x81, 350, 450));
        bench.write("log2", &compressed(4), &Set::log(&full, 0x82, 450, 500));
        bench
    }

    fn write(&self, name: &str, media: &Media, set: &Set) {
        for (family, bytes) in (1..).zip(write(media, std::slice::from_ref(set))) {
            std::fs::write(self.path(&format!("b/{name}-{family}.bak")), bytes).unwrap();
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pagehaul"))
            .arg("bak")
            .args(words.split_whitespace())
            .current_dir(self.0.path())
            .env("PAGEHAUL_HISTORY", "NUL")
            .output()
            .unwrap()
    }

    /// The exit code, and what was printed.
    fn told(&self, words: &str) -> (i32, String, String) {
        let output = self.run(words);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn json(&self, words: &str) -> (i32, Value) {
        let (code, stdout, stderr) = self.told(&format!("{words} --json"));
        (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
    }

    fn flip(&self, name: &str, byte: usize) {
        let mut bytes = std::fs::read(self.path(name)).unwrap();
        bytes[byte] ^= 1;
        std::fs::write(self.path(name), bytes).unwrap();
    }
}

const FULL: &str = "b/full-2.bak b/full-1.bak";

#[test]
fn what_is_in_files_is_shown() {
    let bench = Bench::new();
    let (code, text, _) = bench.told(&format!("inspect {FULL} b/diff-1.bak"));
    assert_eq!(code, 0);
    for part in [
        "Sales",
        "SERVER1 10.50.1600",
        "WITH CHECKSUM",
        "C:\\data\\Sales.mdf",
        "1 of 2",
        "2 of 2",
        "differential backup",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let (code, report) = bench.json(&format!("inspect {FULL}"));
    assert_eq!((code, report["sets"][0]["kind"].as_str()), (0, Some("full")));
    assert_eq!(report["sets"][0]["server"]["database_name"], "Sales");
    let (code, _, complaint) = bench.told("inspect b/full-2.bak");
    assert_eq!(code, 40);
    assert!(complaint.contains("family 1 of 2"), "{complaint}");
    std::fs::write(bench.path("x.txt"), "no backup").unwrap();
    let (code, _, complaint) = bench.told("inspect x.txt");
    assert_eq!(code, 40, "{complaint}");
    assert_eq!(bench.told("inspect nothing.bak").0, 20);
    assert_eq!(bench.told("inspect").0, 2);
}

#[test]
fn damage_is_located_and_ends_with_40() {
    let bench = Bench::new();
    let (code, text, _) = bench.told(&format!("verify {FULL} b/diff-1.bak"));
    assert!(code == 0 && text.contains("sound"), "{text}");
    bench.flip("b/full-1.bak", 100_000);
    let (code, report) = bench.json(&format!("verify {FULL} --threads 2"));
    assert_eq!((code, report["sound"].as_bool()), (40, Some(false)));
    let layers: Vec<&str> =
        report["damage"].as_array().unwrap().iter().map(|damage| damage["layer"].as_str().unwrap()).collect();
    assert!(layers.contains(&"page") && layers.contains(&"backup_checksum"), "{report}");
    let (_, _, complaint) = bench.told(&format!("verify {FULL}"));
    assert!(complaint.contains("b/full-1.bak at byte") && complaint.contains("page 1:"), "{complaint}");
}

#[test]
fn chains_and_gaps_are_shown() {
    let bench = Bench::new();
    let (code, text, _) = bench.told("chain b");
    assert!(code == 0 && text.contains("restorable to"), "{text}");
    assert_eq!(text.matches("log-").count() + text.matches("b/log").count(), 2, "{text}");
    std::fs::remove_file(bench.path("b/log1-1.bak")).unwrap();
    let (code, report) = bench.json("chain b");
    assert_eq!((code, report["is_whole"].as_bool()), (40, Some(false)));
    assert!(bench.told("chain b").1.contains("GAP"));
}

#[test]
fn a_chain_says_which_files_it_could_not_read() {
    let bench = Bench::new();
    std::fs::write(bench.path("b/readme.txt"), "no backup").unwrap();
    let (code, report) = bench.json("chain b");
    assert_eq!((code, report["ignored_files"][0].as_str()), (0, Some("b/readme.txt")));
    // Its begin says that it is a backup, and nothing else.
    bench.flip("b/log2-1.bak", 8);
    let (code, report) = bench.json("chain b");
    assert_eq!(code, 40);
    let unreadable = report["unreadable_files"][0].as_str().unwrap();
    assert!(unreadable.starts_with("b/log2-1.bak: MSSQLBAK version 3/3"), "{unreadable}");
    assert!(bench.told("chain b").1.contains("NOT READABLE: b/log2-1.bak"));
}

#[test]
fn pages_that_cannot_be_judged_are_told() {
    let bench = Bench::new();
    let full = Set::full(Database::new(6));
    let differential = Set::differential(&full, Database { version: 2, ..Database::new(6) }, vec![5]);
    bench.write("alone", &Media { guid: Guid([5; 16]), ..Media::compressed() }, &differential);
    let (code, text, _) = bench.told("verify b/alone-1.bak");
    assert!(code == 0 && text.contains("not judged in set 1: 2 pages"), "{text}");
    assert!(text.contains("give the full backup that it is built on"), "{text}");
    let (code, text, _) = bench.told(&format!("verify b/alone-1.bak {FULL}"));
    assert!(code == 0 && !text.contains("not judged in"), "{text}");
}

#[test]
fn files_are_unpacked() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("out")).unwrap();
    let (code, _, note) = bench.told(&format!("unpack {FULL} b/diff-1.bak --to-dir out"));
    assert_eq!(code, 0, "{note}");
    assert!(note.contains("not transactionally consistent"), "{note}");
    assert_eq!(std::fs::metadata(bench.path("out/Sales.mdf")).unwrap().len(), 6 * 65536);
    assert_eq!(bench.told(&format!("unpack {FULL} --to-dir out")).0, 60);
    let (code, _, _) = bench.told("unpack b/diff-1.bak --stream-to plain.bak");
    assert_eq!(code, 0);
    assert_eq!(bench.told("verify plain.bak").0, 0);
    assert_eq!(bench.told("unpack b/full-1.bak b/full-2.bak --stream-to two.bak").0, 2);
}

#[test]
fn files_are_stored_and_come_back() {
    let bench = Bench::new();
    let (code, reports) = bench.json(&format!("recompress {FULL} b/diff-1.bak --repo repo"));
    assert_eq!(code, 0);
    assert!(reports.as_array().unwrap().len() == 3 && reports[0]["ratio"].as_f64().unwrap() > 1.5, "{reports}");
    let same = |one: &Path, other: &Path| std::fs::read(one).unwrap() == std::fs::read(other).unwrap();
    for name in ["full-1.bak", "full-2.bak", "diff-1.bak"] {
        let (code, _, said) = bench.told(&format!("extract {name} --repo repo --to {name}"));
        assert_eq!(code, 0, "{said}");
        assert!(same(&bench.path(name), &bench.path(&format!("b/{name}"))), "{name}");
    }
    assert_eq!(bench.told("recompress b/full-1.bak --repo repo").0, 50);
    assert_eq!(bench.told("extract full-1.bak --repo repo --to full-1.bak").0, 60);
    assert_eq!(bench.told("extract no.bak --repo repo --to no.bak").0, 30);
    assert_eq!(bench.told("extract full-1.bak --repo repo").0, 2);
    let (code, _, said) = bench.told("recompress b/diff-1.bak --repo repo --plain --name plain.bak");
    assert_eq!(code, 0, "{said}");
    assert!(bench.told("extract --repo repo").1.contains("NOT the same bytes"));
    bench.told("extract plain.bak --repo repo --to plain.bak");
    bench.told("unpack b/diff-1.bak --stream-to stream.bak");
    assert!(same(&bench.path("plain.bak"), &bench.path("stream.bak")));
    let stored = std::fs::read_dir(bench.path("repo/mssql/files")).unwrap();
    let mut names = stored.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let stripe = names.find(|name| name.starts_with("full-1.bak-") && name.ends_with(".phs")).unwrap();
    let mut info = Command::new(env!("CARGO_BIN_EXE_pagehaul"));
    let info = info.args(["info", "--repo", "repo"]).current_dir(bench.0.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&info.stdout).contains("backup files of SQL Server"), "{info:?}");
    bench.flip(&format!("repo/mssql/files/{stripe}"), 5000);
    assert_eq!(bench.told("extract full-1.bak --repo repo --to damaged.bak").0, 40);
    assert!(!bench.path("damaged.bak").exists());
}
