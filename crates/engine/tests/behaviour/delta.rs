//! Delta restores end byte for byte where a fresh restore ends, whatever was there before, and touch nothing else.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{ArchiveMode, DeltaReport, RestoreReport, RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::{ScratchServer, StopMode};
use pagehaul_engine::terms::BackupKind;
use pagehaul_testkit::cluster::{Cluster, MAKE_TEMPLATE0, QUICK, default_install, disk_directory, work_directory};
use pagehaul_testkit::damage::{copy_tree, cut, differences, files_below, flip_bit, overwrite, tree};
use tempfile::TempDir;

/// A stopped cluster with a tablespace, a set of it in small frames, and what a fresh restore of the set looks like.
struct Bench {
    work: TempDir,
    cluster: Cluster,
    space: PathBuf,
    fresh: BTreeMap<Vec<u8>, String>,
    fresh_space: BTreeMap<Vec<u8>, String>,
}

impl Bench {
    fn new() -> Self {
        let work = work_directory();
        let mut cluster = Cluster::start(&default_install(), work.path());
        cluster.run(&[MAKE_TEMPLATE0]);
        cluster.load_typed_tables(30_000);
        let space = cluster.server_directory("space");
        cluster.run(&[
            &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
            "CREATE TABLE there TABLESPACE elsewhere AS SELECT i, md5(i::text) FROM generate_series(1, 30000) AS i",
        ]);
        let request = BackupRequest {
            frame_size_bytes: Some(64 * 1024),
            transfer_size_bytes: Some(256 * 1024),
            stripes: Some(2),
            ..cluster.backup_request()
        };
        cluster.backup(&request);
        // What happens after the backup is what a delta restore undoes.
        cluster.run(&[
            "CREATE TABLE later AS SELECT i FROM generate_series(1, 50000) AS i",
            "UPDATE typed SET number = number + 1 WHERE id % 100 = 0",
            "DROP TABLE long_text",
            // Old and new maps of file numbers have the same CRC-32C.
            "VACUUM FULL pg_attribute",
            "CHECKPOINT",
        ]);
        cluster.server.stop(StopMode::Fast).unwrap();
        let mut bench = Bench { work, cluster, space, fresh: BTreeMap::new(), fresh_space: BTreeMap::new() };
        let (target, place) = (bench.path("fresh"), bench.path("fresh-space"));
        restore(&bench.request(&target, &place), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        (bench.fresh, bench.fresh_space) = (tree_at(&target, &place), tree(&place));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// Every restore of a test is a copy, so that the settings that are appended do not differ.
    fn request(&self, target: &Path, place: &Path) -> RestoreRequest {
        RestoreRequest {
            tablespace_map: vec![(self.space.clone(), place.to_owned())],
            archive_mode: ArchiveMode::Off,
            ..RestoreRequest::new(self.cluster.repo(), target)
        }
    }

    fn delta(&self, target: &Path, place: &Path) -> RestoreRequest {
        RestoreRequest { delta: true, ..self.request(target, place) }
    }

    /// A copy of the stopped cluster as it was left, with a tablespace of its own.
    fn old_copy(&self, name: &str) -> (PathBuf, PathBuf) {
        let (target, place) = (self.path(name), self.path(&format!("{name}-space")));
        copy_tree(self.cluster.server.data_directory(), &target);
        copy_tree(&self.space, &place);
        relink(&target, &place);
        (target, place)
    }

    fn expect_fresh(&self, what: &str, target: &Path, place: &Path) {
        let difference = differences(&self.fresh, &tree_at(target, place));
        assert!(difference.is_empty(), "{what}: {difference:#?}");
        let difference = differences(&self.fresh_space, &tree(place));
        assert!(difference.is_empty(), "{what}: {difference:#?}");
        for file in files_below(target).iter().chain(&files_below(place)) {
            let metadata = std::fs::symlink_metadata(file).unwrap();
            let owner = std::fs::metadata(self.cluster.server.data_directory()).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (owner.uid(), owner.gid()), "{what}: {}", file.display());
        }
    }

    fn run(&self, what: &str, target: &Path, place: &Path) -> DeltaReport {
        let report = must(what, &self.delta(target, place));
        self.expect_fresh(what, target, place);
        report.delta.unwrap_or_else(|| panic!("{what}: no figures of a delta restore"))
    }

    fn expect_refused(&self, what: &str, request: &RestoreRequest, words: &str) -> Error {
        let before = tree(self.work.path());
        let error = match restore(request, &NoObserver) {
            Err(error) => error,
            Ok(report) => panic!("{what}: {}", report.state),
        };
        assert_eq!(error.kind(), ErrorKind::Target, "{what}: {error}");
        assert!(error.to_string().contains(words), "{what}: {error}");
        let difference = differences(&before, &tree(self.work.path()));
        assert!(difference.is_empty(), "{what}: {difference:?}");
        error
    }
}

fn must(what: &str, request: &RestoreRequest) -> RestoreReport {
    restore(request, &NoObserver).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// The tree, with the one link that differs by intention made the same.
fn tree_at(target: &Path, place: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut tree = tree(target);
    for what in tree.values_mut() {
        *what = what.replace(&format!("link to {}", place.display()), "link to the tablespace");
    }
    // The map names the place too.
    tree.remove(b"tablespace_map".as_slice());
    tree.remove(b"backup_manifest".as_slice());
    tree
}

fn relink(target: &Path, place: &Path) {
    let link = only_link(target);
    std::fs::remove_file(&link).unwrap();
    symlink(place, &link).unwrap();
}

fn only_link(target: &Path) -> PathBuf {
    std::fs::read_dir(target.join("pg_tblspc")).unwrap().next().unwrap().unwrap().path()
}

/// The largest file of database 5 or above: it has many frames.
fn large_file(target: &Path) -> PathBuf {
    let files = files_below(&target.join("base")).into_iter();
    files.max_by_key(|file| std::fs::metadata(file).unwrap().len()).unwrap()
}

#[test]
fn a_changed_cluster_becomes_the_backup_and_starts() {
    let bench = Bench::new();
    let (target, place) = bench.old_copy("changed");
    let figures = bench.run("changed", &target, &place);
    assert!(figures.reused_bytes > figures.rewritten_bytes, "{figures:?}");
    assert!(figures.removed_count > 0 && figures.removed_bytes > 0, "{figures:?}");
    bench.cluster.pg_verifybackup(&target);
    // Nothing differs now.
    let figures = bench.run("again", &target, &place);
    assert!(figures.rewritten_bytes < 1 << 20, "only the special files: {figures:?}");
    let restored = bench.cluster.adopt(&target);
    assert_eq!(restored.value("SELECT count(*) FROM typed"), "30000");
    assert_eq!(restored.value("SELECT count(*) FROM there"), "30000");
    assert_eq!(restored.value("SELECT count(*) FROM pg_class WHERE relname = 'later'"), "0");
}

#[test]
fn b04_flipped_bits_with_old_times_and_lengths_are_found() {
    let bench = Bench::new();
    let (target, place) = (bench.path("flipped"), bench.path("flipped-space"));
    must("fresh", &bench.request(&target, &place));
    let large = large_file(&target);
    let small = files_below(&place).into_iter().next_back().unwrap();
    for (path, byte) in [(&large, 200_000), (&small, 7), (&target.join("PG_VERSION"), 0)] {
        let times = std::fs::metadata(path).unwrap();
        flip_bit(path, byte, 3);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
    }
    let figures = bench.run("flipped", &target, &place);
    // One frame of the large file, not all of it.
    let size = std::fs::metadata(&large).unwrap().len();
    assert!(size > 1 << 20 && figures.rewritten_bytes < size, "{figures:?}, {size} bytes");
}

#[test]
fn lengths_zeros_and_holes_are_mended() {
    let bench = Bench::new();
    let (target, place) = (bench.path("lengths"), bench.path("lengths-space"));
    must("fresh", &bench.request(&target, &place));
    let large = large_file(&target);
    let size = std::fs::metadata(&large).unwrap().len();
    cut(&large, size - 100_000);
    bench.run("cut", &target, &place);
    overwrite(&large, size, &[7; 300_000]);
    bench.run("longer", &target, &place);
    cut(&large, 0);
    bench.run("empty", &target, &place);
    cut(&large, 0);
    cut(&large, size);
    bench.run("one hole", &target, &place);
    // Every file's content is another one's.
    for file in files_below(&target.join("base")) {
        let length = std::fs::metadata(&file).unwrap().len();
        overwrite(&file, length / 2, b"something else");
    }
    bench.run("all differ", &target, &place);
    for file in files_below(&target.join("base")) {
        std::fs::remove_file(file).unwrap();
    }
    bench.run("all gone", &target, &place);
}

#[test]
fn the_wrong_kinds_modes_and_owners_are_mended() {
    let bench = Bench::new();
    let (target, place) = (bench.path("kinds"), bench.path("kinds-space"));
    must("fresh", &bench.request(&target, &place));
    let large = large_file(&target);
    std::fs::remove_file(&large).unwrap();
    std::fs::create_dir_all(large.join("directory/in/place/of/a/file")).unwrap();
    std::fs::write(large.join("directory/in/file"), b"x").unwrap();
    std::fs::remove_dir_all(target.join("pg_xact")).unwrap();
    std::fs::write(target.join("pg_xact"), b"a file in place of a directory").unwrap();
    std::fs::remove_dir_all(target.join("pg_notify")).unwrap();
    symlink("/etc", target.join("pg_notify")).unwrap();
    std::fs::remove_file(target.join("pg_ident.conf")).unwrap();
    std::process::Command::new("mkfifo").arg(target.join("pg_ident.conf")).status().unwrap();
    std::fs::set_permissions(target.join("pg_hba.conf"), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(target.join("pg_subtrans"), std::fs::Permissions::from_mode(0o777)).unwrap();
    for name in ["recovery.signal", "standby.signal", "postmaster.opts", "my notes", "global/old"] {
        std::fs::write(target.join(name), b"x").unwrap();
    }
    if rustix_is_root() {
        std::os::unix::fs::chown(target.join("postgresql.conf"), Some(1), Some(1)).unwrap();
        std::os::unix::fs::chown(target.join("base"), Some(1), Some(1)).unwrap();
    }
    bench.run("kinds", &target, &place);
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn s04_nothing_outside_is_touched_through_planted_links() {
    let bench = Bench::new();
    let (target, place) = (bench.path("planted"), bench.path("planted-space"));
    must("fresh", &bench.request(&target, &place));
    let outside = bench.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), b"precious").unwrap();
    let large = large_file(&target);
    copy_tree(&large, &outside.join("same length"));
    flip_bit(&outside.join("same length"), 70_000, 0);
    let before = tree(&outside);
    // A file that is a link to one of the same length, one that is a second name of one outside, and directories that
    // lead out, in the data directory and in the tablespace.
    std::fs::remove_file(&large).unwrap();
    std::fs::hard_link(outside.join("same length"), &large).unwrap();
    let conf = target.join("postgresql.conf");
    std::fs::remove_file(&conf).unwrap();
    symlink(outside.join("precious"), &conf).unwrap();
    let base = target.join("base/1");
    std::fs::rename(&base, outside.join("../moved")).unwrap();
    symlink(&outside, &base).unwrap();
    let version = std::fs::read_dir(&place).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(&version, bench.path("moved-version")).unwrap();
    symlink(&outside, &version).unwrap();
    symlink("..", target.join("up")).unwrap();
    symlink(&outside, target.join("global/pg_control.pagehaul")).unwrap();
    bench.run("planted", &target, &place);
    let difference = differences(&before, &tree(&outside));
    assert!(difference.is_empty(), "{difference:?}");
}

#[test]
fn a_tablespace_keeps_what_is_not_this_clusters_and_moves_where_the_map_says() {
    let bench = Bench::new();
    let (target, place) = bench.old_copy("shared");
    std::fs::create_dir(place.join("PG_9.6_201608131")).unwrap();
    std::fs::write(place.join("PG_9.6_201608131/old"), b"another version's").unwrap();
    let report = must("shared", &bench.delta(&target, &place));
    assert_eq!(std::fs::read(place.join("PG_9.6_201608131/old")).unwrap(), b"another version's");
    assert!(report.notes.iter().any(|note| note.contains("PG_9.6_201608131")), "{:?}", report.notes);
    std::fs::remove_dir_all(place.join("PG_9.6_201608131")).unwrap();
    bench.expect_fresh("shared", &target, &place);
    // To a new place: the old one stays as it is.
    let new_place = bench.path("new-place");
    let before = tree(&place);
    let report = must("moved", &bench.delta(&target, &new_place));
    bench.expect_fresh("moved", &target, &new_place);
    assert!(differences(&before, &tree(&place)).is_empty());
    assert!(report.notes.iter().any(|note| note.contains(&place.display().to_string())), "{:?}", report.notes);
}

#[test]
fn what_must_not_be_written_over_is_refused_untouched() {
    let mut bench = Bench::new();
    let (target, place) = bench.old_copy("refused");
    let delta = bench.delta(&target, &place);
    // The original's tablespace, when the copy has its own.
    let original = RestoreRequest { tablespace_map: Vec::new(), ..delta.clone() };
    bench.expect_refused("the original's tablespace", &original, "no tablespace of the cluster");
    // A directory that is no cluster's, and one of another cluster.
    let stranger = bench.path("stranger");
    std::fs::create_dir(&stranger).unwrap();
    std::fs::write(stranger.join("letters"), b"dear").unwrap();
    bench.expect_refused("a stranger", &bench.delta(&stranger, &place), "no PostgreSQL data directory");
    let forced = RestoreRequest { force: true, ..bench.delta(&stranger, &place) };
    bench.expect_refused("a stranger by force", &forced, "no PostgreSQL data directory");
    let others = bench.path("others");
    std::fs::create_dir(&others).unwrap();
    let other = Cluster::start(&default_install(), &others);
    let running = other.server.data_directory().to_owned();
    let other_place = bench.path("other-place");
    for force in [false, true] {
        let request = RestoreRequest { force, ..bench.delta(&running, &other_place) };
        let error = restore(&request, &NoObserver).unwrap_err();
        assert!(error.kind() == ErrorKind::Target && error.message().contains("a server runs on it"), "{error}");
    }
    assert_eq!(other.value("SELECT 1"), "1");
    drop(other);
    let error = bench.expect_refused("another cluster", &bench.delta(&running, &other_place), "another cluster's");
    assert!(error.hint_text().unwrap().contains("--force"), "{error}");
    // The repository inside of what is written over, by another name.
    let alias = bench.path("alias");
    copy_tree(Path::new(&bench.cluster.repo()), &target.join("repo"));
    symlink(target.join("repo"), &alias).unwrap();
    let inside = RestoreRequest { repo: alias.display().to_string(), ..delta.clone() };
    bench.expect_refused("the repository inside", &inside, "what is restored from");
    std::fs::remove_dir_all(target.join("repo")).unwrap();
    let into = bench.delta(&Path::new(&bench.cluster.repo()).join("main"), &place);
    bench.expect_refused("into the repository", &into, "what is restored from");
    // A pg_control that does not read: by force only.
    overwrite(&target.join("global/pg_control"), 0, &[0xFF; 8192]);
    bench.expect_refused("a broken pg_control", &delta, "whose it is does not show");
    must("by force", &RestoreRequest { force: true, ..delta });
    bench.expect_fresh("by force", &target, &place);
    must("another cluster by force", &RestoreRequest { force: true, ..bench.delta(&running, &other_place) });
    bench.expect_fresh("another cluster by force", &running, &other_place);
    // A server that was killed leaves its postmaster.pid; nobody has it any more.
    let mut server = ScratchServer::adopt(&default_install(), &target).unwrap();
    server.start(QUICK).unwrap();
    let pid = std::fs::read(target.join("postmaster.pid")).unwrap();
    server.kill9().unwrap();
    std::fs::write(target.join("postmaster.pid"), pid).unwrap();
    bench.run("after a crash", &target, &place);
    bench.cluster.server.start(QUICK).unwrap();
}

#[test]
fn a_new_target_and_another_timeline_do_too() {
    let bench = Bench::new();
    let (target, place) = (bench.path("new"), bench.path("new-space"));
    let report = must("new", &bench.delta(&target, &place));
    assert_eq!(report.delta, None, "nothing was there");
    bench.expect_fresh("new", &target, &place);
    // Promoted, written to, stopped: timeline 2.
    std::fs::write(target.join("recovery.signal"), b"").unwrap();
    let mut server = ScratchServer::adopt(&default_install(), &target).unwrap();
    server
        .start(&[("restore_command", "false"), ("recovery_target", "immediate"), ("recovery_target_action", "promote")])
        .unwrap();
    let mut connection = server.connect().unwrap();
    for _ in 0..600 {
        if connection.query_value("SELECT pg_is_in_recovery()").unwrap() == "f" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    connection.query("CREATE TABLE public.branch AS SELECT i FROM generate_series(1, 10000) AS i").unwrap();
    assert_eq!(connection.query_value("SELECT timeline_id FROM pg_control_checkpoint()").unwrap(), "2");
    drop(connection);
    server.stop(StopMode::Fast).unwrap();
    bench.run("timeline 2", &target, &place);
    let dry = RestoreRequest { dry_run: true, ..bench.delta(&target, &place) };
    assert_eq!(must("dry", &dry).state, "planned");
    bench.expect_fresh("dry", &target, &place);
}

#[test]
fn damage_in_the_set_stops_a_delta_restore_and_the_old_server_never_starts() {
    let bench = Bench::new();
    let (target, place) = bench.old_copy("damaged");
    let repo = bench.path("damaged-repo");
    copy_tree(Path::new(&bench.cluster.repo()), &repo);
    for stripe in files_below(&repo).into_iter().filter(|file| file.extension().is_some_and(|end| end == "phs")) {
        let size = std::fs::metadata(&stripe).unwrap().len();
        for part in 1..200 {
            flip_bit(&stripe, size * part / 201, 0);
        }
    }
    let bad = RestoreRequest { repo: repo.display().to_string(), ..bench.delta(&target, &place) };
    let error = restore(&bad, &NoObserver).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    assert!(!target.join("global/pg_control").exists());
    let mut server = ScratchServer::adopt(&default_install(), &target).unwrap();
    assert!(server.start(&[]).is_err(), "a half restored server starts");
    // A plain restore must not take what is beside the marker for its own.
    let error =
        bench.expect_refused("plain", &bench.request(&target, &place), "delta restore into it was not finished");
    assert!(error.hint_text().unwrap().contains("--delta"));
    bench.run("with the good repository", &target, &place);
}

#[test]
fn a_chain_of_sets_is_written_over_an_old_restore() {
    let work = disk_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.run(&[MAKE_TEMPLATE0]);
    cluster.load_typed_tables(30_000);
    let request = BackupRequest {
        frame_size_bytes: Some(64 * 1024),
        transfer_size_bytes: Some(256 * 1024),
        ..cluster.backup_request()
    };
    cluster.backup(&request);
    let target = work.path().join("target");
    must("full", &RestoreRequest { archive_mode: ArchiveMode::Off, ..RestoreRequest::new(cluster.repo(), &target) });
    cluster.run(&[
        "UPDATE typed SET number = number + 1 WHERE id % 1000 = 0",
        "CREATE TABLE later AS SELECT i FROM generate_series(1, 20000) AS i",
        "CHECKPOINT",
    ]);
    let report = cluster.backup(&BackupRequest { kind: BackupKind::Incremental, ..request });
    assert_eq!(report.kind, BackupKind::Incremental);
    let fresh = work.path().join("fresh");
    let plain = RestoreRequest { archive_mode: ArchiveMode::Off, ..RestoreRequest::new(cluster.repo(), &fresh) };
    must("chain", &plain);
    let delta = RestoreRequest { delta: true, target_dir: target.clone(), ..plain };
    let figures = must("delta", &delta).delta.unwrap();
    let difference = differences(&tree(&fresh), &tree(&target));
    assert!(difference.is_empty(), "{difference:?}");
    assert!(figures.reused_bytes > figures.rewritten_bytes, "{figures:?}");
    flip_bit(&large_file(&target), 300_000, 2);
    must("flipped", &delta);
    let difference = differences(&tree(&fresh), &tree(&target));
    assert!(difference.is_empty(), "{difference:?}");
}
