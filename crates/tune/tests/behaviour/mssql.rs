//! Tuning of SQL Server against the scripted server, whose limits are known.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, Observer};
use pagehaul_engine::source::mssql::address::{Encryption, Password, ServerAddress};
use pagehaul_engine::source::mssql::client::{Connection, Watch};
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_engine::source::mssql::server_message::{RunError, ServerMessage, StopReason};
use pagehaul_testkit::mssql::parser::ScriptDom;
use pagehaul_testkit::mssql::{Happening, PASSWORD, Security, TdsServer, World};
use pagehaul_tune::figures::{Row, Trial, TuneReport};
use pagehaul_tune::mssql::import::{ImportRequest, import};
use pagehaul_tune::mssql::script::{Places, batches};
use pagehaul_tune::mssql::session::{MssqlRequest, SpaceWish, script, tune};
use pagehaul_tune::mssql::transcript::error_lines;
use pagehaul_tune::objective::{Goal, Objective};
use pagehaul_tune::rounds::TuneObserver;
use pagehaul_tune::rows::role;

const BYTES: u64 = 64 << 30;

fn start() -> TdsServer {
    TdsServer::start(World::with_database(BYTES), Security::Plain)
}

fn address(server: &TdsServer) -> ServerAddress {
    let address = ServerAddress::parse(&server.address().to_string(), "sa", Password::new(PASSWORD)).unwrap();
    ServerAddress { encryption: Encryption::Plain, ..address }
}

fn request(directory: &Path) -> MssqlRequest {
    MssqlRequest {
        source: "main".to_owned(),
        database: "shop".to_owned(),
        places: Places {
            backup_to: vec!["/b/it's".to_owned(), "/c/".to_owned()],
            data_to: None,
            log_to: Some("/l".to_owned()),
            scratch_database: None,
        },
        space: SpaceWish::default(),
        runs_grid: false,
        objective: Objective::default(),
        repeat: 1,
        budget: None,
        statement_limit: None,
        buffer_bytes_max: None,
        history: directory.join("history.sqlite"),
        begins_anew: false,
        command: "pagehaul mssql tune".to_owned(),
    }
}

/// Few enough points for a grid.
fn small(directory: &Path) -> MssqlRequest {
    let compressions = ["none", "zstd:low"].map(|text| text.parse().unwrap()).to_vec();
    let space = SpaceWish {
        compressions: Some(compressions),
        files: Some(vec![1, 4]),
        buffer_counts: Some(vec![None]),
        transfer_sizes: Some(vec![None]),
        block_sizes: None,
    };
    MssqlRequest { space, runs_grid: true, ..request(directory) }
}

#[derive(Default)]
struct Listener {
    notes: Mutex<Vec<String>>,
    trials: Mutex<usize>,
    stops_after: Option<usize>,
}

impl Observer for Listener {
    fn phase(&self, _name: &str) {}
    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }
    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {}
    fn interrupted(&self) -> bool {
        self.stops_after.is_some_and(|count| *self.trials.lock().unwrap() >= count)
    }
}

impl TuneObserver for Listener {
    fn stage(&self, _name: &str) {}
    fn measured(&self, _what: &str, _done: usize, _total: usize) {}
    fn trial_begins(&self, _what: &str) {}
    fn trial_ended(&self, _trial: &Trial, _rows: &[Row]) {
        *self.trials.lock().unwrap() += 1;
    }
}

fn facts(server: &TdsServer) -> ServerFacts {
    ServerFacts::ask(&mut Connection::connect(&address(server)).unwrap(), "shop").unwrap()
}

/// Nothing of the trials is left on the server.
fn check_clean(server: &TdsServer) {
    let world = server.world();
    let names: Vec<&String> = world.databases.keys().collect();
    assert_eq!(names, ["shop"]);
    assert!(world.backup_files.is_empty(), "{:?}", world.backup_files);
    assert!(world.sets.iter().all(|set| set.is_copy_only && set.has_checksums), "{:?}", world.sets);
    assert!(world.databases["shop"].differential_base.is_none(), "no trial is the base of a differential");
}

/// Seconds of backup and restore of every point that fits, by the server's own model.
fn truth(server: &TdsServer, most: u64) -> Vec<(String, [f64; 2])> {
    let world = server.world();
    let mut all = Vec::new();
    for (name, compression) in [
        ("none", ""),
        ("ms_xpress", "MS_XPRESS"),
        ("zstd:low", "ZSTD LOW"),
        ("zstd:medium", "ZSTD MEDIUM"),
        ("zstd:high", "ZSTD HIGH"),
    ] {
        for files in [1usize, 2, 4, 8] {
            for (count, size) in [None, Some(25), Some(50), Some(100)]
                .into_iter()
                .flat_map(|count| [(count, None), (count, Some(4 << 20))])
            {
                let sets = if compression.is_empty() { 1 } else { 3 };
                let bytes = count.unwrap_or(files as u64 * 5 + 2) * size.unwrap_or(1 << 20) * sets;
                if let Some(seconds) =
                    world.limits.seconds(BYTES, compression, files, count, size).filter(|_| bytes <= most)
                {
                    let buffers = count.map_or_else(String::new, |count| format!(" b{count}"));
                    let transfer = if size.is_some() { " t4MiB" } else { "" };
                    all.push((format!("{name} f{files}{buffers}{transfer}"), seconds));
                }
            }
        }
    }
    all
}

#[test]
fn on_a_server_with_known_limits_the_right_settings_are_recommended() {
    for goal in [Goal::Restore, Goal::Backup] {
        let directory = tempfile::tempdir().unwrap();
        let server = start();
        let listener = Listener::default();
        let objective = Objective { goal, ..Objective::default() };
        let request = MssqlRequest { objective, buffer_bytes_max: Some(1 << 40), ..request(directory.path()) };
        let report = tune(&request, &address(&server), &listener).unwrap();
        let answer = report.recommendation.as_ref().unwrap();
        let way = usize::from(goal == Goal::Restore);
        let all = truth(&server, u64::MAX);
        let best = all.iter().map(|(_, seconds)| seconds[way]).fold(f64::INFINITY, f64::min);
        let chosen = all.iter().find(|(name, _)| *name == answer.row.setting).unwrap().1[way];
        assert!(chosen <= best * 1.02, "{goal}: {} takes {chosen} s, and the best {best} s", answer.row.setting);
        assert!(report.trials.len() * 2 < all.len(), "{} trials of {}", report.trials.len(), all.len());
        let measured = if way == 0 { answer.row.backup_s } else { answer.row.restore_s.unwrap() };
        assert!((measured - chosen).abs() < 0.01, "what was measured is the server's time: {measured}, {chosen}");
        let roles: BTreeSet<&str> = report.rows.iter().map(|row| row.role.as_str()).collect();
        assert_eq!(roles, BTreeSet::from([role::BASELINE, role::CANDIDATE, role::DEFAULT]));
        assert!(answer.commands[0].contains("pagehaul mssql backup --database shop --to"), "{:?}", answer.commands);
        check_clean(&server);
        let page = pagehaul_tune::report::html(&report).unwrap();
        assert!(page.contains(&answer.row.setting));
    }
}

#[test]
fn bounds_hold_and_buffers_that_do_not_fit_are_not_tried_larger() {
    let directory = tempfile::tempdir().unwrap();
    let server = start();
    server.world().limits.buffer_bytes_max = 70 << 20;
    let objective = Objective { goal: Goal::Backup, cpu_share_max: Some(0.5), ..Objective::default() };
    let request = MssqlRequest { objective, runs_grid: true, ..request(directory.path()) };
    let report = tune(&request, &address(&server), &Listener::default()).unwrap();
    let answer = report.recommendation.unwrap();
    assert!(answer.bounds_met && answer.row.backup_cpu_s / (answer.row.backup_s * 8.0) <= 0.5, "{answer:?}");
    let out_of_memory = |trial: &&Trial| trial.failed.as_ref().is_some_and(|why| why.contains("Msg 701"));
    let failed = report.trials.iter().filter(out_of_memory).count();
    let not_run =
        report.trials.iter().filter(|trial| trial.failed.as_ref().is_some_and(|why| why.starts_with("not run")));
    assert!(failed >= 1 && not_run.count() > failed, "{failed}");
    check_clean(&server);
    // What would be far too much is not even asked for.
    let directory = tempfile::tempdir().unwrap();
    let request = MssqlRequest { buffer_bytes_max: Some(60 << 20), ..self::request(directory.path()) };
    let server = start();
    let report = tune(&request, &address(&server), &Listener::default()).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("--max-buffer-memory")), "{:?}", report.notes);
    assert!(report.trials.iter().all(|trial| trial.failed.is_none()));
}

#[test]
fn what_the_server_does_not_take_is_left_out_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let server = start();
    let facts = facts(&server);
    let places = Places { backup_to: vec!["s3://minio:9000/b".to_owned()], ..request(directory.path()).places };
    let text = script(&MssqlRequest { places, ..request(directory.path()) }, &facts).unwrap();
    assert!(text.contains("-- ") && text.contains("settings are left out: MAXTRANSFERSIZE is out of range"), "{text}");
    assert!(text.contains("URL = N's3://minio:9000/b/pagehaul-tune-") && !text.contains("MAXTRANSFERSIZE ="));
    let space = SpaceWish { compressions: Some(vec!["qat_deflate".parse().unwrap()]), ..SpaceWish::default() };
    let error = script(&MssqlRequest { space, ..request(directory.path()) }, &facts).unwrap_err();
    assert!(error.hint_text().unwrap().contains("Windows"), "{error}");
}

#[test]
fn the_script_is_what_is_run() {
    let directory = tempfile::tempdir().unwrap();
    let server = start();
    let own = request(directory.path());
    let grid = MssqlRequest { repeat: 2, ..small(directory.path()) };
    let facts = facts(&server);
    server.world().batches.clear();
    let text = script(&grid, &facts).unwrap();
    assert!(server.world().batches.is_empty(), "a script is made of facts and asks nothing");
    tune(&grid, &address(&server), &Listener::default()).unwrap();
    assert_eq!(server.world().batches, batches(&text), "in the same order, sign by sign");
    server.world().batches.clear();
    let known: BTreeSet<String> = batches(&script(&own, &facts).unwrap()).into_iter().collect();
    tune(&own, &address(&server), &Listener::default()).unwrap();
    let ran = server.world().batches.clone();
    assert!(ran.len() > 50 && ran.iter().all(|batch| known.contains(batch)), "a walk runs a part of its script");
    let Some(parser) = ScriptDom::find() else { return };
    assert_eq!(parser.errors(&text), Vec::<String>::new());
}

/// A DBA with sqlcmd: every batch, whatever becomes of it, and all that is said in one file.
fn run_by_hand(server: &TdsServer, text: &str) -> String {
    struct Paper(RefCell<String>);
    impl Watch for Paper {
        fn message(&mut self, message: &ServerMessage) {
            let mut paper = self.0.borrow_mut();
            if message.is_error() {
                error_lines(message).iter().for_each(|line| *paper += &format!("{line}\n"));
            } else {
                *paper += &format!("{}\n", message.text);
            }
        }
        fn stop(&mut self) -> Option<StopReason> {
            None
        }
    }
    let mut connection = Connection::connect(&address(server)).unwrap();
    let mut paper = Paper(RefCell::default());
    for batch in batches(text) {
        match connection.run(&batch, &mut paper) {
            Ok(_) | Err(RunError::Refused(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    paper.0.into_inner()
}

fn figures(report: &TuneReport) -> Vec<(String, u64, String)> {
    let row = |row: &Row| (row.setting.clone(), row.stored_bytes, format!("{:.3} {:?}", row.backup_s, row.restore_s));
    report.rows.iter().map(row).collect()
}

#[test]
fn results_of_a_script_that_was_run_by_hand_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let (by_hand, by_us) = (start(), start());
    let grid = small(directory.path());
    let text = script(&grid, &facts(&by_hand)).unwrap();
    for server in [&by_hand, &by_us] {
        let errors = vec![(3201, "Cannot open backup device".to_owned()), (3013, "terminating".to_owned())];
        server.world().fail("BACKUP DATABASE [shop]\nTO DISK = N'/b/it''s/pagehaul", Happening::Errors(errors));
    }
    let results = run_by_hand(&by_hand, &text);
    let request = ImportRequest {
        source: "main".to_owned(),
        database: "shop".to_owned(),
        objective: grid.objective,
        history: directory.path().join("imported.sqlite"),
        command: "pagehaul mssql import".to_owned(),
    };
    let imported = import(&results, &request).unwrap();
    let ran = tune(&grid, &address(&by_us), &Listener::default()).unwrap();
    assert_eq!(figures(&imported), figures(&ran));
    assert_eq!(imported.rows.iter().filter(|row| row.failed.is_some()).count(), 1);
    let failed = imported.rows.iter().find_map(|row| row.failed.clone()).unwrap();
    assert!(failed.starts_with("Msg 3201: Cannot open"), "{failed}");
    assert!(imported.recommendation.is_some());
    let without_facts: String = results.lines().filter(|line| !line.contains("|facts|")).collect();
    assert_eq!(import(&without_facts, &request).unwrap_err().kind(), ErrorKind::Usage);
    check_clean(&by_hand);
}

#[test]
fn an_interrupted_run_leaves_nothing_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let server = start();
    let grid = small(directory.path());
    let interrupted = Listener { stops_after: Some(2), ..Listener::default() };
    let error = tune(&grid, &address(&server), &interrupted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    check_clean(&server);
    let before = server.world().sets.len();
    let listener = Listener::default();
    let report = tune(&grid, &address(&server), &listener).unwrap();
    assert_eq!(report.trials.len(), 6);
    assert_eq!(server.world().sets.len() - before, 4, "what was measured is not measured again");
    assert!(listener.notes.lock().unwrap().iter().any(|note| note.contains("going on with")));
}

#[test]
fn a_statement_that_hangs_or_a_connection_that_breaks_costs_one_trial() {
    let directory = tempfile::tempdir().unwrap();
    let server = start();
    server.world().fail("ALGORITHM = ZSTD", Happening::Hang(20));
    server.world().fail("RESTORE DATABASE", Happening::Disconnect(50));
    let grid = MssqlRequest { statement_limit: Some(Duration::from_secs(1)), ..small(directory.path()) };
    let report = tune(&grid, &address(&server), &Listener::default()).unwrap();
    let failed: Vec<&str> = report.trials.iter().filter_map(|trial| trial.failed.as_deref()).collect();
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(failed.iter().any(|why| why.contains("--statement-limit")), "{failed:?}");
    assert!(failed.iter().any(|why| why.contains("closed the connection")), "{failed:?}");
    assert_eq!(server.world().attentions, 1);
    assert!(report.recommendation.is_some());
    check_clean(&server);
}

#[test]
fn f37_what_is_somebodys_is_never_touched() {
    let directory = tempfile::tempdir().unwrap();
    let server = start();
    let own = small(directory.path());
    {
        let mut world = server.world();
        let mut other = world.databases["shop"].clone();
        other.files.iter_mut().for_each(|file| file.path.push_str(".other"));
        other.differential_base = Some("nightly".to_owned());
        world.databases.insert("spare".to_owned(), other);
        world.databases.get_mut("shop").unwrap().differential_base = Some("nightly".to_owned());
    }
    let places = |name: &str| Places { scratch_database: Some(name.to_owned()), ..own.places.clone() };
    let taken = MssqlRequest { places: places("spare"), ..own.clone() };
    let error = tune(&taken, &address(&server), &Listener::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let itself = MssqlRequest { places: places("shop"), ..own.clone() };
    assert_eq!(tune(&itself, &address(&server), &Listener::default()).unwrap_err().kind(), ErrorKind::Usage);
    assert!(server.world().sets.is_empty() && server.world().databases.contains_key("spare"));
    // Nor by hand: the script ends itself.
    let text = script(&taken, &facts(&server)).unwrap();
    assert!(text.contains("sqlcmd -x"), "names with $(...) stay what they are");
    run_by_hand(&server, &text);
    assert!(server.world().sets.is_empty() && server.world().databases.contains_key("spare"));
    let free = MssqlRequest { places: places("free"), ..own.clone() };
    let results = run_by_hand(&server, &script(&free, &facts(&server)).unwrap());
    assert!(results.contains("RESTORE DATABASE successfully") && !server.world().databases.contains_key("free"));
    server.world().batches.clear();
    tune(&own, &address(&server), &Listener::default()).unwrap();
    let world = server.world();
    assert_eq!(world.databases["shop"].differential_base.as_deref(), Some("nightly"));
    assert!(world.batches.iter().all(|batch| !batch.contains("REPLACE")), "nothing is overwritten");
    let backups: Vec<&String> = world.batches.iter().filter(|batch| batch.starts_with("BACKUP")).collect();
    assert!(
        backups.len() == 6 && backups.iter().all(|batch| batch.contains("COPY_ONLY") && batch.contains(" CHECKSUM"))
    );
    assert!(world.databases.contains_key("spare"));
}
