//! The history: every field comes back, several processes write at once, kills and broken files are survived.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jiff::Timestamp;
use pagehaul_engine::error::ErrorKind;
use pagehaul_tune::figures::{CacheState, DeviceFacts, MachineFacts, RunFigures, StageWaits, Trial};
use pagehaul_tune::history::{History, HistoryFilter, HistoryRow, Origin, RunSettings, to_csv, to_json};

mod sample;

fn run(start: &str) -> RunFigures {
    RunFigures {
        started_at: start.to_owned(),
        wall_s: 41.25,
        cpu_s: 80.5,
        server_cpu_s: 0.75,
        rss_bytes_max: 93 << 20,
        stages: vec![StageWaits {
            stage: "readers".to_owned(),
            threads: 4,
            busy_s: 1.5,
            wait_input_s: 2.5,
            wait_output_s: 3.5,
        }],
        limit: "encoders".to_owned(),
        cache: CacheState::Cold,
    }
}

/// A row in which every field has a value of its own.
fn full_row() -> HistoryRow {
    HistoryRow {
        id: 1,
        session: None,
        started_at: "2026-11-21T20:15:30.250000Z".to_owned(),
        role: "candidate".to_owned(),
        source: "main".to_owned(),
        pgdata: "/var/lib/\"a, b\"\n/main".to_owned(),
        system_identifier: u64::MAX - 1,
        contestant: "pagehaul".to_owned(),
        setting: "zstd:1 r1 e2".to_owned(),
        settings: RunSettings {
            compression: Some("zstd:1".to_owned()),
            readers: Some(1),
            encoders: Some(2),
            stripes: Some(3),
            buffer_count: Some(4),
            transfer_size_bytes: Some(5),
            stripe_readers: Some(6),
            decoders: Some(7),
            file_writers: Some(8),
        },
        repetition: 3,
        label: Some("20261121-201530F".to_owned()),
        source_bytes: 48_300_000_000,
        stored_bytes: 16_500_000_000,
        backup: Some(run("2026-11-21T20:15:30.250000Z")),
        restore: Some(RunFigures { cache: CacheState::Warm, wall_s: 9.5, ..run("2026-11-21T20:17:00.000000Z") }),
        bytes_equal: Some(false),
        machine: MachineFacts {
            host: "db1".to_owned(),
            processor: "EPYC".to_owned(),
            cores: 8,
            memory_bytes: 33 << 30,
            system: "Linux 6.1".to_owned(),
            pagehaul: "0.1.0".to_owned(),
            server: "15.14".to_owned(),
        },
        failed: Some("größer, \"full\"".to_owned()),
    }
}

/// A row with as little as possible.
fn bare_row() -> HistoryRow {
    HistoryRow { id: 2, started_at: "2026-11-20T00:00:00.000000Z".to_owned(), ..HistoryRow::default() }
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("state/pagehaul/history.sqlite");
    (place, path)
}

#[test]
fn every_field_comes_back() {
    let (_place, path) = scratch();
    let history = History::open(&path).unwrap();
    assert_eq!(history.add(&full_row()).unwrap(), 1);
    assert_eq!(history.add(&bare_row()).unwrap(), 2);
    assert_eq!(history.rows(&HistoryFilter::default()).unwrap(), [full_row(), bare_row()]);
    drop(history);
    let again = History::open(&path).unwrap();
    assert_eq!(again.rows(&HistoryFilter::default()).unwrap(), [full_row(), bare_row()]);
}

#[test]
fn the_file_is_private() {
    let (place, path) = scratch();
    let _history = History::open(&path).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&place.path().join("state/pagehaul")), 0o700);
    assert_eq!(mode(&path.with_extension("sqlite-wal")), 0o600);
}

#[test]
fn filters_choose_and_limit() {
    let (_place, path) = scratch();
    let history = History::open(&path).unwrap();
    // The hour of the last is written with an offset: it is compared as a time, not as text.
    let rows = [
        ("main", "backup", "2026-01-01T00:00:00Z", 'F'),
        ("main", "restore", "2026-02-01T00:00:00.5Z", 'F'),
        ("other", "backup", "2026-02-01T02:00:00+02:00", 'I'),
    ];
    for (source, role, started_at, kind) in rows {
        let text = str::to_owned;
        let (source, role, started_at) = (text(source), text(role), text(started_at));
        let label = Some(format!("20260101-000000{kind}"));
        history.add(&HistoryRow { source, role, started_at, label, ..bare_row() }).unwrap();
    }
    let check = |filter: HistoryFilter, ids: &[i64]| {
        let found: Vec<i64> = history.rows(&filter).unwrap().iter().map(|row| row.id).collect();
        assert_eq!(found, ids, "{filter:?}");
    };
    let all = HistoryFilter::default;
    check(all(), &[2, 3, 1]);
    check(HistoryFilter { source: Some("main".to_owned()), ..all() }, &[2, 1]);
    check(HistoryFilter { role: Some("backup".to_owned()), ..all() }, &[3, 1]);
    check(HistoryFilter { limit: Some(1), ..all() }, &[2]);
    check(HistoryFilter { label_end: Some('I'), ..all() }, &[3]);
    let full = |source: &str| history.full_backups(source, 20).unwrap().len();
    assert_eq!([full("main"), full("other")], [1, 0], "incremental ones are not measured by full ones");
    check(HistoryFilter { since: Some("2026-02-01T00:00:00Z".parse::<Timestamp>().unwrap()), ..all() }, &[2, 3]);
    check(HistoryFilter { since: Some("2026-02-01T00:00:00.1Z".parse::<Timestamp>().unwrap()), ..all() }, &[2]);
    check(HistoryFilter { source: Some("' OR 1 --".to_owned()), ..all() }, &[]);
    let refused = history.add(&HistoryRow { started_at: "yesterday".to_owned(), ..bare_row() }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage);
}

#[test]
fn csv_reads_back_whatever_is_in_a_field() {
    let csv = to_csv(&[full_row(), bare_row()]).unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let names: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(records.len(), 2);
    let field = |name: &str| &records[0][names.iter().position(|other| other == name).unwrap()];
    assert_eq!(field("pgdata"), full_row().pgdata);
    assert_eq!(field("failed"), full_row().failed.unwrap());
    assert_eq!(field("system_identifier"), (u64::MAX - 1).to_string());
    assert_eq!(field("backup_started_at"), "2026-11-21T20:15:30.250000Z");
    assert_eq!(field("backup_ended_at"), "2026-11-21T20:16:11.500000Z");
    assert_eq!(field("restore_cache"), "warm");
    assert_eq!(serde_json::from_str::<Vec<StageWaits>>(field("backup_stages")).unwrap(), run("").stages);
    assert_eq!(to_csv(&[]).unwrap().trim_end(), csv.lines().next().unwrap(), "a header without rows");
    let json = to_json(&[full_row()]).unwrap();
    assert_eq!(serde_json::from_str::<Vec<HistoryRow>>(&json).unwrap(), [full_row()]);
}

#[test]
fn the_columns_of_the_csv_are_those_of_the_table() {
    let (_place, path) = scratch();
    drop(History::open(&path).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let statement = connection.prepare("SELECT * FROM run").unwrap();
    let columns: Vec<&str> = statement.column_names().collect();
    assert_eq!(columns.join(","), format!("{},trial_json", to_csv(&[]).unwrap().trim_end()));
}

fn origin() -> Origin {
    Origin { source: "main".to_owned(), pgdata: "/pg".to_owned(), system_identifier: 7, machine: full_row().machine }
}

#[test]
fn an_interrupted_session_goes_on() {
    let (_place, path) = scratch();
    let trials: Vec<Trial> = sample::report().trials.into_iter().take(5).collect();
    let devices = sample::report().facts.devices;
    {
        let history = History::open(&path).unwrap();
        let session = history.begin_or_resume("main of db1", "{\"a\":1}").unwrap();
        assert!(!session.resumed);
        history.save_stage(&session, "devices", &DeviceFacts::default()).unwrap();
        history.save_stage(&session, "devices", &devices).unwrap();
        for trial in &trials {
            history.save_trial(&session, trial, &origin()).unwrap();
        }
    }
    let history = History::open(&path).unwrap();
    let other = history.begin_or_resume("another key", "{}").unwrap();
    assert!(!other.resumed && history.load_trials(&other).unwrap().is_empty());
    let session = history.begin_or_resume("main of db1", "{\"a\":2}").unwrap();
    assert!(session.resumed);
    assert_eq!(session.request_json, "{\"a\":1}");
    assert_eq!(history.load_stage::<DeviceFacts>(&session, "devices").unwrap(), Some(devices));
    assert_eq!(history.load_stage::<DeviceFacts>(&session, "sample").unwrap(), None);
    assert_eq!(
        history.load_stage::<Vec<u8>>(&session, "devices").unwrap(),
        None,
        "an unreadable form is measured again"
    );
    assert_eq!(history.load_trials(&session).unwrap(), trials);
    let rows = history.rows(&HistoryFilter { source: Some("main".to_owned()), ..HistoryFilter::default() }).unwrap();
    assert_eq!(rows.len(), trials.len());
    assert!(rows.iter().all(|row| row.session == Some(session.id) && row.machine == origin().machine));
    history.finish(&session).unwrap();
    let next = history.begin_or_resume("main of db1", "{}").unwrap();
    assert!(!next.resumed && next.id != session.id);
    assert_eq!(history.load_trials(&session).unwrap(), trials, "what is finished is kept");
}

#[test]
fn a_trial_becomes_a_row_with_all_its_figures() {
    let trial = &sample::report().trials[1];
    let row = HistoryRow::from_trial(trial, &origin());
    let settings = trial.settings.as_ref().unwrap();
    assert_eq!(row.settings.compression.as_deref(), Some("zstd:1"));
    assert_eq!(row.settings.transfer_size_bytes, Some(settings.transfer_size_bytes));
    assert_eq!((&row.backup, &row.restore), (&trial.backup, &trial.restore));
    assert_eq!(row.started_at, trial.backup.as_ref().unwrap().started_at);
    assert_eq!((row.role.as_str(), row.source.as_str()), ("default", "main"));
    let before = Timestamp::now();
    let failed = HistoryRow::from_trial(&Trial { failed: Some("no".to_owned()), ..Trial::default() }, &origin());
    let started: Timestamp = failed.started_at.parse().unwrap();
    assert!(started.as_second() >= before.as_second() && failed.failed.as_deref() == Some("no"));
}

#[test]
fn threads_write_at_once_from_the_first_moment() {
    let (_place, path) = scratch();
    const THREADS: usize = 4;
    const ROWS: usize = 25;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // The file is not there yet: all of them make it.
                let history = History::open(&path).unwrap();
                for _ in 0..ROWS {
                    history.add(&bare_row()).unwrap();
                }
            });
        }
    });
    let history = History::open(&path).unwrap();
    assert_eq!(history.rows(&HistoryFilter::default()).unwrap().len(), THREADS * ROWS);
    let sessions: Vec<_> = std::thread::scope(|scope| {
        let begin = || History::open(&path).unwrap().begin_or_resume("key", "{}").unwrap();
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(begin)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(sessions.iter().all(|session| session.id == sessions[0].id), "one key, one open session");
    assert_eq!(sessions.iter().filter(|session| !session.resumed).count(), 1);
}

const WRITER_FILE: &str = "PAGEHAUL_TEST_HISTORY_WRITER";

/// Not a test by itself: what the killed process of the next tests runs.
#[test]
fn writer_process() {
    let Some(path) = std::env::var_os(WRITER_FILE) else { return };
    let history = History::open(Path::new(&path)).unwrap();
    let session = history.begin_or_resume("key", "{}").unwrap();
    let trial = sample::report().trials.swap_remove(1);
    for number in 1..=100_000_u32 {
        let trial = Trial { repetition: number, ..trial.clone() };
        history.save_trial(&session, &trial, &origin()).unwrap();
        println!("\nwritten {number}");
    }
}

fn start_writer(path: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_process", "--nocapture"])
        .env(WRITER_FILE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Numbers as the process says that they are written.
fn said(child: &mut std::process::Child) -> impl Iterator<Item = u32> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| line.strip_prefix("written ")?.parse().ok())
}

#[test]
fn a_kill_loses_nothing_that_was_said_to_be_written() {
    let (_place, path) = scratch();
    let mut written = 0;
    for kill_after in [1, 7, 40] {
        let mut child = start_writer(&path);
        let mut numbers = said(&mut child);
        let mut last = numbers.by_ref().take(kill_after).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        last = numbers.last().unwrap_or(last);
        let history = History::open(&path).unwrap();
        let session = history.begin_or_resume("key", "{}").unwrap();
        assert!(session.resumed);
        let found = history.load_trials(&session).unwrap().len() as u32 - written;
        assert!(found == last || found == last + 1, "said {last}, found {found}");
        written += found;
        let check: String = rusqlite::Connection::open(&path)
            .unwrap()
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(check, "ok");
    }
}

#[test]
fn two_processes_write_at_once() {
    let (_place, path) = scratch();
    drop(History::open(&path).unwrap());
    let mut children = [start_writer(&path), start_writer(&path)];
    let mut outputs = children.each_mut().map(said);
    // Each has written, and goes on, while the other writes.
    for output in &mut outputs {
        assert_eq!(output.by_ref().take(20).last(), Some(20));
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let lasts = outputs.map(|output| output.last().unwrap_or(20));
    let history = History::open(&path).unwrap();
    let found = history.rows(&HistoryFilter::default()).unwrap().len() as u32;
    let sum: u32 = lasts.iter().sum();
    assert!((sum..=sum + 2).contains(&found), "said {lasts:?}, found {found}");
}

fn refused(path: &Path, kind: ErrorKind, words: &[&str]) {
    let error = History::open(path).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(&path.display().to_string()) && text.contains("\nhint: "), "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

#[test]
fn broken_foreign_and_newer_files_are_refused_and_left_alone() {
    let (place, path) = scratch();
    let broken = place.path().join("broken.sqlite");
    std::fs::write(&broken, "not a database, but long enough to look like one".repeat(100)).unwrap();
    refused(&broken, ErrorKind::Damage, &["not a database", ".damaged"]);

    let foreign = place.path().join("foreign.sqlite");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE run (a)").unwrap();
    let before = std::fs::read(&foreign).unwrap();
    refused(&foreign, ErrorKind::Configuration, &["another program", "PAGEHAUL_HISTORY"]);
    assert_eq!(std::fs::read(&foreign).unwrap(), before);

    History::open(&path).unwrap().add(&bare_row()).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    refused(&path, ErrorKind::Configuration, &["newer pagehaul", "99"]);
    connection.pragma_update(None, "user_version", 1).unwrap();
    assert_eq!(History::open(&path).unwrap().rows(&HistoryFilter::default()).unwrap().len(), 1);
}

#[test]
fn damage_in_the_middle_is_told_with_the_file() {
    let (_place, path) = scratch();
    let history = History::open(&path).unwrap();
    for _ in 0..200 {
        history.add(&full_row()).unwrap();
    }
    drop(history);
    let mut bytes = std::fs::read(&path).unwrap();
    let from = 4096 * 8;
    bytes[from..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let error = History::open(&path).and_then(|history| history.rows(&HistoryFilter::default())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage, "{error}");
    assert!(error.to_string().contains("history.sqlite.damaged"), "{error}");
}

#[test]
fn a_place_that_cannot_be_written_is_told() {
    let place = tempfile::tempdir().unwrap();
    let locked = place.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    let made = locked.join("made.sqlite");
    drop(History::open(&made).unwrap());
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(&made, 0o644);
    mode(place.path(), 0o755);
    mode(&locked, 0o555);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Root may write anywhere; this thread alone becomes somebody else.
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            refused(&locked.join("new.sqlite"), ErrorKind::Repository, &["Permission denied", "PAGEHAUL_HISTORY"]);
            refused(&locked.join("below/new.sqlite"), ErrorKind::Repository, &["PAGEHAUL_HISTORY"]);
            refused(&made, ErrorKind::Repository, &["PAGEHAUL_HISTORY"]);
        });
    });
}
