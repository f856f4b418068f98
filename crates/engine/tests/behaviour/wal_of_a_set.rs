//! The WAL that a set needs is in the set, whatever the server's archiver does, and is read back before the set counts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pagehaul_engine::backup::{BackupReport, BackupRequest, backup};
use pagehaul_engine::catalog::{Repository, SetState, list_sets};
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, Observer};
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::terms::{BackupLabel, SegmentNumber, WalSegmentName};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::damage::{cut, files_below, flip_bit, overwrite};
use pagehaul_testkit::observer::At;

const SEGMENT: u64 = 1 << 20;
/// Far less than a server waits for its archiver.
const WITHOUT_A_WAIT: Duration = Duration::from_secs(30);

/// A cluster whose archiver never gets anything away.
fn stuck(work: &Path) -> Cluster {
    let options = InitOptions { wal_segment_size_mib: Some(1), checksums: true, ..InitOptions::default() };
    let settings = [QUICK, &[("archive_mode", "on"), ("archive_command", "false")][..]].concat();
    Cluster::start_with(&default_install(), work, &options, &settings)
}

#[test]
fn f02_a_set_is_whole_while_the_archiver_stands_still() {
    let work = work_directory();
    let cluster = stuck(work.path());
    cluster.load_typed_tables(2_000);
    let expected = cluster.digests();
    // Nothing is written behind either of them.
    for name in ["one", "two"] {
        let started = Instant::now();
        let report = cluster.backup(&cluster.backup_request());
        assert!(started.elapsed() < WITHOUT_A_WAIT, "it waited for the archiver");
        let target = work.path().join(name);
        cluster.restore_to(&target);
        assert_holds_its_wal(&target, &report);
        cluster.pg_verifybackup(&target);
        let mut copy = cluster.adopt(&target);
        assert_eq!(copy.digests(), expected, "{name}");
        copy.crash();
    }
    assert_eq!(cluster.value("SELECT archived_count FROM pg_stat_archiver"), "0");
}

/// Every segment from the start of the backup to its end.
pub(crate) fn assert_holds_its_wal(target: &Path, report: &BackupReport) {
    for number in report.start_lsn.0 / SEGMENT..=(report.stop_lsn.0 - 1) / SEGMENT {
        let name = WalSegmentName::new(report.timeline, SegmentNumber(number), SEGMENT);
        let size_bytes = std::fs::metadata(target.join("pg_wal").join(name.as_str())).map(|found| found.len());
        assert_eq!(size_bytes.ok(), Some(SEGMENT), "{name}");
    }
}

/// Labels of the sets that a repository offers, and how many others it has.
fn sets(repo: &str) -> (Vec<BackupLabel>, usize) {
    let listed = list_sets(&Repository::open(repo).unwrap(), &"main".parse().unwrap()).unwrap();
    let count = listed.len();
    let complete = listed.into_iter().filter(|set| matches!(set.state, SetState::Complete(_)));
    let complete: Vec<_> = complete.map(|set| set.label).collect();
    let others = count - complete.len();
    (complete, others)
}

/// Ends a segment that a backup needs, and gives its file.
fn finish_segment(cluster: &Cluster) -> PathBuf {
    let end = cluster.value("SELECT pg_logical_emit_message(true, 'x', repeat(md5(random()::text), 3000))");
    let name = cluster.value(&format!("SELECT pg_walfile_name('{end}')"));
    cluster.run(&["SELECT pg_switch_wal()"]);
    cluster.server.data_directory().join("pg_wal").join(name)
}

/// What is done to a segment, with the next one beside it.
type Harm = dyn Fn(&Path, &Path) + Sync;

#[test]
fn f02_without_all_of_its_wal_there_is_no_set() {
    let work = work_directory();
    let cluster = stuck(work.path());
    let earlier = cluster.backup(&cluster.backup_request()).label;
    // What was finished while files were read, harmed before the backup comes to it.
    let harms: [(&str, &Harm); 5] = [
        ("missing", &|segment, _| std::fs::remove_file(segment).unwrap()),
        ("cut", &|segment, _| cut(segment, SEGMENT / 2)),
        ("another one under its name", &|segment, next| assert!(std::fs::copy(next, segment).is_ok())),
        ("of another cluster", &|segment, _| flip_bit(segment, 24, 0)),
        ("without a page", &|segment, _| overwrite(segment, 8192 * 3, &[0; 8192])),
    ];
    for (what, harm) in harms {
        let observer = At::phase("end the backup", || {
            let [segment, next] = [finish_segment(&cluster), finish_segment(&cluster)];
            harm(&segment, &next);
        });
        let error =
            backup(&cluster.backup_request(), &observer).err().unwrap_or_else(|| panic!("{what}: there is a set"));
        assert!(observer.done());
        assert!(matches!(error.kind(), ErrorKind::Damage | ErrorKind::Source), "{what}: {error}");
        assert!(error.message().contains("0000000100000000000000"), "{what}: no segment is named: {error}");
        assert_eq!(sets(&cluster.repo()), (vec![earlier.clone()], 0), "{what}");
    }
}

/// Puts words into WAL when the backup ends, and flips a bit of them in the stripe before they are read back.
struct Flip<'a> {
    cluster: &'a Cluster,
    done: AtomicBool,
}

const WORDS: &[u8] = b"only-in-this-wal";

impl Flip<'_> {
    fn flip(&self) {
        let stripes = files_below(Path::new(&self.cluster.repo())).into_iter();
        for stripe in stripes.filter(|path| path.extension().is_some_and(|end| end == "phs")) {
            let stored = std::fs::read(&stripe).unwrap();
            if let Some(at) = stored.windows(WORDS.len()).position(|window| window == WORDS) {
                flip_bit(&stripe, at as u64, 0);
                self.done.store(true, SeqCst);
            }
        }
    }
}

impl Observer for Flip<'_> {
    fn phase(&self, name: &str) {
        if name.starts_with("end the backup") {
            let words = String::from_utf8_lossy(WORDS);
            self.cluster.run(&[&format!("SELECT pg_create_restore_point('{words}')"), "SELECT pg_switch_wal()"]);
            // More than what a stripe's writer may still hold back.
            (0..6).for_each(|_| drop(finish_segment(self.cluster)));
        } else if name.starts_with("make the stripes durable") {
            self.flip();
        }
    }
    fn note(&self, _text: &str) {}
    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {}
    fn interrupted(&self) -> bool {
        false
    }
}

#[test]
fn f02_wal_is_read_back_from_the_stripes_before_there_is_a_set() {
    let work = work_directory();
    let cluster = stuck(work.path());
    let request = BackupRequest { compression: "none".parse().unwrap(), ..cluster.backup_request() };
    let flip = Flip { cluster: &cluster, done: AtomicBool::new(false) };
    let error = backup(&request, &flip).expect_err("a set whose WAL does not read");
    assert!(flip.done.load(SeqCst), "the words are not in a stripe");
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    assert_eq!(sets(&cluster.repo()), (Vec::new(), 0));
}
