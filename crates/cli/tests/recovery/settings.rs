//! Recovery settings on every PostgreSQL of this machine: they win over what an earlier restore left, and words with
//! blanks, quotes, percent signs and backslashes reach the command whole.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pagehaul_engine::source::postgres::scratch_server::{ScratchServer, StopMode};
use pagehaul_testkit::cluster::{QUICK, default_install, installs};
use pagehaul_testkit::program::copy_program;

use super::archived::{Archived, PROGRAM};
use super::ledger::Ledger;

/// What an earlier recovery, or a standby's past, may leave behind.
const STALE: &[&str] = &[
    "ALTER SYSTEM SET recovery_target_xid = '4711'",
    "ALTER SYSTEM SET recovery_target_timeline = 'current'",
    "ALTER SYSTEM SET recovery_target_action = 'shutdown'",
    "ALTER SYSTEM SET recovery_target_inclusive = 'off'",
    "ALTER SYSTEM SET recovery_min_apply_delay = '1h'",
    "ALTER SYSTEM SET restore_command = 'false'",
];

#[test]
fn f22_stale_recovery_settings_are_overridden_on_every_major_version() {
    for install in installs() {
        let archived = Archived::start(&install);
        let major = install.major();
        let witness = archived.target("command-was-run").display().to_string();
        archived.cluster.run(STALE);
        for name in ["archive_cleanup_command", "recovery_end_command"] {
            archived.cluster.run(&[&format!("ALTER SYSTEM SET {name} = 'touch {witness}'")]);
        }
        let config = archived.cluster.server.data_directory().join("postgresql.conf");
        let mut config = std::fs::OpenOptions::new().append(true).open(config).unwrap();
        config.write_all(b"recovery_target_name = 'of-long-ago'\n").unwrap();
        let mut ledger = Ledger::create(&archived.cluster);
        ledger.write(&archived.cluster, 1, 10);
        archived.backup();
        ledger.write(&archived.cluster, 100, 10);
        ledger.mark(&archived.cluster, "here");
        ledger.write(&archived.cluster, 200, 10);
        archived.cluster.value("SELECT pg_switch_wal()");
        archived.wait_until_archived(&archived.cluster);
        let entry = &ledger.entries[14];
        let (time, xid, lsn) = (entry.at.to_string(), entry.xid.to_string(), entry.lsn.to_string());
        let cases: [(&[&str], usize); 6] = [
            (&["--type", "time", "--target", &time], 15),
            (&["--type", "xid", "--target", &xid], 15),
            (&["--type", "lsn", "--target", &lsn], 15),
            (&["--type", "name", "--target", "here"], 20),
            (&["--type", "latest"], 30),
            (&["--type", "immediate"], 10),
        ];
        for (flags, count) in cases {
            let copy = archived.recover("stale", flags);
            ledger.assert_prefix(&copy.cluster, count, &format!("PostgreSQL {major}: {flags:?}"));
            assert_eq!(copy.cluster.value("SELECT pg_is_in_recovery()"), "f", "PostgreSQL {major}: {flags:?}");
            copy.remove();
        }
        assert!(!std::path::Path::new(&witness).exists(), "a command of the original ran for the copy");
    }
}

#[test]
fn s08_words_of_every_kind_reach_the_restore_command() {
    let install = default_install();
    let work = pagehaul_testkit::cluster::work_directory();
    let odd = work.path().join("it's 100%p \"of\" a\\b $HOME");
    std::fs::create_dir(&odd).unwrap();
    std::fs::set_permissions(&odd, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = odd.join("page haul");
    copy_program(Path::new(PROGRAM), &program);
    let program = program.display().to_string();
    let archived = Archived::start_with(&install, Some(1), "re po's 50%f \"x\" \\n", &program);
    let mut ledger = Ledger::create(&archived.cluster);
    archived.backup();
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);
    let copy = archived.recover("odd", &["--type", "latest"]);
    ledger.assert_prefix(&copy.cluster, 10, "latest");
    let command = copy.cluster.value("SHOW restore_command");
    assert!(command.contains("re po") && command.contains("50%%f"), "{command}");
}

#[test]
fn f27_without_its_label_a_restored_cluster_does_not_start() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    archived.backup();
    let start = |change: &dyn Fn(&std::path::Path)| {
        let target = archived.target("label");
        let ran = archived.restore(&target, &[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        archived.cluster.pg_verifybackup(&target);
        change(&target);
        let mut server = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
        let started = server.start(QUICK);
        if started.is_ok() {
            server.stop(StopMode::Immediate).unwrap();
        }
        started
    };
    start(&|_| {}).unwrap();
    let removed = start(&|target| std::fs::remove_file(target.join("backup_label")).unwrap()).unwrap_err();
    assert!(removed.message().contains("checkpoint record"), "{removed}");
    let edited = start(&|target| {
        let path = target.join("backup_label");
        let label = std::fs::read_to_string(&path).unwrap();
        let line = label.lines().find(|line| line.starts_with("CHECKPOINT LOCATION")).unwrap();
        std::fs::write(&path, label.replace(line, "CHECKPOINT LOCATION: 0/DEAD")).unwrap();
    });
    assert!(edited.is_err(), "a cluster with an edited label starts");
    // With the label it goes on, and a crash right after the start finds a checkpoint.
    let mut copy = archived.recover("crash", &[]);
    copy.cluster.crash();
    copy.cluster.server.start(QUICK).unwrap();
    ledger.assert_prefix(&copy.cluster, 10, "after a crash");
}

#[test]
fn f59_segments_of_other_sizes() {
    for segment_mib in [None, Some(64)] {
        let archived = Archived::start_with(&default_install(), segment_mib, "repo", PROGRAM);
        let mut ledger = Ledger::create(&archived.cluster);
        archived.backup();
        ledger.write(&archived.cluster, 1, 10);
        archived.cluster.value("SELECT pg_switch_wal()");
        ledger.write(&archived.cluster, 100, 10);
        archived.cluster.value("SELECT pg_switch_wal()");
        archived.wait_until_archived(&archived.cluster);
        let time = ledger.entries[12].at.to_string();
        let copy = archived.recover("size", &["--type", "time", "--target", &time]);
        ledger.assert_prefix(&copy.cluster, 13, &format!("segments of {segment_mib:?} MiB"));
        copy.remove();
    }
}

/// As Debian's packages lay a cluster out: the settings elsewhere, naming the original's directory and pid file.
#[test]
fn the_start_command_that_is_shown_works_where_the_settings_lie_elsewhere() {
    let mut archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    ledger.write(&archived.cluster, 1, 10);
    archived.cluster.server.stop(StopMode::Fast).unwrap();
    let elsewhere = archived.cluster.server_directory("etc");
    let (pgdata, run) = (archived.cluster.server.data_directory().to_owned(), archived.cluster.server_directory("run"));
    for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
        std::fs::rename(pgdata.join(name), elsewhere.join(name)).unwrap();
    }
    let settings = elsewhere.join("postgresql.conf");
    let lines = [
        ("data_directory", &pgdata),
        ("hba_file", &elsewhere.join("pg_hba.conf")),
        ("ident_file", &elsewhere.join("pg_ident.conf")),
        ("external_pid_file", &run.join("pid")),
        ("unix_socket_directories", &run),
    ];
    let mut text = std::fs::read_to_string(&settings).unwrap() + "\nlisten_addresses = ''\n";
    lines.iter().for_each(|(name, value)| text.push_str(&format!("{name} = '{}'\n", value.display())));
    std::fs::write(&settings, text).unwrap();
    archived.cluster.server.start(&[("config_file", &settings.display().to_string())]).unwrap();
    archived.backup();
    archived.cluster.server.stop(StopMode::Fast).unwrap();

    let target = archived.target("copy");
    let ran = archived.run_well(&["restore", "main", "--target-dir", &target.display().to_string()]);
    let start = ran.stderr.lines().find_map(|line| line.strip_prefix("next, as the owner of the files: ")).unwrap();
    let log = run.join("log").display().to_string();
    let start = start.replace("-l logfile", &format!("-l {log}"));
    let shell = format!("PATH={}:$PATH; {start} -w", archived.cluster.server.install().bin_directory().display());
    let started = archived.cluster.server.run_tool("/bin/sh", &["-c", &shell]).unwrap();
    assert!(started.status.success(), "{shell}\n{}", String::from_utf8_lossy(&started.stderr));
    assert!(!run.join("pid").exists(), "the original's pid file is not the copy's");
    let socket = [("-h", run.display().to_string()), ("-d", "postgres".to_owned())];
    let words: Vec<&str> = socket.iter().flat_map(|(flag, value)| [*flag, value]).collect();
    let ask = ["-p", "5432", "-XAtc", "SELECT count(*) FROM ledger"];
    let answer = archived.cluster.server.run_tool("psql", &[&words[..], &ask].concat()).unwrap();
    let mut copy = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
    copy.stop(StopMode::Fast).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "10", "{}", String::from_utf8_lossy(&answer.stderr));
}
