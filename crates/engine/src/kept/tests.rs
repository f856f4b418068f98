//! Kept files come back byte for byte, or not at all.

use super::*;
use crate::pipeline::CodecSpec;

fn request(name: &str, codec: &str) -> KeepRequest {
    let codec: CodecSpec = codec.parse().unwrap();
    KeepRequest {
        source: "mssql".parse().unwrap(),
        name: name.to_owned(),
        original_path: "/x/sales.bak".to_owned(),
        content_kind: "test".to_owned(),
        original_bytes: 1000,
        frames: FrameSettings { codec, threads: 2, frame_size_bytes: 65536 },
    }
}

/// Content given in parts of 1000 bytes.
fn parts(content: &[u8]) -> impl FnMut(&mut [u8]) -> Result<usize> {
    let mut content = content.to_vec();
    move |buffer| {
        let count = buffer.len().min(1000).min(content.len());
        buffer[..count].copy_from_slice(&content[..count]);
        content.drain(..count);
        Ok(count)
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * at / 977) as u8).collect()
}

#[test]
fn files_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::open_or_create(directory.path().to_str().unwrap()).unwrap();
    for (number, length) in [0, 1, 65_535, 65_536, 65_537, 300_000].into_iter().enumerate() {
        for codec in ["none", "zstd:3", "page:1"] {
            let name = format!("f{number}-{}.bak", codec.replace(':', "-"));
            let report = keep(&repository, &request(&name, codec), &mut parts(&content(length))).unwrap();
            assert_eq!(report.kept.content_bytes, length as u64);
            let kept = kept_file(&repository, &report.kept.source, &name).unwrap();
            let mut back = Vec::new();
            read_content(&repository, &kept, 3, &mut |bytes| {
                back.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            assert!(back == content(length));
            let stored_as = if codec == "page:1" { "zstd:1" } else { codec };
            assert_eq!(kept.compression, stored_as, "a foreign file has no pages of ours");
        }
    }
    let source = "mssql".parse().unwrap();
    assert_eq!(kept_files(&repository, &source).unwrap().len(), 18);
    assert_eq!(kept_counts(&repository).unwrap(), [(source.clone(), 18)]);
    let error = keep(&repository, &request("f1-none.bak", "none"), &mut parts(b"x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(keep(&repository, &request("../x", "none"), &mut parts(b"x")).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(kept_file(&repository, &source, "no").unwrap_err().kind(), ErrorKind::Repository);
    assert!(repository.sources().unwrap().is_empty(), "kept files are no backups of a cluster");
}

#[test]
fn every_damaged_byte_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::open_or_create(directory.path().to_str().unwrap()).unwrap();
    let kept = keep(&repository, &request("a.bak", "zstd:3"), &mut parts(&content(70_000))).unwrap().kept;
    let path = directory.path().join(format!("mssql/files/a.bak-{}.phs", kept.set_id));
    let good = std::fs::read(&path).unwrap();
    for byte in (0..good.len()).step_by(7).chain(good.len() - 100..good.len()) {
        let mut bad = good.clone();
        bad[byte] ^= 0x10;
        std::fs::write(&path, bad).unwrap();
        let error = read_content(&repository, &kept, 1, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damage, "byte {byte}: {error}");
    }
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(read_content(&repository, &kept, 1, &mut |_| Ok(())).is_err());
}

#[test]
fn a_source_that_fails_keeps_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::open_or_create(directory.path().to_str().unwrap()).unwrap();
    let mut calls = 0;
    let mut next = |buffer: &mut [u8]| {
        calls += 1;
        if calls > 3 { Err(Error::new(ErrorKind::Source, "read", "no")) } else { Ok(buffer.len()) }
    };
    assert_eq!(keep(&repository, &request("a.bak", "none"), &mut next).unwrap_err().kind(), ErrorKind::Source);
    assert!(repository.storage().list("mssql/files").unwrap().is_empty());
}

#[test]
fn what_a_dead_run_left_is_in_nobodys_way() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::open_or_create(directory.path().to_str().unwrap()).unwrap();
    let keep_it = || keep(&repository, &request("a.bak", "zstd:3"), &mut parts(&content(70_000)));
    let first = keep_it().unwrap().kept;
    // As if the run had died between its last frame and its document.
    std::fs::remove_file(directory.path().join("mssql/files/a.bak.json")).unwrap();
    assert!(kept_files(&repository, &first.source).unwrap().is_empty());
    let again = keep_it().unwrap().kept;
    assert_ne!(again.set_id, first.set_id);
    read_content(&repository, &again, 1, &mut |_| Ok(())).unwrap();
    assert_eq!(keep_it().unwrap_err().kind(), ErrorKind::Conflict, "now there is a file of that name");
    assert_eq!(repository.storage().list("mssql/files").unwrap().len(), 3, "a refused run leaves nothing");
}
