//! Backups that are signed: what somebody adds, changes, hides or puts back is refused.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_testkit::cluster::default_install;

use super::archived::{Archived, Ran};
use super::ledger::Ledger;

/// A cluster whose backups and WAL are signed.
pub(super) struct Scene {
    pub(super) archived: Archived,
    pgdata: String,
    pub(super) sign_key: String,
    signer: String,
    /// What the host remembers, and what who restores does.
    memories: [String; 2],
}

impl Scene {
    pub(super) fn start() -> Self {
        let mut archived = Archived::start(&default_install());
        let path = |name: &str| archived.cluster.server_directory(name).display().to_string();
        let sign_key = format!("{}/signer", path("keys"));
        let new = ["key", "new", "--signing", "--output", &sign_key, "--json"];
        let signer = archived.run_program_well(&new).json()["signer"].as_str().unwrap().to_owned();
        let pgdata = archived.cluster.server.data_directory().display().to_string();
        let memories = [path("memory-of-the-host"), path("memory-of-the-reader")];
        archived.cluster.server.stop(StopMode::Fast).unwrap();
        archived.archive_flags = format!("--sign-key {sign_key} --compression none");
        archived.start_server();
        Scene { pgdata, sign_key, signer, memories, archived }
    }

    pub(super) fn signing<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--sign-key", &self.sign_key, "--known-heads", &self.memories[0]]].concat()
    }

    pub(super) fn asking<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--signer", &self.signer, "--known-heads", &self.memories[1]]].concat()
    }

    fn try_backup(&self, more: &[&str]) -> Ran {
        self.try_backup_by("lz4", more)
    }

    pub(super) fn try_backup_by(&self, compression: &str, more: &[&str]) -> Ran {
        let words = ["backup", "main", "--pgdata", &self.pgdata, "--compression", compression, "--json"];
        self.archived.run(&[&words, more].concat())
    }

    fn backup(&self, more: &[&str]) -> String {
        let ran = self.try_backup(&self.signing(more));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.json()["label"].as_str().unwrap().to_owned()
    }

    fn head(&self) -> serde_json::Value {
        self.archived.run_well(&self.asking(&["head", "show", "main", "--json"])).json()
    }
}

fn copy_directory(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn s16_only_what_is_signed_is_restored_and_every_change_is_signed() {
    let mut scene = Scene::start();
    let mut ledger = Ledger::create(&scene.archived.cluster);
    // Whoever begins to sign takes what is there.
    let plain = scene.archived.backup();
    let full = scene.backup(&[]);
    ledger.write(&scene.archived.cluster, 1, 10);
    let incremental = scene.backup(&["--type", "incr"]);
    let head = scene.head();
    assert_eq!(
        (&head["counter"], &head["set_count"], &head["trusted"]),
        (&2.into(), &3.into(), &true.into()),
        "{head}"
    );

    // Nobody goes on without the key by oversight.
    scene.try_backup(&[]).assert_refused(10, &["they are signed", "--sign-key"]);
    let expire = ["expire", "main", "--keep-full", "1", "--confirm"];
    scene.archived.run(&expire).assert_refused(10, &["they are signed", "--sign-key"]);
    scene.archived.run_well(&scene.signing(&expire));
    let labels = scene.archived.run_well(&scene.asking(&["info", "--json"])).json();
    let labels: Vec<_> = labels[0]["sets"].as_array().unwrap().iter().map(|set| set["label"].clone()).collect();
    assert_eq!(labels, [full.as_str(), &incremental], "{plain} has gone");
    assert_eq!(scene.head()["counter"], 3);
    let copy = scene.archived.recover("signed", &scene.asking(&[]));
    assert_eq!(copy.report["label"], *incremental);
    ledger.assert_prefix(&copy.cluster, 10, "all of it");
    copy.remove();

    // A copy has a head of its own.
    let elsewhere = scene.archived.cluster.server_directory("elsewhere");
    let to = elsewhere.display().to_string();
    scene.archived.run_well(&scene.signing(&["copy", "main", "--to", &to]));
    scene.archived.repo = elsewhere;
    scene.archived.run_well(&scene.asking(&["verify", "main"]));
    assert_eq!(scene.head()["set_count"], 2);

    // What somebody adds who has no key, by a name that is newer.
    let sets = scene.archived.repo.join("main/sets");
    let planted = "20991231-235959F";
    copy_directory(&sets.join(&full), &sets.join(planted));
    scene.archived.run(&scene.asking(&["restore", "main", "--target-dir", "/nowhere"])).assert_refused(40, &[planted]);
    let verify = ["verify", "main", "--set", planted];
    scene.archived.run(&scene.asking(&verify)).assert_refused(40, &["not signed", "head sign"]);
    let shown = scene.archived.run(&scene.asking(&["head", "show", "main"]));
    assert!(shown.code == Some(40) && shown.stdout.contains("NOT SIGNED"), "{shown:?}");
}

#[test]
fn f55_s18_a_repository_that_was_put_back_is_refused_by_who_has_seen_more() {
    let scene = Scene::start();
    let (archived, repo) = (&scene.archived, &scene.archived.repo);
    let first = scene.backup(&[]);
    let old = archived.cluster.directory.join("old");
    copy_directory(repo, &old);
    let second = scene.backup(&[]);
    archived.run_well(&scene.asking(&["verify", "main"]));

    std::fs::remove_dir_all(repo).unwrap();
    copy_directory(&old, repo);
    let refused = ["head 2 was there", "head 1 is the newest", "another copy"];
    scene.try_backup(&scene.signing(&[])).assert_refused(40, &refused);
    for verb in ["verify", "info"] {
        archived.run(&scene.asking(&[verb, "main"])).assert_refused(40, &refused);
    }
    // Whoever put it back on purpose says so, and goes on.
    for memory in &scene.memories {
        std::fs::remove_dir_all(memory).unwrap();
        archived.cluster.server_directory(Path::new(memory).file_name().unwrap().to_str().unwrap());
    }
    let third = scene.backup(&["--type", "incr"]);
    assert!(third.ends_with('I') && third.starts_with(&first[..8]) && third != second, "{third}");
    archived.run_well(&scene.asking(&["verify", "main"]));
}

#[test]
fn a_backup_that_could_not_be_signed_says_so_and_is_taken_in_later() {
    let scene = Scene::start();
    let archived = &scene.archived;
    scene.backup(&[]);
    let heads = archived.repo.join("main/heads");
    let allow = |mode| std::fs::set_permissions(&heads, Permissions::from_mode(mode)).unwrap();
    allow(0o500);
    let failed = scene.try_backup(&scene.signing(&[]));
    assert!(failed.code == Some(30) && failed.stderr.contains("complete, but not signed"), "{failed:?}");
    allow(0o700);
    archived.run(&scene.asking(&["verify", "main"])).assert_refused(40, &["head 1 does not list it"]);
    let only_shown = archived.run_well(&scene.signing(&["head", "sign", "main", "--json"])).json();
    assert!(only_shown["counter"].is_null() && only_shown["added"].as_array().unwrap().len() == 1, "{only_shown}");
    let signed = archived.run_well(&scene.signing(&["head", "sign", "main", "--confirm", "--json"])).json();
    assert_eq!(signed["counter"], 2, "{signed}");
    archived.run_well(&scene.asking(&["verify", "main"]));
    let again = archived.run_well(&scene.signing(&["head", "sign", "main", "--confirm", "--json"])).json();
    assert!(again["counter"].is_null(), "{again}");
}

#[test]
fn each_of_several_repositories_is_signed_and_a_chain_becomes_a_full_one() {
    let mut scene = Scene::start();
    let second = scene.archived.cluster.server_directory("second");
    let to = second.display().to_string();
    scene.backup(&["--repo", &to]);
    let incremental = scene.backup(&["--repo", &to, "--type", "incr"]);
    scene.archived.run_well(&scene.signing(&["synthesize", "main"]));
    scene.archived.run_well(&scene.asking(&["verify", "main"]));
    assert_eq!(scene.head()["counter"], 3);
    scene.archived.repo = second;
    scene.archived.run_well(&scene.asking(&["verify", "main", "--set", &incremental]));
    assert_eq!(scene.head()["counter"], 2);
    // The secret is in nothing that was written, or said.
    let secret = std::fs::read_to_string(&scene.sign_key).unwrap();
    let line = secret.lines().nth(3).unwrap();
    for root in [&scene.archived.repo, Path::new(&scene.memories[0]), Path::new(&scene.memories[1])] {
        for file in pagehaul_testkit::damage::files_below(root) {
            let bytes = std::fs::read(&file).unwrap();
            assert!(!bytes.windows(line.len()).any(|window| window == line.as_bytes()), "{}", file.display());
        }
    }
}
