//! The client of SQL Server against a scripted server, and that server against other programs' clients.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::source::mssql::address::{Authorities, Encryption, Password, ServerAddress};
use pagehaul_engine::source::mssql::client::{Connection, NoWatch, Watch};
use pagehaul_engine::source::mssql::device::Device;
use pagehaul_engine::source::mssql::edition::{Dialect, Edition, MajorVersion};
use pagehaul_engine::source::mssql::questions::{self, SESSION_START};
use pagehaul_engine::source::mssql::server_message::{OUT_OF_MEMORY, RunError, ServerMessage, StopReason};
use pagehaul_engine::source::mssql::snapshot::{SnapshotScript, take_snapshot};
use pagehaul_engine::source::mssql::statement::{
    AsymmetricEncryption, BackupOptions, BackupStatement, Cipher, Contents, Encryptor, Expiry, LogTail, Media,
    OnPageError, Part, Recovery, RestoreKind, RestoreOptions, RestoreStatement, Stop, StopAt,
};
use pagehaul_testkit::mssql::parser::ScriptDom;
use pagehaul_testkit::mssql::{Happening, PASSWORD, Security, TdsServer, World};

const BACKUP: &str = "BACKUP DATABASE [shop] TO DISK = N'/b/1.bak' WITH COPY_ONLY, CHECKSUM, STATS = 10;";

fn start(security: Security) -> TdsServer {
    TdsServer::start(World::with_database(8 << 30), security)
}

fn address(server: &TdsServer, encryption: Encryption) -> ServerAddress {
    let address = ServerAddress::parse(&server.address().to_string(), "sa", Password::new(PASSWORD)).unwrap();
    ServerAddress { encryption, connect_timeout: Duration::from_secs(5), ..address }
}

fn plain(server: &TdsServer) -> Connection {
    Connection::connect(&address(server, Encryption::Plain)).unwrap()
}

#[derive(Default)]
struct Listener {
    heard: Vec<ServerMessage>,
    /// Wants to stop once so many messages were heard.
    stops_after: Option<usize>,
}

impl Watch for Listener {
    fn message(&mut self, message: &ServerMessage) {
        self.heard.push(message.clone());
    }

    fn stop(&mut self) -> Option<StopReason> {
        self.stops_after.filter(|count| self.heard.len() >= *count).map(|_| StopReason::Interrupted)
    }
}

#[test]
fn a_backup_is_heard_as_it_runs() {
    let server = start(Security::Plain);
    let mut connection = plain(&server);
    assert_eq!(connection.version(), [17, 0, 1000]);
    let mut listener = Listener::default();
    connection.run(BACKUP, &mut listener).unwrap();
    let percents = listener.heard.iter().filter(|message| message.number == 3211).count();
    assert_eq!(percents, 10);
    let last = listener.heard.last().unwrap();
    assert!(last.number == 3014 && last.text.contains("successfully processed 1048578 pages"), "{last:?}");
    let answer = connection.ask("RESTORE FILELISTONLY FROM DISK = N'/b/1.bak';", "look").unwrap();
    let files = &answer.results[0];
    assert_eq!(files.value(1, "logicalname").unwrap().text().unwrap(), "it's]log");
    let answer = connection.ask("SELECT 1;", "ask").unwrap();
    assert_eq!(answer.results[0].value(0, "none").unwrap().text(), None);
}

#[test]
fn all_errors_of_a_statement_are_told_and_the_session_goes_on() {
    let server = start(Security::Plain);
    let mut connection = plain(&server);
    server.world().limits.buffer_bytes_max = 1 << 20;
    let error = connection.run(BACKUP, &mut NoWatch).unwrap_err();
    assert!(error.has_number(&OUT_OF_MEMORY) && error.has_number(&[3013]), "{error:?}");
    let error = error.into_error("back up shop");
    assert!(error.hint_text().unwrap().contains("BUFFERCOUNT"), "{error}");
    for (number, text) in [(802, "pool"), (3201, "Cannot open"), (15129, "not a valid value")] {
        let errors = vec![(number, text.to_owned()), (3013, "BACKUP is terminating".to_owned())];
        server.world().fail("BACKUP", Happening::Errors(errors));
        let error = connection.run(BACKUP, &mut NoWatch).unwrap_err();
        assert!(error.has_number(&[number]) && error.has_number(&[3013]), "{error:?}");
        assert!(error.into_error("x").hint_text().is_some());
    }
    server.world().limits.buffer_bytes_max = 1 << 30;
    connection.run(BACKUP, &mut NoWatch).unwrap();
}

#[test]
fn a_statement_that_is_to_end_is_ended_on_the_server() {
    let server = start(Security::Plain);
    let mut connection = plain(&server);
    server.world().fail("BACKUP", Happening::Hang(30));
    let started = Instant::now();
    let mut listener = Listener { stops_after: Some(3), ..Listener::default() };
    let error = connection.run(BACKUP, &mut listener).unwrap_err();
    assert!(matches!(error, RunError::Stopped(StopReason::Interrupted)), "{error:?}");
    assert_eq!(error.into_error("x").kind(), ErrorKind::Interrupted);
    assert_eq!((server.world().attentions, listener.heard.len()), (1, 3));
    assert!(started.elapsed() < Duration::from_secs(5));
    connection.run("SELECT 1;", &mut NoWatch).unwrap();
}

#[test]
fn a_lost_connection_is_an_error_at_once_and_stays_one() {
    let server = start(Security::Plain);
    let mut connection = plain(&server);
    server.world().fail("BACKUP", Happening::Disconnect(40));
    let error = connection.run(BACKUP, &mut NoWatch).unwrap_err();
    let RunError::Lost(error) = error else { panic!("{error:?}") };
    assert!(error.message().contains("closed the connection"), "{error}");
    for _ in 0..2 {
        let Err(RunError::Lost(error)) = connection.run("SELECT 1;", &mut NoWatch) else { panic!("it is lost") };
        assert!(error.message().contains("an earlier failure ended it"), "{error}");
    }
}

#[test]
fn a_server_that_never_pauses_is_ended_and_its_rows_are_bounded() {
    let server = start(Security::Plain);
    let mut connection = plain(&server);
    server.world().fail("SELECT", Happening::Chatter);
    let mut listener = Listener { stops_after: Some(1), ..Listener::default() };
    let error = connection.run("SELECT 1;", &mut listener).unwrap_err();
    assert!(matches!(error, RunError::Stopped(StopReason::Interrupted)), "{error:?}");
    assert_eq!(server.world().attentions, 1);
    connection.run("SELECT 1;", &mut NoWatch).unwrap();
    // Rows of 4 KB without an end.
    server.world().fail("SELECT", Happening::Rows);
    let error = connection.run("SELECT 1;", &mut NoWatch).unwrap_err();
    let RunError::Lost(error) = error else { panic!("{error:?}") };
    assert!(error.message().contains("far too many"), "{error}");
}

#[test]
fn a_hostile_server_gives_errors_and_never_a_panic_or_a_huge_allocation() {
    let server = start(Security::Plain);
    let raw: [&[u8]; 7] = [
        &[4, 1, 0, 3, 0, 0, 0, 0],
        &[4, 1, 0xff, 0xff, 0, 0, 0, 0],
        &[9, 1, 0, 9, 0, 0, 0, 0, 1],
        &[4, 1, 0, 12, 0, 0, 1, 0, 0x81, 0xfe, 0xff, 0],
        &[4, 1, 0, 10, 0, 0, 1, 0, 0xd1, 0],
        &[4, 1, 0, 11, 0, 0, 1, 0, 0xab, 0xff, 0xff],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    for bytes in raw {
        let mut connection = plain(&server);
        server.world().fail("SELECT", Happening::Raw(bytes.to_vec()));
        let error = connection.run("SELECT 1;", &mut NoWatch).unwrap_err();
        assert!(matches!(error, RunError::Lost(_)), "{bytes:?} {error:?}");
    }
}

#[test]
fn wrong_passwords_and_missing_servers_are_explained() {
    let server = start(Security::Plain);
    let wrong = ServerAddress { password: Password::new("no"), ..address(&server, Encryption::Plain) };
    let error = Connection::connect(&wrong).unwrap_err();
    assert!(error.message().contains("18456") && error.hint_text().unwrap().contains("wrong user"), "{error}");
    let error = Connection::connect(&address(&server, Encryption::Mandatory)).unwrap_err();
    assert!(error.hint_text().unwrap().contains("--encrypt plain"), "{error}");
    let gone = address(&server, Encryption::Plain);
    drop(server);
    std::thread::sleep(Duration::from_millis(50));
    let error = Connection::connect(&gone).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Source, "{error}");
}

/// A certificate for `localhost` in `directory`, and its key.
fn certificate(directory: &Path) {
    let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 30 \
                -subj /CN=mock -addext subjectAltName=DNS:localhost";
    let output = Command::new("openssl").args(make.split_whitespace()).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn encrypted_as_asked_and_only_with_whom_is_believed() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    let (cert, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let config = Security::tls(&cert, &key, false);
    let strict = Security::tls(&cert, &key, true);
    let cases = [
        (Security::All(config.clone()), Encryption::Mandatory),
        (Security::All(config.clone()), Encryption::Optional),
        (Security::LogIn(config.clone()), Encryption::Optional),
        (Security::LogIn(config.clone()), Encryption::Mandatory),
        (Security::Strict(strict), Encryption::Strict),
    ];
    for (security, encryption) in cases {
        let server = start(security);
        let open = address(&server, encryption);
        let known = ServerAddress {
            authorities: Authorities::File(cert.clone()),
            host_in_certificate: Some("localhost".to_owned()),
            ..open.clone()
        };
        let mut connection = Connection::connect(&known).unwrap();
        let mut listener = Listener::default();
        connection.run(BACKUP, &mut listener).unwrap();
        assert_eq!(listener.heard.iter().filter(|message| message.number == 3211).count(), 10, "{encryption:?}");
        let error = Connection::connect(&open).unwrap_err();
        assert!(error.hint_text().is_some_and(|hint| hint.contains("--ca-file")), "{error}");
        let misnamed = ServerAddress { host_in_certificate: Some("other".to_owned()), ..known.clone() };
        let error = Connection::connect(&misnamed).unwrap_err();
        assert!(error.message().contains("not for other"), "{error}");
        let anyone = ServerAddress { authorities: Authorities::Anyone, ..open };
        Connection::connect(&anyone).unwrap();
    }
    let server = start(Security::All(config));
    let error = Connection::connect(&address(&server, Encryption::Plain)).unwrap_err();
    assert!(error.message().contains("wants the connection encrypted"), "{error}");
}

/// Runs a program that may not be there; None, said so, if it is not.
fn run_if_there(command: &mut Command, input: &str) -> Option<String> {
    use std::io::Write;
    use std::process::Stdio;
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        eprintln!("SKIPPED: {:?} is not installed", command.get_program());
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn freetds_understands_the_scripted_server() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    let config = Security::tls(&directory.path().join("cert.pem"), &directory.path().join("key.pem"), false);
    for security in [Security::Plain, Security::LogIn(config.clone()), Security::All(config)] {
        let server = start(security);
        server.world().fail("LOG", Happening::Errors(vec![(701, "no memory".into()), (3013, "terminating".into())]));
        let port = server.address().port().to_string();
        let mut tsql = Command::new("tsql");
        tsql.args(["-H", "127.0.0.1", "-p", &port, "-U", "sa", "-P", PASSWORD]).env("TDSVER", "7.4");
        tsql.env("LC_ALL", "C.UTF-8");
        let input = format!("SELECT 1\ngo\n{BACKUP}\ngo\nBACKUP LOG [shop] TO DISK = N'/b/l'\ngo\nexit\n");
        let Some(text) = run_if_there(&mut tsql, &input) else { return };
        assert!(text.contains("one\tnone") && text.contains("1\tNULL"), "{text}");
        assert!(text.contains("100 percent processed.") && text.contains("BACKUP DATABASE successfully"), "{text}");
        assert!(text.contains("Msg 701") && text.contains("Msg 3013"), "{text}");
    }
}

#[test]
fn python_tds_understands_the_scripted_server() {
    let server = start(Security::Plain);
    server.world().fail("LOG", Happening::Errors(vec![(701, "no memory".into()), (3013, "terminating".into())]));
    let packages = std::env::var("PAGEHAUL_TEST_MSSQL_DIR").unwrap_or_default();
    let script = format!(
        "import sys
try:
    import pytds
except ImportError:
    print('absent'); sys.exit()
c = pytds.connect(dsn='127.0.0.1', port={}, user='sa', password={PASSWORD:?}, autocommit=True, database='')
k = c.cursor()
k.execute('SELECT 1')
print(k.fetchall())
k.execute(\"\"\"{BACKUP}\"\"\")
print([m[1].message if isinstance(m, tuple) else m for m in (k.messages or [])])
try:
    k.execute(\"BACKUP LOG [shop] TO DISK = N'/b/l'\")
except pytds.Error as e:
    print('refused', e)
",
        server.address().port()
    );
    let Some(text) = run_if_there(Command::new("python3").arg("-").env("PYTHONPATH", packages), &script) else {
        return;
    };
    if text.starts_with("absent") {
        eprintln!("SKIPPED: python-tds is not installed (PAGEHAUL_TEST_MSSQL_DIR may have it)");
        return;
    }
    assert!(text.contains("('1', None)"), "{text}");
    assert!(text.contains("refused") && (text.contains("no memory") || text.contains("terminating")), "{text}");
    assert_eq!(server.world().sets.len(), 1, "{text}");
}

/// Everything that a snapshot needs.
fn snapshot_script() -> SnapshotScript {
    let dialect = Dialect { version: MajorVersion::V2025, edition: Edition::Enterprise, is_windows: false };
    let mut statement = BackupStatement::full("shop", vec![Device::Disk("/b/shop.bkm".into())]);
    statement.options =
        BackupOptions { metadata_only: true, copy_only: true, media: Some(Media::Format), ..BackupOptions::default() };
    SnapshotScript::new(&statement, &dialect, Duration::from_secs(90)).unwrap()
}

#[test]
fn a_snapshot_freezes_stores_the_metadata_and_thaws() {
    let server = start(Security::Plain);
    let script = snapshot_script();
    assert!(script.freeze.contains("MODE = COPY_ONLY") && script.guard.starts_with("WAITFOR DELAY '00:01:30'"));
    let (mut own, mut guard) = (plain(&server), plain(&server));
    let mut made = 0;
    let mut make = || {
        made += 1;
        assert!(server.world().databases["shop"].is_suspended, "the snapshot is made while writes stand still");
        Ok(())
    };
    take_snapshot(&mut own, &mut guard, &script, &mut NoWatch, &mut make).unwrap();
    let world = server.world();
    assert_eq!((made, world.sets.len(), world.databases["shop"].is_suspended), (1, 1, false));
    assert!(world.databases["shop"].differential_base.is_none(), "no base for differentials");
    assert_eq!(world.attentions, 1, "the guard waits no longer");
}

#[test]
fn whatever_fails_a_snapshot_the_database_goes_on() {
    let server = start(Security::Plain);
    let script = snapshot_script();
    let (mut own, mut guard) = (plain(&server), plain(&server));
    let mut fail = || Err(Error::new(ErrorKind::Target, "make a snapshot", "no space"));
    let error = take_snapshot(&mut own, &mut guard, &script, &mut NoWatch, &mut fail).unwrap_err();
    assert!(error.message().contains("no space"), "{error}");
    assert!(!server.world().databases["shop"].is_suspended);
    server
        .world()
        .fail("METADATA_ONLY", Happening::Errors(vec![(3201, "denied".into()), (3013, "terminating".into())]));
    let error = take_snapshot(&mut own, &mut guard, &script, &mut NoWatch, &mut || Ok(())).unwrap_err();
    assert!(error.message().contains("Msg 3201"), "{error}");
    assert!(!server.world().databases["shop"].is_suspended && server.world().sets.is_empty());
    // This process stands still: the guard's time runs out on the server.
    let mut stand_still = || {
        server.world().waitfor_is_over = true;
        let until = Instant::now() + Duration::from_secs(5);
        while server.world().databases["shop"].is_suspended && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!server.world().databases["shop"].is_suspended, "the guard has thawed it");
        Ok(())
    };
    let error = take_snapshot(&mut own, &mut guard, &script, &mut NoWatch, &mut stand_still).unwrap_err();
    assert!(error.message().contains("must be suspended"), "{error}");
    assert!(server.world().sets.is_empty(), "a snapshot of a database that went on is no backup");
}

#[test]
fn every_statement_is_understood_by_microsofts_parser() {
    let Some(parser) = ScriptDom::find() else { return };
    assert_eq!(parser.errors("BACKUP DATABASE [x] TO DISKK = N'a';").len(), 1, "it refuses what is wrong");
    let mut script = vec![
        SESSION_START.to_owned(),
        questions::facts("it's]").unwrap(),
        questions::probe("k", "backup-before"),
        questions::outcome("k", "it's", "d", MajorVersion::V2025),
        questions::differential_base("k", "it's", "d"),
        questions::is_taken("x", false),
        questions::is_taken("x]'", true),
        questions::drop_database("x]").unwrap(),
        questions::remove_file("/b/it's", MajorVersion::V2025),
        questions::remove_file("/b/it's", MajorVersion::V2016),
        questions::say("k", "m", "n", "it's"),
    ];
    script.extend(backups());
    script.push(snapshot_script().backup);
    script.extend(restores());
    // One program for all of them; where one is wrong, one for each, to name it.
    if !parser.errors(&script.join("\nGO\n")).is_empty() {
        script.iter().for_each(|batch| assert_eq!(parser.errors(batch), Vec::<String>::new(), "{batch}"));
        panic!("no batch is wrong by itself");
    }
}

const DIALECT: Dialect = Dialect { version: MajorVersion::V2025, edition: Edition::Enterprise, is_windows: true };

fn disks(count: usize) -> Vec<Device> {
    (0..count).map(|number| Device::Disk(format!("/b/{number}'.bak"))).collect()
}

fn parts() -> Vec<Part> {
    vec![Part::File("f".into()), Part::Filegroup("g".into())]
}

/// Backups with every option that Microsoft's parser knows, or that it is shown in an older form.
fn backups() -> Vec<String> {
    let mut script = Vec::new();
    for compression in ["none", "server", "ms_xpress", "qat_deflate", "zstd:high"] {
        let mut statement = BackupStatement::full("a]b", disks(3));
        statement.mirrors = vec![disks(3).iter().map(|own| Device::Disk(format!("/m{own}"))).collect()];
        statement.options = BackupOptions {
            copy_only: true,
            compression: Some(compression.parse().unwrap()),
            buffer_count: Some(50),
            max_transfer_size: Some(4 << 20),
            block_size: Some(65536),
            checksum: Some(true),
            on_page_error: Some(OnPageError::Continue),
            media: Some(Media::Format),
            name: Some("it's".into()),
            description: Some("d".into()),
            media_name: Some("m".into()),
            media_description: Some("m".into()),
            expiry: Some(Expiry::At("2026-12-24".into())),
            encryption: Some(AsymmetricEncryption {
                cipher: Cipher::Aes256,
                encryptor: Encryptor::Certificate("c".into()),
            }),
            stats: Some(5),
            ..BackupOptions::default()
        };
        script.push(statement.sql(&DIALECT).unwrap());
    }
    let contents = [
        Contents::Log("d".into(), LogTail::GoesOn),
        Contents::Log("d".into(), LogTail::NoRecovery),
        Contents::Log("d".into(), LogTail::Standby("/u".into())),
        Contents::Parts("d".into(), parts()),
        Contents::ReadWrite("d".into(), vec!["g".into()]),
    ];
    for contents in contents {
        script.push(BackupStatement { contents, ..BackupStatement::full("d", disks(1)) }.sql(&DIALECT).unwrap());
    }
    script
}

/// Restores of every kind.
fn restores() -> Vec<String> {
    let database = || RestoreKind::Database("d".to_owned());
    let restores: [(RestoreKind, RestoreOptions); 9] = [
        (
            database(),
            RestoreOptions {
                file: Some(2),
                moves: vec![("l'".into(), "/d/1.mdf".into())],
                replace: true,
                recovery: Some(Recovery::NoRecovery),
                checksum: Some(true),
                buffer_count: Some(20),
                max_transfer_size: Some(1 << 20),
                stats: Some(10),
                stop_at: Some(StopAt { stop: Stop::Time, place: "2026-11-22T10:00:00".into(), after: None }),
                ..RestoreOptions::default()
            },
        ),
        (database(), RestoreOptions { recovery: Some(Recovery::Standby("/u".into())), ..RestoreOptions::default() }),
        (
            database(),
            RestoreOptions {
                partial: true,
                keep_replication: true,
                restricted_user: true,
                ..RestoreOptions::default()
            },
        ),
        (RestoreKind::Parts("d".into(), parts()), RestoreOptions::default()),
        (RestoreKind::Pages("d".into(), vec![(1, 57), (1, 202)]), RestoreOptions::default()),
        (
            RestoreKind::Log("d".into()),
            RestoreOptions {
                stop_at: Some(StopAt { stop: Stop::BeforeMark, place: "m".into(), after: Some("2026-11-22".into()) }),
                ..RestoreOptions::default()
            },
        ),
        (RestoreKind::HeaderOnly, RestoreOptions::default()),
        (
            RestoreKind::VerifyOnly,
            RestoreOptions { checksum: Some(true), load_history: true, ..RestoreOptions::default() },
        ),
        (RestoreKind::LabelOnly, RestoreOptions::default()),
    ];
    let text =
        |(kind, options)| RestoreStatement { options, ..RestoreStatement::new(kind, disks(1)) }.sql(&DIALECT).unwrap();
    restores.into_iter().map(text).collect()
}
