//! Against real servers: every major version that this machine has.
//!
//! Debian's in `/usr/lib/postgresql`, and the directories of `PAGEHAUL_TEST_PG_DIRS` (colon-separated, each with
//! `bin/`). What cannot run says so and counts as skipped.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::backup_manifest::{ManifestFile, ManifestHeader, write_backup_manifest};
use super::client::Connection;
use super::conninfo::ConnectSettings;
use super::control_file::{CONTROL_FILE_PATH, ClusterState, read_control_file};
use super::data_directory::{EntryKind, ScanEntry, scan};
use super::page::{PageJudge, PageVerdict, SuspectReason, visibility_bits};
use super::path_class::{Fork, PathClass};
use super::pg_install::PgInstall;
use super::scratch_server::{InitOptions, ScratchServer, StopMode};
use super::server_facts::gather_for_backup;
use super::session::{BackupSession, WalHold, WalProtection, parse_backup_label};
use super::wal::{WalExpectation, WalSegmentCheck, segments_between};
use crate::error::{ErrorKind, Result};
use crate::terms::Lsn;

pub(super) fn installs() -> Vec<PgInstall> {
    let named = std::env::var("PAGEHAUL_TEST_PG_DIRS").unwrap_or_default();
    let named =
        named.split(':').filter(|directory| !directory.is_empty()).map(|directory| Path::new(directory).join("bin"));
    let mut found: Vec<PgInstall> = named.map(|bin| PgInstall::at(&bin).unwrap()).collect();
    found.extend((13..=18).filter_map(|major| PgInstall::find_major(major).ok()));
    found.sort_by_key(PgInstall::major);
    found.dedup_by_key(|install| install.major());
    if found.is_empty() {
        eprintln!("SKIPPED: no PostgreSQL server programs on this machine");
    }
    found
}

/// The newest install that has `tool`; client programs work with older servers.
fn install_with(tool: &str, at_least: &PgInstall) -> Option<PgInstall> {
    if at_least.has_tool(tool) {
        return Some(at_least.clone());
    }
    installs().into_iter().find(|install| install.major() >= at_least.major() && install.has_tool(tool))
}

/// A directory that the server's OS user may enter.
pub(super) fn test_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    directory
}

pub(super) fn execute(connection: &mut Connection, statements: &[&str]) {
    // Sessions of the engine only see pg_catalog.
    connection.query("SET search_path = public").unwrap();
    for statement in statements {
        connection.query(statement).map_err(|error| error.into_error(*statement)).unwrap();
    }
}

fn entries_of(pgdata: &Path) -> Vec<ScanEntry> {
    let mut entries = Vec::new();
    scan(pgdata, &mut |entry| {
        entries.push(entry);
        Ok(())
    })
    .unwrap();
    entries
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn sessions_wal_and_rights() {
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let directory = test_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let mut server = ScratchServer::init(&install, &directory.path().join("data"), &options).unwrap();
        server.start(&[("fsync", "off"), ("max_replication_slots", "2")]).unwrap();
        a_backup_session_begins_and_ends(&server);
        missing_rights_are_named(&server);
        a_used_up_slot_is_no_obstacle(&server);
        a_slot_that_the_server_takes_away_ends_no_backup(&server);
        the_data_directory_leads_to_the_server(&server);
        a_killed_server_loses_the_session(&mut server);
        an_unusable_wal_level_is_refused(&mut server);
    }
}

fn begin(settings: &ConnectSettings, label: &str) -> Result<BackupSession> {
    let mut connection = Connection::connect(settings)?;
    let facts = gather_for_backup(&mut connection)?;
    BackupSession::begin(connection, facts, WalHold::begin(settings), label, true)
}

fn a_backup_session_begins_and_ends(server: &ScratchServer) {
    let major = server.install().major();
    let mut session = begin(&server.connect_settings(), r"it's a \ label").unwrap();
    let (_, control_file) = read_control_file(server.data_directory()).unwrap();
    let facts = session.facts().clone();
    assert_eq!(facts.major(), major);
    assert_eq!(facts.data_directory.as_deref(), Some(server.data_directory()));
    assert_eq!(facts.system_identifier, control_file.system_identifier);
    assert_eq!(facts.wal_segment_size_bytes, 1 << 20);
    assert_eq!(facts.block_size_bytes, control_file.block_size_bytes);
    assert!(facts.data_checksums && control_file.has_data_checksums());
    assert!(facts.outside_config_files.is_empty() && facts.tablespaces.is_empty());
    assert_eq!(control_file.state, ClusterState::InProduction);
    assert!(matches!(session.wal_protection(), WalProtection::Slot { .. }));
    session.check_alive().unwrap();
    let mut other = server.connect().unwrap();
    execute(&mut other, &["CREATE TABLE filler AS SELECT generate_series(1, 100000) AS n", "DROP TABLE filler"]);
    assert!(session.current_insert_lsn().unwrap() > session.start_lsn());
    let (start_lsn, timeline) = (session.start_lsn(), session.timeline());
    let stop = session.end().unwrap();
    assert!(stop.stop_lsn > start_lsn && stop.timeline == timeline);
    assert_eq!(parse_backup_label(&stop.backup_label), Some((start_lsn, timeline)));
    assert!(text(&stop.backup_label).contains(r"LABEL: it's a \ label"));
    assert!(stop.tablespace_map.is_empty());
    let slot_count = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND slot_name LIKE 'pagehaul%'";
    assert_eq!(other.query_value(slot_count).unwrap(), "1");
    let expectation = WalExpectation {
        major,
        system_identifier: facts.system_identifier,
        segment_size_bytes: facts.wal_segment_size_bytes,
        block_size_bytes: control_file.wal_block_size_bytes,
        timeline,
    };
    wal_from_start_to_stop_is_sound(server, expectation, start_lsn, stop.stop_lsn);
}

fn wal_from_start_to_stop_is_sound(server: &ScratchServer, expectation: WalExpectation, start: Lsn, stop: Lsn) {
    let names = segments_between(expectation.timeline, start, stop, expectation.segment_size_bytes);
    assert!(names.len() > 3, "several segments are needed to swap two");
    let read = |name: &str| fs::read(server.data_directory().join("pg_wal").join(name)).unwrap();
    let check = |bytes: &[u8], position: u64, expectation: WalExpectation| {
        let mut check = WalSegmentCheck::new(expectation, Lsn(start.0 + position * (1 << 20)), stop)?;
        check.feed(bytes)?;
        check.finish()
    };
    for (position, name) in names.iter().enumerate() {
        check(&read(name.as_str()), position as u64, expectation).unwrap();
    }
    let wrong = check(&read(names[1].as_str()), 2, expectation).unwrap_err();
    assert!(wrong.message().contains("expected was"), "{wrong}");
    let other_system = WalExpectation { system_identifier: 1, ..expectation };
    assert_eq!(check(&read(names[0].as_str()), 0, other_system).unwrap_err().kind(), ErrorKind::Damage);
    let other_major = WalExpectation { major: if expectation.major == 13 { 14 } else { 13 }, ..expectation };
    assert!(check(&read(names[0].as_str()), 0, other_major).unwrap_err().message().contains("magic"));
}

fn missing_rights_are_named(server: &ScratchServer) {
    let mut superuser = server.connect().unwrap();
    execute(&mut superuser, &["CREATE ROLE \"back up\" LOGIN"]);
    let settings = ConnectSettings { user: "back up".into(), ..server.connect_settings() };
    let error = begin(&settings, "x").unwrap_err();
    let hint = error.hint_text().unwrap();
    let grants = hint.strip_prefix("as a superuser: ").unwrap();
    assert_eq!(grants.matches("GRANT EXECUTE ON FUNCTION pg_catalog.pg_").count(), 2, "{hint}");
    execute(&mut superuser, &[grants]);
    let session = begin(&settings, "x").unwrap();
    assert_eq!(session.facts().data_directory, None);
    let WalProtection::None { reason } = session.wal_protection() else { panic!("a slot without the right") };
    assert!(reason.contains("42501") || reason.contains("REPLICATION"), "{reason}");
    session.end().unwrap();
}

fn a_used_up_slot_is_no_obstacle(server: &ScratchServer) {
    let held: Vec<BackupSession> =
        (0..3).map(|number| begin(&server.connect_settings(), &format!("{number}")).unwrap()).collect();
    let slots = |session: &&BackupSession| matches!(session.wal_protection(), WalProtection::Slot { .. });
    assert_eq!(held.iter().filter(slots).count(), 2);
    drop(held);
}

fn a_slot_that_the_server_takes_away_ends_no_backup(server: &ScratchServer) {
    let mut other = server.connect().unwrap();
    let mut session = begin(&server.connect_settings(), "x").unwrap();
    assert!(matches!(session.wal_protection(), WalProtection::Slot { .. }));
    execute(&mut other, &["ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()"]);
    let slot_count = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pagehaul%'";
    for round in 0.. {
        execute(&mut other, &["SELECT pg_logical_emit_message(false, '', repeat('x', 4000000))", "CHECKPOINT"]);
        if other.query_value(slot_count).unwrap() == "0" {
            break;
        }
        assert!(round < 50, "the server keeps the slot");
    }
    session.check_alive().unwrap();
    session.end().unwrap();
    execute(&mut other, &["ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()"]);
}

fn the_data_directory_leads_to_the_server(server: &ScratchServer) {
    let settings = ConnectSettings::for_data_directory(server.data_directory()).unwrap();
    let settings = ConnectSettings { user: "postgres".into(), ..settings };
    let mut connection = Connection::connect(&settings).unwrap();
    let name = connection.query_value("SELECT current_setting('application_name')").unwrap();
    assert_eq!(name, "pagehaul");
    let refused = connection.query("SELECT 1/0").unwrap_err();
    assert_eq!(refused.server().unwrap().sqlstate, "22012");
    assert_eq!(connection.query_value("SELECT 1").unwrap(), "1");
    execute(&mut connection, &["DO $$ BEGIN RAISE NOTICE 'hello'; END $$"]);
    assert_eq!(connection.take_notices()[0].message, "hello");
}

fn a_killed_server_loses_the_session(server: &mut ScratchServer) {
    let mut session = begin(&server.connect_settings(), "x").unwrap();
    server.kill9().unwrap();
    let error = session.check_alive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Source);
    assert!(error.hint_text().unwrap().contains("aborted"), "{error}");
    session.end().unwrap_err();
    server.start(&[]).unwrap();
    server.stop(StopMode::Fast).unwrap();
}

fn an_unusable_wal_level_is_refused(server: &mut ScratchServer) {
    server.start(&[("wal_level", "minimal"), ("max_wal_senders", "0")]).unwrap();
    let error = begin(&server.connect_settings(), "x").unwrap_err();
    assert!(error.message().contains("wal_level is minimal"), "{error}");
}

#[test]
fn files_and_pages() {
    for install in installs() {
        eprintln!("PostgreSQL {}", install.major());
        let directory = test_directory();
        let mut server =
            ScratchServer::init(&install, &directory.path().join("data"), &InitOptions::default()).unwrap();
        server.start(&[("fsync", "off"), ("autovacuum", "off")]).unwrap();
        let open_session = fill_with_every_kind_of_file(&server, directory.path());
        the_scan_lists_what_the_server_sends(&server, directory.path());
        drop(open_session);
        server.stop(StopMode::Fast).unwrap();
        pg_control_says_what_pg_controldata_says(&server);
        every_page_is_good_and_planted_damage_is_seen(&server);
        a_plain_copy_passes_pg_verifybackup(&server, directory.path());
    }
}

/// Returns a session that holds a temporary table.
fn fill_with_every_kind_of_file(server: &ScratchServer, directory: &Path) -> Connection {
    let mut connection = server.connect().unwrap();
    let space = directory.join("space");
    fs::create_dir(&space).unwrap();
    fs::set_permissions(&space, fs::Permissions::from_mode(0o777)).unwrap();
    if rustix::process::geteuid().is_root() {
        let owner = fs::metadata(server.data_directory()).unwrap();
        let (uid, gid) = (std::os::unix::fs::MetadataExt::uid(&owner), std::os::unix::fs::MetadataExt::gid(&owner));
        std::os::unix::fs::chown(&space, Some(uid), Some(gid)).unwrap();
    }
    let create_space = format!("CREATE TABLESPACE \"Ein Platz\" LOCATION '{}'", space.display());
    execute(
        &mut connection,
        &[
            &create_space,
            "CREATE TABLE plain AS SELECT n, md5(n::text) AS t FROM generate_series(1, 20000) n",
            "CREATE INDEX ON plain (t)",
            "CREATE INDEX ON plain USING hash (t)",
            "CREATE INDEX ON plain USING brin (n)",
            "CREATE INDEX ON plain USING gin ((ARRAY[t]))",
            "CREATE INDEX ON plain USING gist (point(n, n))",
            "CREATE INDEX ON plain USING spgist (t)",
            "CREATE SEQUENCE counter",
            "CREATE TABLE elsewhere TABLESPACE \"Ein Platz\" AS SELECT * FROM plain",
            "CREATE UNLOGGED TABLE forgettable AS SELECT * FROM plain",
            "CREATE INDEX ON forgettable (n)",
            "CREATE UNLOGGED TABLE forgettable_elsewhere TABLESPACE \"Ein Platz\" AS SELECT * FROM plain",
            "VACUUM plain, elsewhere, forgettable",
            "CREATE TEMPORARY TABLE passing AS SELECT * FROM plain",
            "CREATE TEMPORARY TABLE passing_elsewhere TABLESPACE \"Ein Platz\" AS SELECT * FROM plain",
            "CHECKPOINT",
        ],
    );
    connection
}

fn the_scan_lists_what_the_server_sends(server: &ScratchServer, directory: &Path) {
    let Some(client) = install_with("pg_basebackup", server.install()) else {
        eprintln!("SKIPPED: no pg_basebackup for PostgreSQL {}", server.install().major());
        return;
    };
    let pgdata = server.data_directory();
    // Rubbish of the kinds the server leaves out or keeps.
    for name in ["backup_label.old", "postgresql.auto.conf.tmp", "pg_replslot/x", "base/pgsql_tmp1", "odd \u{e9} name"]
    {
        fs::write(pgdata.join(name), "x").unwrap();
        fs::set_permissions(pgdata.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let destination = directory.join("reference");
    let mapping = format!("{}={}", directory.join("space").display(), directory.join("reference-space").display());
    let tool = ScratchServer::adopt(&client, pgdata).unwrap();
    let settings = server.connect_settings();
    let arguments = [
        "-D",
        destination.to_str().unwrap(),
        "-h",
        &settings.host,
        "-p",
        &settings.port.to_string(),
        "-Xnone",
        "-cfast",
        "--no-sync",
        "-T",
        &mapping,
    ];
    let output = tool.run_tool("pg_basebackup", &arguments).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(destination.join("backup_manifest")).unwrap()).unwrap();
    let theirs: BTreeSet<String> =
        manifest["Files"].as_array().unwrap().iter().map(|file| file["Path"].as_str().unwrap().to_owned()).collect();
    let entries = entries_of(pgdata);
    let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    let mut ours: BTreeSet<String> = files.map(|entry| text(&entry.path)).collect();
    assert!(ours.insert(CONTROL_FILE_PATH.into()), "pg_control must not be visited");
    // The label comes from the session, not from the directory.
    ours.insert("backup_label".into());
    assert_eq!(ours.difference(&theirs).collect::<Vec<_>>(), Vec::<&String>::new(), "only ours");
    assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&String>::new(), "only theirs");
    directories_are_those_of(&destination, &entries);
    assert_eq!(entries.iter().filter(|entry| matches!(entry.kind, EntryKind::Symlink { .. })).count(), 1);
    let init_forks = entries.iter().filter(|entry| matches!(entry.class, PathClass::Relation { fork: Fork::Init, .. }));
    assert!(init_forks.count() >= 3);
}

fn directories_are_those_of(reference: &Path, entries: &[ScanEntry]) {
    fn walk(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.is_symlink() {
                    found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
                walk(root, &path, found);
            }
        }
    }
    let mut theirs = BTreeSet::new();
    walk(reference, reference, &mut theirs);
    let ours = entries.iter().filter(|entry| entry.kind == EntryKind::Directory).map(|entry| text(&entry.path));
    assert_eq!(ours.collect::<BTreeSet<_>>(), theirs);
}

fn pg_control_says_what_pg_controldata_says(server: &ScratchServer) {
    if !server.install().has_tool("pg_controldata") {
        eprintln!("SKIPPED: no pg_controldata for PostgreSQL {}", server.install().major());
        return;
    }
    let pgdata = server.data_directory();
    let output = server.run_tool("pg_controldata", &[pgdata.to_str().unwrap()]).unwrap();
    let output = text(&output.stdout);
    let value = |key: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {key} in {output}")).trim().to_owned()
    };
    let (bytes, control_file) = read_control_file(pgdata).unwrap();
    assert_eq!(bytes.len(), 8192);
    assert_eq!(control_file.state, ClusterState::ShutDown);
    let pairs = [
        ("pg_control version number", control_file.control_version.to_string()),
        ("Catalog version number", control_file.catalog_version.to_string()),
        ("Database system identifier", control_file.system_identifier.to_string()),
        ("Latest checkpoint location", control_file.checkpoint_lsn.to_string()),
        ("Latest checkpoint's REDO location", control_file.checkpoint_redo_lsn.to_string()),
        ("Latest checkpoint's TimeLineID", control_file.timeline.to_string()),
        ("Database block size", control_file.block_size_bytes.to_string()),
        ("Blocks per segment of large relation", control_file.segment_blocks.to_string()),
        ("WAL block size", control_file.wal_block_size_bytes.to_string()),
        ("Bytes per WAL segment", control_file.wal_segment_size_bytes.to_string()),
        ("Data page checksum version", control_file.checksum_version.to_string()),
    ];
    for (key, ours) in pairs {
        assert_eq!(value(key), ours, "{key}");
    }
}

fn every_page_is_good_and_planted_damage_is_seen(server: &ScratchServer) {
    let pgdata = server.data_directory();
    let (_, control_file) = read_control_file(pgdata).unwrap();
    let limit = Lsn(control_file.checkpoint_lsn.0 + 1024);
    let judge = PageJudge::new(control_file.block_size_bytes, true, Lsn(0));
    let (mut page_count, mut map_count) = (0, 0);
    let mut victim = None;
    for entry in entries_of(pgdata) {
        let PathClass::Relation { segment_number, fork, .. } = entry.class else { continue };
        let path = pgdata.join(text(&entry.path));
        let content = fs::read(&path).unwrap();
        assert!(content.len().is_multiple_of(8192), "{}", path.display());
        for (number, page) in (0u32..).zip(content.chunks(8192)) {
            let verdict = judge.judge(page, segment_number * control_file.segment_blocks + number, limit);
            assert!(
                matches!(verdict, PageVerdict::Good { .. } | PageVerdict::Zero),
                "{} page {number}: {verdict:?}",
                path.display()
            );
            page_count += 1;
        }
        if fork == Fork::Vm && !content.is_empty() {
            let bits = visibility_bits(&content, control_file.block_size_bytes, 0).unwrap();
            map_count += u32::from(bits.all_visible && bits.map_lsn > Lsn(0));
        }
        if fork == Fork::Main && content.len() > 8 * 8192 {
            victim = Some(content);
        }
    }
    assert!(page_count > 1000 && map_count > 2, "{page_count} pages, {map_count} visibility maps");
    let page = &victim.unwrap()[3 * 8192..4 * 8192];
    let planted = |change: &dyn Fn(&mut [u8])| {
        let mut bad = page.to_vec();
        change(&mut bad);
        judge.judge(&bad, 3, limit)
    };
    let is_mismatch = |verdict| matches!(verdict, PageVerdict::Suspect(SuspectReason::ChecksumMismatch { .. }));
    assert!(is_mismatch(planted(&|page| page[4000] ^= 1)));
    // The reference tool misses this one: damage, and an LSN of the future beside it.
    assert!(is_mismatch(planted(&|page| page[..8].fill(0x7F))));
    assert!(is_mismatch(judge.judge(page, 4, limit)));
    assert_eq!(planted(&|page| page.fill(0)), PageVerdict::Zero);
    assert!(matches!(judge.judge(page, 3, Lsn(8)), PageVerdict::Suspect(SuspectReason::FutureLsn { .. })));
}

fn a_plain_copy_passes_pg_verifybackup(server: &ScratchServer, directory: &Path) {
    let Some(client) = install_with("pg_verifybackup", server.install()) else {
        eprintln!("SKIPPED: no pg_verifybackup for PostgreSQL {}", server.install().major());
        return;
    };
    let (pgdata, copy) = (server.data_directory(), directory.join("copy"));
    fs::create_dir(&copy).unwrap();
    let (control_bytes, control_file) = read_control_file(pgdata).unwrap();
    let mut listed: Vec<(Vec<u8>, u64, i64, u32)> = Vec::new();
    for entry in entries_of(pgdata) {
        let target: PathBuf = copy.join(text(&entry.path));
        match entry.kind {
            EntryKind::File => {
                let content = fs::read(pgdata.join(text(&entry.path))).unwrap();
                listed.push((entry.path, content.len() as u64, entry.mtime_s, crc_fast::crc32_iscsi(&content)));
                fs::write(target, content).unwrap();
            }
            EntryKind::Directory | EntryKind::Symlink { .. } => fs::create_dir_all(target).unwrap(),
        }
    }
    fs::write(copy.join(CONTROL_FILE_PATH), &control_bytes).unwrap();
    listed.push((CONTROL_FILE_PATH.into(), control_bytes.len() as u64, 0, crc_fast::crc32_iscsi(&control_bytes)));
    let header = ManifestHeader {
        major: server.install().major(),
        system_identifier: control_file.system_identifier,
        timeline: control_file.timeline,
        start_lsn: control_file.checkpoint_redo_lsn,
        stop_lsn: control_file.checkpoint_lsn,
    };
    let files = listed.iter().map(|(path, size_bytes, mtime_s, crc32c)| ManifestFile {
        path,
        size_bytes: *size_bytes,
        mtime_s: *mtime_s,
        crc32c: *crc32c,
    });
    let mut manifest = fs::File::create(copy.join("backup_manifest")).unwrap();
    write_backup_manifest(&mut manifest, &header, files).unwrap();
    let tool = ScratchServer::adopt(&client, &copy).unwrap();
    tool.take_over_data_directory().unwrap();
    let verify = || tool.run_tool("pg_verifybackup", &["--no-parse-wal", copy.to_str().unwrap()]).unwrap();
    let output = verify();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let damaged = fs::OpenOptions::new().write(true).open(copy.join("PG_VERSION")).unwrap();
    damaged.write_all_at(b"9", 0).unwrap();
    assert!(!verify().status.success());
}
