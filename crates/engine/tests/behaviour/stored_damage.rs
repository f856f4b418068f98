//! Damage to stored bytes: every flipped bit, every cut, every swapped stripe is seen, named, and never restored.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::catalog::{OpenSet, Repository, open_set};
use pagehaul_engine::error::{ErrorKind, Result};
use pagehaul_engine::format::file_table::Place;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::restore::{RestoreReport, RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::terms::{BackupLabel, SourceName};
use pagehaul_engine::verify::{VerifyReport, VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, work_directory};
use pagehaul_testkit::damage::{copy_tree, cut, differences, flip_bit, overwrite, tree};
use pagehaul_testkit::random::Random;
use tempfile::TempDir;

const FRAME_SIZE_BYTES: u32 = 256 * 1024;

/// Two sets of one cluster, three stripes each in two directories, which were moved since: every case works on a copy.
struct Sets {
    work: TempDir,
    label: BackupLabel,
    other_label: BackupLabel,
    /// What a restore of the first set gives.
    restored: std::collections::BTreeMap<Vec<u8>, String>,
}

/// The sets, made by the first test that asks and kept while any test uses them.
fn sets() -> Arc<Sets> {
    static SHARED: Mutex<Weak<Sets>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let made = Arc::new(Sets::make("zstd:1"));
        *shared = Arc::downgrade(&made);
        made
    })
}

impl Sets {
    fn make(compression: &str) -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let settings: Vec<_> = QUICK.iter().copied().filter(|(name, _)| *name != "max_wal_size").collect();
        let cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
        cluster.load_typed_tables(2_000);
        let side = |name: &str| work.path().join(name).display().to_string();
        let request = BackupRequest {
            stripe_to: vec![side("one"), side("two")],
            stripes: Some(3),
            frame_size_bytes: Some(FRAME_SIZE_BYTES),
            compression: compression.parse().unwrap(),
            ..cluster.backup_request()
        };
        let label = cluster.backup(&request).label;
        let other_label = cluster.backup(&request).label;
        drop(cluster);
        let base = work.path().join("base");
        std::fs::create_dir(&base).unwrap();
        for part in ["repo", "one", "two"] {
            std::fs::rename(work.path().join(part), base.join(part)).unwrap();
        }
        let mut sets = Sets { work, label, other_label, restored: std::collections::BTreeMap::new() };
        let case = sets.case();
        case.restore().unwrap_or_else(|error| panic!("{error}"));
        sets.restored = tree(&case.target());
        sets
    }

    fn case(&self) -> Case<'_> {
        let directory = tempfile::tempdir_in(self.work.path()).unwrap();
        let root = directory.path().join("copy");
        copy_tree(&self.work.path().join("base"), &root);
        Case { sets: self, _directory: directory, root }
    }
}

/// A copy of the sets that may be damaged.
struct Case<'a> {
    sets: &'a Sets,
    _directory: TempDir,
    root: PathBuf,
}

impl Case<'_> {
    fn set_directory(&self, side: &str, label: &BackupLabel) -> PathBuf {
        self.root.join(side).join("main/sets").join(label.as_str())
    }

    fn object(&self, name: &str) -> PathBuf {
        self.set_directory("repo", &self.sets.label).join(name)
    }

    fn stripe_of(&self, label: &BackupLabel, number: u16) -> PathBuf {
        let side = if number.is_multiple_of(2) { "one" } else { "two" };
        self.set_directory(side, label).join(format!("stripe-{number:04}.phs"))
    }

    fn stripe(&self, number: u16) -> PathBuf {
        self.stripe_of(&self.sets.label, number)
    }

    fn stripe_from(&self) -> Vec<String> {
        ["one", "two"].map(|side| self.root.join(side).display().to_string()).to_vec()
    }

    fn repo(&self) -> String {
        self.root.join("repo").display().to_string()
    }

    fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    fn open(&self) -> Result<OpenSet> {
        let source: SourceName = "main".parse().unwrap();
        open_set(&Repository::open(&self.repo())?, &source, &self.sets.label, &self.stripe_from())
    }

    fn verify(&self) -> VerifyReport {
        let request = VerifyRequest {
            label: Some(self.sets.label.clone()),
            stripe_from: self.stripe_from(),
            ..VerifyRequest::new(self.repo())
        };
        verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"))
    }

    fn restore(&self) -> Result<RestoreReport> {
        let request = RestoreRequest {
            label: Some(self.sets.label.clone()),
            stripe_from: self.stripe_from(),
            ..RestoreRequest::new(self.repo(), self.target())
        };
        restore(&request, &NoObserver)
    }

    /// Verification names these stripes as lost, and a restore is refused before it makes the target directory.
    fn expect_refused(&self, what: &str, stripes: &[u16]) {
        let report = self.verify();
        assert!(!report.sound, "{what}");
        let named: Vec<u16> =
            report.stripe_problems.iter().filter(|problem| !problem.harmless).map(|problem| problem.stripe).collect();
        assert_eq!(named, stripes, "{what}: {:?}", report.stripe_problems);
        assert!(report.damaged_file_count > 0, "{what}: the files of a lost stripe are named");
        let error = self.restore().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Damage, "{what}: {error}");
        assert!(!self.target().exists(), "{what}: the target directory was made");
    }

    /// Verification tells of the stripe, finds every file whole, and a restore is bit for bit what it was.
    fn expect_harmless(&self, what: &str, stripe: u16) {
        let report = self.verify();
        assert!(report.sound, "{what}: {report:?}");
        let named: Vec<_> = report.stripe_problems.iter().map(|problem| (problem.stripe, problem.harmless)).collect();
        assert_eq!(named, [(stripe, true)], "{what}");
        let report = self.restore().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(report.notes.len(), 1, "{what}: the restore tells of it too");
        let difference = differences(&tree(&self.target()), &self.sets.restored);
        assert!(difference.is_empty(), "{what}: {difference:?}");
    }

    /// Where each frame of a stripe starts, and where the last one ends.
    fn frame_offsets(&self, stripe: u16) -> Vec<u64> {
        let set = self.open().unwrap_or_else(|error| panic!("{error}"));
        let index = &set.stripes[usize::from(stripe)].as_ref().unwrap().index;
        let mut offsets = vec![512];
        offsets.extend(index.entries().iter().scan(512, |offset, entry| {
            *offset += entry.size_on_stripe_bytes();
            Some(*offset)
        }));
        assert_eq!(offsets.last(), Some(&index.end_offset()));
        offsets
    }

    /// The files that have bytes in any of these frames.
    fn files_of(&self, frames: &BTreeSet<(u16, u64)>) -> BTreeSet<String> {
        let table = self.open().unwrap_or_else(|error| panic!("{error}")).table;
        let hit = |file: &_| {
            table.runs(*file).iter().any(|run| match run.place() {
                Place::Zeros => false,
                Place::Frames { set: _, stripe, first_frame, offset_in_frame } => {
                    let last =
                        first_frame + (u64::from(offset_in_frame) + run.size_bytes - 1) / u64::from(FRAME_SIZE_BYTES);
                    (first_frame..=last).any(|frame| frames.contains(&(stripe.0, frame)))
                }
            })
        };
        table.ids().filter(hit).map(|file| table.path_text(file)).collect()
    }

    fn expect_damaged_frames(&self, what: &str, frames: &BTreeSet<(u16, u64)>, files: &BTreeSet<String>) {
        let report = self.verify();
        assert!(!report.sound, "{what}");
        let named: BTreeSet<_> = report.damaged_frames.iter().map(|frame| (frame.stripe, frame.frame)).collect();
        assert_eq!(&named, frames, "{what}");
        let named: BTreeSet<_> = report.damaged_files.iter().map(|file| file.path.clone()).collect();
        assert_eq!(&named, files, "{what}");
        let of_frames: BTreeSet<_> = report.damaged_frames.iter().flat_map(|frame| frame.files.clone()).collect();
        assert_eq!(&of_frames, files, "{what}");
    }
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Flips the given bits of a file one by one and gives those after which `seen` says that nothing is wrong.
fn unseen_flips(path: &Path, bits: impl Iterator<Item = u64>, seen: impl Fn() -> bool) -> Vec<u64> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut unseen = Vec::new();
    for bit in bits {
        let mut byte = [0u8];
        file.read_exact_at(&mut byte, bit / 8).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
        if !seen() {
            unseen.push(bit);
        }
        file.write_all_at(&byte, bit / 8).unwrap();
    }
    unseen
}

#[test]
fn every_flipped_bit_of_what_describes_a_set_is_seen() {
    let sets = sets();
    let case = sets.case();
    let seen = || case.open().map_or(true, |set| !set.problems.is_empty());
    assert!(!seen(), "a good set has no problems");
    let manifest = case.object("manifest.json");
    let unseen = unseen_flips(&manifest, 0..length(&manifest) * 8, seen);
    assert!(unseen.is_empty(), "manifest: bits {unseen:?}");
    let table = case.object("files.table");
    let every_bit_of_its_headers = 0..(64 + 16) * 8;
    let unseen = unseen_flips(&table, every_bit_of_its_headers.chain((640..length(&table) * 8).step_by(61)), seen);
    assert!(unseen.is_empty(), "file table: bits {unseen:?}");
    let stripe = case.stripe(1);
    let trailer = *case.frame_offsets(1).last().unwrap()..length(&stripe);
    let unseen = unseen_flips(&stripe, trailer.start * 8..trailer.end * 8, seen);
    assert!(unseen.is_empty(), "trailer: bits {unseen:?}");
    let unseen = unseen_flips(&stripe, (0..512 * 8).step_by(3), seen);
    assert!(unseen.is_empty(), "stripe header: bits {unseen:?}");
    assert!(!seen(), "all bits are back in their places");
}

#[test]
fn a_set_without_its_own_manifest_or_file_table_is_refused() {
    let sets = sets();
    for (name, others) in
        [("files.table", false), ("manifest.json", false), ("files.table", true), ("manifest.json", true)]
    {
        let case = sets.case();
        std::fs::remove_file(case.object(name)).unwrap();
        if others {
            std::fs::copy(case.set_directory("repo", &sets.other_label).join(name), case.object(name)).unwrap();
        }
        let error = case.restore().expect_err(name);
        let missing = name == "manifest.json" && !others;
        let kind = if missing { ErrorKind::Repository } else { ErrorKind::Damage };
        assert_eq!(error.kind(), kind, "{name}, {others}: {error}");
        assert!(case.open().is_err() && !case.target().exists(), "{name}, {others}");
    }
}

#[test]
fn flipped_bits_in_frames_are_found_with_their_frame_and_files() {
    find_flipped_bits(&sets());
    find_flipped_bits(&Sets::make("page:1"));
}

fn find_flipped_bits(sets: &Sets) {
    let mut random = Random::new("flipped bits in frames");
    let case = sets.case();
    let offsets: Vec<Vec<u64>> = (0..3).map(|stripe| case.frame_offsets(stripe)).collect();
    for round in 0..25 {
        let (mut flips, mut frames) = (Vec::new(), BTreeSet::new());
        // One flip to a frame: a second one could undo the first.
        let wanted = if round < 5 { 1 } else { 10 };
        while flips.len() < wanted {
            let stripe = random.below(3) as u16;
            let own = &offsets[usize::from(stripe)];
            let byte = own[0] + random.below(own[own.len() - 1] - own[0]);
            let frame = own.partition_point(|start| *start <= byte) as u64 - 1;
            if frames.insert((stripe, frame)) {
                flips.push((stripe, byte, random.below(8) as u8));
            }
        }
        let files = case.files_of(&frames);
        flips.iter().for_each(|(stripe, byte, bit)| flip_bit(&case.stripe(*stripe), *byte, *bit));
        case.expect_damaged_frames(&format!("{flips:?}"), &frames, &files);
        if round < 5 {
            let error = case.restore().expect_err("a damaged set is not restored");
            assert_eq!(error.kind(), ErrorKind::Damage, "{flips:?}: {error}");
            assert!(!case.target().join("global/pg_control").exists(), "{flips:?}: the target would start");
        }
        flips.iter().for_each(|(stripe, byte, bit)| flip_bit(&case.stripe(*stripe), *byte, *bit));
    }
    assert!(case.verify().sound, "all bits are back in their places");
    case.restore().unwrap_or_else(|error| panic!("over what failed restores left: {error}"));
    let difference = differences(&tree(&case.target()), &sets.restored);
    assert!(difference.is_empty(), "{difference:?}");
}

#[test]
fn damage_to_what_is_written_last_is_found_too() {
    let sets = sets();
    for special in ["global/pg_control", "postgresql.auto.conf", "backup_label"] {
        let case = sets.case();
        let set = case.open().unwrap_or_else(|error| panic!("{error}"));
        let file = set.table.ids().rfind(|file| set.table.path(*file) == special.as_bytes()).unwrap();
        let Place::Frames { stripe, first_frame, .. } = set.table.runs(file)[0].place() else { panic!("{special}") };
        let offset = case.frame_offsets(stripe.0)[first_frame as usize];
        flip_bit(&case.stripe(stripe.0), offset + 100, 3);
        let error = case.restore().expect_err(special);
        assert_eq!(error.kind(), ErrorKind::Damage, "{special}: {error}");
        assert!(!case.target().join("global/pg_control").exists(), "{special}");
    }
}

#[test]
fn verification_reads_every_time() {
    let sets = sets();
    let case = sets.case();
    assert!(case.verify().sound);
    flip_bit(&case.stripe(2), 5000, 0);
    assert!(!case.verify().sound, "bytes that were good once are read again");
}

#[test]
fn a_cut_or_missing_stripe_is_refused_before_the_first_byte() {
    let sets = sets();
    for stripe in 0..3 {
        let case = sets.case();
        let path = case.stripe(stripe);
        let (whole, frames_end) = (length(&path), *case.frame_offsets(stripe).last().unwrap());
        for kept in [frames_end - 1, whole / 2, 600, 512, 100, 0] {
            cut(&path, kept);
            case.expect_refused(&format!("stripe {stripe} cut to {kept} of {whole}"), &[stripe]);
        }
        std::fs::remove_file(&path).unwrap();
        case.expect_refused(&format!("stripe {stripe} is missing"), &[stripe]);
    }
}

#[test]
fn a_stripe_in_the_place_of_another_is_refused_before_the_first_byte() {
    let sets = sets();
    let case = sets.case();
    let held = case.root.join("held");
    std::fs::rename(case.stripe(0), &held).unwrap();
    std::fs::rename(case.stripe(1), case.stripe(0)).unwrap();
    std::fs::rename(&held, case.stripe(1)).unwrap();
    case.expect_refused("two stripes swapped", &[0, 1]);

    let case = sets.case();
    std::fs::copy(case.stripe(2), case.stripe(1)).unwrap();
    case.expect_refused("one stripe twice", &[1]);

    let case = sets.case();
    for stripe in 0..3 {
        std::fs::copy(case.stripe_of(&sets.other_label, stripe), case.stripe(stripe)).unwrap();
        let stripes: Vec<u16> = (0..=stripe).collect();
        case.expect_refused("the same stripe of another set", &stripes);
    }
}

#[test]
fn frames_of_another_stripe_or_set_are_damage() {
    let sets = sets();
    let case = sets.case();
    let offsets = case.frame_offsets(0);
    let content = std::fs::read(case.stripe_of(&sets.other_label, 0)).unwrap();
    let first = offsets[1] as usize;
    if content.len() > first {
        // The frame's bytes are whole, its checksums hold; only its identity is wrong.
        overwrite(&case.stripe(0), 512, &content[512..first]);
        assert!(!case.verify().sound, "a frame of another set");
    }
    let case = sets.case();
    let content = std::fs::read(case.stripe(0)).unwrap();
    let (from, to) = (offsets[1] as usize, offsets[2] as usize);
    overwrite(&case.stripe(0), offsets[2], &content[from..to]);
    assert!(!case.verify().sound, "a frame that is there twice");
}

#[test]
fn a_lost_trailer_costs_nothing() {
    let sets = sets();
    let case = sets.case();
    let whole = length(&case.stripe(1));
    overwrite(&case.stripe(1), whole - 64, &[0; 64]);
    case.expect_harmless("footer zeroed", 1);

    for (stripe, keep) in [(0, None), (2, Some(length(&case.stripe(2)) - 1))] {
        let case = sets.case();
        let keep = keep.unwrap_or_else(|| *case.frame_offsets(stripe).last().unwrap());
        cut(&case.stripe(stripe), keep);
        case.expect_harmless("trailer cut", stripe);
    }
}

#[test]
fn bytes_behind_the_trailer_are_told_and_cost_nothing() {
    let sets = sets();
    for appended in [1u64, 64, 5000] {
        let case = sets.case();
        let whole = length(&case.stripe(0));
        cut(&case.stripe(0), whole + appended);
        case.expect_harmless(&format!("{appended} bytes appended"), 0);
    }
}

#[test]
fn a_damaged_stripe_header_costs_nothing() {
    let sets = sets();
    let case = sets.case();
    overwrite(&case.stripe(1), 0, &[0xAA; 512]);
    case.expect_harmless("stripe header overwritten", 1);
}

#[test]
fn without_a_trailer_frames_behind_a_damaged_one_keep_their_numbers() {
    let sets = sets();
    let count = sets.case().frame_offsets(1).len() as u64 - 1;
    assert!(count > 6, "only {count} frames");
    let lost: [Vec<u64>; 5] = [vec![0], vec![3], vec![3, 4], vec![count - 1], (1..count - 1).collect()];
    for numbers in lost {
        let case = sets.case();
        let frames: BTreeSet<_> = numbers.iter().map(|number| (1, *number)).collect();
        let files = case.files_of(&frames);
        let (offsets, whole) = (case.frame_offsets(1), length(&case.stripe(1)));
        for number in &numbers {
            overwrite(&case.stripe(1), offsets[*number as usize], &[0x55; 64]);
        }
        overwrite(&case.stripe(1), whole - 64, &[0; 64]);
        case.expect_damaged_frames(&format!("frames {numbers:?} without trailer"), &frames, &files);
        assert_eq!(case.restore().unwrap_err().kind(), ErrorKind::Damage);
    }
}
