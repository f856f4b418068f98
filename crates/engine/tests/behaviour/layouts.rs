//! What lies in a data directory: tablespaces, odd names, every file size around the frame's, holes, and what stays out.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_testkit::cluster::{Cluster, default_install, disk_directory, work_directory};
use pagehaul_testkit::damage::{differences, tree};
use pagehaul_testkit::random::Random;

#[test]
fn tablespaces_move_where_the_map_says_and_nowhere_else() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let (one, two) = (cluster.server_directory("space one"), cluster.server_directory("space two"));
    cluster.run(&[
        &format!("CREATE TABLESPACE one LOCATION '{}'", one.display()),
        &format!("CREATE TABLESPACE two LOCATION '{}'", two.display()),
        "CREATE TABLE in_one TABLESPACE one AS SELECT i FROM generate_series(1, 30000) AS i",
        "CREATE TABLE in_two TABLESPACE two AS SELECT i FROM generate_series(1, 30000) AS i",
        "CREATE INDEX ON in_one (i) TABLESPACE two",
        "CREATE DATABASE moved TABLESPACE two",
    ]);
    let expected = cluster.digests();
    cluster.backup(&BackupRequest { stripes: Some(2), ..cluster.backup_request() });
    let target = work.path().join("restored");
    for map in [vec![], vec![(one.clone(), work.path().join("new one"))]] {
        let before = (tree(&one).len(), tree(&two).len());
        let request = RestoreRequest { tablespace_map: map, ..RestoreRequest::new(cluster.repo(), &target) };
        let error = restore(&request, &NoObserver).expect_err("a tablespace in its place");
        assert_eq!(error.kind(), ErrorKind::Target, "{error}");
        assert!(!target.exists() && !work.path().join("new one").exists(), "nothing is written");
        assert_eq!((tree(&one).len(), tree(&two).len()), before);
    }
    let (new_one, new_two) = (work.path().join("new one"), work.path().join("new\\two"));
    let request = RestoreRequest {
        tablespace_map: vec![(one, new_one.clone()), (two, new_two)],
        ..RestoreRequest::new(cluster.repo(), &target)
    };
    restore(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    cluster.pg_verifybackup(&target);
    let copy = cluster.adopt(&target);
    assert_eq!(copy.digests(), expected);
    let place = copy.value("SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE spcname = 'one'");
    assert_eq!(Path::new(&place), new_one);
    copy.run(&["INSERT INTO in_one SELECT 1", "CREATE TABLE more TABLESPACE one AS SELECT 1 AS i", "CHECKPOINT"]);
    assert_eq!(cluster.digests(), expected, "the original does not hear of it");
}

#[test]
fn what_a_restart_would_remove_or_remake_is_not_stored() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&["CREATE UNLOGGED TABLE scratch AS SELECT i FROM generate_series(1, 10000) AS i", "CHECKPOINT"]);
    let data = cluster.server.data_directory().to_owned();
    let scratch = cluster.value("SELECT pg_relation_filepath('scratch')");
    let temporary_files = data.join("base/pgsql_tmp");
    std::fs::create_dir_all(&temporary_files).unwrap();
    let absent = [
        "base/pgsql_tmp/pgsql_tmp123.0",
        "pg_stat_tmp/left.stat",
        "pg_replslot/left",
        "pg_notify/left",
        "pg_subtrans/left",
        "postgresql.auto.conf.tmp",
        "current_logfiles.tmp",
        "backup_manifest",
        "base/5/t3_16384",
        "base/5/pg_internal.init",
        "base/5/pg_internal.init.7",
    ];
    for name in absent {
        std::fs::write(data.join(name), b"left over").unwrap();
    }
    cluster.backup(&cluster.backup_request());
    let target = work.path().join("restored");
    cluster.restore_to(&target);
    for name in absent.iter().filter(|name| **name != "backup_manifest").chain(&["postmaster.pid", "postmaster.opts"]) {
        assert!(!target.join(name).exists(), "{name} was stored");
    }
    assert!(!target.join(&scratch).exists(), "the content of an unlogged table");
    assert!(target.join(format!("{scratch}_init")).exists(), "its init fork");
    let empty = "pg_commit_ts pg_dynshmem pg_notify pg_replslot pg_serial pg_snapshots pg_stat_tmp pg_subtrans \
                 pg_tblspc pg_twophase pg_wal/archive_status pg_logical/mappings pg_logical/snapshots";
    for name in empty.split_whitespace() {
        assert!(target.join(name).is_dir(), "{name} must be there");
    }
    assert_eq!(cluster.adopt(&target).value("SELECT count(*) FROM scratch"), "0");
}

/// Names that break whoever takes a path for text.
fn odd_names() -> Vec<OsString> {
    let mut names: Vec<OsString> = [
        b"not \xFF\xFE utf-8".as_slice(),
        b"line\nbreak",
        b"back\\slash",
        b" leading space",
        b"trailing space ",
        b"equals=sign",
        b"quote\"and'quote",
        b"-dash",
        b"tab\tbell\x07",
        b"\xC3\xA4\xE2\x82\xAC",
        b".hidden",
        b"*",
        b"%s%n",
    ]
    .iter()
    .map(|name| OsString::from_vec(name.to_vec()))
    .collect();
    names.push(OsString::from_vec(vec![b'n'; 255]));
    names
}

#[test]
fn odd_names_come_back_byte_for_byte() {
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let extra = cluster.server.data_directory().join("extra");
    std::fs::create_dir(&extra).unwrap();
    let mut deep = extra.clone();
    for _ in 0..4 {
        deep.push(OsString::from_vec(vec![b'd'; 240]));
        std::fs::create_dir(&deep).unwrap();
    }
    std::fs::write(deep.join("deep"), b"deep").unwrap();
    for (number, name) in odd_names().into_iter().enumerate() {
        std::fs::write(extra.join(&name), name.as_bytes()).unwrap();
        if name.len() < 250 {
            let directory = extra.join(format!("d{number}")).join(&name);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(&name), name.as_bytes()).unwrap();
            std::os::unix::fs::symlink(&name, extra.join(format!("link{number}"))).unwrap();
        }
    }
    std::fs::set_permissions(deep.join("deep"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let expected = tree(&extra);
    cluster.backup(&cluster.backup_request());
    let target = work.path().join("restored");
    cluster.restore_to(&target);
    let difference = differences(&expected, &tree(&target.join("extra")));
    assert!(difference.is_empty(), "{difference:?}");
    // It knows no links but those of tablespaces.
    for number in 0..odd_names().len() - 1 {
        std::fs::remove_file(target.join(format!("extra/link{number}"))).unwrap();
    }
    cluster.pg_verifybackup(&target);
}

#[test]
fn every_file_size_around_the_frame_comes_back_byte_for_byte() {
    let mut random = Random::new("file sizes");
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let extra = cluster.server.data_directory().join("extra");
    for (round, (frame_kib, transfer_kib, stripes, codec)) in
        [(64u32, 64u32, 1u16, "none"), (64, 200, 3, "zstd:1"), (128, 1024, 2, "lz4")].into_iter().enumerate()
    {
        std::fs::create_dir_all(&extra).unwrap();
        let (frame, transfer) = (i64::from(frame_kib) * 1024, i64::from(transfer_kib) * 1024);
        let edges = [0, 8192, frame / 2, frame, 2 * frame, 3 * frame, transfer, 2 * transfer, 3 * transfer];
        for size in edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]).filter(|size| *size >= 0) {
            let size = size as usize;
            let noise = random.bytes(size);
            // Whole frames of zeros in between, and a tail of them.
            let mut mixed = noise.clone();
            mixed.chunks_mut(frame as usize).skip(1).step_by(2).for_each(|frame| frame.fill(0));
            let mut tail = noise.clone();
            tail[size / 3..].fill(0);
            for (kind, content) in [("noise", noise), ("mixed", mixed), ("tail", tail), ("zeros", vec![0; size])] {
                std::fs::write(extra.join(format!("{kind}-{size}")), content).unwrap();
            }
        }
        let expected = tree(&extra);
        let source = format!("sizes{round}").parse().unwrap();
        let request = BackupRequest {
            source,
            frame_size_bytes: Some(frame_kib * 1024),
            transfer_size_bytes: Some(transfer_kib * 1024),
            stripes: Some(stripes),
            compression: codec.parse().unwrap(),
            ..cluster.backup_request()
        };
        cluster.backup(&request);
        let target = work.path().join(format!("restored{round}"));
        let restoring = RestoreRequest { source: Some(request.source), ..RestoreRequest::new(cluster.repo(), &target) };
        restore(&restoring, &NoObserver).unwrap_or_else(|error| panic!("{codec}: {error}"));
        let difference = differences(&expected, &tree(&target.join("extra")));
        assert!(difference.is_empty(), "{codec}: {difference:?}");
        std::fs::remove_dir_all(&extra).unwrap();
        std::fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn a_file_of_holes_is_stored_as_nothing_and_keeps_its_length() {
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let length = 3u64 << 30;
    let sparse = cluster.server.data_directory().join("sparse");
    let file = std::fs::File::create(&sparse).unwrap();
    file.set_len(length).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"an island", length - 100_000_000).unwrap();
    drop(file);
    let report = cluster.backup(&cluster.backup_request());
    assert!(report.source_bytes > length && report.stored_bytes < 100 << 20, "{} bytes stored", report.stored_bytes);
    std::fs::remove_file(&sparse).unwrap();
    let target = work.path().join("restored");
    cluster.restore_to(&target);
    let restored = std::fs::File::open(target.join("sparse")).unwrap();
    assert_eq!(restored.metadata().unwrap().len(), length);
    let mut island = vec![1u8; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&restored, &mut island, length - 100_000_000 - 100).unwrap();
    assert_eq!(&island[100..109], b"an island");
    island[100..109].fill(0);
    assert!(island.iter().all(|byte| *byte == 0), "zeros around it");
    for offset in (0..length - 200_000_000).step_by(97 << 20) {
        std::os::unix::fs::FileExt::read_exact_at(&restored, &mut island, offset).unwrap();
        assert!(island.iter().all(|byte| *byte == 0), "zeros at {offset}");
    }
}
