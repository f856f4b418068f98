//! Streaming WAL into the archive: no gap and nothing lost, whatever dies meanwhile.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::wal_inventory::{Detail, WalInventory, clusters};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, NoObserver, Observer};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_engine::terms::{Lsn, SegmentNumber, SourceName, TimelineId, WalSegmentName};
use pagehaul_engine::wal::{GetOutcome, GetRequest, ReceiveReport, ReceiveRequest, get, receive};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, work_directory};
use pagehaul_testkit::random::Random;

pub(super) const SEGMENT_BYTES: u64 = 1 << 20;

/// Stops a receiver, and keeps what it noted.
#[derive(Default)]
pub(super) struct Watch {
    stop: AtomicBool,
    ended: AtomicBool,
    notes: Mutex<Vec<String>>,
}

impl Watch {
    /// Whether the receiver is no more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }

    pub(super) fn wait_for_note(&self, words: &str) {
        for _ in 0..600 {
            if self.notes.lock().unwrap().iter().any(|note| note.contains(words)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let notes = self.notes.lock().unwrap().clone();
        panic!("no note says {words:?}: {notes:?}");
    }
}

impl Observer for Watch {
    fn phase(&self, _name: &str) {}
    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }
    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {}
    fn interrupted(&self) -> bool {
        self.stop.load(SeqCst)
    }
}

pub(super) fn source() -> SourceName {
    "main".parse().unwrap()
}

pub(super) fn cluster(directory: &Path, settings: &[(&str, &str)]) -> Cluster {
    cluster_of(&default_install(), directory, settings)
}

fn cluster_of(
    install: &pagehaul_engine::source::postgres::pg_install::PgInstall,
    directory: &Path,
    settings: &[(&str, &str)],
) -> Cluster {
    let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
    let cluster = Cluster::start_with(install, directory, &options, &[QUICK, settings].concat());
    cluster.run(&["CREATE TABLE ledger (n bigint PRIMARY KEY, x text)"]);
    cluster
}

fn conninfo(cluster: &Cluster) -> String {
    let server = cluster.server.connect_settings();
    format!("host={} port={} user={}", server.host, server.port, server.user)
}

pub(super) fn request(cluster: &Cluster) -> ReceiveRequest {
    ReceiveRequest {
        connection: Some(conninfo(cluster)),
        slot: Some("pagehaul".into()),
        create_slot: true,
        flush_every: Duration::from_millis(100),
        spool_dir: Some(cluster.directory.clone()),
        ..ReceiveRequest::new(source())
    }
}

/// Runs `work` while a receiver runs; gives what the receiver came to.
pub(super) fn while_receiving(
    repo: &str,
    request: &ReceiveRequest,
    watch: &Watch,
    work: impl FnOnce(),
) -> Result<ReceiveReport, Error> {
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let outcome = Repository::open_or_create(repo).and_then(|repository| receive(&repository, request, watch));
            watch.ended.store(true, SeqCst);
            outcome
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        watch.stop.store(true, SeqCst);
        let outcome = receiver.join().unwrap();
        if let Err(panic) = worked {
            eprintln!("receiver: {outcome:?}, {:?}", watch.notes.lock().unwrap());
            std::panic::resume_unwind(panic);
        }
        outcome
    })
}

/// Adds rows until `stop`, which may be after the server is gone; `committed` is the last one that was acknowledged.
fn keep_ledger(cluster: &Cluster, first: u64, stop: &AtomicBool, committed: &AtomicU64) {
    let Ok(mut connection) = cluster.server.connect() else { return };
    let mut number = first;
    while !stop.load(SeqCst) {
        let sql = format!("INSERT INTO public.ledger VALUES ({number}, repeat(md5('{number}'), 20))");
        if connection.query(&sql).is_err() {
            return;
        }
        committed.store(number, SeqCst);
        number += 1;
    }
}

/// Ends what runs beside a test, also when the test fails: a scope would wait for it for ever.
pub(super) struct StopAtEnd<'a>(pub(super) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Waits until the server knows that everything it has written so far is durable in the archive.
pub(super) fn wait_until_received(cluster: &Cluster) {
    let wanted = cluster.value(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END",
    );
    let sql = format!(
        "SELECT coalesce(bool_or(flush_lsn >= '{wanted}'), false) FROM pg_stat_replication \
         WHERE application_name = 'pagehaul'"
    );
    for _ in 0..900 {
        if cluster.value(&sql) == "t" {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let seen = "SELECT coalesce(string_agg(r::text, ' '), 'no receiver') FROM pg_stat_replication r";
    panic!("{wanted} is not received: {}", cluster.value(seen));
}

/// Starts a server on the newest set and all WAL that the archive has of timeline 1 from there on.
fn recover(cluster: &Cluster, target: &Path) -> Cluster {
    let report = restore(&RestoreRequest::new(cluster.repo(), target), &NoObserver).unwrap();
    let repository = Repository::open(&cluster.repo()).unwrap();
    // The set has the WAL up to there itself.
    let mut number = SegmentNumber((report.stop_lsn.0 - 1) / SEGMENT_BYTES + 1);
    let first = number;
    loop {
        let name = WalSegmentName::new(TimelineId(1), number, SEGMENT_BYTES);
        let request = GetRequest {
            source: source(),
            name: name.to_string(),
            destination: target.join("pg_wal").join(name.as_str()),
            system_identifier: None,
            decoders: None,
        };
        if get(&repository, &request).unwrap() == GetOutcome::NotThere {
            break;
        }
        number.0 += 1;
    }
    assert!(number > first, "the archive has nothing behind the set");
    let server = ScratchServer::adopt(cluster.server.install(), target).unwrap();
    server.take_over_data_directory().unwrap();
    drop(server);
    cluster.adopt(target)
}

/// Every row up to `committed` is there, and nothing between is missing.
fn check_ledger(copy: &Cluster, committed: u64) {
    let rows: u64 = copy.value("SELECT coalesce(max(n), 0) FROM ledger").parse().unwrap();
    assert!(rows >= committed, "{committed} rows were committed, {rows} are in the archive");
    assert_eq!(copy.value("SELECT count(*) FROM ledger"), rows.to_string(), "a row is missing in between");
    assert_eq!(copy.value("SELECT count(*) FROM ledger WHERE x <> repeat(md5(n::text), 20)"), "0");
}

pub(super) fn inventory(repo: &str) -> WalInventory {
    let repository = Repository::open(repo).unwrap();
    let found = clusters(&repository, &source()).unwrap();
    assert_eq!(found.len(), 1);
    WalInventory::load(&repository, &source(), found[0], Detail::Members).unwrap()
}

/// Not a test: the receiver that others start as a process of its own and kill; by itself it has nothing to do.
#[test]
fn receiver_process() {
    let Ok(repo) = std::env::var("RECEIVE_REPO") else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let request = ReceiveRequest {
        connection: Some(variable("RECEIVE_CONNECTION")),
        slot: Some("pagehaul".into()),
        create_slot: true,
        synchronous: variable("RECEIVE_SYNCHRONOUS") == "1",
        flush_every: Duration::from_millis(50),
        spool_dir: Some(variable("RECEIVE_SPOOL").into()),
        ..ReceiveRequest::new(source())
    };
    let repository = Repository::open_or_create(&repo).unwrap();
    panic!("it ended by itself: {:?}", receive(&repository, &request, &NoObserver));
}

fn start_receiver(cluster: &Cluster, synchronous: bool) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "wal_receive::receiver_process", "--nocapture"])
        .env("RECEIVE_REPO", cluster.repo())
        .env("RECEIVE_CONNECTION", conninfo(cluster))
        .env("RECEIVE_SPOOL", &cluster.directory)
        .env("RECEIVE_SYNCHRONOUS", if synchronous { "1" } else { "0" })
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_a_synchronous_server_acknowledged_survives_the_death_of_server_and_receiver() {
    let mut random = Random::new("synchronous receiver");
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let work = work_directory();
        let mut cluster = cluster_of(&install, work.path(), &[]);
        cluster.backup(&cluster.backup_request());
        let receiver = start_receiver(&cluster, true);
        cluster.commits_wait_for("pagehaul");
        let (stop, committed) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| keep_ledger(&cluster, 1, &stop, &committed));
            for _ in 0..600 {
                if committed.load(SeqCst) >= 100 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            std::thread::sleep(Duration::from_millis(random.below(700)));
            kill(receiver);
            // A commit that comes now is not acknowledged any more; the writer ends with the server.
            stop.store(true, SeqCst);
            let pid = std::fs::read_to_string(cluster.server.data_directory().join("postmaster.pid")).unwrap();
            let pid: i32 = pid.lines().next().unwrap().parse().unwrap();
            Command::new("kill").args(["-QUIT", &pid.to_string()]).status().unwrap();
        });
        cluster.server.kill9().ok();
        let committed = committed.into_inner();
        assert!(committed >= 100, "only {committed} rows");
        let copy = recover(&cluster, &work.path().join("recovered"));
        check_ledger(&copy, committed);
    }
}

#[test]
fn a_receiver_that_is_killed_at_any_moment_leaves_no_gap() {
    let mut random = Random::new("killed receiver");
    let work = work_directory();
    let mut cluster = cluster(work.path(), &[]);
    cluster.backup(&cluster.backup_request());
    let (stop, committed) = (AtomicBool::new(false), AtomicU64::new(0));
    let watch = Watch::default();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| keep_ledger(&cluster, 1, &stop, &committed));
        for _ in 0..12 {
            let receiver = start_receiver(&cluster, random.below(2) == 0);
            std::thread::sleep(Duration::from_millis(200 + random.below(1500)));
            kill(receiver);
        }
    });
    while_receiving(&cluster.repo(), &request(&cluster), &watch, || wait_until_received(&cluster)).unwrap();
    let inventory = inventory(&cluster.repo());
    let wal = &inventory.timelines[&TimelineId(1)];
    assert!(wal.gaps().is_empty() && wal.conflicts.is_empty(), "{:?} {:?}", wal.gaps(), wal.conflicts);
    let last = wal.ranges.last().unwrap().last;
    assert!(wal.pieces.iter().all(|piece| piece.segment > last), "pieces of whole segments are left");
    cluster.crash();
    let copy = recover(&cluster, &work.path().join("recovered"));
    check_ledger(&copy, committed.into_inner());
}

#[test]
fn a_server_that_comes_back_is_followed_again() {
    let work = work_directory();
    let mut cluster = cluster(work.path(), &[]);
    cluster.backup(&cluster.backup_request());
    let watch = Watch::default();
    let (repo, request) = (cluster.repo(), request(&cluster));
    let report = while_receiving(&repo, &request, &watch, || {
        watch.wait_for_note("streaming WAL");
        for (first, mode) in [(1, StopMode::Fast), (101, StopMode::Immediate)] {
            cluster.run(&[&format!(
                "INSERT INTO ledger SELECT n, repeat(md5(n::text), 20) FROM generate_series({first}, {first} + 99) AS n"
            )]);
            cluster.server.stop(mode).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            cluster.server.start(QUICK).unwrap();
            // Before it goes again it must have been found again.
            wait_until_received(&cluster);
        }
    })
    .unwrap();
    assert!(report.reconnect_count >= 2, "{report:?}");
    watch.wait_for_note("trying again in 1 s");
    cluster.crash();
    check_ledger(&recover(&cluster, &work.path().join("recovered")), 200);
}

#[test]
fn f28_a_promotion_is_followed_to_the_new_timeline() {
    let work = work_directory();
    let primary = cluster(work.path(), &[]);
    let standby = primary.standby("standby");
    let watch = Watch::default();
    let repo = primary.repo();
    while_receiving(&repo, &request(&standby), &watch, || {
        watch.wait_for_note("streaming WAL");
        primary.run(&["INSERT INTO ledger SELECT n, 'old' FROM generate_series(1, 20000) AS n"]);
        standby.catch_up(&primary);
        assert_eq!(standby.value("SELECT pg_promote()"), "t");
        standby.run(&["INSERT INTO ledger SELECT n, 'new' FROM generate_series(20001, 60000) AS n"]);
        watch.wait_for_note("streaming WAL of timeline 2");
        wait_until_received(&standby);
    })
    .unwrap();
    let inventory = inventory(&repo);
    let (old, new) = (&inventory.timelines[&TimelineId(1)], &inventory.timelines[&TimelineId(2)]);
    let left_at = new.history.as_ref().unwrap().parent().unwrap().end_lsn;
    // Of the old timeline everything up to where it was left, of the new one from there on.
    let reached = old.pieces.iter().map(|piece| {
        let member = piece.member.as_ref().unwrap();
        piece.segment.0 * SEGMENT_BYTES + u64::from(piece.offset) + member.size_bytes
    });
    let whole = old.ranges.last().map_or(0, |range| (range.last.0 + 1) * SEGMENT_BYTES);
    assert!(reached.max().unwrap_or(0).max(whole) >= left_at.0, "the end of the old timeline is missing");
    assert!(old.gaps().is_empty() && new.gaps().is_empty());
    assert_eq!(new.ranges.first().unwrap().first.0, left_at.0 / SEGMENT_BYTES);
    // What was archived is what the server has.
    let repository = Repository::open(&repo).unwrap();
    let end: Lsn = standby.value("SELECT pg_current_wal_flush_lsn()").parse().unwrap();
    for number in new.ranges.first().unwrap().first.0..=(end.0 - 1) / SEGMENT_BYTES {
        let name = WalSegmentName::new(TimelineId(2), SegmentNumber(number), SEGMENT_BYTES);
        let destination = work.path().join("got");
        let request = GetRequest {
            source: source(),
            name: name.to_string(),
            destination: destination.clone(),
            system_identifier: None,
            decoders: None,
        };
        assert!(matches!(get(&repository, &request).unwrap(), GetOutcome::Delivered(_)), "{name}");
        let ours = std::fs::read(&destination).unwrap();
        let Ok(theirs) = std::fs::read(standby.server.data_directory().join("pg_wal").join(name.as_str())) else {
            continue;
        };
        let until = (end.0 - number * SEGMENT_BYTES).min(SEGMENT_BYTES) as usize;
        assert_eq!(ours.len(), theirs.len());
        assert!(ours[..until] == theirs[..until], "{name} differs");
    }
}

#[test]
fn a_lost_slot_and_lost_wal_are_clear_errors() {
    let work = work_directory();
    let cluster = cluster(work.path(), &[]);
    let repo = cluster.repo();
    let no_slot = ReceiveRequest { create_slot: false, ..request(&cluster) };
    let error = while_receiving(&repo, &no_slot, &Watch::default(), || {}).unwrap_err();
    assert!(error.message().contains("there is no such slot"), "{error}");
    assert!(error.hint_text().unwrap().contains("--create-slot"), "{error}");
    let watch = Watch::default();
    while_receiving(&repo, &request(&cluster), &watch, || {
        watch.wait_for_note("streaming WAL");
        // A whole segment, so that there is something before the gap.
        cluster.run(&["INSERT INTO ledger VALUES (-2, 'before')", "SELECT pg_switch_wal()"]);
        cluster.run(&["INSERT INTO ledger VALUES (-3, 'before')"]);
        wait_until_received(&cluster);
    })
    .unwrap();
    // The slot is dropped, and the server removes what the archive needs next.
    let (mut tries, slots) = (0, "SELECT count(*) FROM pg_replication_slots WHERE active");
    while cluster.value(slots) != "0" && tries < 50 {
        std::thread::sleep(Duration::from_millis(100));
        tries += 1;
    }
    cluster.run(&["SELECT pg_drop_replication_slot('pagehaul')"]);
    for first in 0..8 {
        cluster.run(&[
            &format!("INSERT INTO ledger SELECT n, repeat('x', 500) FROM generate_series({first} * 10000, {first} * 10000 + 9999) AS n"),
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        ]);
    }
    cluster.run(&["CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"]);
    let error = while_receiving(&repo, &request(&cluster), &Watch::default(), || {
        std::thread::sleep(Duration::from_secs(3));
    });
    let error = match error {
        Err(error) => error,
        Ok(report) => panic!("the server still had everything: {report:?}"),
    };
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
    assert!(error.hint_text().unwrap().contains("--accept-gap"), "{error}");
    let watch = Watch::default();
    let goes_on = ReceiveRequest { accept_gap: true, ..request(&cluster) };
    while_receiving(&repo, &goes_on, &watch, || {
        watch.wait_for_note("streaming WAL");
        // Another whole segment, so that there is something behind the gap.
        cluster.run(&["SELECT pg_switch_wal()", "INSERT INTO ledger VALUES (-1, 'behind')"]);
        wait_until_received(&cluster);
    })
    .unwrap();
    watch.wait_for_note("may be lost");
    assert_eq!(inventory(&repo).timelines[&TimelineId(1)].gaps().len(), 1);
}

#[test]
fn another_cluster_under_the_same_name_is_refused() {
    let work = work_directory();
    let (one, two) = (work.path().join("one"), work.path().join("two"));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&two).unwrap();
    for directory in [&one, &two] {
        std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (one, two) = (cluster(&one, &[]), cluster(&two, &[]));
    while_receiving(&one.repo(), &request(&one), &Watch::default(), || wait_until_received(&one)).unwrap();
    let error = while_receiving(&one.repo(), &request(&two), &Watch::default(), || {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

#[test]
fn a_slow_store_loses_nothing_and_the_lag_is_told() {
    let work = work_directory();
    let mut cluster = cluster(work.path(), &[]);
    cluster.backup(&cluster.backup_request());
    let watch = Watch::default();
    let slow = format!("throttle:write=1MB/s:{}", cluster.repo());
    let request = ReceiveRequest { compression: "none".parse().unwrap(), ..request(&cluster) };
    while_receiving(&slow, &request, &watch, || {
        watch.wait_for_note("streaming WAL");
        cluster.run(&["INSERT INTO ledger SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 20000) AS n"]);
        watch.wait_for_note("MiB behind the server");
        wait_until_received(&cluster);
    })
    .unwrap();
    cluster.crash();
    check_ledger(&recover(&cluster, &work.path().join("recovered")), 20000);
}
