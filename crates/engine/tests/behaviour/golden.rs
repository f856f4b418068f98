//! Sets that released versions wrote are read for ever: `tests/golden/v1` is one, with the digests of its files.
//!
//! A new version of the format gets a new directory; what is there is never written again. To make one:
//! `PAGEHAUL_GOLDEN_DIR=$PWD/crates/engine/tests/golden/v2 cargo test -p pagehaul-engine --test behaviour golden`

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagehaul_engine::catalog::repository::{FILE_TABLE_NAME, MANIFEST_NAME, set_prefix, stripe_name};
use pagehaul_engine::catalog::{Repository, SetState, list_sets, open_set};
use pagehaul_engine::format::checksum::xxh3;
use pagehaul_engine::format::file_table::{EntryKind, FileTable, ZeroFill};
use pagehaul_engine::format::frame::FrameHeader;
use pagehaul_engine::format::manifest::{Manifest, ObjectDigest, PostgresRecord, StripeRecord, hex64};
use pagehaul_engine::format::stripe::{STRIPE_HEADER_BYTES, StripeHeader};
use pagehaul_engine::io::open_directory;
use pagehaul_engine::pipeline::frame_reader::FrameReader;
use pagehaul_engine::pipeline::{
    AutoLevel, CodecId, EncodeInput, EncodeSource, FinishedStripe, NoCheck, NoObserver, PipelineSettings, Progress,
    ReadRoot, Stripe, StripeInput, WorkFeed, run_encode,
};
use pagehaul_engine::restore::{RestoreRequest, restore};
use pagehaul_engine::terms::{BackupKind, FileId, Lsn, SetId, SourceName, StripeIndex, TimelineId};
use pagehaul_engine::verify::{VerifyRequest, verify};
use pagehaul_testkit::cluster::work_directory;
use pagehaul_testkit::damage::{differences, tree};
use pagehaul_testkit::random::Random;

/// The digests beside a golden repository: one line a file, directory or link, path last.
const DIGESTS: &str = "digests.txt";
/// What a restore adds to the files of a set.
const ADDED: [&[u8]; 2] = [b"backup_manifest", b"postgresql.auto.conf"];
const FRAME_SIZE_BYTES: u32 = 64 * 1024;
const LABEL: &str = "20260101-000000F";
const CODECS: [&str; 4] = ["none", "lz4", "deflate:1", "zstd:3"];

/// Opens, verifies, restores and reads the only set of `directory/repo`, and compares with `directory/digests.txt`.
fn check(directory: &Path) {
    let repo = directory.join("repo").display().to_string();
    let digests = std::fs::read_to_string(directory.join(DIGESTS)).unwrap();
    let expected: BTreeMap<Vec<u8>, String> = digests
        .lines()
        .map(|line| line.split_once(" | ").unwrap())
        .map(|(what, path)| (path.as_bytes().to_vec(), what.to_owned()))
        .collect();
    let source: SourceName = "main".parse().unwrap();
    let repository = Repository::open(&repo).unwrap_or_else(|error| panic!("{error}"));
    let sets = list_sets(&repository, &source).unwrap_or_else(|error| panic!("{error}"));
    let [set] = &sets[..] else { panic!("{sets:?}") };
    assert!(matches!(set.state, SetState::Complete(_)), "{sets:?}");

    let report = verify(&VerifyRequest::new(&repo), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.sound && report.stripe_problems.is_empty(), "{report:?}");

    let work = work_directory();
    let target = work.path().join("restored");
    restore(&RestoreRequest::new(&repo, &target), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    let restored = tree(&target).into_iter().filter(|(path, _)| !ADDED.contains(&path.as_slice()));
    let restored: BTreeMap<Vec<u8>, String> =
        restored.map(|(path, what)| (path.escape_ascii().to_string().into_bytes(), what)).collect();
    let difference = differences(&expected, &restored);
    assert!(difference.is_empty(), "{difference:?}");

    let open = open_set(&repository, &source, &set.label, &[]).unwrap_or_else(|error| panic!("{error}"));
    let mut codecs = BTreeSet::new();
    let stripes = open.stripes.into_iter().flatten().map(|stripe| {
        let mut offset = STRIPE_HEADER_BYTES as u64;
        for entry in stripe.index.entries() {
            let mut header = [0u8; 64];
            stripe.object.read_at(&mut header, offset).unwrap();
            codecs.insert(FrameHeader::from_bytes(&header).unwrap().codec);
            offset += entry.size_on_stripe_bytes();
        }
        StripeInput {
            set: stripe.set,
            set_id: stripe.set_id,
            frame_size_bytes: stripe.frame_size_bytes,
            stripe: stripe.stripe,
            object: stripe.object,
            index: stripe.index,
            extents: Vec::new(),
        }
    });
    let stripes = stripes.collect();
    let all: BTreeSet<u8> =
        [CodecId::None, CodecId::Lz4, CodecId::Deflate, CodecId::Zstd].into_iter().map(|codec| codec as u8).collect();
    assert_eq!(codecs, all, "frames of every codec");
    let mut reader = FrameReader::new(stripes);
    let mut random = Random::new("ranges of golden files");
    for file in open.table.ids().filter(|file| open.table.entry(*file).size_bytes > 0) {
        let path = target.join(std::ffi::OsStr::from_bytes(open.table.path(file)));
        let content = std::fs::read(&path).unwrap();
        for _ in 0..5 {
            let start = random.below(content.len() as u64) as usize;
            let length = random.below((content.len() - start) as u64 + 1) as usize;
            let mut range = vec![0u8; length];
            reader.read(&open.table, file, start as u64, &mut range).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(range, content[start..start + length], "{} from {start}", path.display());
        }
    }
}

/// The content of the toy cluster: text, noise, zeros, packed small files, odd names; the same every time.
fn toy_files() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut random = Random::fixed(1);
    let mut files: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (b"PG_VERSION".to_vec(), b"15\n".to_vec()),
        (b"global/pg_control".to_vec(), random.bytes(512)),
        (b"empty".to_vec(), Vec::new()),
        (b"odd/not \xFF utf-8\nline\\ ".to_vec(), b"odd".to_vec()),
    ];
    for (number, codec) in CODECS.iter().enumerate() {
        let text: String = (0..18_000u32).map(|word| format!("{} ", word.wrapping_mul(2_654_435_761) >> 25)).collect();
        let text = if number == 0 { &text[..20_000] } else { &text };
        files.push((format!("base/{codec}/text").into_bytes(), text.as_bytes().to_vec()));
        let mut holes = vec![0u8; 3 * FRAME_SIZE_BYTES as usize + 5];
        holes[70_000..70_100].copy_from_slice(&random.bytes(100));
        files.push((format!("base/{codec}/holes").into_bytes(), holes));
        for small in 0..4usize {
            files.push((format!("base/{codec}/small{small}").into_bytes(), random.bytes(small * 777 + 1)));
        }
    }
    files.push((b"base/noise".to_vec(), random.bytes(70_000)));
    files
}

/// The toy cluster's files in memory, with one list of files for each codec.
struct Toy {
    table: FileTable,
    root: ReadRoot,
    lanes: Vec<Vec<FileId>>,
    digests: String,
}

fn toy(directory: &Path) -> Toy {
    let (mut table, mut digests) = (FileTable::default(), Vec::new());
    let mut root =
        ReadRoot { directory: Some(open_directory(directory).unwrap()), memory: BTreeMap::new(), required: |_| true };
    let mut entry = |path: &[u8], target: &[u8], kind, mode, size: usize, what: String| {
        digests.push(format!("{what} | {}\n", path.escape_ascii()));
        table.push(path, target, kind, mode, 1_767_225_600, size as u64).unwrap()
    };
    let base = CODECS.map(|codec| format!("base/{codec}"));
    for path in ["base", "global", "odd", "pg_wal"].into_iter().chain(base.iter().map(String::as_str)) {
        entry(path.as_bytes(), b"", EntryKind::Directory, 0o700, 0, "directory 700".into());
    }
    entry(b"odd/link", b"not there", EntryKind::Symlink, 0o777, 0, "link to not there".into());
    let mut lanes = vec![Vec::new(); CODECS.len()];
    for (path, content) in toy_files() {
        let mode = if path.starts_with(b"base/") { 0o640 } else { 0o600 };
        let what = format!("file {mode:o} {} {:016x}", content.len(), xxh3(&content));
        let file = entry(&path, b"", EntryKind::File, mode, content.len(), what);
        let codec = CODECS.iter().position(|codec| path.starts_with(format!("base/{codec}/").as_bytes()));
        lanes[codec.unwrap_or(3)].push(file);
        root.memory.insert(file, content);
    }
    digests.sort_unstable();
    Toy { table, root, lanes, digests: digests.concat() }
}

const SETTINGS: PipelineSettings = PipelineSettings {
    readers: 1,
    encoders: 1,
    writers: 2,
    buffer_count: 4,
    transfer_size_bytes: 2 * FRAME_SIZE_BYTES,
    frame_size_bytes: FRAME_SIZE_BYTES,
    max_rate_bytes_per_s: None,
};

/// Runs each list of files through the data path with its codec; gives the table with the places of all content.
fn encode(toy: Toy, stripes: &mut [Stripe]) -> FileTable {
    for (codec, lane) in CODECS.iter().zip(toy.lanes) {
        let feed = WorkFeed::new(&toy.table, vec![lane], FRAME_SIZE_BYTES, SETTINGS.transfer_size_bytes);
        let input = EncodeInput {
            settings: SETTINGS,
            codec: codec.parse().unwrap(),
            level: &AutoLevel::default(),
            source: EncodeSource::Files { root: &toy.root, table: &toy.table, check: &NoCheck, at_end: None },
            feed: &feed,
            layouts: None,
            pages: None,
            selection: None,
            parity: None,
            progress: &Progress::default(),
        };
        run_encode(&input, stripes, &mut |_| Ok(())).unwrap_or_else(|error| panic!("{codec}: {error}"));
    }
    let runs = stripes.iter_mut().flat_map(Stripe::take_runs).collect();
    toy.table.with_content(runs, &[], &[FRAME_SIZE_BYTES], &mut ZeroFill).unwrap()
}

/// Writes a repository with one set of the toy cluster, and the digests, to `directory`, which must not be there.
fn write_golden(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let repo = directory.join("repo");
    let repository = Repository::open_or_create(&repo.display().to_string()).unwrap_or_else(|error| panic!("{error}"));
    let prefix = set_prefix(&"main".parse().unwrap(), &LABEL.parse().unwrap());
    let name = |object: &str| format!("{prefix}/{object}");
    let set_id = SetId::random().unwrap();
    let begin = |stripe| {
        let header =
            StripeHeader { set_id, stripe: StripeIndex(stripe), stripe_count: 2, frame_size_bytes: FRAME_SIZE_BYTES };
        Stripe::begin(header, repository.storage().create(&name(&stripe_name(stripe)), 0).unwrap(), None).unwrap()
    };
    let mut stripes = [0, 1].map(begin);
    let toy = toy(directory);
    std::fs::write(directory.join(DIGESTS), &toy.digests).unwrap();
    let table = encode(toy, &mut stripes);
    let stripes = stripes.map(|stripe| stripe.finish().unwrap());
    let mut object = repository.storage().create(&name(FILE_TABLE_NAME), 0).unwrap();
    let sums = table.write(set_id, &mut |bytes| object.append(bytes)).unwrap();
    object.finish().unwrap();
    let file_table = ObjectDigest::new(FILE_TABLE_NAME.into(), &sums);
    let bytes = manifest(set_id, &table, file_table, &stripes).to_bytes().unwrap();
    assert!(repository.storage().put_new(&name(MANIFEST_NAME), &bytes).unwrap());
}

fn manifest(set_id: SetId, table: &FileTable, file_table: ObjectDigest, stripes: &[FinishedStripe]) -> Manifest {
    let record = |(number, stripe): (usize, &FinishedStripe)| StripeRecord {
        name: stripe_name(number as u16),
        directory: None,
        size_bytes: stripe.size_bytes,
        frame_count: stripe.frame_count,
        index_xxh3: hex64(stripe.index_xxh3),
    };
    Manifest {
        format_version: pagehaul_engine::format::FORMAT_VERSION,
        engine_version: env!("CARGO_PKG_VERSION").into(),
        label: LABEL.parse().unwrap(),
        set_id: set_id.to_string(),
        kind: BackupKind::Full,
        prior: Vec::new(),
        prior_set_ids: Vec::new(),
        synthesized_from: None,
        source: "main".parse().unwrap(),
        description: Some("golden".into()),
        started_at: "2026-01-01T00:00:00Z".into(),
        finished_at: "2026-01-01T00:00:01Z".into(),
        compression: "zstd:3".into(),
        frame_size_bytes: FRAME_SIZE_BYTES,
        transfer_size_bytes: SETTINGS.transfer_size_bytes,
        source_bytes: table.content_bytes(),
        stored_bytes: stripes.iter().map(|stripe| stripe.size_bytes).sum::<u64>() + file_table.size_bytes,
        file_count: table.entries().len() as u64,
        vanished_file_count: 0,
        file_table,
        page_sums: None,
        frame_digests: None,
        stripes: stripes.iter().enumerate().map(record).collect(),
        encryption: None,
        parity: None,
        postgres: PostgresRecord {
            stop_time: None,
            version_num: 150_000,
            system_identifier: "7300000000000000001".into(),
            timeline: TimelineId(1),
            start_lsn: Lsn(0x200_0028),
            stop_lsn: Lsn(0x200_0100),
            wal_segment_size_bytes: 16 << 20,
            block_size_bytes: 8192,
            data_checksums: true,
            data_directory: "/toy".into(),
            owner: None,
            tablespaces: Vec::new(),
            wal_segments: Vec::new(),
            external_files: Vec::new(),
            databases: None,
            bootstrap_role: None,
            postmaster_start_us: None,
        },
        bad_page_count: 0,
        bad_pages: Vec::new(),
        lost_file_count: 0,
        lost_files: Vec::new(),
    }
}

#[test]
fn golden_sets_of_every_version_are_read_bit_for_bit() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut versions: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    versions.retain(|path| path.is_dir());
    assert!(!versions.is_empty());
    versions.iter().for_each(|version| check(version));
}

#[test]
fn this_version_writes_a_golden_set_that_it_reads() {
    let work = work_directory();
    let named = std::env::var_os("PAGEHAUL_GOLDEN_DIR").map(PathBuf::from);
    let directory = named.unwrap_or_else(|| work.path().join("golden"));
    write_golden(&directory);
    check(&directory);
}
