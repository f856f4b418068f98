//! Heads as hosts sign them and readers trust them, and what somebody does to a repository who has no key.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;
use crate::catalog::{SetState, list_sets, newest_set, read_manifest};
use crate::encryption::{KeySources, Keys, new_sign_key};
use crate::format::manifest::Manifest;
use crate::format::manifest::tests::sample;
use crate::storage::open_storage;

const FIRST: &str = "20261121-201530F";
const SECOND: &str = "20261122-201530F";
const THIRD: &str = "20261123-201530F";

/// A directory with a repository, keys, and what is remembered.
struct Scene {
    work: tempfile::TempDir,
}

/// Who has which keys, and what memory.
#[derive(Clone, Copy, Default)]
struct Who<'a> {
    signs_with: Option<&'a str>,
    asks_for: Option<&'a str>,
    remembers: Option<&'a str>,
}

const HOST: Who<'static> = Who { signs_with: Some("host"), asks_for: None, remembers: Some("memory") };
const READER: Who<'static> = Who { signs_with: None, asks_for: Some("host"), remembers: None };

impl Scene {
    fn new() -> Self {
        let scene = Scene { work: tempfile::tempdir().unwrap() };
        Repository::open_or_create(&scene.path("repo").display().to_string()).unwrap();
        scene.make_key("host");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn make_key(&self, name: &str) {
        let (secret, public) = new_sign_key().unwrap();
        std::fs::write(self.path(name), secret.text()).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(self.path(&format!("{name}.pub")), public).unwrap();
    }

    fn open(&self, who: Who<'_>) -> Repository {
        let sources = KeySources {
            sign_key_file: who.signs_with.map(|name| self.path(name)),
            signers: who.asks_for.iter().map(|name| self.path(&format!("{name}.pub")).display().to_string()).collect(),
            known_heads: who.remembers.map(|name| self.path(name)),
            ..KeySources::default()
        };
        let store = open_storage(&self.path("repo").display().to_string()).unwrap();
        Repository::over(store).with_keys(Arc::new(Keys::load(&sources).unwrap()))
    }

    /// A set comes, as its commit does it.
    fn commit(&self, who: Who<'_>, label: &str) {
        commit(&self.open(who), label).unwrap();
    }

    fn manifest(&self, label: &str) -> PathBuf {
        self.path("repo/main/sets").join(label).join("manifest.json")
    }

    /// Labels of the sets, those that may be restored, and causes of the others.
    fn sets(&self, who: Who<'_>) -> Vec<(String, Option<String>)> {
        let cause = |state: &SetState| match state {
            SetState::Complete(_) => None,
            SetState::Damaged(error) => Some(error.message()),
            other => Some(format!("{other:?}")),
        };
        let sets = list_sets(&self.open(who), &source()).unwrap();
        sets.iter().map(|set| (set.label.to_string(), cause(&set.state))).collect()
    }
}

fn source() -> SourceName {
    "main".parse().unwrap()
}

fn bytes_of(label: &str) -> Vec<u8> {
    let mut manifest = sample();
    manifest.label = label.parse().unwrap();
    manifest.to_bytes().unwrap()
}

fn commit(repository: &Repository, label: &str) -> Result<()> {
    let (bytes, label): (_, BackupLabel) = (bytes_of(label), label.parse().unwrap());
    let name = format!("{}/{MANIFEST_NAME}", set_prefix(&source(), &label));
    assert!(repository.storage().put_new(&name, &bytes).unwrap());
    sign_set(repository, &source(), &label, &bytes)
}

fn copy_directory(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn who_begins_to_sign_takes_what_is_there_and_readers_take_nothing_else() {
    let scene = Scene::new();
    scene.commit(Who::default(), FIRST);
    assert!(scene.sets(READER)[0].1.as_ref().unwrap().contains("not signed"), "{:?}", scene.sets(READER));
    scene.commit(HOST, SECOND);
    scene.commit(HOST, THIRD);
    assert!(scene.sets(READER).iter().all(|(_, cause)| cause.is_none()), "{:?}", scene.sets(READER));
    let newest = newest_head(&scene.open(READER), &source()).unwrap().unwrap();
    assert_eq!((newest.head.counter, newest.head.sets.len()), (2, 3));

    // A set that somebody put there without the key.
    let planted = "20261124-201530F";
    scene.commit(Who::default(), planted);
    let (label, cause) = scene.sets(READER).pop().unwrap();
    assert!(label == planted && cause.unwrap().contains("head 2 does not list it"));
    let error = read_manifest(&scene.open(HOST), &source(), &planted.parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage);
    // A host that signs the next one does not sign the planted one with it.
    scene.commit(HOST, "20261125-201530F");
    assert!(scene.sets(READER).iter().any(|(label, cause)| label == planted && cause.is_some()));

    let change = sign_all(&scene.open(HOST), &source(), false).unwrap();
    assert_eq!(change, HeadChange { added: vec![planted.parse().unwrap()], ..HeadChange::default() });
    assert!(scene.sets(READER).iter().any(|(_, cause)| cause.is_some()), "it was only looked at");
    assert_eq!(sign_all(&scene.open(HOST), &source(), true).unwrap().counter, Some(4));
    assert!(scene.sets(READER).iter().all(|(_, cause)| cause.is_none()));
    let refused = refuse_unsigned(&scene.open(READER), &source()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration);
    refuse_unsigned(&scene.open(HOST), &source()).unwrap();
}

#[test]
fn s16_a_manifest_that_was_replaced_is_refused() {
    let scene = Scene::new();
    scene.commit(HOST, FIRST);
    let mut other = Manifest::from_bytes(&bytes_of(FIRST), "m").unwrap();
    other.file_count += 1;
    std::fs::write(scene.manifest(FIRST), other.to_bytes().unwrap()).unwrap();
    assert!(scene.sets(READER)[0].1.as_ref().unwrap().contains("it was changed"));
    assert_eq!(sign_all(&scene.open(HOST), &source(), false).unwrap().changed, [FIRST.parse().unwrap()]);
}

#[test]
fn f55_s18_a_repository_that_went_back_is_noticed_by_who_has_seen_more() {
    let scene = Scene::new();
    scene.commit(HOST, FIRST);
    copy_directory(&scene.path("repo"), &scene.path("old"));
    scene.commit(HOST, SECOND);
    let reader = Who { remembers: Some("reader's"), ..READER };
    assert_eq!(scene.sets(reader).len(), 2);

    let put_back = || {
        std::fs::remove_dir_all(scene.path("repo")).unwrap();
        copy_directory(&scene.path("old"), &scene.path("repo"));
    };
    put_back();
    for who in [HOST, reader] {
        let error = list_sets(&scene.open(who), &source()).unwrap_err();
        assert!(error.message().contains("head 2 was there, and now head 1 is the newest"), "{error:?}");
    }
    assert_eq!(scene.sets(READER).len(), 1, "who remembers nothing cannot know");
    // No backup goes on from there in silence.
    let error = commit(&scene.open(HOST), THIRD).unwrap_err();
    assert!(error.message().contains("went back"), "{error:?}");
    // The same number of heads, or more of them, with another history.
    put_back();
    for label in [SECOND, THIRD] {
        let elsewhere = Who { remembers: Some("elsewhere"), ..HOST };
        scene.commit(elsewhere, label);
        let error = list_sets(&scene.open(reader), &source()).unwrap_err();
        assert!(error.message().contains("its history is another one"), "{error:?}");
    }
    std::fs::remove_dir_all(scene.path("repo/main/heads")).unwrap();
    let error = list_sets(&scene.open(reader), &source()).unwrap_err();
    assert!(error.message().contains("now there is none"), "{error:?}");
}

#[test]
fn s18_a_newest_set_that_was_hidden_is_not_replaced_by_an_older_one() {
    let scene = Scene::new();
    scene.commit(HOST, FIRST);
    scene.commit(HOST, SECOND);
    std::fs::remove_dir_all(scene.manifest(SECOND).parent().unwrap()).unwrap();
    let error = newest_set(&scene.open(READER), &source()).unwrap_err();
    assert!(error.message().contains("head 2 lists it, and it is not there"), "{error:?}");
    assert_eq!(newest_set(&scene.open(Who::default()), &source()).unwrap().as_str(), FIRST);
    sign_without(&scene.open(HOST), &source(), &[SECOND.parse().unwrap()]).unwrap();
    assert_eq!(newest_set(&scene.open(READER), &source()).unwrap().as_str(), FIRST);
    let newest = newest_head(&scene.open(READER), &source()).unwrap().unwrap();
    assert_eq!(newest.head.counter, 3);
}

#[test]
fn s16_heads_of_others_and_changed_ones_are_refused() {
    let scene = Scene::new();
    scene.make_key("other");
    scene.commit(HOST, FIRST);
    scene.commit(HOST, SECOND);
    let place = scene.path("repo/main/heads/0000000002.json");
    let signed = std::fs::read_to_string(&place).unwrap();
    let head = Head::from_bytes(signed.as_bytes(), "h").unwrap();

    let other = scene.open(Who { signs_with: Some("other"), ..Who::default() });
    let forged = other
        .keys()
        .signing()
        .sign(Signed::Head, |signer| Head { signer: signer.into(), ..head.clone() }.signed_bytes())
        .unwrap();
    let forged = Head { signer: forged.0, signature: forged.1, ..head.clone() };
    let borrowed = Head { signer: head.signer.clone(), ..forged.clone() };
    let shorter = Head { sets: head.sets[..1].to_vec(), ..head.clone() };
    for (bad, cause) in [
        (forged, "none of the given signers"),
        (borrowed, "of something else"),
        (shorter, "of something else"),
        (Head { signature: "rubbish".into(), ..head }, "does not read"),
    ] {
        std::fs::write(&place, bad.to_bytes().unwrap()).unwrap();
        let error = list_sets(&scene.open(READER), &source()).unwrap_err();
        assert!(error.message().contains(cause), "{cause}: {error:?}");
    }
    // Another signer who counts is as good.
    std::fs::write(&place, &signed).unwrap();
    std::fs::write(scene.path("both.pub"), {
        let public = |name: &str| std::fs::read_to_string(scene.path(name)).unwrap();
        format!("# the hosts\n{}\n{}\n", public("other.pub"), public("host.pub"))
    })
    .unwrap();
    let both = Who { signs_with: Some("other"), asks_for: Some("both"), ..Who::default() };
    scene.commit(both, THIRD);
    assert_eq!(scene.sets(Who { signs_with: None, ..both }).len(), 3);
}

#[test]
fn several_hosts_at_once_sign_all_their_sets() {
    let scene = Scene::new();
    std::thread::scope(|scope| {
        for host in 0..4u8 {
            let scene = &scene;
            scope.spawn(move || {
                for number in 0..5u8 {
                    let who = Who { remembers: None, ..HOST };
                    scene.commit(who, &format!("202611{:02}-0000{host:02}F", number + 10));
                }
            });
        }
    });
    let newest = newest_head(&scene.open(READER), &source()).unwrap().unwrap();
    assert_eq!(newest.head.sets.len(), 20);
    assert!(scene.sets(READER).iter().all(|(_, cause)| cause.is_none()));
}

#[test]
fn keys_that_cannot_sign_are_refused_and_never_shown() {
    let scene = Scene::new();
    let secret = std::fs::read_to_string(scene.path("host")).unwrap();
    let load = |sources: KeySources| Keys::load(&sources).err().unwrap();
    let sign_key = |name: &str| KeySources { sign_key_file: Some(scene.path(name)), ..KeySources::default() };
    std::fs::set_permissions(scene.path("host"), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(load(sign_key("host")).message().contains("others may read it"));
    let signers = |text: &str| KeySources { signers: vec![text.to_owned()], ..KeySources::default() };
    for error in [
        load(signers("ssh-ed25519 AAAA")),
        load(signers("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7")),
        load(signers(scene.path("nowhere.pub").to_str().unwrap())),
        load(signers(scene.path("host").to_str().unwrap())),
    ] {
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(secret.lines().skip(1).take(2).all(|line| !format!("{error:?}").contains(line)));
    }
}

/// Anybody can check a head with what comes with OpenSSH.
#[test]
fn ssh_keygen_agrees() {
    if Command::new("ssh-keygen").arg("-?").stderr(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: there is no ssh-keygen: signatures are only checked by the library that makes them");
        return;
    }
    let scene = Scene::new();
    scene.commit(HOST, FIRST);
    let head = newest_head(&scene.open(READER), &source()).unwrap().unwrap().head;
    std::fs::write(scene.path("content"), head.signed_bytes().unwrap()).unwrap();
    std::fs::write(scene.path("signature"), &head.signature).unwrap();
    std::fs::write(scene.path("signers"), format!("host {}\n", head.signer)).unwrap();
    let check = |content: &str| {
        let words = ["-Y", "verify", "-n", "pagehaul-head", "-I", "host", "-f", "signers", "-s", "signature"];
        let mut command = Command::new("ssh-keygen");
        let content = std::fs::File::open(scene.path(content)).unwrap();
        command.args(words).current_dir(scene.work.path()).stdin(content).output().unwrap()
    };
    let good = check("content");
    assert!(good.status.success(), "{good:?}");
    assert!(!check("signers").status.success());
    // And a pair of its own signs.
    let mut command = Command::new("ssh-keygen");
    let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f", "of-ssh"]).current_dir(scene.work.path()).output();
    assert!(made.unwrap().status.success());
    let of_ssh = Who { signs_with: Some("of-ssh"), asks_for: Some("host"), ..Who::default() };
    scene.commit(of_ssh, SECOND);
    assert_eq!(scene.sets(Who { asks_for: Some("of-ssh"), ..Who::default() }).len(), 2);
}
