//! Backups tried out: good ones are proven, broken ones are called broken, and nothing gets out of the sandbox.

use std::path::{Path, PathBuf};

use pagehaul_engine::backup::backup;
use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::proofs::last_proofs;
use pagehaul_engine::drill::{
    DrillRequest, ExtractRequest, ProveReport, ProveRequest, ScratchRestore, ScratchTarget, extract_table, prove,
};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::proof::{CheckState, ProofCheck, ProofResult};
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{ArchiveMode, RestoreRequest, restore};
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::conninfo::ConnectSettings;
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::terms::BackupLabel;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, installs, work_directory};
use pagehaul_testkit::damage::{files_below, flip_bit, overwrite};
use pagehaul_testkit::observer::At;

fn drill_request(cluster: &Cluster, work: &Path) -> DrillRequest {
    DrillRequest {
        repo: cluster.repo(),
        source: None,
        label: None,
        scratch_dir: work.join("scratch"),
        pg_bin: Some(cluster.server.install().bin_directory().to_owned()),
        superuser: None,
    }
}

fn restoring(repo: &str, label: &BackupLabel, to: &ScratchTarget) -> RestoreRequest {
    RestoreRequest {
        label: Some(label.clone()),
        tablespace_map: to.tablespace_map.clone(),
        archive_mode: ArchiveMode::Off,
        owner: to.owner.clone(),
        ..RestoreRequest::new(repo, &to.directory)
    }
}

fn outcome(report: &pagehaul_engine::restore::RestoreReport) -> ScratchRestore {
    ScratchRestore {
        restored_bytes: report.restored_bytes,
        elapsed_s: report.elapsed_s,
        recovery_target: "end of the set".to_owned(),
        stops_at_point: false,
        needs_network: false,
    }
}

/// Proves the newest set; `spoil` may change the restored copy before it is started.
fn prove_with(
    cluster: &Cluster,
    work: &Path,
    queries: &[&str],
    mut spoil: impl FnMut(&ScratchTarget),
) -> Result<ProveReport> {
    let request = ProveRequest {
        drill: drill_request(cluster, work),
        queries: queries.iter().map(|sql| (*sql).to_owned()).collect(),
        query_database: "postgres".to_owned(),
    };
    let repo = cluster.repo();
    let mut restorer = |label: &BackupLabel, to: &ScratchTarget| {
        let report = restore(&restoring(&repo, label, to), &NoObserver)?;
        spoil(to);
        Ok(outcome(&report))
    };
    prove(&request, &mut restorer, &NoObserver)
}

fn must(result: Result<ProveReport>) -> ProveReport {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn check<'a>(report: &'a ProveReport, words: &str) -> &'a ProofCheck {
    report.proof.checks.iter().find(|check| check.name.contains(words)).unwrap_or_else(|| panic!("{words}: {report:?}"))
}

/// No scratch directory is left.
fn expect_clear(work: &Path) {
    let left: Vec<_> = std::fs::read_dir(work.join("scratch")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn backups_of_every_version_are_proven() {
    for install in installs() {
        let work = work_directory();
        let settings = [QUICK, &[("max_prepared_transactions", "7"), ("max_locks_per_transaction", "99")]].concat();
        let cluster = Cluster::start_with(&install, work.path(), &InitOptions::default(), &settings);
        cluster.load_typed_tables(5000);
        let space = cluster.server_directory("space");
        cluster.run(&[
            &format!("CREATE TABLESPACE elsewhere LOCATION '{}'", space.display()),
            "CREATE TABLE there TABLESPACE elsewhere AS SELECT i FROM generate_series(1, 1000) AS i",
            // Replay of a prepared transaction needs room for it.
            "BEGIN; INSERT INTO there VALUES (0); PREPARE TRANSACTION 'half'",
        ]);
        cluster.backup(&cluster.backup_request());
        let report = must(prove_with(&cluster, work.path(), &["SELECT count(*) = 1000 FROM there"], |_| {}));
        let proof = &report.proof;
        assert_eq!(
            (proof.result, proof.failure.as_ref()),
            (ProofResult::Proven, None),
            "{}: {report:?}",
            install.major()
        );
        assert!(
            proof.restore_s > 0.0 && proof.replay_s > 0.0 && proof.checks_s > 0.0 && proof.restored_bytes > 1 << 20
        );
        assert!((report.recovery_s - proof.restore_s - proof.replay_s).abs() < 1e-9);
        assert_eq!(check(&report, "consistent").state, CheckState::Passed);
        assert_eq!(check(&report, "every database").state, CheckState::Passed);
        assert_eq!(check(&report, "amcheck").state, CheckState::Passed, "{report:?}");
        if install.has_tool("pg_checksums") {
            assert_eq!(check(&report, "checksum of every page").state, CheckState::Passed, "{report:?}");
        }
        expect_clear(work.path());
        let repository = Repository::open(&cluster.repo()).unwrap();
        let sets = [(proof.label.clone(), proof.set_id.clone())];
        let kept = last_proofs(&repository, &proof.source, &sets).unwrap();
        assert_eq!(kept[0].as_ref(), Some(proof), "{}", report.object);
        // The original is as it was: up, and with its files and its tablespace.
        assert_eq!(cluster.value("SELECT count(*) FROM there"), "1000");
    }
}

#[test]
fn what_is_wrong_is_found_and_recorded() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.load_typed_tables(20_000);
    let node = cluster.value("SELECT pg_relation_filepath('typed')");
    let index = cluster.value("SELECT pg_relation_filepath('typed_id_idx')");
    cluster.backup(&cluster.backup_request());
    let broken = |what: &str, words: &str, report: ProveReport| {
        assert_eq!(report.proof.result, ProofResult::Broken, "{what}: {report:?}");
        let failure = report.proof.failure.unwrap_or_default();
        assert!(failure.contains(words), "{what}: {failure}");
        expect_clear(work.path());
    };
    for (what, sql, words) in [
        ("a query that gives false", "SELECT count(*) = 3 FROM typed", "it gave false"),
        ("one that gives no row", "SELECT id FROM typed WHERE id = -1", "it gave no row"),
        ("one that gives NULL", "SELECT NULL", "it gave NULL"),
        ("one that fails", "SELECT count(*) FROM orders", "orders"),
    ] {
        broken(what, words, must(prove_with(&cluster, work.path(), &[sql], |_| {})));
    }
    broken(
        "a page with a flipped bit",
        "check: ",
        must(prove_with(&cluster, work.path(), &[], |to| flip_bit(&to.directory.join(&node), 3 * 8192 + 5000, 1))),
    );
    broken(
        "an index that misses a row",
        "check: amcheck",
        must(prove_with(&cluster, work.path(), &[], |to| {
            // The rows of one page of the table are gone: the page never was.
            overwrite(&to.directory.join(&index), 8192 * 2, &[0; 8192]);
        })),
    );
    broken(
        "no WAL",
        "start and replay",
        must(prove_with(&cluster, work.path(), &[], |to| {
            for file in files_below(&to.directory.join("pg_wal")) {
                std::fs::remove_file(file).unwrap();
            }
        })),
    );
    broken(
        "a map of relations that does not read",
        "takes a session",
        must(prove_with(&cluster, work.path(), &[], |to| {
            overwrite(&to.directory.join("global/pg_filenode.map"), 0, &[9; 512]);
        })),
    );
    // A damaged stripe: the restore itself says so.
    let repo = cluster.repo();
    for stripe in
        files_below(Path::new(&repo)).into_iter().filter(|file| file.extension().is_some_and(|end| end == "phs"))
    {
        let size = std::fs::metadata(&stripe).unwrap().len();
        flip_bit(&stripe, size / 2, 0);
    }
    broken("a damaged stripe", "restore: ", must(prove_with(&cluster, work.path(), &[], |_| {})));
}

#[test]
fn what_says_nothing_of_the_set_is_an_error_and_not_recorded() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.backup(&cluster.backup_request());
    let count = |cluster: &Cluster| files_below(Path::new(&cluster.repo())).len();
    let before = count(&cluster);
    let error = prove_with(&cluster, work.path(), &["SELEC 1"], |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    let mut wrong = drill_request(&cluster, work.path());
    wrong.superuser = Some("nobody_of_that_name".to_owned());
    let request = ProveRequest { drill: wrong, queries: Vec::new(), query_database: "postgres".to_owned() };
    let repo = cluster.repo();
    let mut restorer = |label: &BackupLabel, to: &ScratchTarget| {
        restore(&restoring(&repo, label, to), &NoObserver).map(|report| outcome(&report))
    };
    prove(&request, &mut restorer, &NoObserver).unwrap_err();
    let mut full = |_: &BackupLabel, _: &ScratchTarget| Err(Error::new(ErrorKind::Target, "write", "the disk is full"));
    let request = ProveRequest { drill: drill_request(&cluster, work.path()), ..request };
    assert_eq!(prove(&request, &mut full, &NoObserver).unwrap_err().kind(), ErrorKind::Target);
    assert_eq!(count(&cluster), before, "nothing was recorded");
    expect_clear(work.path());
}

#[test]
fn the_clusters_own_settings_cannot_reach_out_of_the_sandbox() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    let witness = work.path().join("witness");
    std::fs::create_dir(&witness).unwrap();
    std::fs::set_permissions(&witness, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let touch = |name: &str| format!("touch {}", witness.join(name).display());
    cluster.run(&[
        &format!("ALTER SYSTEM SET archive_command = '{}'", touch("archive")),
        &format!("ALTER SYSTEM SET recovery_end_command = '{}'", touch("recovery_end")),
        &format!("ALTER SYSTEM SET archive_cleanup_command = '{}'", touch("cleanup")),
        &format!("ALTER SYSTEM SET restore_command = '{}; false'", touch("restore")),
        "ALTER SYSTEM SET listen_addresses = '*'",
        "ALTER SYSTEM SET port = 61234",
        "ALTER SYSTEM SET archive_mode = 'on'",
        "ALTER SYSTEM SET synchronous_standby_names = 'somebody'",
        "ALTER SYSTEM SET shared_preload_libraries = 'no_such_library, pg_cron'",
        "ALTER SYSTEM SET primary_conninfo = 'host=192.0.2.1'",
    ]);
    // The file names the live server's directory: whoever believes it starts, or stops, the wrong server.
    let live = cluster.server.data_directory().to_owned();
    let conf = live.join("postgresql.conf");
    let mut text = std::fs::read_to_string(&conf).unwrap();
    text.push_str(&format!("\ndata_directory = '{}'\nlog_directory = '{}'\n", live.display(), witness.display()));
    std::fs::write(&conf, text).unwrap();
    cluster.backup(&cluster.backup_request());
    let queries = [
        "SELECT current_setting('listen_addresses') = ''",
        "SELECT current_setting('archive_mode') = 'off'",
        "SELECT current_setting('shared_preload_libraries') = ''",
        "SELECT current_setting('restart_after_crash') = 'off'",
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'logical%' OR backend_type = 'autovacuum launcher'",
        "SELECT pg_switch_wal() IS NOT NULL",
        "SELECT coalesce(inet_server_addr()::text, 'none') = 'none'",
    ];
    let report = must(prove_with(&cluster, work.path(), &queries, |to| {
        assert!(to.directory.starts_with(work.path().join("scratch")));
    }));
    assert_eq!(report.proof.result, ProofResult::Proven, "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("pg_cron")), "{:?}", report.notes);
    assert!(files_below(&witness).is_empty(), "{:?}", files_below(&witness));
    assert_eq!(cluster.value("SELECT 1"), "1", "the live server is still up");
}

#[test]
fn what_a_killed_trial_left_is_ended_and_removed_by_the_next() {
    let work = work_directory();
    let cluster = Cluster::start(&default_install(), work.path());
    cluster.backup(&cluster.backup_request());
    // As a killed trial leaves it: a directory whose lock nobody holds, with a running server.
    let left = work.path().join("scratch/pagehaul-scratch-0badc0de");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("pagehaul-scratch.lock"), b"").unwrap();
    let mut server = cluster_in(&cluster, &left.join("data"));
    let pid = std::fs::read_to_string(left.join("data/postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap().to_owned();
    let report = must(prove_with(&cluster, work.path(), &[], |_| {}));
    assert!(report.notes.iter().any(|note| note.contains("0badc0de") && note.contains("server ended")), "{report:?}");
    assert_eq!(report.proof.result, ProofResult::Proven);
    expect_clear(work.path());
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z"), "{stat}");
    server.crash_is_expected();
}

/// A restored and running server in `directory`.
fn cluster_in(cluster: &Cluster, directory: &Path) -> Left {
    restore(
        &RestoreRequest { archive_mode: ArchiveMode::Off, ..RestoreRequest::new(cluster.repo(), directory) },
        &NoObserver,
    )
    .unwrap();
    Left(Some(cluster.adopt(directory)))
}

/// A server that somebody else ends.
struct Left(Option<Cluster>);

impl Left {
    fn crash_is_expected(&mut self) {
        // Its own end fails: there is nothing to stop any more.
        drop(self.0.take());
    }
}

#[test]
fn one_table_comes_out_as_sql() {
    let install = installs().into_iter().rfind(|install| install.has_tool("pg_dump") && install.has_tool("psql"));
    let Some(install) = install else {
        eprintln!("SKIPPED: no PostgreSQL here has pg_dump and psql");
        return;
    };
    let work = work_directory();
    let cluster = Cluster::start(&install, work.path());
    cluster.run(&[
        "CREATE DATABASE \"odd.name\"",
        "CREATE TABLE orders AS SELECT i, md5(i::text) AS text FROM generate_series(1, 1000) AS i",
        "CREATE SCHEMA \"S.x\"",
        "CREATE TABLE \"S.x\".\"Or\"\"ders\" AS SELECT 5 AS five",
    ]);
    cluster.backup(&cluster.backup_request());
    cluster.run(&["DROP TABLE orders"]);
    let repo = cluster.repo();
    let extract = |table: &str, output: PathBuf| {
        let table: pagehaul_engine::drill::TableName = table.parse().unwrap();
        let request =
            ExtractRequest { drill: drill_request(&cluster, work.path()), table: table.clone(), output: Some(output) };
        let mut restorer = |label: &BackupLabel, to: &ScratchTarget| {
            let request =
                RestoreRequest { include_databases: vec![table.database.clone()], ..restoring(&repo, label, to) };
            restore(&request, &NoObserver).map(|report| outcome(&report))
        };
        extract_table(&request, &mut restorer, &NoObserver)
    };
    let output = work.path().join("orders.sql");
    let report = extract("postgres.public.orders", output.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.output_bytes, Some(std::fs::metadata(&output).unwrap().len()));
    std::fs::set_permissions(&output, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let done =
        cluster.server.run_tool("psql", &["-q", "-v", "ON_ERROR_STOP=1", "-f", &output.display().to_string()]).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(
        cluster.value("SELECT count(*) || ' ' || min(text) FROM orders"),
        format!("1000 {}", cluster.value("SELECT min(md5(i::text)) FROM generate_series(1, 1000) AS i"))
    );
    let odd = work.path().join("odd.sql");
    extract("postgres.\"S.x\".\"Or\"\"ders\"", odd.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert!(std::fs::read_to_string(&odd).unwrap().contains("five integer"));
    // Failures leave no file and no scratch directory, and never write over one.
    let none = work.path().join("none.sql");
    for (table, kind) in [("postgres.public.nothing", ErrorKind::Usage), ("nowhere.public.orders", ErrorKind::Usage)] {
        assert_eq!(extract(table, none.clone()).unwrap_err().kind(), kind, "{table}");
        assert!(!none.exists(), "{table}");
    }
    assert_eq!(extract("postgres.public.orders", output.clone()).unwrap_err().kind(), ErrorKind::Target);
    assert!(std::fs::metadata(&output).unwrap().len() > 1000);
    expect_clear(work.path());
}

/// Without checksums and wal_log_hints a bit of a visibility map is set without bringing the heap page.
#[test]
fn replay_over_pages_that_were_left_out_does_not_keep_the_table_from_coming_out() {
    let work = work_directory();
    let options = InitOptions { checksums: false, ..InitOptions::default() };
    let cluster = Cluster::start_with(&default_install(), work.path(), &options, QUICK);
    cluster.run(&["CREATE TABLE orders AS SELECT generate_series(1, 1000) AS n", "CREATE DATABASE other"]);
    let other = ConnectSettings { database: "other".into(), ..cluster.server.connect_settings() };
    let mut other = Connection::connect(&other).unwrap();
    let mut run = |sql: &str| other.query(sql).map(drop).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    run("CREATE TABLE public.old WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 20000) AS n");
    // Hint bits are set, and then only the visibility map is left to do.
    run("SELECT count(*) FROM public.old");
    run("CHECKPOINT");
    backup(&cluster.backup_request(), &At::phase("read, encode and write the data files", || run("VACUUM public.old")))
        .unwrap();
    let repo = cluster.repo();
    let request = |output: &str| ExtractRequest {
        drill: drill_request(&cluster, work.path()),
        table: "postgres.public.orders".parse().unwrap(),
        output: Some(work.path().join(output)),
    };
    let mut restorer = |label: &BackupLabel, to: &ScratchTarget| {
        let request = RestoreRequest { include_databases: vec!["postgres".into()], ..restoring(&repo, label, to) };
        let report = restore(&request, &NoObserver)?;
        assert!(report.notes.iter().any(|note| note.contains("ignore_invalid_pages")), "{:?}", report.notes);
        Ok(outcome(&report))
    };
    let report = extract_table(&request("orders.sql"), &mut restorer, &NoObserver);
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    assert!(report.output_bytes.unwrap() > 1000);
}

#[test]
fn no_programs_of_the_version_is_a_clear_error() {
    let all = installs();
    let [first, .., last] = all.as_slice() else {
        eprintln!("SKIPPED: only one version of PostgreSQL here");
        return;
    };
    let work = work_directory();
    let cluster = Cluster::start(first, work.path());
    cluster.backup(&cluster.backup_request());
    let mut drill = drill_request(&cluster, work.path());
    drill.pg_bin = Some(last.bin_directory().to_owned());
    let request = ProveRequest { drill, queries: Vec::new(), query_database: "postgres".to_owned() };
    let mut never = |_: &BackupLabel, _: &ScratchTarget| panic!("nothing may be restored");
    let error = prove(&request, &mut never, &NoObserver).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("--pg-bin"), "{error}");
}
