//! Back up, restore, start, compare: on every PostgreSQL of this machine, with every codec.

use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, MAKE_TEMPLATE0, default_install, disk_directory, installs};

#[test]
fn a_cluster_comes_back_whole_on_every_major_version() {
    for install in installs() {
        let work = disk_directory();
        let cluster = Cluster::start(&install, work.path());
        cluster.run(&[MAKE_TEMPLATE0]);
        cluster.load_typed_tables(20_000);
        let expected = cluster.digests();
        for compression in ["zstd:1", "page"] {
            let what = format!("PostgreSQL {}, {compression}", install.major());
            let mut request = cluster.backup_request();
            request.stripes = Some(3);
            request.compression = compression.parse().unwrap();
            let report = cluster.backup(&request);
            assert_eq!(report.postgres_version_num / 10_000, install.major());
            assert_eq!((report.bad_page_count, report.lost_file_count, report.state), (0, 0, "complete"), "{report:?}");
            assert_eq!(format!("{}:{}", report.codec, report.level), request.compression.to_string());
            assert!(report.wal_segment_count >= 1);
            let verified = verify(&VerifyRequest::new(cluster.repo()), &NoObserver).unwrap();
            assert!(verified.sound, "{verified:?}");

            let target = work.path().join(format!("restored-{compression}"));
            let restored = cluster.restore_to(&target);
            assert!(restored.archiving_off, "a copy does not archive");
            cluster.pg_verifybackup(&target);
            let mut copy = cluster.adopt(&target);
            assert_eq!(copy.digests(), expected, "{what}");
            assert_eq!(copy.value("SELECT count(*) FROM scratch"), "0", "an unlogged table is empty after a restore");
            copy.crash();
            eprintln!("{what}: {} files, ratio {:.2}", report.file_count, report.ratio);
        }
    }
}

#[test]
fn every_codec_and_odd_settings_round_trip() {
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(5_000);
    let expected = cluster.digests();
    let cases = [
        ("none", 64, 64, 1, 2),
        ("lz4", 64, 1024, 7, 3),
        ("deflate:1", 128, 256, 2, 9),
        ("zstd:3", 4096, 4096, 1, 2),
        ("zstd:-5", 192, 1000, 3, 40),
        ("page:fast", 64, 256, 2, 9),
        ("page:3", 1024, 2048, 1, 2),
    ];
    for (number, (codec, frame_kib, transfer_kib, stripes, buffers)) in cases.into_iter().enumerate() {
        let mut request = cluster.backup_request();
        request.source = format!("case{number}").parse().unwrap();
        request.compression = codec.parse().unwrap();
        request.frame_size_bytes = Some(frame_kib * 1024);
        request.transfer_size_bytes = Some(transfer_kib * 1024);
        request.stripes = Some(stripes);
        request.buffer_count = Some(buffers);
        let report = cluster.backup(&request);
        assert_eq!(report.stripes.len(), usize::from(stripes));
        let target = work.path().join(format!("restored{number}"));
        let mut restore = pagehaul_engine::restore::RestoreRequest::new(cluster.repo(), &target);
        restore.source = Some(request.source.clone());
        pagehaul_engine::restore::restore(&restore, &NoObserver).unwrap_or_else(|error| panic!("{codec}: {error}"));
        let mut copy = cluster.adopt(&target);
        assert_eq!(copy.digests(), expected, "{codec}");
        copy.crash();
    }
}
