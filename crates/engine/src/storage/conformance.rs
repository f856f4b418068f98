//! One suite for every store: a new store is done when it passes.

use super::*;

pub(super) fn check_store(storage: &dyn Storage) {
    let mut writer = storage.create("a/b/large", 0).unwrap();
    let mut expected = Vec::new();
    for piece in [1usize, 4095, 4096, 3_000_000, 0, 17, 2 * 1024 * 1024, 5] {
        let bytes: Vec<u8> = (0..piece).map(|i| (i * 31 % 251) as u8).collect();
        writer.append(&bytes).unwrap();
        expected.extend(bytes);
    }
    assert_eq!(writer.finish().unwrap(), expected.len() as u64);
    assert!(storage.create("a/b/large", 0).is_err(), "an object is never rewritten");
    let reader = storage.open("a/b/large").unwrap().unwrap();
    assert_eq!(reader.size_bytes(), expected.len() as u64);
    let mut bytes = vec![0u8; 1_000_001];
    reader.read_at(&mut bytes, 12_345).unwrap();
    assert!(bytes == expected[12_345..12_345 + bytes.len()]);
    let error = reader.read_at(&mut bytes, reader.size_bytes() - 5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage, "a range that is too short");

    assert!(storage.put_new("a/small", b"first").unwrap());
    assert!(!storage.put_new("a/small", b"second").unwrap(), "the loser is told");
    assert_eq!(storage.read_small("a/small", 100).unwrap().unwrap(), b"first");
    assert_eq!(storage.read_small("a/small", 4).unwrap_err().kind(), ErrorKind::Damage);
    assert!(storage.read_small("a/none", 100).unwrap().is_none());

    check_buffers(storage);
    check_staging(storage);
    assert_eq!(storage.list("a").unwrap(), ["b", "small"]);
    assert_eq!(storage.list("nowhere").unwrap(), [""; 0]);

    let lease = storage.lease("a/lease").unwrap();
    assert!(lease.is_some());
    assert!(storage.lease("a/lease").unwrap().is_none(), "held");
    assert!(storage.is_leased("a/lease").unwrap());
    assert!(!storage.is_leased("a/no-lease").unwrap());
    drop(lease);
    assert!(!storage.is_leased("a/lease").unwrap());
    assert!(storage.lease("a/lease").unwrap().is_some(), "given back");

    storage.delete("a/small").unwrap();
    storage.delete("a/small").unwrap();
    assert!(storage.open("a/small").unwrap().is_none());
    storage.create("a/sets/one/object", 0).unwrap().finish().unwrap();
    storage.delete("a/sets/one/object").unwrap();
    storage.remove_prefix("a/sets/one").unwrap();
    assert!(storage.remove_prefix("a/b").is_err(), "not empty");
}

/// What lies in a buffer is what is stored, however full it is, and whatever comes into it afterwards.
fn check_buffers(storage: &dyn Storage) {
    const BUFFER_BYTES: usize = 1 << 20;
    let mut writer = storage.create("a/b/buffers", 0).unwrap();
    let mut memory = AlignedBytes::new(BUFFER_BYTES).unwrap();
    let mut expected = vec![1u8; 512];
    writer.append(&expected).unwrap();
    for number in 0..24u8 {
        memory.iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at % 247) as u8 ^ number);
        let used = if number % 7 < 5 { BUFFER_BYTES } else { BUFFER_BYTES / 3 };
        let head = [number; HEAD_BYTES];
        let middle = used / 2 - usize::from(number);
        let pieces = [HeadedBytes { head, bytes: 0..middle }, HeadedBytes { head, bytes: middle..used }];
        let bytes = pieces.iter().flat_map(|piece| [&piece.head[..], &memory[piece.bytes.clone()]]);
        bytes.for_each(|bytes| expected.extend(bytes));
        writer.append_from(&mut memory, &pieces).unwrap();
        assert_eq!(memory.len(), BUFFER_BYTES);
        if number % 9 == 8 {
            writer.append_from(&mut memory, &[]).unwrap();
            writer.append(b"between").unwrap();
            expected.extend(b"between");
        }
    }
    assert_eq!(writer.finish().unwrap(), expected.len() as u64);
    let reader = storage.open("a/b/buffers").unwrap().unwrap();
    let mut bytes = vec![0u8; expected.len()];
    reader.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == expected);
}

fn check_staging(storage: &dyn Storage) {
    let stage = |bytes: &[u8]| {
        let mut staged = storage.stage("staged/one", 0).unwrap();
        staged.append(&bytes[..3]).unwrap();
        staged.append(&bytes[3..]).unwrap();
        staged
    };
    let (first, second) = (stage(b"first"), stage(b"second"));
    assert!(storage.open("staged/one").unwrap().is_none(), "nobody sees it yet");
    assert_eq!(storage.sweep("staged").unwrap(), 0, "it is being written");
    assert!(first.commit().unwrap());
    assert!(!second.commit().unwrap(), "the loser is told");
    storage.make_durable("staged/one").unwrap();
    drop(stage(b"third"));
    assert_eq!(storage.read_small("staged/one", 100).unwrap().unwrap(), b"first");
    assert_eq!(storage.list("staged").unwrap(), ["one"], "nothing is left of the others");
}

#[test]
fn local_directory() {
    let dir = tempfile::tempdir().unwrap();
    check_store(&LocalStorage::new(dir.path()));
}

#[test]
fn memory_file_system_without_direct_writes() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    check_store(&LocalStorage::new(dir.path()));
}

#[test]
fn a_directory_behind_a_throttle() {
    let dir = tempfile::tempdir().unwrap();
    let target = format!("throttle:write=1GB/s,read=500MB/s:{}", dir.path().display());
    check_store(open_storage(&target).unwrap().as_ref());
}
