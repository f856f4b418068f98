//! `pagehaul mssql` against the scripted server.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use pagehaul_testkit::mssql::{Happening, PASSWORD, Security, TdsServer, World};
use serde_json::Value;

struct Bench {
    server: TdsServer,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let server = TdsServer::start(World::with_database(8 << 30), Security::Plain);
        Bench { server, directory: tempfile::tempdir().unwrap() }
    }

    /// Runs `pagehaul mssql WORDS` against the server.
    fn run(&self, words: &str) -> Output {
        let (verb, rest) = words.split_once(' ').unwrap();
        let server = format!("--server {} --user sa --encrypt plain", self.server.address());
        let all = if verb == "import" { words.to_owned() } else { format!("{verb} {server} {rest}") };
        self.run_plain(&format!("mssql {all}"))
    }

    fn run_plain(&self, words: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pagehaul"))
            .args(words.split_whitespace())
            .current_dir(self.directory.path())
            .env("PAGEHAUL_MSSQL_PASSWORD", PASSWORD)
            .env("PAGEHAUL_HISTORY", self.directory.path().join("history.sqlite"))
            .output()
            .unwrap()
    }

    fn good(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Exit code and what was said.
    fn bad(&self, words: &str) -> (i32, String) {
        let output = self.run(words);
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn a_database_goes_out_and_comes_back_beside_itself() {
    let bench = Bench::new();
    let dry = bench.good(
        "backup --database shop --to /b/1.bak --to /b/2.bak --compression zstd:low --description nightly --dry-run",
    );
    assert!(bench.server.world().sets.is_empty(), "a dry run does nothing");
    let text = bench
        .good("backup --database shop --to /b/1.bak --to /b/2.bak --compression zstd:low --description nightly --json");
    let done: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(format!("{}\nGO\n", done["statement"].as_str().unwrap()), dry, "what was shown is what was done");
    assert_eq!((done["pages"].as_u64(), done["has_checksums"].as_bool()), (Some(1_048_578), Some(true)));
    assert_eq!(done["buffer_bytes"].as_u64(), Some(3 * (12 << 20)));
    let plain = bench.run("backup --database shop --to /b/3.bak --dry-run");
    let said = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert!(said.contains("buffers: 7.00 MiB"), "a server that packs nothing by itself takes one set: {said}");
    let copy = "restore --database copy --from /b/2.bak --from /b/1.bak --data-to /d/";
    bench.good(copy);
    {
        let world = bench.server.world();
        let paths: Vec<&str> = world.databases["copy"].files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["/d/copy_0.mdf", "/d/copy_1.ldf"]);
    }
    let (code, said) = bench.bad(copy);
    assert!(code == 20 && said.contains("3154"), "nothing is overwritten: {said}");
    bench.good("restore --look verify --from /b/1.bak --from /b/2.bak");
    assert!(
        bench.server.world().batches.iter().any(|batch| batch.contains("VERIFYONLY") && batch.contains("CHECKSUM"))
    );
    let (code, said) = bench.bad("restore --look verify --from /b/1.bak");
    assert!(code == 40 && said.contains("3132"), "a stripe is missing: {code} {said}");
    let (code, _) = bench.bad("restore --look verify --from /b/absent.bak");
    assert_eq!(code, 20, "of what is not there nothing is known");
    // What says nothing of the backup is no damage; what calls it damaged is.
    for (number, expected) in [(701, 20), (262, 20), (3203, 20), (3189, 40), (3241, 40)] {
        let errors = vec![(number, "as the test wants it".to_owned()), (3013, "terminating".to_owned())];
        bench.server.world().fail("VERIFYONLY", Happening::Errors(errors));
        let (code, said) = bench.bad("restore --look verify --from /b/1.bak --from /b/2.bak");
        assert!(code == expected && said.contains("hint"), "{number}: {code} {said}");
    }
    let header: Value =
        serde_json::from_str(&bench.good("restore --look header --from /b/1.bak --from /b/2.bak --json")).unwrap();
    assert_eq!(header["rows"][0]["BackupDescription"], "nightly");
}

#[test]
fn f37_backups_stay_out_of_the_servers_chain_unless_they_are_meant_for_it() {
    let bench = Bench::new();
    let base = |bench: &Bench| bench.server.world().databases["shop"].differential_base.clone();
    bench.good("backup --database shop --to /b/1.bak");
    assert_eq!(base(&bench), None);
    assert!(bench.server.world().sets.iter().all(|set| set.is_copy_only && set.has_checksums));
    bench.good("backup --database shop --to /b/2.bak --in-chain --description sunday");
    assert_eq!(base(&bench).as_deref(), Some("sunday"));
    let text = bench.good("backup --database shop --to /b/3.bak --type differential --json");
    let done: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(done["differential_base"], "sunday");
    bench.server.world().databases.get_mut("shop").unwrap().recovery_model = "SIMPLE".to_owned();
    let (code, said) = bench.bad("backup --database shop --to /b/4.trn --type log");
    assert!(code == 20 && said.contains("SIMPLE"), "{said}");
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_sent() {
    let bench = Bench::new();
    let cases = [
        ("backup --database shop --to /b/1 --compression qat_deflate", 2, "Windows only"),
        ("backup --database shop --to /b/1 --to s3://h/b", 2, "one kind"),
        ("backup --database shop --to relative.bak", 2, "whole path"),
        ("backup --database shop --to /b/1 --buffer-count 5000 --max-transfer-size 4MiB", 10, "701"),
        ("backup --database absent --to /b/1", 20, "none of this name"),
        ("restore --database x --from NUL", 2, "keeps nothing"),
    ];
    for (words, code, said) in cases {
        let found = bench.bad(words);
        assert!(found.0 == code && found.1.contains(said), "{words}: {found:?}");
    }
    let is_sent = |batch: &String| batch.starts_with("BACKUP") || batch.starts_with("RESTORE");
    assert!(!bench.server.world().batches.iter().any(is_sent));
    bench.server.world().fail("BACKUP", Happening::Errors(vec![(3201, "Cannot open".into()), (3013, "over".into())]));
    let (code, said) = bench.bad("backup --database shop --to /b/1");
    assert!(code == 20 && said.contains("Msg 3201") && said.contains("Msg 3013") && said.contains("hint"), "{said}");
}

#[test]
fn a_snapshot_program_runs_while_the_database_stands_still() {
    let bench = Bench::new();
    let program = |name: &str, text: &str| {
        let path = bench.directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let out = bench.directory.path().join("out").display().to_string();
    let good = program("good", &format!("echo $PAGEHAUL_DATABASE > {out}"));
    bench.good(&format!("backup --database shop --to /b/shop.bkm --snapshot-command {good}"));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "shop\n");
    // It hears no password, and what it says is not in our document.
    let nosy = program("nosy", &format!("echo said; echo \"<$PAGEHAUL_MSSQL_PASSWORD>\" > {out}"));
    let text = bench.good(&format!("backup --database shop --to /b/nosy.bkm --snapshot-command {nosy} --json"));
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "<>\n");
    let sets = bench.server.world().sets.len();
    for (text, said) in [("exit 3", "exit status: 3"), ("exec sleep 20", "took longer")] {
        let bad = program("bad", text);
        let words = format!("backup --database shop --to /b/2.bkm --snapshot-command {bad} --freeze-limit 1s");
        let found = bench.bad(&words);
        assert!(found.0 == 60 && found.1.contains(said), "{found:?}");
    }
    // What it started itself ends with it.
    std::fs::remove_file(&out).unwrap();
    let parent = program("parent", &format!("(sleep 2; echo late > {out}) & wait"));
    let found =
        bench.bad(&format!("backup --database shop --to /b/2.bkm --snapshot-command {parent} --freeze-limit 1s"));
    assert!(found.0 == 60 && found.1.contains("took longer"), "{found:?}");
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(!std::path::Path::new(&out).exists(), "a child of the program went on");
    let world = bench.server.world();
    assert!(world.sets.len() == sets && !world.databases["shop"].is_suspended, "it goes on, and there is no backup");
}

#[test]
fn tuning_by_us_and_by_hand() {
    let bench = Bench::new();
    let flags = "--database shop --to /b --compression none,zstd:low --files 1,4 --buffer-count server \
                 --max-transfer-size server --grid full --repeat 1";
    let script = bench.good(&format!("script {flags}"));
    assert_eq!(bench.good(&format!("tune {flags} --dry-run")), script);
    let questions = bench.good(&format!("script {flags} --questions"));
    assert!(questions.contains("pagehaul||facts|product_version|"), "{questions}");
    let report = bench.directory.path().join("tune.html");
    let text = bench.good(&format!("tune {flags} --json --report {}", report.display()));
    let done: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(done["recommendation"]["row"]["setting"], "zstd:low f4");
    assert!(std::fs::read_to_string(&report).unwrap().contains("zstd:low f4"));
    assert!(bench.server.world().backup_files.is_empty() && bench.server.world().databases.len() == 1);
    let meant =
        format!("tune --source mssql --server {} --user sa --encrypt plain {flags} --dry-run", bench.server.address());
    assert_eq!(String::from_utf8(bench.run_plain(&meant).stdout).unwrap(), script);
    let results = bench.directory.path().join("results.txt");
    std::fs::write(&results, "nothing").unwrap();
    let (code, said) = bench.bad(&format!("import {} --database shop", results.display()));
    assert!(code == 2 && said.contains("facts"), "{said}");
}
