//! WAL that is signed: what somebody changes, or puts there who has no key, is not replayed.

use std::path::PathBuf;

use pagehaul_engine::source::postgres::scratch_server::ScratchServer;
use pagehaul_testkit::cluster::QUICK;
use pagehaul_testkit::damage::files_below;

use super::archived::{PROGRAM, Ran, run_program};
use super::forged::{NOT_SIGNED, TRUE_TEXT, forge};
use super::signed::Scene;

const LATEST: [&str; 2] = ["--type", "latest"];

/// A signed set, and behind it rows with the true text that are in one archived segment alone.
struct Letters {
    scene: Scene,
    /// The segment, and the object that holds it.
    segment: String,
    object: PathBuf,
    /// Where files of the archive are put.
    place: PathBuf,
}

impl Letters {
    fn start() -> Self {
        let scene = Scene::start();
        let archived = &scene.archived;
        archived.cluster.run(&["CREATE TABLE letters (body bytea)"]);
        let ran = scene.try_backup_by("lz4", &scene.signing(&[]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let insert = format!("INSERT INTO letters SELECT '{}' FROM generate_series(1, 3)", TRUE_TEXT.escape_ascii());
        archived.cluster.value("SELECT pg_switch_wal()");
        // The object of the segment below is to begin with it.
        archived.wait_until_archived(&archived.cluster);
        archived.cluster.run(&[&insert]);
        let segment = archived.cluster.value("SELECT pg_walfile_name(pg_switch_wal())");
        archived.wait_until_archived(&archived.cluster);
        let first_index = format!("{}-", &segment[16..]);
        let is_of_segment = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&first_index);
        let object = files_below(&archived.repo.join("main/wal")).into_iter().find(is_of_segment).unwrap();
        Letters { place: archived.cluster.server_directory("got"), segment, object, scene }
    }

    /// The rows of a restore with these flags.
    fn restored(&self, flags: &[&str]) -> String {
        let copy = self.scene.archived.recover("restored", flags);
        let rows = copy.cluster.value("SELECT string_agg(encode(body, 'escape'), '|') FROM letters");
        copy.remove();
        rows
    }

    fn get(&self, flags: &[&str]) -> Ran {
        let place = self.place.join("segment").display().to_string();
        self.scene.archived.run(&[&["wal", "get", &self.segment, &place, "--source", "main"], flags].concat())
    }

    /// Whoever asks for signatures is given nothing of the segment, and no server starts with it.
    fn assert_refused(&self, causes: &[&str]) {
        let (scene, archived) = (&self.scene, &self.scene.archived);
        // A server that recovers does not take this code for an end of WAL.
        self.get(&scene.asking(&[])).assert_refused(126, causes);
        // The memory of heads knows places.
        let elsewhere = archived.target(&causes[0].replace(' ', "-")).display().to_string();
        let copied = archived.run(&scene.asking(&["copy", "main", "--to", &elsewhere, "--sign-key", &scene.sign_key]));
        copied.assert_refused(40, causes);
        let target = archived.target("refused");
        let ran = archived.restore(&target, &scene.asking(&LATEST));
        if ran.code == Some(0) {
            let mut server = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
            server.start(QUICK).unwrap_err();
            assert!(server.log_tail().contains(causes[0]), "{}", server.log_tail());
        } else {
            ran.assert_refused(40, causes);
        }
    }
}

#[test]
fn s17_wal_that_was_forged_with_all_its_checksums_is_not_replayed_where_signatures_are_asked_for() {
    let letters = Letters::start();
    let scene = &letters.scene;
    let honest = letters.restored(&scene.asking(&LATEST));
    assert_eq!(honest.split('|').filter(|body| body.as_bytes() == TRUE_TEXT).count(), 3, "{honest}");

    // PostgreSQL's own checksum of a record is of the same kind: nothing but a signature tells.
    assert_eq!(forge(&letters.object), 3);
    let forged = letters.restored(&LATEST);
    assert!(forged != honest && forged.ends_with("the rent to the landlord"), "{forged}");
    letters.assert_refused(&[NOT_SIGNED]);
}

#[test]
fn s17_wal_of_somebody_who_has_no_key_or_another_one_is_not_replayed() {
    let letters = Letters::start();
    let (scene, archived) = (&letters.scene, &letters.scene.archived);
    assert_eq!(letters.get(&[]).code, Some(0));
    let pushed = letters.place.join(&letters.segment);
    std::fs::rename(letters.place.join("segment"), &pushed).unwrap();
    let pushed = pushed.display().to_string();
    let other_key = archived.cluster.server_directory("other-keys").join("signer").display().to_string();
    archived.run_program_well(&["key", "new", "--signing", "--output", &other_key]);
    let push = ["wal", "push", &pushed, "--source", "main"];
    for (flags, cause) in
        [(&[][..], "it is not signed"), (&["--sign-key", other_key.as_str()], "none of the given signers")]
    {
        std::fs::remove_file(&letters.object).unwrap();
        archived.run_well(&[&push, flags].concat());
        letters.assert_refused(&[cause]);
        let listed = archived.run(&scene.asking(&["wal", "list"]));
        assert!(listed.stdout.contains("DAMAGED") && listed.stdout.contains(cause), "{listed:?}");
    }
    // Its own server does not take it for archived either.
    archived
        .run(&[&push[..], &scene.asking(&["--sign-key", &scene.sign_key])].concat())
        .assert_refused(40, &["signers"]);
    std::fs::remove_file(&letters.object).unwrap();
    archived.run_well(&[&push[..], &scene.asking(&["--sign-key", &scene.sign_key])].concat());
    letters.restored(&scene.asking(&LATEST));
}

#[test]
fn s17_wal_in_an_encrypted_copy_is_still_signed_and_who_has_the_public_key_alone_forges_none() {
    let letters = Letters::start();
    let (scene, archived) = (&letters.scene, &letters.scene.archived);
    let identity = archived.cluster.server_directory("readers").join("identity").display().to_string();
    let recipient = archived.run_program_well(&["key", "new", "--output", &identity, "--json"]).json();
    let recipient = recipient["recipient"].as_str().unwrap();
    let copy = archived.target("encrypted");
    let to = copy.display().to_string();
    archived.run_well(&scene.asking(&[
        "copy",
        "main",
        "--to",
        &to,
        "--recipient",
        recipient,
        "--sign-key",
        &scene.sign_key,
    ]));
    let place = letters.place.join(&letters.segment).display().to_string();
    let get = ["wal", "get", &letters.segment, &place, "--source", "main", "--repo", &to, "--identity", &identity];
    archived.run_program_well(&scene.asking(&get));

    let object = copy.join(letters.object.strip_prefix(&archived.repo).unwrap());
    std::fs::remove_file(object).unwrap();
    let push = ["wal", "push", &place, "--source", "main", "--repo", &to, "--recipient", recipient];
    archived.run_program_well(&push);
    archived.run_program_well(&get);
    let refused = run_program(&archived.cluster.server, PROGRAM, &scene.asking(&get));
    refused.assert_refused(126, &["it is not signed"]);
}
