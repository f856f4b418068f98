//! Objects that were encrypted, through the storage trait, and what somebody can do to them who has no key.

use std::path::Path;
use std::sync::Arc;

use age::secrecy::ExposeSecret;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::format::encrypted::{CHUNK_BYTES, EncryptedHeader, TAG_BYTES};
use crate::storage::{ObjectReader, Storage, open_storage};

const NAME: &str = "main/sets/20261121-201530F/stripe-0000.phs";
const OTHER: &str = "main/sets/20261121-201530F/stripe-0001.phs";

struct Scene {
    directory: tempfile::TempDir,
    identity: age::x25519::Identity,
}

impl Scene {
    fn new() -> Self {
        Scene { directory: tempfile::tempdir().unwrap(), identity: age::x25519::Identity::generate() }
    }

    fn secret_file(&self, name: &str, text: &str) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn keys(&self, writes: bool, reads: bool) -> Arc<Keys> {
        let recipients = if writes { vec![self.identity.to_public().to_string()] } else { Vec::new() };
        let file = self.secret_file("identity", self.identity.to_string().expose_secret());
        let identity_files = if reads { vec![file] } else { Vec::new() };
        Arc::new(Keys::load(&KeySources { recipients, identity_files, ..KeySources::default() }).unwrap())
    }

    fn root(&self) -> std::path::PathBuf {
        self.directory.path().join("repo")
    }

    fn storage(&self, keys: Arc<Keys>) -> EncryptedStorage {
        let stored: Arc<dyn Storage> = open_storage(self.root().to_str().unwrap()).unwrap().into();
        EncryptedStorage::new(Arc::clone(&stored), keys, stored)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root().join(name)
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn write(storage: &dyn Storage, name: &str, content: &[u8]) {
    let mut object = storage.create(name, 0).unwrap();
    for piece in content.chunks(100_000) {
        object.append(piece).unwrap();
    }
    assert_eq!(object.finish().unwrap(), content.len() as u64);
}

fn open(storage: &dyn Storage, name: &str) -> Box<dyn ObjectReader> {
    storage.open(name).unwrap().unwrap()
}

fn read(object: &dyn ObjectReader, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0u8; length];
    object.read_at(&mut bytes, offset).map(|()| bytes)
}

fn read_all(storage: &dyn Storage, name: &str) -> Result<Vec<u8>, Error> {
    let object = storage.open(name)?.unwrap();
    read(object.as_ref(), 0, object.size_bytes() as usize)
}

fn header_bytes(path: &Path) -> usize {
    EncryptedHeader::announced_bytes(&std::fs::read(path).unwrap()).unwrap().unwrap()
}

#[test]
fn what_is_written_reads_back_at_every_size_and_place() {
    let scene = Scene::new();
    let (writes, reads) = (scene.storage(scene.keys(true, false)), scene.storage(scene.keys(false, true)));
    for length in [0, 1, 511, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 30 * CHUNK_BYTES + 77] {
        let wanted = content(length);
        write(&writes, NAME, &wanted);
        let object = open(&reads, NAME);
        assert_eq!(object.size_bytes(), length as u64);
        assert_eq!(read(object.as_ref(), 0, length).unwrap(), wanted);
        let edges = [0, 1, CHUNK_BYTES - 3, CHUNK_BYTES, 2 * CHUNK_BYTES + 5, length.saturating_sub(9)];
        for start in edges.into_iter().filter(|start| *start <= length) {
            for take in [0, 1, 8, CHUNK_BYTES, 26 * CHUNK_BYTES] {
                let take = take.min(length - start);
                assert_eq!(read(object.as_ref(), start as u64, take).unwrap(), wanted[start..start + take]);
            }
        }
        assert_eq!(read(object.as_ref(), 1, length).unwrap_err().kind(), ErrorKind::Damage, "behind the end");
        std::fs::remove_file(scene.path(NAME)).unwrap();
    }
}

#[test]
fn s13_nothing_of_the_content_is_in_the_store_and_no_two_objects_are_alike() {
    let scene = Scene::new();
    let writes = scene.storage(scene.keys(true, false));
    let canary = b"CANARY-4711-in-a-row-of-a-table".repeat(5000);
    write(&writes, NAME, &canary);
    write(&writes, OTHER, &canary);
    let stored = [NAME, OTHER].map(|name| std::fs::read(scene.path(name)).unwrap());
    for object in &stored {
        assert!(!object.windows(12).any(|window| canary.windows(12).take(31).any(|part| part == window)));
    }
    let chunks = stored.each_ref().map(|object| &object[header_bytes(&scene.path(NAME))..][..CHUNK_BYTES]);
    assert_ne!(chunks[0], chunks[1], "the same content under the same data key");
}

#[test]
fn f30_who_has_only_public_keys_reads_nothing_back_and_is_told_so() {
    let scene = Scene::new();
    write(&scene.storage(scene.keys(true, false)), NAME, &content(1000));
    for keys in [scene.keys(true, false), scene.keys(false, false)] {
        let storage = scene.storage(keys);
        assert_eq!(open(&storage, NAME).size_bytes(), 1000, "sizes are known");
        let error = read_all(&storage, NAME).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.message().contains("no key was given"), "{error}");
        assert!(error.hint_text().unwrap().contains("--identity"));
    }
}

#[test]
fn s15_a_wrong_key_is_called_so_and_damage_is_not() {
    let scene = Scene::new();
    let writes = scene.storage(scene.keys(true, false));
    write(&writes, NAME, &content(1000));
    let other = Scene::new();
    let wrong = scene.storage(other.keys(false, true));
    let error = read_all(&wrong, NAME).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("wrong key"), "{error}");
    let mut bytes = std::fs::read(scene.path(NAME)).unwrap();
    let header = header_bytes(&scene.path(NAME));
    bytes[header + 500] ^= 1;
    std::fs::write(scene.path(NAME), bytes).unwrap();
    let error = read_all(&scene.storage(scene.keys(false, true)), NAME).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage);
    assert!(error.message().contains("chunk 0") && error.message().contains(NAME), "{error}");
}

#[test]
fn s14_every_flipped_bit_of_header_and_chunks_is_refused() {
    let scene = Scene::new();
    write(&scene.storage(scene.keys(true, false)), NAME, &content(300));
    let good = std::fs::read(scene.path(NAME)).unwrap();
    let reads = scene.storage(scene.keys(false, true));
    let wanted = read_all(&reads, NAME).unwrap();
    let end = good.len() - 8;
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(scene.path(NAME), bad).unwrap();
        match read_all(&reads, NAME) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damage, "bit {bit}: {error}"),
            // The magic is what tells an encrypted object: without it the bytes are nobody's, and the set's key is missed.
            Ok(bytes) if bit < 64 => assert!(bytes != wanted && open(&reads, NAME).key_id().is_none()),
            Ok(bytes) => assert!(bit / 8 >= end && bytes == wanted, "bit {bit}"),
        }
    }
}

#[test]
fn s13_chunks_that_were_swapped_repeated_cut_or_added_are_refused() {
    let scene = Scene::new();
    let wanted = content(4 * CHUNK_BYTES + 100);
    write(&scene.storage(scene.keys(true, false)), NAME, &wanted);
    let good = std::fs::read(scene.path(NAME)).unwrap();
    let (header, whole) = (header_bytes(&scene.path(NAME)), CHUNK_BYTES + TAG_BYTES);
    let chunk = |number: usize| header + number * whole..header + (number + 1) * whole;
    let reads = scene.storage(scene.keys(false, true));
    let mut swapped = good.clone();
    swapped[chunk(1)].copy_from_slice(&good[chunk(2)]);
    swapped[chunk(2)].copy_from_slice(&good[chunk(1)]);
    let mut repeated = good.clone();
    repeated.splice(chunk(1).start..chunk(1).start, good[chunk(1)].to_vec());
    let without = |range: std::ops::Range<usize>| {
        let mut bytes = good.clone();
        bytes.drain(range);
        bytes
    };
    let bad = [
        swapped,
        repeated,
        without(chunk(0)),
        without(chunk(3)),
        without(chunk(3).end..good.len() - 8),
        good[..chunk(3).end].to_vec(),
        good[..chunk(2).end].to_vec(),
        good[..good.len() - 9].to_vec(),
    ];
    for (number, bytes) in bad.iter().enumerate() {
        std::fs::write(scene.path(NAME), bytes).unwrap();
        match read_all(&reads, NAME) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damage, "{number}: {error}"),
            Ok(_) => panic!("{number} was read"),
        }
    }
    std::fs::write(scene.path(NAME), &good).unwrap();
    assert_eq!(read_all(&reads, NAME).unwrap(), wanted);
}

#[test]
fn s14_an_object_under_another_ones_name_is_refused() {
    let scene = Scene::new();
    write(&scene.storage(scene.keys(true, false)), NAME, &content(300));
    std::fs::rename(scene.path(NAME), scene.path(OTHER)).unwrap();
    let error = scene.storage(scene.keys(false, true)).open(OTHER).err().unwrap();
    assert!(error.kind() == ErrorKind::Damage && error.message().contains("swapped or renamed"), "{error}");
    // Whoever writes the other name into its header has changed the object's key.
    let old = std::fs::read(scene.path(OTHER)).unwrap();
    let header = header_bytes(&scene.path(OTHER));
    let forged = EncryptedHeader { name: OTHER.to_owned(), ..EncryptedHeader::from_bytes(&old[..header]).unwrap() };
    let forged = [forged.to_bytes().unwrap(), old[header..].to_vec()].concat();
    std::fs::write(scene.path(OTHER), forged).unwrap();
    let error = read_all(&scene.storage(scene.keys(false, true)), OTHER).unwrap_err();
    assert!(error.kind() == ErrorKind::Damage && error.message().contains("chunk 0"), "{error}");
}

#[test]
fn what_is_shown_is_read_without_a_key_and_nothing_else() {
    let scene = Scene::new();
    let storage = scene.storage(scene.keys(true, false));
    let mut object = storage.stage(NAME, 0).unwrap();
    object.append_shown(b"header").unwrap();
    object.append(&content(200_000)).unwrap();
    object.append_shown(b"table").unwrap();
    assert!(object.commit().unwrap());
    let blind = scene.storage(scene.keys(false, false));
    let object = open(&blind, NAME);
    assert_eq!(object.size_bytes(), 200_011);
    assert_eq!(read(object.as_ref(), 0, 6).unwrap(), b"header");
    assert_eq!(read(object.as_ref(), 200_006, 5).unwrap(), b"table");
    for hidden in [(0, 7), (6, 1), (200_005, 2)] {
        assert_eq!(read(object.as_ref(), hidden.0, hidden.1).unwrap_err().kind(), ErrorKind::Configuration);
    }
    let all = read_all(&scene.storage(scene.keys(false, true)), NAME).unwrap();
    assert_eq!(all, [&b"header"[..], &content(200_000), b"table"].concat());
}

#[test]
fn what_is_not_encrypted_reads_as_before_unless_that_is_refused() {
    let scene = Scene::new();
    let plain = content(10_000);
    write(&scene.storage(scene.keys(false, false)), NAME, &plain);
    assert_eq!(std::fs::read(scene.path(NAME)).unwrap(), plain);
    assert_eq!(read_all(&scene.storage(scene.keys(true, true)), NAME).unwrap(), plain);
    let strict = Keys::load(&KeySources { require_encryption: true, ..KeySources::default() }).unwrap();
    let strict = scene.storage(Arc::new(strict));
    let error = strict.open(NAME).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damage);
    // Which segments follow which is no secret, and an old history is not written anew.
    let history = "main/wal/00000002.history.phw";
    write(&scene.storage(scene.keys(false, false)), history, &plain);
    assert_eq!(read_all(&strict, history).unwrap(), plain);
}

#[test]
fn a_passphrase_writes_and_reads_and_another_one_is_called_wrong() {
    let scene = Scene::new();
    let keys = |file: std::path::PathBuf| {
        Arc::new(Keys::load(&KeySources { passphrase_file: Some(file), ..KeySources::default() }).unwrap())
    };
    let right = scene.secret_file("right", "correct horse\n");
    write(&scene.storage(keys(right.clone())), NAME, b"content");
    assert_eq!(read_all(&scene.storage(keys(right)), NAME).unwrap(), b"content");
    let wrong = keys(scene.secret_file("wrong", "battery staple\n"));
    let error = read_all(&scene.storage(wrong), NAME).unwrap_err();
    assert!(error.kind() == ErrorKind::Configuration && error.message().contains("wrong"), "{error}");
}

#[test]
fn a_passphrase_beside_a_public_key_writes_and_reads_too_unless_it_only_reads() {
    let scene = Scene::new();
    let file = scene.secret_file("passphrase", "correct horse\n");
    let identity = scene.secret_file("identity", scene.identity.to_string().expose_secret());
    let load = |change: &dyn Fn(&mut KeySources)| {
        let mut sources = KeySources::default();
        change(&mut sources);
        Arc::new(Keys::load(&sources).unwrap())
    };
    let with_passphrase = load(&|sources| sources.passphrase_file = Some(file.clone()));
    let with_identity = load(&|sources| sources.identity_files = vec![identity.clone()]);
    for (passphrase_only_reads, name) in [(false, "main/both.phs"), (true, "main/public.phs")] {
        let writer = load(&|sources| {
            sources.recipients = vec![scene.identity.to_public().to_string()];
            sources.passphrase_file = Some(file.clone());
            sources.passphrase_only_reads = passphrase_only_reads;
        });
        write(&scene.storage(writer), name, b"content");
        assert_eq!(read_all(&scene.storage(Arc::clone(&with_identity)), name).unwrap(), b"content");
        let read = read_all(&scene.storage(Arc::clone(&with_passphrase)), name);
        assert_eq!(read.is_ok(), !passphrase_only_reads, "{name}");
    }
}

/// Who writes an object says how much work its passphrase takes: a hostile one may say a year's.
#[test]
fn s12_a_passphrase_takes_no_more_work_than_a_bound_allows() {
    let scene = Scene::new();
    let file = scene.secret_file("passphrase", "correct horse\n");
    let keys =
        || Arc::new(Keys::load(&KeySources { passphrase_file: Some(file.clone()), ..KeySources::default() }).unwrap());
    write(&scene.storage(keys()), NAME, b"content");
    let mut bytes = std::fs::read(scene.path(NAME)).unwrap();
    let numbers = b" 19456 10 1\n";
    let at = bytes.windows(numbers.len()).position(|window| window == numbers).unwrap();
    bytes.splice(at..at + numbers.len(), *b" 1000000000 10 1\n");
    // The header's own size and checksum are not what refuses it.
    let header_len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize + 5;
    bytes[12..16].copy_from_slice(&(header_len as u32).to_le_bytes());
    let checksum = crate::format::checksum::crc32c(&bytes[..header_len - 4]);
    bytes[header_len - 4..header_len].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(scene.path(NAME), bytes).unwrap();
    let error = read_all(&scene.storage(keys()), NAME).unwrap_err();
    assert!(error.kind() == ErrorKind::Damage && error.message().contains("more work"), "{error}");
}

#[test]
fn s11_key_files_that_others_may_read_or_that_hold_no_key_are_refused_and_never_shown() {
    let scene = Scene::new();
    let load = |file: &Path| {
        Keys::load(&KeySources { identity_files: vec![file.to_owned()], ..KeySources::default() }).err().unwrap()
    };
    let secret = scene.identity.to_string();
    let open_file = scene.directory.path().join("open");
    std::fs::write(&open_file, secret.expose_secret()).unwrap();
    let error = load(&open_file);
    assert!(error.kind() == ErrorKind::Configuration && error.message().contains("open"), "{error}");
    let mut garbled = secret.expose_secret().to_owned();
    // One other character is enough for its checksum.
    let last = if garbled.pop() == Some('Q') { 'P' } else { 'Q' };
    garbled.push(last);
    for text in [garbled.as_str(), "no key at all", "", "# only a remark\n"] {
        let error = load(&scene.secret_file("garbled", text));
        assert_eq!(error.kind(), ErrorKind::Configuration);
        let said = format!("{error} {:?}", error.hint_text());
        assert!(text.len() < 20 || !said.contains(&text[20..40]), "a secret in {said}");
    }
    // A secret key where a public one belongs is not repeated either.
    let sources = KeySources { recipients: vec![secret.expose_secret().to_owned()], ..KeySources::default() };
    let error = Keys::load(&sources).err().unwrap();
    assert!(!format!("{error}").contains(&secret.expose_secret()[20..40]), "{error}");
}

#[test]
fn s26_a_process_with_secrets_leaves_no_core_behind() {
    keys::hide_memory();
    assert_eq!(rustix::process::dumpable_behavior().unwrap(), rustix::process::DumpableBehavior::NotDumpable);
}

#[test]
fn keys_of_which_a_file_has_changed_are_other_keys() {
    let scene = Scene::new();
    let written_out = "ssh-ed25519 AAAA".to_owned();
    let file = |name: &str| scene.secret_file(name, "before");
    let sources = KeySources {
        recipients_files: vec![file("recipients")],
        identity_files: vec![file("identity")],
        sign_key_file: Some(file("sign-key")),
        signers: vec![written_out.clone(), file("signers").display().to_string()],
        ..KeySources::default()
    };
    let mut before = sources.absolute().unwrap();
    assert_eq!(before.signers[0], written_out);
    let flags = before.reading_flags();
    assert!(flags.windows(2).any(|pair| pair == ["--signer", written_out.as_str()]), "{flags:?}");
    for name in ["recipients", "identity", "sign-key", "signers"] {
        assert_eq!(sources.absolute().unwrap(), before);
        scene.secret_file(name, "longer than before");
        let after = sources.absolute().unwrap();
        assert_ne!(after, before, "{name}");
        before = after;
    }
}
