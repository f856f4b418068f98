//! The WAL archive with segments of real clusters: stored once, delivered bit for bit, fenced, and never in doubt.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagehaul_engine::catalog::wal_inventory::{Detail, WalInventory};
use pagehaul_engine::catalog::{ArchiveFacts, Repository, SegmentFacts};
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::pipeline::{CodecSpec, NoObserver};
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::source::postgres::server_facts::shown_identifier;
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::storage::LocalStorage;
use pagehaul_engine::terms::{SourceName, TimelineId, WalSegmentName};
use pagehaul_engine::wal::{
    GetOutcome, GetReport, GetRequest, HowPushed, Piece, PushRequest, Pushed, get, list, push, put_piece,
};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::damage::files_below;
use pagehaul_testkit::faulty::{Faults, FaultyStorage};
use tempfile::TempDir;

pub(super) const SEGMENT: u64 = 1 << 20;

/// Segments of a stopped cluster, and a repository.
pub(super) struct Archive {
    pub(super) work: TempDir,
    /// Finished segments in order, with their bytes.
    pub(super) segments: Vec<(String, Vec<u8>)>,
    pgdata: PathBuf,
    system_identifier: u64,
}

impl Archive {
    pub(super) fn new() -> Self {
        Self::over(work_directory())
    }

    fn over(work: TempDir) -> Self {
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let settings = [QUICK, &[("wal_keep_size", "512MB")][..]].concat();
        let mut cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
        cluster.load_typed_tables(10_000);
        cluster.run(&["SELECT pg_create_restore_point('early')", "SELECT pg_switch_wal()"]);
        cluster.run(&["INSERT INTO long_text SELECT * FROM long_text LIMIT 100", "SELECT pg_switch_wal()"]);
        for _ in 0..3 {
            cluster.run(&["INSERT INTO long_text SELECT * FROM long_text LIMIT 50", "SELECT pg_switch_wal()"]);
        }
        let shown = cluster.value("SELECT system_identifier FROM pg_control_system()");
        let system_identifier = shown_identifier(&shown, "read it").unwrap();
        let position = cluster.value("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
        let pgdata = cluster.server.data_directory().to_owned();
        cluster.crash();
        let mut segments = BTreeMap::new();
        for entry in std::fs::read_dir(pgdata.join("pg_wal")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.parse::<WalSegmentName>().is_ok() && name < position {
                segments.insert(name, std::fs::read(path).unwrap());
            }
        }
        assert!(segments.len() >= 6, "{} segments", segments.len());
        Archive { work, segments: segments.into_iter().collect(), pgdata, system_identifier }
    }

    pub(super) fn repository(&self) -> Repository {
        Repository::open_or_create(&self.repo().display().to_string()).unwrap()
    }

    pub(super) fn repo(&self) -> PathBuf {
        self.work.path().join("repo")
    }

    pub(super) fn path(&self, place: usize) -> PathBuf {
        self.pgdata.join("pg_wal").join(&self.segments[place].0)
    }

    /// A file of that name outside the data directory.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let directory = self.work.path().join("files");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(name), bytes).unwrap();
        directory.join(name)
    }

    pub(super) fn push(&self, files: &[PathBuf]) -> Vec<Result<Pushed, Error>> {
        let request = PushRequest::new(source(), files.to_vec());
        let report = push(&self.repository(), &request, &NoObserver).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.files.len(), files.len());
        report.files.into_iter().map(|file| file.outcome).collect()
    }

    pub(super) fn push_well(&self, places: &[usize]) -> Vec<HowPushed> {
        let files: Vec<_> = places.iter().map(|place| self.path(*place)).collect();
        let outcomes = self.push(&files).into_iter();
        outcomes.map(|outcome| outcome.unwrap_or_else(|error| panic!("{error}")).how).collect()
    }

    pub(super) fn try_get(&self, name: &str) -> Result<(GetOutcome, Option<Vec<u8>>), Error> {
        let destination = self.work.path().join("RECOVERYXLOG");
        std::fs::write(&destination, b"left over").unwrap();
        let request = GetRequest {
            source: source(),
            name: name.to_owned(),
            destination: destination.clone(),
            system_identifier: None,
            decoders: None,
        };
        let outcome = get(&self.repository(), &request);
        let is_delivered = matches!(outcome, Ok(GetOutcome::Delivered(_)));
        let found = std::fs::read(&destination).unwrap();
        assert!(is_delivered || found == b"left over", "what was not delivered leaves the destination alone");
        let beside = std::fs::read_dir(self.work.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let beside: Vec<_> = beside.filter(|name| name.to_string_lossy().contains("RECOVERYXLOG")).collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
        Ok((outcome?, is_delivered.then_some(found)))
    }

    pub(super) fn get_well(&self, name: &str) -> (GetReport, Vec<u8>) {
        match self.try_get(name) {
            Ok((GetOutcome::Delivered(report), Some(bytes))) => (report, bytes),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn is_there(&self, name: &str) -> bool {
        self.try_get(name).unwrap_or_else(|error| panic!("{error}")).0 != GetOutcome::NotThere
    }

    pub(super) fn assert_delivers(&self, places: &[usize]) {
        for place in places {
            let (name, bytes) = &self.segments[*place];
            assert!(self.get_well(name).1 == *bytes, "{name}");
        }
    }

    pub(super) fn objects(&self) -> Vec<PathBuf> {
        let mut objects = files_below(&self.repo());
        objects.retain(|path| path.extension().is_some_and(|end| end == "phw" || end == "php"));
        objects.sort();
        objects
    }

    fn inventory(&self, detail: Detail) -> WalInventory {
        WalInventory::load(&self.repository(), &source(), self.system_identifier, detail).unwrap()
    }
}

pub(super) fn source() -> SourceName {
    "main".parse().unwrap()
}

pub(super) fn kind(outcome: &Result<Pushed, Error>) -> ErrorKind {
    outcome.as_ref().expect_err("it was accepted").kind()
}

#[test]
fn segments_are_stored_once_and_delivered_bit_for_bit() {
    let archive = Archive::new();
    assert!(!archive.repo().exists());
    assert_eq!(archive.push_well(&[1]), [HowPushed::Stored]);
    assert_eq!(archive.push_well(&[1]), [HowPushed::WasThere]);
    assert_eq!(
        archive.push_well(&[0, 1, 2, 3]),
        [HowPushed::Stored, HowPushed::WasThere, HowPushed::Stored, HowPushed::Stored]
    );
    assert_eq!(archive.objects().len(), 3, "{:?}", archive.objects());
    archive.assert_delivers(&[0, 1, 2, 3]);
    assert!(!archive.is_there(&archive.segments[4].0));
    assert!(!archive.is_there("00000007.history"));
    assert!(!archive.is_there(&format!("{}.partial", archive.segments[0].0)));
    assert_eq!(archive.try_get("RECOVERYXLOG").unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn other_bytes_under_one_name_are_a_conflict_and_both_are_kept() {
    let archive = Archive::new();
    archive.push_well(&[0, 1]);
    let (name, bytes) = archive.segments[1].clone();
    let mut other = bytes;
    other[SEGMENT as usize / 2] ^= 1;
    let path = archive.file(&name, &other);
    for _ in 0..2 {
        assert_eq!(kind(&archive.push(std::slice::from_ref(&path))[0]), ErrorKind::Conflict);
    }
    assert!(std::fs::read(&path).unwrap() == other, "the server keeps its file");
    archive.assert_delivers(&[0, 1]);
    assert_eq!(archive.objects().len(), 1);
}

#[test]
fn two_versions_of_a_segment_in_two_bundles_are_never_chosen_from() {
    let archive = Archive::new();
    archive.push_well(&[0, 1]);
    let (name, bytes) = archive.segments[1].clone();
    let mut other = bytes;
    other[SEGMENT as usize / 2] ^= 1;
    // As if another server had stored it at the same moment: by itself, in an archive that does not show the first.
    let elsewhere = archive.work.path().join("elsewhere");
    let repository = Repository::open_or_create(&elsewhere.display().to_string()).unwrap();
    let request = PushRequest::new(source(), vec![archive.file(&name, &other)]);
    assert!(push(&repository, &request, &NoObserver).unwrap().first_error().is_none());
    let stored =
        files_below(&elsewhere).into_iter().find(|path| path.extension().is_some_and(|end| end == "phw")).unwrap();
    std::fs::copy(&stored, archive.repo().join(stored.strip_prefix(&elsewhere).unwrap())).unwrap();

    assert_eq!(archive.try_get(&name).unwrap_err().kind(), ErrorKind::Conflict);
    archive.assert_delivers(&[0]);
    assert_eq!(kind(&archive.push(&[archive.path(1)])[0]), ErrorKind::Conflict);
    for detail in [Detail::Listing, Detail::Members] {
        let inventory = archive.inventory(detail);
        let conflicts = &inventory.timelines[&TimelineId(1)].conflicts;
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert_eq!((conflicts[0].segment.as_str(), conflicts[0].objects.len()), (name.as_str(), 2));
    }
}

#[test]
fn b15_another_cluster_under_the_same_name_is_fenced_until_it_is_adopted() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let other = Archive::new();
    let repository = archive.repository();
    let request = PushRequest::new(source(), vec![other.path(0)]);
    let error = push(&repository, &request, &NoObserver).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.hint_text().unwrap().contains("pagehaul wal adopt"), "{error}");
    // A segment that lies among those of the right cluster does not slip through either.
    let foreign = archive.pgdata.join("pg_wal").join(&other.segments[1].0);
    let own = std::fs::read(&foreign).unwrap();
    std::fs::write(&foreign, &other.segments[1].1).unwrap();
    let outcome = archive.push(std::slice::from_ref(&foreign));
    assert_eq!(kind(&outcome[0]), ErrorKind::Damage);
    std::fs::write(&foreign, own).unwrap();
    assert_eq!(archive.objects().len(), 1);

    let cluster = pagehaul_engine::wal::cluster_of_data_directory(&other.pgdata).unwrap();
    pagehaul_engine::catalog::identity::adopt(&repository, &source(), &cluster).unwrap();
    assert!(push(&repository, &request, &NoObserver).unwrap().first_error().is_none());
    assert_eq!(archive.objects().len(), 2, "the WAL of both stays");
    assert!(archive.get_well(&other.segments[0].0).1 == other.segments[0].1, "the new owner's by default");
    let request = PushRequest::new(source(), vec![archive.path(1)]);
    assert_eq!(push(&repository, &request, &NoObserver).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn what_is_not_the_segment_of_its_name_is_refused_and_others_are_stored() {
    let archive = Archive::new();
    let (first, bytes) = archive.segments[0].clone();
    let second = archive.segments[1].0.clone();
    let cases: [(&str, &str, Vec<u8>); 6] = [
        ("cut", &first, bytes[..bytes.len() / 2].to_vec()),
        ("empty", &first, Vec::new()),
        ("longer", &first, [&bytes[..], &[0]].concat()),
        ("garbage", &first, vec![0xA5; bytes.len()]),
        ("zeros", &first, vec![0; bytes.len()]),
        ("another segment", &second, bytes.clone()),
    ];
    for (what, name, bytes) in cases {
        let path = archive.file(name, &bytes);
        let outcomes = archive.push(&[path, archive.path(2)]);
        assert_eq!(kind(&outcomes[0]), ErrorKind::Damage, "{what}");
        assert!(outcomes[1].is_ok(), "{what}: the sound file of the same call is stored");
        assert!(!archive.is_there(name), "{what}");
    }
    assert_eq!(kind(&archive.push(&[archive.file("notes.txt", b"x"), archive.path(0)])[0]), ErrorKind::Usage);
    let missing = archive.work.path().join("0000000100000000000000FE");
    assert_eq!(kind(&archive.push(&[archive.path(0), missing])[1]), ErrorKind::Source);
}

#[test]
fn damaged_records_are_stored_and_told_of() {
    let archive = Archive::new();
    let (name, bytes) = archive.segments[2].clone();
    let mut damaged = bytes;
    damaged[8192 * 5..8192 * 5 + 100].fill(0xEE);
    let path = archive.file(&name, &damaged);
    assert!(archive.push(&[path])[0].is_ok(), "the server has no better one");
    assert!(archive.get_well(&name).1 == damaged);
    let listing = list(&archive.repository(), None, Detail::Members).unwrap();
    let timeline = &listing[0].clusters[0].timelines[0];
    assert_eq!(timeline.broken_segments.iter().map(|segment| segment.as_str()).collect::<Vec<_>>(), [name]);
    assert!(listing[0].has_faults());
}

#[test]
fn f44_histories_labels_and_partial_segments_come_back_too() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let segment = &archive.segments[3];
    let files: [(String, Vec<u8>); 3] = [
        ("00000003.history".to_owned(), b"1\t0/500000\tno reason\n2\t0/600000\tno reason\n".to_vec()),
        (format!("{}.00000028.backup", segment.0), b"START WAL LOCATION: 0/28\n".to_vec()),
        (format!("{}.partial", segment.0), segment.1.clone()),
    ];
    for (name, bytes) in &files {
        let path = archive.file(name, bytes);
        for expected in [HowPushed::Stored, HowPushed::WasThere] {
            let outcome = archive.push(std::slice::from_ref(&path)).remove(0);
            assert_eq!(outcome.unwrap_or_else(|error| panic!("{error}")).how, expected, "{name}");
        }
        assert!(archive.get_well(name).1 == *bytes, "{name}");
        let mut other = bytes.clone();
        *other.last_mut().unwrap() ^= 8;
        if name.ends_with(".history") {
            other = b"1\t0/500000\tanother\n".to_vec();
        }
        assert_eq!(kind(&archive.push(&[archive.file(name, &other)])[0]), ErrorKind::Conflict, "{name}");
    }
    assert_eq!(kind(&archive.push(&[archive.file("00000004.history", b"no history")])[0]), ErrorKind::Damage);
    assert!(!archive.is_there(&segment.0), "a partial segment is not a segment");
    let inventory = archive.inventory(Detail::Members);
    let history = inventory.timelines[&TimelineId(3)].history.as_ref().unwrap();
    assert_eq!(history.parent().unwrap().timeline, TimelineId(2));
    let timeline = &inventory.timelines[&TimelineId(1)];
    assert_eq!((timeline.partials.len(), timeline.labels.len()), (1, 1));
}

#[test]
fn gaps_are_listed() {
    let archive = Archive::new();
    archive.push_well(&[0, 1]);
    archive.push_well(&[3]);
    archive.push_well(&[5]);
    for detail in [Detail::Listing, Detail::Members] {
        let listing = list(&archive.repository(), Some(&source()), detail).unwrap();
        let timeline = &listing[0].clusters[0].timelines[0];
        let names = |ranges: &[pagehaul_engine::wal::NamedRange]| {
            ranges.iter().map(|range| (range.first.to_string(), range.last.to_string())).collect::<Vec<_>>()
        };
        let name = |place: usize| archive.segments[place].0.clone();
        assert_eq!(names(&timeline.ranges), [(name(0), name(1)), (name(3), name(3)), (name(5), name(5))]);
        assert_eq!(names(&timeline.gaps), [(name(2), name(2)), (name(4), name(4))]);
        assert!(listing[0].has_faults());
        assert_eq!(timeline.stored_bytes.is_some(), detail == Detail::Members);
    }
    archive.push_well(&[2, 4]);
    let listing = list(&archive.repository(), None, Detail::Members).unwrap();
    let timeline = &listing[0].clusters[0].timelines[0];
    assert!(timeline.gaps.is_empty() && timeline.ranges.len() == 1 && !listing[0].has_faults(), "{timeline:?}");
    assert!(timeline.earliest_end_at.is_some() && timeline.latest_end_at >= timeline.earliest_end_at);
}

#[test]
fn pieces_of_a_streamed_segment_are_put_together_until_it_is_whole() {
    let archive = Archive::new();
    archive.push_well(&[0]);
    let (name, bytes) = archive.segments[1].clone();
    let segment: WalSegmentName = name.parse().unwrap();
    let header = SegmentHeader::parse(&bytes, &segment).unwrap();
    let repository = archive.repository();
    let put = |offset: usize, length: usize| {
        let bytes = &bytes[offset..offset + length];
        let source = source();
        let piece = Piece {
            source: &source,
            segment: &segment,
            header,
            offset: offset as u32,
            bytes,
            facts: None,
            compression: CodecSpec::default(),
        };
        put_piece(&repository, &piece).unwrap()
    };
    assert!(put(5 * 8192, 3 * 8192));
    assert!(!archive.is_there(&name), "its start is missing");
    assert!(put(0, 2 * 8192));
    assert!(put(8192, 3 * 8192 + 100));
    assert!(!put(8192, 8192), "the first one stays");
    let (report, delivered) = archive.get_well(&name);
    assert_eq!((report.objects.len(), report.content_bytes), (2, 4 * 8192 + 100));
    assert!(delivered[..4 * 8192 + 100] == bytes[..4 * 8192 + 100]);
    assert!(delivered.len() as u64 == SEGMENT && delivered[4 * 8192 + 100..].iter().all(|byte| *byte == 0));
    assert_eq!(archive.inventory(Detail::Members).timelines[&TimelineId(1)].pieces.len(), 3);
    archive.push_well(&[1]);
    archive.assert_delivers(&[1]);
}

#[test]
fn damage_in_the_archive_is_an_error_and_never_absence() {
    let archive = Archive::new();
    archive.push_well(&[0, 1]);
    let object = archive.objects().remove(0);
    let good = std::fs::read(&object).unwrap();
    let name = archive.segments[1].0.clone();
    let mut random = pagehaul_testkit::random::Random::new("damage in the archive");
    for round in 0..150 {
        let mut bad = good.clone();
        if round % 3 == 0 {
            bad.truncate(random.below(good.len() as u64) as usize);
        } else {
            let at = random.below(good.len() as u64 * 8) as usize;
            bad[at / 8] ^= 1 << (at % 8);
        }
        std::fs::write(&object, &bad).unwrap();
        match archive.try_get(&name) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damage, "{error}"),
            Ok((GetOutcome::Delivered(_), Some(bytes))) => {
                assert!(bytes == archive.segments[1].1, "the damage was in the other segment");
            }
            Ok(other) => panic!("{other:?}"),
        }
    }
    // A bundle under another's name.
    std::fs::write(&object, &good).unwrap();
    let moved = object.with_file_name("00000042-0002.phw");
    std::fs::rename(&object, &moved).unwrap();
    assert_eq!(archive.try_get("000000010000000000000042").unwrap_err().kind(), ErrorKind::Damage);
    assert_eq!(archive.inventory(Detail::Members).timelines[&TimelineId(1)].damaged.len(), 1);
}

#[test]
fn a_store_that_fails_anywhere_never_gives_a_wrong_answer() {
    let archive = Archive::new();
    let files = vec![archive.path(0), archive.path(1)];
    let faulty =
        |directory: &Path, faults| Repository::over(Box::new(FaultyStorage::new(LocalStorage::new(directory), faults)));
    let mut number = 0;
    loop {
        let directory = archive.work.path().join(format!("store-{number}"));
        let faults = Faults::at_operation(number);
        let request = PushRequest::new(source(), files.clone());
        let outcome = push(&faulty(&directory, faults.clone()), &request, &NoObserver);
        let is_well = outcome.as_ref().is_ok_and(|report| report.first_error().is_none());
        if faults.operations() <= number {
            assert!(is_well, "nothing failed");
            break;
        }
        // What is called stored is stored, and what failed can be done again.
        let sound = Repository::over(Box::new(LocalStorage::new(&directory)));
        if is_well {
            let inventory = WalInventory::load(&sound, &source(), archive.system_identifier, Detail::Members).unwrap();
            assert_eq!(inventory.timelines[&TimelineId(1)].ranges[0].segment_count(), 2);
        }
        let again = push(&sound, &request, &NoObserver).unwrap();
        assert!(again.first_error().is_none(), "operation {number}: {:?}", again.first_error());
        let get_request = GetRequest {
            source: source(),
            name: archive.segments[0].0.clone(),
            destination: archive.work.path().join("out"),
            system_identifier: None,
            decoders: Some(1),
        };
        let faults = Faults::at_operation(number);
        match get(&faulty(&directory, faults.clone()), &get_request) {
            Ok(GetOutcome::NotThere) => panic!("operation {number}: a failure is not absence"),
            Ok(GetOutcome::Delivered(_)) => {
                assert!(std::fs::read(&get_request.destination).unwrap() == archive.segments[0].1);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Repository, "{error}"),
        }
        number += 1;
    }
    assert!(number > 8, "{number} operations");
}

#[test]
fn a_walk_back_gives_each_segment_its_own_facts_and_damage_is_of_one_alone() {
    let archive = Archive::new();
    let count = archive.segments.len();
    archive.push_well(&(0..count / 2).collect::<Vec<_>>());
    for place in count / 2..count {
        archive.push_well(&[place]);
    }
    let repository = archive.repository();
    let cluster = archive.system_identifier;
    let inventory = WalInventory::load(&repository, &source(), cluster, Detail::Members).unwrap();
    let (timeline, wal) = inventory.timelines.first_key_value().unwrap();
    let all: Vec<_> = wal.segment_facts().collect();
    assert_eq!(all.len(), count);
    let mut walked = ArchiveFacts::load(&repository, &source(), cluster).unwrap();
    for (number, facts) in all.iter().rev() {
        assert_eq!(walked.facts(*timeline, number.0).unwrap(), **facts, "{number:?}");
    }
    let damaged = &wal.bundles[wal.bundles.len() - 2];
    assert_eq!(damaged.count, 1);
    let path = archive.repo().join(&damaged.object);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let mut walked = ArchiveFacts::load(&repository, &source(), cluster).unwrap();
    for (number, facts) in all.iter().rev() {
        match walked.facts(*timeline, number.0) {
            Ok(found) => assert_eq!(found, **facts, "{number:?}"),
            Err(error) => assert_eq!((*number, error.kind()), (damaged.first, ErrorKind::Damage), "{error}"),
        }
    }
    assert!(walked.facts(*timeline, damaged.first.0).is_err(), "it is not forgotten");
}
