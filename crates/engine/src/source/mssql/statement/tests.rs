//! Texts as the documentation writes them, and every rule with a statement that breaks it.

use super::*;
use crate::source::mssql::device::Device;
use crate::source::mssql::edition::{Dialect, Edition, MajorVersion};
use crate::source::mssql::server_facts::ServerFacts;

const ENTERPRISE_2025: Dialect =
    Dialect { version: MajorVersion::V2025, edition: Edition::Enterprise, is_windows: true };
const STANDARD_2019: Dialect = Dialect { version: MajorVersion::V2019, edition: Edition::Standard, is_windows: false };
const EXPRESS_2022: Dialect = Dialect { version: MajorVersion::V2022, edition: Edition::Express, is_windows: true };

fn disks(count: usize) -> Vec<Device> {
    (0..count).map(|number| Device::Disk(format!("/b/{number}.bak"))).collect()
}

fn s3(count: usize) -> Vec<Device> {
    (0..count).map(|number| Device::S3(format!("s3://h/b/{number}.bak"))).collect()
}

fn azure() -> Vec<Device> {
    vec![Device::Azure("https://a.blob.core.windows.net/c/a.bak".to_owned())]
}

fn with(to: Vec<Device>, change: impl FnOnce(&mut BackupOptions)) -> BackupStatement {
    let mut statement = BackupStatement::full("d", to);
    change(&mut statement.options);
    statement
}

#[test]
fn a_backup_with_everything_is_as_documented() {
    let options = BackupOptions {
        copy_only: true,
        compression: Some(Compression::By(Algorithm::Zstd, Some(Level::Medium))),
        buffer_count: Some(50),
        max_transfer_size: Some(4 << 20),
        block_size: Some(65536),
        checksum: Some(true),
        on_page_error: Some(OnPageError::Stop),
        media: Some(Media::Format),
        skip: Some(true),
        name: Some("it's".to_owned()),
        description: Some("key".to_owned()),
        media_name: Some("m".to_owned()),
        media_description: Some("md".to_owned()),
        expiry: Some(Expiry::Days(3)),
        encryption: Some(AsymmetricEncryption {
            cipher: Cipher::Aes256,
            encryptor: Encryptor::Certificate("c]".to_owned()),
        }),
        stats: Some(5),
        ..BackupOptions::default()
    };
    let mut statement = BackupStatement::full("a]b", disks(2));
    statement.mirrors = vec![vec![Device::Disk("/m/0".into()), Device::Disk("/m/1".into())]];
    statement.options = options;
    let expected = "\
BACKUP DATABASE [a]]b]
TO DISK = N'/b/0.bak',
   DISK = N'/b/1.bak'
MIRROR TO DISK = N'/m/0',
   DISK = N'/m/1'
WITH COPY_ONLY, COMPRESSION (ALGORITHM = ZSTD, LEVEL = MEDIUM), ENCRYPTION (ALGORITHM = AES_256, SERVER CERTIFICATE = [c]]]), \
FORMAT, INIT, SKIP, CHECKSUM, STOP_ON_ERROR, NAME = N'it''s', DESCRIPTION = N'key', MEDIANAME = N'm', MEDIADESCRIPTION = N'md', \
RETAINDAYS = 3, BLOCKSIZE = 65536, BUFFERCOUNT = 50, MAXTRANSFERSIZE = 4194304, STATS = 5;";
    assert_eq!(statement.sql(&ENTERPRISE_2025).unwrap(), expected);
}

#[test]
fn other_kinds_of_backups() {
    let sql = |contents, change: fn(&mut BackupOptions)| {
        let statement = BackupStatement { contents, ..with(disks(1), change) };
        statement.sql(&ENTERPRISE_2025).unwrap().replace('\n', " ")
    };
    let log = |tail| Contents::Log("d".into(), tail);
    assert_eq!(sql(log(LogTail::GoesOn), |_| ()), "BACKUP LOG [d] TO DISK = N'/b/0.bak';");
    let text = sql(log(LogTail::NoRecovery), |options| options.no_truncate = true);
    assert_eq!(text, "BACKUP LOG [d] TO DISK = N'/b/0.bak' WITH NO_TRUNCATE, NORECOVERY;");
    let text = sql(log(LogTail::Standby("/u".into())), |_| ());
    assert_eq!(text, "BACKUP LOG [d] TO DISK = N'/b/0.bak' WITH STANDBY = N'/u';");
    let parts = vec![Part::File("f'1".into()), Part::Filegroup("g".into())];
    let text = sql(Contents::Parts("d".into(), parts), |options| options.differential = true);
    assert_eq!(text, "BACKUP DATABASE [d] FILE = N'f''1', FILEGROUP = N'g' TO DISK = N'/b/0.bak' WITH DIFFERENTIAL;");
    let text = sql(Contents::ReadWrite("d".into(), vec!["g".into()]), |_| ());
    assert_eq!(text, "BACKUP DATABASE [d] READ_WRITE_FILEGROUPS, FILEGROUP = N'g' TO DISK = N'/b/0.bak';");
    let text = sql(Contents::Group(vec!["a".into(), "b".into()]), |options| options.metadata_only = true);
    assert_eq!(text, "BACKUP GROUP [a], [b] TO DISK = N'/b/0.bak' WITH METADATA_ONLY;");
    let text = sql(Contents::Server, |options| options.metadata_only = true);
    assert_eq!(text, "BACKUP SERVER TO DISK = N'/b/0.bak' WITH METADATA_ONLY;");
}

#[test]
fn versions_write_compression_their_own_way() {
    let text = |compression: &str, dialect: &Dialect| {
        let compression = compression.parse().unwrap();
        let statement = with(disks(1), |options| options.compression = Some(compression));
        let text = statement.sql(dialect).unwrap();
        text.split_once("WITH ").map(|(_, options)| options.trim_end_matches(';').to_owned()).unwrap_or_default()
    };
    assert_eq!(text("ms_xpress", &STANDARD_2019), "COMPRESSION");
    assert_eq!(text("ms_xpress", &ENTERPRISE_2025), "COMPRESSION (ALGORITHM = MS_XPRESS)");
    assert_eq!(text("zstd", &ENTERPRISE_2025), "COMPRESSION (ALGORITHM = ZSTD)");
    assert_eq!(text("zstd:high", &ENTERPRISE_2025), "COMPRESSION (ALGORITHM = ZSTD, LEVEL = HIGH)");
    assert_eq!(text("qat_deflate", &ENTERPRISE_2025), "COMPRESSION (ALGORITHM = QAT_DEFLATE)");
    assert_eq!(text("none", &EXPRESS_2022), "NO_COMPRESSION");
    assert_eq!(text("server", &STANDARD_2019), "");
    assert!("lz4".parse::<Compression>().is_err());
}

/// Refused with a hint that has the word.
fn refused(statement: &BackupStatement, dialect: &Dialect, word: &str) {
    let error = statement.sql(dialect).expect_err(&format!("{statement:?}"));
    assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
    let text = error.to_string();
    assert!(text.contains(word), "{word}: {text}");
    assert!(error.hint_text().is_some(), "{text}");
}

#[test]
fn every_rule_of_devices_is_kept() {
    let all = &ENTERPRISE_2025;
    refused(&with(vec![], |_| ()), all, "1 to 64");
    refused(&with(disks(65), |_| ()), all, "1 to 64");
    assert!(with(disks(64), |_| ()).sql(all).is_ok());
    refused(&with([disks(1), s3(1)].concat(), |_| ()), all, "of one kind");
    refused(&with(vec![Device::Nul, Device::Disk("/a".into())], |_| ()), all, "NUL alone");
    refused(&with(vec![Device::Disk("/a".into()); 2], |_| ()), all, "named twice");
    assert!(with(vec![Device::Nul, Device::Nul], |_| ()).sql(all).is_ok(), "several files of NUL are a baseline, too");
    refused(&with(s3(1), |_| ()), &STANDARD_2019, "came with SQL Server 2022");
    let tape = vec![Device::Tape("\\\\.\\tape0".into())];
    refused(&with(tape, |_| ()), &STANDARD_2019, "only servers on Windows");
    refused(&with(disks(1), |options| options.tape_end = Some(TapeEnd::Unload)), all, "for tapes only");
    let mirrored = |to: Vec<Device>, mirrors: Vec<Vec<Device>>, media| BackupStatement {
        mirrors,
        ..with(to, |options| options.media = media)
    };
    let mirror = |name: &str| vec![Device::Disk(format!("/{name}/0"))];
    let four = ["m", "n", "o", "p"].map(mirror).to_vec();
    refused(&mirrored(disks(1), four, Some(Media::Format)), all, "three times");
    refused(&mirrored(disks(2), vec![mirror("m")], Some(Media::Format)), all, "as many devices");
    refused(&mirrored(disks(1), vec![mirror("m")], None), all, "FORMAT");
    refused(&mirrored(disks(1), vec![mirror("m")], Some(Media::Format)), &STANDARD_2019, "Enterprise");
    refused(&mirrored(vec![Device::Nul], vec![vec![Device::Nul]], Some(Media::Format)), all, "NUL keeps nothing");
    let far: Vec<Device> = (0..33).map(|number| Device::S3(format!("s3://h/m/{number}"))).collect();
    refused(&mirrored(s3(33), vec![far], Some(Media::Format)), all, "up to 32");
}

#[test]
fn every_rule_of_options_is_kept() {
    type Change = fn(&mut BackupOptions);
    let cases: [(Vec<Device>, Change, Dialect, &str); 30] = [
        (disks(1), |o| (o.differential, o.copy_only) = (true, true), ENTERPRISE_2025, "ignores COPY_ONLY"),
        (disks(1), |o| o.no_truncate = true, ENTERPRISE_2025, "for logs"),
        (disks(1), |o| o.compression = "ms_xpress".parse().ok(), EXPRESS_2022, "Standard and Enterprise"),
        (disks(1), |o| o.compression = "zstd".parse().ok(), STANDARD_2019, "came with SQL Server 2025"),
        (disks(1), |o| o.compression = "qat_deflate".parse().ok(), STANDARD_2019, "came with SQL Server 2022"),
        (
            disks(1),
            |o| o.compression = "qat_deflate".parse().ok(),
            Dialect { is_windows: false, ..ENTERPRISE_2025 },
            "on Windows only",
        ),
        (
            disks(1),
            |o| o.compression = Some(Compression::By(Algorithm::MsXpress, Some(Level::Low))),
            ENTERPRISE_2025,
            "LEVEL goes with ZSTD",
        ),
        (disks(1), |o| o.buffer_count = Some(0), ENTERPRISE_2025, "1 or more"),
        (disks(1), |o| o.buffer_count = Some(1 << 31), ENTERPRISE_2025, "1 or more"),
        (disks(1), |o| o.stats = Some(101), ENTERPRISE_2025, "1 to 100"),
        (disks(1), |o| o.block_size = Some(1000), ENTERPRISE_2025, "power of two"),
        (disks(1), |o| o.block_size = Some(1 << 17), ENTERPRISE_2025, "power of two"),
        (disks(1), |o| o.max_transfer_size = Some(65537), ENTERPRISE_2025, "64 KiB to 4 MiB"),
        (disks(1), |o| o.max_transfer_size = Some(5 << 20), ENTERPRISE_2025, "64 KiB to 4 MiB"),
        (s3(1), |o| o.max_transfer_size = Some(4 << 20), ENTERPRISE_2025, "5 MiB to 20 MiB"),
        (s3(1), |o| o.max_transfer_size = Some(5 << 20), ENTERPRISE_2025, "with COMPRESSION only"),
        (s3(1), |o| o.media = Some(Media::Append), ENTERPRISE_2025, "holds one set"),
        (s3(1), |o| o.expiry = Some(Expiry::Days(1)), ENTERPRISE_2025, "for disks and tapes"),
        (disks(1), |o| (o.media, o.skip) = (Some(Media::Format), Some(false)), ENTERPRISE_2025, "implies SKIP"),
        (
            disks(1),
            |o| (o.checksum, o.on_page_error) = (Some(false), Some(OnPageError::Continue)),
            ENTERPRISE_2025,
            "go with CHECKSUM",
        ),
        (disks(1), |o| o.encryption = some_encryption(), ENTERPRISE_2025, "use FORMAT"),
        (disks(1), |o| o.encryption = some_encryption(), EXPRESS_2022, "Standard and Enterprise encrypt"),
        (disks(1), |o| o.credential = Some("c".into()), ENTERPRISE_2025, "Azure page blobs"),
        (
            azure(),
            |o| (o.credential, o.block_size) = (Some("c".into()), Some(512)),
            ENTERPRISE_2025,
            "neither MAXTRANSFERSIZE nor BLOCKSIZE",
        ),
        (disks(1), |o| o.file_snapshot = true, ENTERPRISE_2025, "shared access signature"),
        (disks(1), |o| o.metadata_only = true, STANDARD_2019, "came with SQL Server 2022"),
        (disks(2), |o| o.metadata_only = true, ENTERPRISE_2025, "one file"),
        (vec![Device::Nul], |o| o.metadata_only = true, ENTERPRISE_2025, "no backup"),
        (disks(1), |o| (o.metadata_only, o.buffer_count) = (true, Some(7)), ENTERPRISE_2025, "no data are written"),
        (disks(1), |o| o.name = Some("x".repeat(129)), ENTERPRISE_2025, "128"),
    ];
    for (to, change, dialect, word) in cases {
        let statement = with(to, change);
        if word == "128" {
            assert!(statement.sql(&dialect).unwrap_err().message().contains(word));
        } else {
            refused(&statement, &dialect, word);
        }
    }
}

#[test]
fn every_rule_of_contents_is_kept() {
    let log = |tail: LogTail, change: fn(&mut BackupOptions)| BackupStatement {
        contents: Contents::Log("d".into(), tail),
        ..with(disks(1), change)
    };
    refused(&log(LogTail::GoesOn, |o| o.differential = true), &ENTERPRISE_2025, "for data");
    refused(&log(LogTail::NoRecovery, |o| o.copy_only = true), &ENTERPRISE_2025, "no copy");
    refused(&log(LogTail::GoesOn, |o| o.metadata_only = true), &ENTERPRISE_2025, "whole databases");
    let of = |contents| BackupStatement { contents, ..with(disks(1), |_| ()) };
    refused(&of(Contents::Server), &ENTERPRISE_2025, "METADATA_ONLY");
    refused(&of(Contents::Group(vec!["a".into()])), &ENTERPRISE_2025, "METADATA_ONLY");
    refused(&of(Contents::Parts("d".into(), vec![])), &ENTERPRISE_2025, "name files");
    let old = Dialect { version: MajorVersion(10), ..ENTERPRISE_2025 };
    assert!(with(disks(1), |_| ()).sql(&old).is_err());
}

fn some_encryption() -> Option<AsymmetricEncryption> {
    let encryptor = Encryptor::AsymmetricKey("k".to_owned());
    Some(AsymmetricEncryption { cipher: Cipher::TripleDes, encryptor })
}

#[test]
fn snapshots_are_looked_at_split_and_rewound_as_documented() {
    let of_snapshot = |kind, database: Option<&str>| {
        let change = |o: &mut RestoreOptions| {
            (o.metadata_only, o.file, o.database_in_snapshot) = (true, Some(3), database.map(str::to_owned));
        };
        restore(kind, change).sql(&ENTERPRISE_2025).unwrap()
    };
    let from = "\nFROM DISK = N'/b/0.bak'\nWITH METADATA_ONLY, FILE = 3";
    assert_eq!(of_snapshot(RestoreKind::HeaderOnly, None), format!("RESTORE HEADERONLY{from};"));
    let one = format!("RESTORE FILELISTONLY{from}, DBNAME = N't''3';");
    assert_eq!(of_snapshot(RestoreKind::FileListOnly, Some("t'3")), one);
    let one = format!("RESTORE BACKUPSETONLY{from}, DBNAME = N't2';");
    assert_eq!(of_snapshot(RestoreKind::BackupSetOnly, Some("t2")), one);
    let tape = RestoreStatement::new(RestoreKind::RewindOnly, vec![Device::Tape("\\\\.\\tape0".to_owned())]);
    assert_eq!(tape.sql(&ENTERPRISE_2025).unwrap(), "RESTORE REWINDONLY\nFROM TAPE = N'\\\\.\\tape0';");
}

#[test]
fn memory_is_known_beforehand() {
    let plain = facts("backup_compression_default|0\nis_encrypted|0");
    let packing = facts("backup_compression_default|1\nis_encrypted|0");
    let encrypted = facts("backup_compression_default|0\nis_encrypted|1");
    let packed = |text: &str| with(disks(2), |options| options.compression = text.parse().ok());
    assert_eq!(with(disks(1), |_| ()).buffer_bytes(&plain), 7 << 20);
    assert_eq!(packed("zstd").buffer_bytes(&plain), 3 * (12 << 20));
    assert_eq!(with(disks(1), |_| ()).buffer_bytes(&encrypted), 3 * (7 << 20));
    assert_eq!(with(s3(1), |_| ()).buffer_bytes(&plain), 70 << 20);
    // What is left to the server is what the server is configured for.
    assert_eq!(packed("server").buffer_bytes(&plain), 12 << 20);
    assert_eq!(packed("server").buffer_bytes(&packing), 3 * (12 << 20));
    assert_eq!(packed("none").buffer_bytes(&packing), 12 << 20);
}

/// A server with one volume, and with these lines of facts.
fn facts(lines: &str) -> ServerFacts {
    let usual = "server|s\nproduct_version|16.0.1\nedition|Enterprise\nengine_edition|3\nplatform|Linux\ncpu_count|8\n\
                 memory_bytes|1\nmemory_free_bytes|1\ndefault_data_path|/d\ndefault_log_path|/d\nstate|ONLINE\n\
                 recovery_model|FULL\ndata_bytes|1\nvolume_count|1\nfile_type|ROWS\nfile_name|f\nfile_path|/d/f";
    let all: Vec<String> = usual.lines().chain(lines.lines()).map(|line| format!("pagehaul||facts|{line}")).collect();
    ServerFacts::read(all.iter().map(String::as_str), "d").unwrap()
}

fn restore(kind: RestoreKind, change: impl FnOnce(&mut RestoreOptions)) -> RestoreStatement {
    let mut statement = RestoreStatement::new(kind, disks(1));
    change(&mut statement.options);
    statement
}

fn database() -> RestoreKind {
    RestoreKind::Database("d".to_owned())
}

#[test]
fn restores_are_as_documented() {
    let statement = restore(database(), |options| {
        options.file = Some(2);
        options.moves = vec![("l'1".to_owned(), "/d/1.mdf".to_owned()), ("log".to_owned(), "/d/1.ldf".to_owned())];
        options.recovery = Some(Recovery::NoRecovery);
        options.replace = true;
        options.checksum = Some(true);
        options.buffer_count = Some(20);
        options.stats = Some(10);
        options.stop_at = Some(StopAt { stop: Stop::Time, place: "2026-11-22T10:00:00".to_owned(), after: None });
    });
    let expected = "\
RESTORE DATABASE [d]
FROM DISK = N'/b/0.bak'
WITH FILE = 2, MOVE N'l''1' TO N'/d/1.mdf', MOVE N'log' TO N'/d/1.ldf', NORECOVERY, STOPAT = N'2026-11-22T10:00:00', \
REPLACE, CHECKSUM, BUFFERCOUNT = 20, STATS = 10;";
    assert_eq!(statement.sql(&ENTERPRISE_2025).unwrap(), expected);
    let sql = |kind, change: fn(&mut RestoreOptions)| {
        restore(kind, change).sql(&ENTERPRISE_2025).unwrap().replace('\n', " ").replace(" FROM DISK = N'/b/0.bak'", "")
    };
    assert_eq!(sql(RestoreKind::HeaderOnly, |_| ()), "RESTORE HEADERONLY;");
    assert_eq!(sql(RestoreKind::FileListOnly, |o| o.file = Some(3)), "RESTORE FILELISTONLY WITH FILE = 3;");
    assert_eq!(sql(RestoreKind::LabelOnly, |_| ()), "RESTORE LABELONLY;");
    let verify = sql(RestoreKind::VerifyOnly, |o| (o.checksum, o.load_history) = (Some(true), true));
    assert_eq!(verify, "RESTORE VERIFYONLY WITH LOADHISTORY, CHECKSUM;");
    let pages = sql(RestoreKind::Pages("d".into(), vec![(1, 57), (1, 202)]), |_| ());
    assert_eq!(pages, "RESTORE DATABASE [d] PAGE = N'1:57, 1:202';");
    let mark = |o: &mut RestoreOptions| {
        o.stop_at = Some(StopAt { stop: Stop::BeforeMark, place: "m".into(), after: Some("2026-11-22".into()) });
    };
    let text = sql(RestoreKind::Log("d".into()), mark);
    assert_eq!(text, "RESTORE LOG [d] WITH STOPBEFOREMARK = N'm' AFTER N'2026-11-22';");
    let snapshot = sql(database(), |o| (o.metadata_only, o.database_in_snapshot) = (true, Some("x".into())));
    assert_eq!(snapshot, "RESTORE DATABASE [d] WITH METADATA_ONLY, DBNAME = N'x';");
}

#[test]
fn every_rule_of_restores_is_kept() {
    let check = |statement: &RestoreStatement, dialect: &Dialect, word: &str| {
        let error = statement.sql(dialect).expect_err(&format!("{statement:?}"));
        assert!(error.to_string().contains(word), "{word}: {error}");
    };
    let all = &ENTERPRISE_2025;
    let from = |devices: Vec<Device>| RestoreStatement::new(database(), devices);
    check(&from(vec![]), all, "1 to 64");
    check(&from(vec![Device::Nul]), all, "keeps nothing");
    check(&from([disks(1), s3(1)].concat()), all, "one kind");
    check(&from([disks(1), disks(1)].concat()), all, "twice");
    check(&from(s3(1)), &STANDARD_2019, "2022");
    check(&restore(database(), |o| o.credential = Some("c".into())), all, "page blobs");
    check(&RestoreStatement::new(RestoreKind::LabelOnly, disks(2)), all, "one at a time");
    check(&restore(database(), |o| o.buffer_count = Some(0)), all, "1 or more");
    check(&restore(database(), |o| o.stats = Some(0)), all, "1 to 100");
    check(&restore(database(), |o| o.file = Some(0)), all, "count from 1");
    check(&restore(database(), |o| o.block_size = Some(3)), all, "power of two");
    check(&restore(database(), |o| o.max_transfer_size = Some(1)), all, "64 KiB");
    check(&restore(database(), |o| o.load_history = true), all, "VERIFYONLY");
    check(&restore(RestoreKind::Log("d".into()), |o| o.partial = true), all, "piecemeal");
    check(&restore(RestoreKind::Log("d".into()), |o| o.replace = true), all, "for databases");
    check(&restore(RestoreKind::Pages("d".into(), vec![]), |_| ()), all, "1 to 1000");
    check(&restore(RestoreKind::Pages("d".into(), vec![(1, 1); 1001]), |_| ()), all, "1 to 1000");
    let waits = |o: &mut RestoreOptions| (o.recovery, o.keep_replication) = (Some(Recovery::NoRecovery), true);
    check(&restore(database(), waits), all, "last restore");
    let waits = |o: &mut RestoreOptions| (o.recovery, o.keep_cdc) = (Some(Recovery::NoRecovery), true);
    check(&restore(database(), waits), all, "last restore");
    let twice = |o: &mut RestoreOptions| o.moves = vec![("a".into(), "/x".into()), ("a".into(), "/y".into())];
    check(&restore(database(), twice), all, "one place");
    check(&restore(RestoreKind::HeaderOnly, |o| o.replace = true), all, "only looks");
    check(&restore(RestoreKind::HeaderOnly, |o| o.stats = Some(5)), all, "VERIFYONLY and restores");
    check(&restore(RestoreKind::HeaderOnly, |o| o.load_history = true), all, "VERIFYONLY");
    check(&restore(RestoreKind::LabelOnly, |o| o.file = Some(1)), all, "media's");
    check(&restore(RestoreKind::BackupSetOnly, |_| ()), &STANDARD_2019, "2022");
    check(&restore(RestoreKind::BackupSetOnly, |_| ()), all, "METADATA_ONLY");
    check(&restore(RestoreKind::RewindOnly, |_| ()), all, "tapes");
    check(&restore(RestoreKind::HeaderOnly, |o| o.metadata_only = true), &STANDARD_2019, "2022");
    check(&restore(RestoreKind::VerifyOnly, |o| o.metadata_only = true), all, "no data");
    let of_group = |o: &mut RestoreOptions| (o.metadata_only, o.database_in_snapshot) = (true, Some("x".into()));
    check(&restore(RestoreKind::HeaderOnly, of_group), all, "FILELISTONLY");
    check(&restore(database(), |o| o.metadata_only = true), &STANDARD_2019, "2022");
    check(&restore(database(), |o| o.database_in_snapshot = Some("x".into())), all, "METADATA_ONLY");
    check(
        &restore(database(), |o| (o.metadata_only, o.stats, o.buffer_count) = (true, None, Some(3))),
        all,
        "no data are read",
    );
    let stop = |o: &mut RestoreOptions| {
        o.stop_at = Some(StopAt { stop: Stop::Time, place: "2026".into(), after: Some("2026".into()) });
    };
    check(&restore(database(), stop), all, "marks");
    let stops = |o: &mut RestoreOptions| (o.checksum, o.on_page_error) = (Some(false), Some(OnPageError::Stop));
    check(&restore(database(), stops), all, "goes with CHECKSUM");
}
