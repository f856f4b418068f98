//! Backups and WAL that only who has the secret key can read, from the first key to the recovery.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pagehaul_engine::format::manifest::Manifest;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_engine::terms::TimelineId;
use pagehaul_testkit::cluster::default_install;
use pagehaul_testkit::damage::{files_below, flip_bit};

use super::archived::Archived;
use super::ledger::Ledger;

/// What must not be found in a store: rows, names and paths of the database.
const CANARY: &str = "CANARY-in-a-row-of-a-table";

/// A cluster whose archive_command knows the public key; the secret key is in a file.
struct Scene {
    archived: Archived,
    recipient: String,
    identity: String,
}

impl Scene {
    fn start() -> Self {
        let archived = Archived::start(&default_install());
        let (recipient, identity) = new_key(&archived, "first");
        let mut scene = Scene { archived, recipient, identity };
        // A server that finds no repository, or is refused by one that is encrypted, waits for a minute before it tries
        // again: it starts anew when there is one.
        scene.backup(&[]);
        scene.archived.cluster.server.stop(StopMode::Fast).unwrap();
        scene.archived.archive_flags = format!("--recipient {} --compression none", scene.recipient);
        scene.archived.start_server();
        scene.archived.cluster.run(&[
            "CREATE TABLE secrets_of_the_house (id serial, what text)",
            &format!("INSERT INTO secrets_of_the_house (what) SELECT '{CANARY}' FROM generate_series(1, 500)"),
        ]);
        scene
    }

    fn backup(&self, more: &[&str]) -> String {
        let pgdata = self.archived.cluster.server.data_directory().display().to_string();
        let plain = ["backup", "main", "--pgdata", &pgdata, "--compression", "none", "--json"];
        let flags = [&plain, &["--recipient", &self.recipient][..], more].concat();
        self.archived.run_well(&flags).json()["label"].as_str().unwrap().to_owned()
    }
}

/// A key pair of the server's user: the public key, and the file with the secret one.
fn new_key(archived: &Archived, name: &str) -> (String, String) {
    let file = archived.cluster.server_directory(&format!("keys-{name}")).join("identity").display().to_string();
    let report = archived.run_program_well(&["key", "new", "--output", &file, "--json"]).json();
    (report["recipient"].as_str().unwrap().to_owned(), file)
}

fn with<'a>(words: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [words, more].concat()
}

fn assert_nowhere(root: &Path, needle: &str) {
    for file in files_below(root) {
        let bytes = std::fs::read(&file).unwrap();
        let is_there = bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
        assert!(!is_there, "{needle} can be read in {}", file.display());
    }
}

#[test]
fn f30_a_chain_and_its_wal_are_restored_with_the_key_and_nothing_of_them_is_read_without() {
    let scene = Scene::start();
    let archived = &scene.archived;
    let mut ledger = Ledger::create(&archived.cluster);
    let full = scene.backup(&[]);
    ledger.write(&archived.cluster, 1, 10);
    let key = ["--identity", &*scene.identity];
    let incremental = scene.backup(&with(&["--type", "incr"], &key));
    ledger.write(&archived.cluster, 100, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);

    let pgdata = archived.cluster.server.data_directory().display().to_string();
    for needle in [CANARY, "secrets_of_the_house", "base/1/", &pgdata] {
        assert_nowhere(&archived.repo, needle);
    }
    // Labels and windows are known to everybody, for expire and for alarms.
    let listed = archived.run_well(&["info", "--json"]).stdout;
    assert!(listed.contains(&full) && listed.contains(&incremental) && !listed.contains(&pgdata), "{listed}");
    archived.run_well(&["wal", "list", "--json"]);
    for verb in ["verify", "restore"] {
        let target = archived.target("none").display().to_string();
        let target = ["--target-dir", &*target];
        let flags = if verb == "restore" { &target[..] } else { &[] };
        archived.run(&with(&[verb, "main"], flags)).assert_refused(10, &["no key was given", "--identity"]);
    }
    archived.run_well(&with(&["verify", "main"], &key));
    let copy = archived.recover("latest", &with(&["--type", "latest"], &key));
    assert_eq!(copy.report["label"], *incremental);
    // The secret itself is in no setting, no log and no object; only where it lies.
    let secret = std::fs::read_to_string(&scene.identity).unwrap();
    let secret = secret.lines().last().unwrap();
    assert!(secret.starts_with("AGE-SECRET-KEY-1"));
    for root in [copy.cluster.server.data_directory(), archived.cluster.server.data_directory(), &archived.repo] {
        assert_nowhere(root, secret);
    }
    ledger.assert_prefix(&copy.cluster, 20, "all of it");
    assert_eq!(copy.cluster.digests(), archived.cluster.digests());
    copy.remove();
}

#[test]
fn s15_another_key_is_told_from_damage_and_a_rotated_one_reads() {
    let mut scene = Scene::start();
    let archived = &scene.archived;
    let mut ledger = Ledger::create(&archived.cluster);
    scene.backup(&[]);
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let (new_recipient, new_identity) = new_key(archived, "second");
    let verify = with(&["verify", "main"], &["--identity", &new_identity]);
    archived.run(&verify).assert_refused(10, &["wrong key", "--identity"]);
    let rotate = ["key", "rotate", "main", "--identity", &scene.identity, "--recipient", &new_recipient, "--json"];
    let report = archived.run_well(&rotate).json();
    assert!(report["key_count"].as_u64() > Some(1), "{report}");
    archived.run_well(&verify);
    archived.run_well(&["verify", "main", "--identity", &scene.identity]);
    // A program that prints the key, and one that does not.
    let by_command = |command: &str| archived.run(&["verify", "main", "--key-command", command]);
    assert_eq!(by_command(&format!("cat {new_identity}")).code, Some(0));
    by_command("false").assert_refused(10, &["key command", "false ended with"]);
    by_command("echo nothing").assert_refused(10, &["what the key command printed"]);
    // A copy that nobody opened is for the new key too.
    let elsewhere = archived.cluster.server_directory("elsewhere");
    archived.run_well(&["copy", "main", "--to", &elsewhere.display().to_string()]);
    scene.archived.repo = elsewhere;
    let copy = scene.archived.recover("latest", &["--type", "latest", "--identity", &new_identity]);
    ledger.assert_prefix(&copy.cluster, 10, "all of it");
    copy.remove();
    // With the right key damage is called damage, with another one it is not looked at.
    let stripe = files_below(&scene.archived.repo).into_iter().rfind(|path| path.ends_with("stripe-0000.phs")).unwrap();
    flip_bit(&stripe, std::fs::metadata(&stripe).unwrap().len() / 2, 3);
    let (_, stranger) = new_key(&scene.archived, "third");
    for (identity, code, word) in [(&new_identity, 40, "damaged"), (&stranger, 10, "wrong key")] {
        let ran = scene.archived.run(&["verify", "main", "--identity", identity]);
        assert!(ran.code == Some(code) && format!("{ran:?}").contains(word), "{ran:?}");
    }
}

#[test]
fn s12_a_passphrase_in_a_safe_reads_what_keys_read_and_can_be_left_behind() {
    let mut scene = Scene::start();
    let archived = &scene.archived;
    let mut ledger = Ledger::create(&archived.cluster);
    let safe = archived.cluster.server_directory("safe");
    let passphrase = safe.join("passphrase");
    std::fs::write(&passphrase, "correct horse battery staple\n").unwrap();
    std::fs::set_permissions(&passphrase, Permissions::from_mode(0o600)).unwrap();
    let owner = std::fs::metadata(&safe).unwrap();
    std::os::unix::fs::chown(&passphrase, Some(owner.uid()), Some(owner.gid())).unwrap();
    let passphrase = passphrase.display().to_string();
    let with_passphrase = ["--passphrase-file", &*passphrase];
    let alone = scene.backup(&[]);
    let both = scene.backup(&with_passphrase);
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    for key in [&with_passphrase, &["--identity", &*scene.identity]] {
        archived.run_well(&with(&["verify", "main", "--set", &both], key));
    }
    // WAL, and the sets before, are for the key alone until the passphrase is one more.
    let verify_alone = with(&["verify", "main", "--set", &alone], &with_passphrase);
    archived.run(&verify_alone).assert_refused(10, &["wrong key"]);
    archived.run_well(&with(&["key", "rotate", "main", "--identity", &scene.identity], &with_passphrase));
    archived.run_well(&verify_alone);
    let copy = scene.archived.recover("safe", &with(&["--type", "latest"], &with_passphrase));
    ledger.assert_prefix(&copy.cluster, 10, "all of it");
    copy.remove();

    let (recipient, identity) = new_key(archived, "second");
    let elsewhere = archived.cluster.server_directory("elsewhere");
    let to = elsewhere.display().to_string();
    archived.run_well(&with(&["copy", "main", "--to", &to, "--recipient", &recipient], &with_passphrase));
    scene.archived.repo = elsewhere;
    let archived = &scene.archived;
    archived.run_well(&["verify", "main", "--identity", &identity]);
    archived.run(&with(&["verify", "main"], &with_passphrase)).assert_refused(10, &["wrong key"]);
}

#[test]
fn a_copy_needs_no_key_and_one_for_others_is_encrypted_anew() {
    let mut scene = Scene::start();
    let archived = &scene.archived;
    let mut ledger = Ledger::create(&archived.cluster);
    scene.backup(&[]);
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let directory = |name: &str| archived.cluster.server_directory(name);
    let (as_it_is, checked) = (directory("as-it-is"), directory("checked"));
    let (unread, anew) = (directory("unread"), directory("anew"));
    let copy = |to: &Path, more: &[&str]| {
        let to = to.display().to_string();
        archived.run_well(&with(&["copy", "main", "--to", &to, "--json"], more)).json()
    };
    let report = copy(&as_it_is, &[]);
    assert_eq!(report["set_copied_count"].as_u64(), Some(2), "{report}");
    assert!(report["wal"]["copied_count"].as_u64() > Some(0), "{report}");
    copy(&checked, &["--identity", &scene.identity]);
    let (recipient, identity) = new_key(archived, "second");
    // Who can only encrypt copies what is encrypted as it is.
    let report = copy(&unread, &["--recipient", &recipient]);
    assert_eq!(report["set_copied_count"].as_u64(), Some(2), "{report}");
    copy(&anew, &["--identity", &scene.identity, "--recipient", &recipient]);
    // Again, nothing is left to do.
    let report = copy(&anew, &["--identity", &scene.identity, "--recipient", &recipient]);
    assert_eq!(report["wal"]["copied_count"].as_u64(), Some(0), "{report}");
    assert_nowhere(&anew, CANARY);
    let manifests = files_below(&anew.join("main/sets")).into_iter().filter(|path| path.ends_with("manifest.json"));
    let of = |path: PathBuf| Manifest::from_bytes(&std::fs::read(path).unwrap(), "test").unwrap();
    let keys: Vec<String> = manifests.map(|path| of(path).encryption.unwrap().key_id).collect();
    assert!(keys.len() == 2 && keys[0] != keys[1], "each set has a data key of its own: {keys:?}");
    let old = scene.identity.clone();
    let copies: [(PathBuf, &str, Option<&str>); 4] = [
        (as_it_is, &old, Some(&identity)),
        (checked, &old, None),
        (unread, &old, Some(&identity)),
        (anew, &identity, Some(&old)),
    ];
    for (repo, right, wrong) in copies {
        scene.archived.repo = repo;
        scene.archived.run_well(&["verify", "main", "--identity", right]);
        if let Some(wrong) = wrong {
            scene.archived.run(&["verify", "main", "--identity", wrong]).assert_refused(10, &["wrong key"]);
        }
        let copy = scene.archived.recover("copy", &["--type", "latest", "--identity", right]);
        ledger.assert_prefix(&copy.cluster, 10, "all of it");
        copy.remove();
    }
}

#[test]
fn s16_what_is_put_there_without_the_key_is_refused() {
    let scene = Scene::start();
    let archived = &scene.archived;
    let mut ledger = Ledger::create(&archived.cluster);
    let label = scene.backup(&[]);
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    // The mark of the source keeps whoever forgets the key from writing in clear.
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    archived.run(&["backup", "main", "--pgdata", &pgdata]).assert_refused(10, &["would not be", "--recipient"]);

    // A whole repository of the same cluster in clear, for parts to be taken from.
    let clear = archived.cluster.server_directory("clear").display().to_string();
    let name = archived.cluster.value("SELECT last_archived_wal FROM pg_stat_archiver");
    let fetched = archived.cluster.directory.join("targets").join(&name).display().to_string();
    archived.run_well(&["wal", "get", "--no-helper", "--identity", &scene.identity, &name, &fetched]);
    archived.run_program_well(&["backup", "main", "--pgdata", &pgdata, "--repo", &clear]);
    let push = ["wal", "push", "--no-helper", "--source", "main", "--pgdata", &pgdata, "--repo", &clear, &fetched];
    archived.run_program_well(&push);
    let clear = Path::new(&clear).join("main/wal");
    let planted =
        files_below(&clear).into_iter().find(|path| path.extension().is_some_and(|kind| kind == "phw")).unwrap();
    let place = archived.repo.join("main/wal").join(planted.strip_prefix(&clear).unwrap());
    assert!(place.exists(), "{} is not there", place.display());
    std::fs::copy(planted, &place).unwrap();
    let get = ["wal", "get", "--no-helper", "--identity", &scene.identity, &name, &fetched];
    let refused = archived.run(&with(&get, &["--require-encryption"]));
    assert!(refused.code == Some(126) && refused.stderr.contains("not encrypted"), "{refused:?}");

    // A whole set in clear, as it is and with objects that are called documents, which are read as they are.
    let key = ["--identity", &*scene.identity];
    let sets = archived.repo.join("main/sets");
    for called_documents in [false, true] {
        let planted = plant_set(clear.parent().unwrap(), &sets, called_documents);
        let restore = with(&["restore", "main", "--set", &planted, "--require-encryption"], &key);
        let target = archived.target("planted").display().to_string();
        let refused = archived.run(&with(&restore, &["--target-dir", &target]));
        let cause = if called_documents { "document" } else { "not encrypted" };
        assert!(refused.code == Some(40) && refused.stderr.contains(cause), "{refused:?}");
        std::fs::remove_dir_all(sets.join(&planted)).unwrap();
    }

    // A manifest whose public part was changed.
    let manifest = sets.join(&label).join("manifest.json");
    archived.run_well(&with(&["verify", "main"], &key));
    let mut changed = Manifest::from_bytes(&std::fs::read(&manifest).unwrap(), "test").unwrap();
    changed.postgres.timeline = TimelineId(2);
    std::fs::write(&manifest, changed.to_bytes().unwrap()).unwrap();
    archived.run(&with(&["verify", "main"], &key)).assert_refused(40, &["changed it"]);
}

/// Puts the set of the repository that is not encrypted among `sets`, under a label that this gives.
fn plant_set(source: &Path, sets: &Path, called_documents: bool) -> String {
    let of_clear = std::fs::read_dir(source.join("sets")).unwrap().next().unwrap().unwrap();
    // Of no second in which another one was made.
    let label = "20991231-235959F".to_owned();
    let to = sets.join(&label);
    std::fs::create_dir(&to).unwrap();
    let ending = if called_documents { ".json" } else { "" };
    for file in files_below(&of_clear.path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        std::fs::copy(&file, to.join(format!("{name}{ending}"))).unwrap();
    }
    let bytes = std::fs::read(of_clear.path().join("manifest.json")).unwrap();
    let mut planted = Manifest::from_bytes(&bytes, "test").unwrap();
    planted.label = label.parse().unwrap();
    planted.stripes.iter_mut().for_each(|stripe| stripe.name += ending);
    planted.file_table.name += ending;
    planted.page_sums.iter_mut().flat_map(|sums| &mut sums.objects).for_each(|object| object.name += ending);
    std::fs::write(to.join("manifest.json"), planted.to_bytes().unwrap()).unwrap();
    // The server's user reads them.
    for file in files_below(&to) {
        std::fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    label
}

#[test]
fn f25_parity_of_an_encrypted_set_gives_back_what_is_damaged_and_what_was_planted() {
    let mut scene = Scene::start();
    let label = scene.backup(&["--stripes", "4", "--parity", "1"]);
    let archived = &scene.archived;
    let set = archived.repo.join("main/sets").join(&label);
    let key = ["--identity", &*scene.identity];
    // Copied without a key while it is whole.
    let whole = archived.cluster.server_directory("whole");
    archived.run_well(&["copy", "main", "--set", &label, "--to", &whole.display().to_string()]);

    // Damage in the middle and at the very end, of a set whose reader has the key: the chunks around it stay of use.
    let stripe = set.join("stripe-0002.phs");
    let length = std::fs::metadata(&stripe).unwrap().len();
    for byte in [length / 2, length - 200, length - 3] {
        flip_bit(&stripe, byte, 3);
    }
    let told = archived.run(&with(&["verify", "main", "--set", &label], &key));
    assert!(told.code == Some(40) && told.stderr.contains("DEGRADED"), "{told:?}");
    let repaired = archived.run_well(&with(&["repair", "main", "--set", &label, "--json"], &key)).json();
    let path = Path::new(repaired["repaired"][0]["path"].as_str().unwrap()).to_owned();
    assert!(path.ends_with("stripe-0002-r1.phs"), "{repaired}");
    assert_eq!(std::fs::read(&path).unwrap()[..7], *b"PHCRYPT", "what was put back is not encrypted");
    archived.run_well(&with(&["verify", "main", "--set", &label], &key));
    // Under its new name it reads only as what was put back: a copy under the old one takes the key.
    let of_repaired = archived.cluster.server_directory("of-repaired").display().to_string();
    let copy = ["copy", "main", "--set", &label, "--to", &of_repaired];
    archived.run(&copy).assert_refused(10, &["stripe-0002", "was repaired", "--identity"]);
    archived.run_well(&with(&copy, &key));
    let verify = ["verify", "main", "--set", &label, "--identity", &scene.identity, "--repo", &of_repaired];
    archived.run_program_well(&verify);

    // A stripe that somebody without the key put there: not read, and given back by the others.
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let clear = archived.cluster.server_directory("clear").display().to_string();
    let backup = ["backup", "main", "--pgdata", &pgdata, "--stripes", "4", "--repo", &clear, "--json"];
    let of_clear = archived.run_program_well(&backup).json();
    let planted = of_clear["stripes"][1]["path"].as_str().unwrap().to_owned();
    std::fs::copy(planted, set.join("stripe-0001.phs")).unwrap();
    let told = archived.run(&with(&["verify", "main", "--set", &label], &key));
    assert!(told.code == Some(40) && told.stderr.contains("DEGRADED"), "{told:?}");
    let copy = archived.recover("copy", &with(&["--set", &label], &key));
    assert_eq!(copy.cluster.value("SELECT count(*) FROM secrets_of_the_house"), "500");
    copy.remove();
    archived.run_well(&with(&["repair", "main", "--set", &label], &key));
    archived.run_well(&with(&["verify", "main", "--set", &label], &key));

    // Copies of the manifest say as much to everybody as it did, those of the file table nothing.
    std::fs::write(set.join("manifest.json"), b"{}").unwrap();
    flip_bit(&set.join("files.table"), 700, 1);
    let repaired = archived.run_well(&with(&["repair", "main", "--set", &label, "--json"], &key)).json();
    assert_eq!(repaired["repaired"].as_array().unwrap().len(), 2, "{repaired}");
    let read = |name: &str| std::fs::read(set.join(name)).unwrap();
    assert!(read("manifest-r2.json") == read("manifest-r1.json"));
    assert_eq!(read("files-r2.table")[..7], *b"PHCRYPT");
    archived.run_well(&["info", "main", "--set", &label]);
    archived.run_well(&with(&["verify", "main", "--set", &label], &key));
    assert_nowhere(&set, CANARY);

    scene.archived.repo = whole;
    scene.archived.run_well(&with(&["verify", "main", "--set", &label], &key));
    let stripe = scene.archived.repo.join("main/sets").join(&label).join("stripe-0003.phs");
    std::fs::remove_file(stripe).unwrap();
    let copy = scene.archived.recover("copy", &with(&["--set", &label], &key));
    copy.remove();
}
