//! Parity: as many stripes as there are parity stripes may be lost, in whichever way, and every damaged frame is given back.

mod degraded;
mod second_copies;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::error::{ErrorKind, Result};
use pagehaul_engine::format::checksum::xxh3;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::repair::{RepairReport, RepairRequest, repair};
use pagehaul_engine::restore::{RestoreReport, RestoreRequest, restore};
use pagehaul_engine::source::postgres::scratch_server::InitOptions;
use pagehaul_engine::terms::{BackupKind, BackupLabel};
use pagehaul_engine::verify::{VerifyReport, VerifyRequest, verify};
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install, is_long_run, work_directory};
use pagehaul_testkit::damage::{copy_tree, cut, differences, flip_bit, overwrite, tree};
use pagehaul_testkit::random::Random;
use tempfile::TempDir;

const STRIPES: usize = 4;
const PARITY: usize = 2;
const PLACES: [&str; STRIPES + PARITY] = ["s0", "s1", "s2", "s3", "p0", "p1"];

/// A full set and an incremental one on top of it, 4+2 each, every stripe in a directory of its own; they were moved since,
/// so that every case works on a copy.
struct Sets {
    work: TempDir,
    full: BackupLabel,
    other: BackupLabel,
    incremental: BackupLabel,
    restored: BTreeMap<Vec<u8>, String>,
}

fn sets() -> Arc<Sets> {
    static SHARED: Mutex<Weak<Sets>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let made = Arc::new(Sets::make());
        *shared = Arc::downgrade(&made);
        made
    })
}

impl Sets {
    fn make() -> Self {
        let work = work_directory();
        let options = InitOptions { wal_segment_size_mib: Some(1), ..InitOptions::default() };
        let settings: Vec<_> = QUICK.iter().copied().filter(|(name, _)| *name != "max_wal_size").collect();
        let cluster = Cluster::start_with(&default_install(), work.path(), &options, &settings);
        cluster.load_typed_tables(1_000);
        let side = |name: &&str| work.path().join(name).display().to_string();
        let request = BackupRequest {
            stripe_to: PLACES[..STRIPES].iter().map(side).collect(),
            parity_to: PLACES[STRIPES..].iter().map(side).collect(),
            parity: PARITY as u16,
            frame_size_bytes: Some(256 * 1024),
            ..cluster.backup_request()
        };
        let other = cluster.backup(&request).label;
        let report = cluster.backup(&request);
        assert_eq!((report.stripes.len(), report.parity_stripes.len()), (STRIPES, PARITY));
        let full = report.label;
        cluster.run(&["UPDATE typed SET number = number + 1 WHERE id % 7 = 0"]);
        let incremental = cluster.backup(&BackupRequest { kind: BackupKind::Incremental, ..request }).label;
        drop(cluster);
        let base = work.path().join("base");
        std::fs::create_dir(&base).unwrap();
        for part in PLACES.iter().chain(&["repo"]) {
            std::fs::rename(work.path().join(part), base.join(part)).unwrap();
        }
        let mut sets = Sets { work, full, other, incremental, restored: BTreeMap::new() };
        let case = sets.case();
        assert_eq!(case.restore().unwrap_or_else(|error| panic!("{error}")).repaired_frame_count, 0);
        sets.restored = tree(&case.target());
        sets
    }

    fn case(&self) -> Case<'_> {
        let directory = tempfile::tempdir_in(self.work.path()).unwrap();
        let root = directory.path().join("copy");
        copy_tree(&self.work.path().join("base"), &root);
        Case { sets: self, _directory: directory, root, label: self.full.clone() }
    }
}

struct Case<'a> {
    sets: &'a Sets,
    _directory: TempDir,
    root: PathBuf,
    label: BackupLabel,
}

impl Case<'_> {
    /// Stripes, then parity stripes.
    fn member_of(&self, label: &BackupLabel, member: usize) -> PathBuf {
        let name = match member.checked_sub(STRIPES) {
            None => format!("stripe-{member:04}.phs"),
            Some(parity) => format!("parity-{parity:04}.phs"),
        };
        self.root.join(PLACES[member]).join("main/sets").join(label.as_str()).join(name)
    }

    fn member(&self, member: usize) -> PathBuf {
        self.member_of(&self.label, member)
    }

    fn rows(&self) -> PathBuf {
        Path::new(&self.repo()).join("main/sets").join(self.label.as_str()).join("rows.phs")
    }

    fn stripe_from(&self) -> Vec<String> {
        PLACES.map(|place| self.root.join(place).display().to_string()).to_vec()
    }

    fn repo(&self) -> String {
        self.root.join("repo").display().to_string()
    }

    fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    fn verify(&self) -> VerifyReport {
        let (label, stripe_from) = (Some(self.label.clone()), self.stripe_from());
        let request = VerifyRequest { label, stripe_from, ..VerifyRequest::new(self.repo()) };
        verify(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}"))
    }

    fn restore(&self) -> Result<RestoreReport> {
        let (label, stripe_from) = (Some(self.label.clone()), self.stripe_from());
        restore(&RestoreRequest { label, stripe_from, ..RestoreRequest::new(self.repo(), self.target()) }, &NoObserver)
    }

    fn repair(&self) -> RepairReport {
        let (label, stripe_from) = (Some(self.label.clone()), self.stripe_from());
        repair(&RepairRequest { label, stripe_from, ..RepairRequest::new(self.repo()) }, &NoObserver)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// It is not as it was written, and can be restored bit for bit.
    fn expect_degraded(&self, what: &str) -> VerifyReport {
        let report = self.verify();
        assert!(!report.sound && report.restorable, "{what}: {report:?}");
        assert!(report.damaged_frames.is_empty(), "{what}: {report:?}");
        self.expect_restored(what);
        report
    }

    fn expect_restored(&self, what: &str) {
        self.restore().unwrap_or_else(|error| panic!("{what}: {error}"));
        let difference = differences(&tree(&self.target()), &self.sets.restored);
        assert!(difference.is_empty(), "{what}: {difference:?}");
        std::fs::remove_dir_all(self.target()).unwrap();
    }

    /// Repair puts back the stripes bit for bit, and after that the set is as good as new.
    fn expect_repaired(&self, what: &str, members: &[usize], originals: &[u64]) {
        let before = tree(&self.root);
        let report = self.repair();
        assert!(report.whole, "{what}: {report:?}");
        let stripes: Vec<_> = report.repaired.iter().filter(|stripe| stripe.name.contains("stripe")).collect();
        assert_eq!(stripes.len(), members.len(), "{what}: {report:?}");
        for (stripe, member) in stripes.into_iter().zip(members) {
            let bytes = std::fs::read(&stripe.path).unwrap();
            assert_eq!(xxh3(&bytes), originals[*member], "{what}: {}", stripe.path);
        }
        let after = tree(&self.root);
        assert!(before.iter().all(|(path, what)| after.get(path) == Some(what)), "{what}: nothing old was touched");
        let report = self.verify();
        assert!(report.sound && report.stripe_problems.is_empty(), "{what}: {report:?}");
        assert!(self.repair().repaired.is_empty(), "{what}: there is nothing left to repair");
    }

    fn originals(&self) -> Vec<u64> {
        (0..STRIPES + PARITY).map(|member| xxh3(&std::fs::read(self.member(member)).unwrap())).collect()
    }

    /// Where each frame of a member starts, and where the last one ends.
    fn frame_offsets(&self, member: usize) -> Vec<u64> {
        let bytes = std::fs::read(self.member(member)).unwrap();
        let mut offsets = vec![512u64];
        while bytes[offsets[offsets.len() - 1] as usize..].starts_with(b"PHF\x01") {
            let at = offsets[offsets.len() - 1] as usize;
            let stored = u32::from_le_bytes(bytes[at + 36..at + 40].try_into().unwrap());
            offsets.push(at as u64 + 64 + u64::from(stored));
        }
        offsets
    }
}

/// All ways to choose up to `most` of `count`.
fn choices(count: usize, most: usize) -> Vec<Vec<usize>> {
    let chosen = |mask: u32| (0..count).filter(|place| mask & 1 << place != 0).collect::<Vec<_>>();
    (1u32..1 << count).map(chosen).filter(|chosen| chosen.len() <= most).collect()
}

#[test]
fn f25_every_choice_of_as_many_lost_stripes_as_there_is_parity_is_restored_and_repaired() {
    let sets = sets();
    for lost in choices(STRIPES + PARITY, PARITY) {
        let case = sets.case();
        let originals = case.originals();
        lost.iter().for_each(|member| std::fs::remove_file(case.member(*member)).unwrap());
        let what = format!("{lost:?} lost");
        let report = case.expect_degraded(&what);
        assert_eq!(report.stripe_problems.len(), lost.len(), "{what}: {:?}", report.stripe_problems);
        assert!(report.stripe_problems.iter().all(|problem| problem.by_parity), "{what}");
        case.expect_repaired(&what, &lost, &originals);
        case.expect_restored(&what);
    }
}

#[test]
fn f25_one_more_lost_than_there_is_parity_is_refused_and_names_them() {
    let sets = sets();
    for lost in choices(STRIPES + PARITY, PARITY + 1).into_iter().filter(|lost| lost.len() > PARITY) {
        let case = sets.case();
        lost.iter().for_each(|member| std::fs::remove_file(case.member(*member)).unwrap());
        let what = format!("{lost:?} lost");
        let report = case.verify();
        assert!(!report.sound, "{what}");
        assert!(!report.restorable && report.damaged_file_count > 0, "{what}");
        let error = case.restore().expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::Damage, "{what}: {error}");
        assert!(!case.target().exists(), "{what}: nothing was written");
        for member in &lost {
            let name = member
                .checked_sub(STRIPES)
                .map_or(format!("stripe {member}"), |parity| format!("parity stripe {parity}"));
            assert!(error.message().contains(&name), "{what}: {error}");
        }
        let before = tree(&case.root);
        let report = case.repair();
        assert!(!report.whole && report.repaired.is_empty(), "{what}: {report:?}");
        assert_eq!(differences(&tree(&case.root), &before), Vec::<String>::new(), "{what}");
    }
}

/// A bit anywhere in a stripe: in each byte of headers, index and footer, and in many places of frames.
#[test]
fn f25_a_bit_flipped_anywhere_is_repaired() {
    let sets = sets();
    let case = sets.case();
    let mut random = Random::new("a flipped bit");
    for member in 0..STRIPES + PARITY {
        let size = std::fs::metadata(case.member(member)).unwrap().len();
        let frames_end = case.frame_offsets(member).last().copied().unwrap();
        let (some, step) = if is_long_run() { (40, 1) } else { (20, 2) };
        let mut bytes: Vec<u64> = (0..some).map(|_| random.below(size)).collect();
        bytes.extend((0..512).step_by(37 * step).chain(512..576).step_by(3));
        bytes.extend((frames_end..size).step_by(5 * step));
        for byte in bytes {
            let bit = random.below(8) as u8;
            flip_bit(&case.member(member), byte, bit);
            let report = case.verify();
            let what = format!("bit {bit} of byte {byte} of member {member}");
            assert!(!report.sound && report.restorable, "{what}: {report:?}");
            let told = report.repaired_frame_count as usize + report.stripe_problems.len();
            assert!(told > 0, "{what}: {report:?}");
            flip_bit(&case.member(member), byte, bit);
        }
    }
    assert!(case.verify().sound);
}

#[test]
fn f25_many_flipped_bits_are_repaired_as_long_as_each_row_has_enough_left() {
    let sets = sets();
    let mut random = Random::new("many flipped bits");
    for round in 0..8 {
        let case = sets.case();
        let originals = case.originals();
        // Any two members, in every frame and in the trailers.
        let first = random.below((STRIPES + PARITY) as u64) as usize;
        let second = (first + 1 + random.below((STRIPES + PARITY - 1) as u64) as usize) % (STRIPES + PARITY);
        let mut hit = vec![first, second];
        hit.sort_unstable();
        for member in &hit {
            let (path, offsets) = (case.member(*member), case.frame_offsets(*member));
            for frame in offsets.windows(2) {
                flip_bit(&path, frame[0] + random.below(frame[1] - frame[0]), random.below(8) as u8);
            }
            let size = std::fs::metadata(&path).unwrap().len();
            let end = offsets[offsets.len() - 1];
            // With no trailer of parity left, rows that cannot be read tell nothing of where stripes' frames are.
            if round % 2 == 0 && *member < STRIPES {
                flip_bit(&path, end + random.below(size - end), random.below(8) as u8);
                flip_bit(&path, random.below(512), random.below(8) as u8);
            }
        }
        let what = format!("round {round}, members {hit:?}");
        case.expect_degraded(&what);
        case.expect_repaired(&what, &hit, &originals);
    }
}

/// A lost stripe is put back first, and what was read of others for it is not looked at again: a frame of them that is damaged is found and put
/// back all the same, in a row of the lost stripe or in another.
#[test]
fn f25_a_lost_stripe_hides_no_damage_of_another() {
    let sets = sets();
    for (lost, hit) in [(0, 1), (STRIPES, 2)] {
        let frames = sets.case().frame_offsets(hit);
        for frame in [0, frames.len() / 2, frames.len() - 2] {
            let case = sets.case();
            let originals = case.originals();
            std::fs::remove_file(case.member(lost)).unwrap();
            flip_bit(&case.member(hit), frames[frame] + 99, 3);
            let what = format!("member {lost} lost, frame {frame} of {hit} damaged");
            case.expect_degraded(&what);
            case.expect_repaired(&what, &[lost, hit], &originals);
        }
    }
}

#[test]
fn f25_every_trailer_may_be_lost_and_rows_are_found_by_themselves() {
    let sets = sets();
    let case = sets.case();
    let originals = case.originals();
    for member in 0..STRIPES + PARITY {
        let (path, end) = (case.member(member), case.frame_offsets(member).last().copied().unwrap());
        let size = std::fs::metadata(&path).unwrap().len();
        overwrite(&path, end, &vec![0xAA; (size - end) as usize]);
    }
    case.expect_degraded("no trailer");
    std::fs::remove_file(case.rows()).unwrap();
    let report = case.expect_degraded("no trailer, and nothing says what the rows are of");
    assert_eq!(report.stripe_problems.len(), STRIPES + PARITY + 1, "{:?}", report.stripe_problems);
    case.expect_repaired("no trailer", &[0, 1, 2, 3, 4, 5], &originals);
    // One row of one parity stripe as well: the other one still has it.
    let case = sets.case();
    for member in STRIPES..STRIPES + PARITY {
        let (path, offsets) = (case.member(member), case.frame_offsets(member));
        let row = offsets[member - STRIPES];
        overwrite(&path, row, &[0; 64]);
        cut(&path, offsets[offsets.len() - 1]);
    }
    case.expect_degraded("headers of rows, and trailers of parity");
    std::fs::remove_file(case.rows()).unwrap();
    // Both rows are known of the other parity stripe.
    let report = case.expect_degraded("and nothing says what the rows are of");
    assert_eq!(report.repaired_frame_count, 0, "{report:?}");
    std::fs::remove_file(case.member(1)).unwrap();
    let report = case.expect_degraded("and a stripe is lost");
    assert!(report.repaired_frame_count > 0, "{report:?}");
}

#[test]
fn f25_stripes_that_were_cut_or_swapped_are_given_back_by_parity() {
    let sets = sets();
    let case = sets.case();
    let originals = case.originals();
    let keep = |member: usize| case.root.join(format!("kept-{member}"));
    let copy = |from: PathBuf, to: PathBuf| assert!(std::fs::copy(from, to).unwrap() > 0);
    (0..STRIPES + PARITY).for_each(|member| copy(case.member(member), keep(member)));
    let mut damage: Vec<(String, Vec<usize>)> = Vec::new();
    for (one, two) in [(0, 1), (4, 5), (2, 4)] {
        std::fs::copy(keep(two), case.member(one)).unwrap();
        std::fs::copy(keep(one), case.member(two)).unwrap();
        damage.push((format!("{one} and {two} swapped"), vec![one, two]));
        let (what, members) = damage.last().unwrap();
        case.expect_degraded(what);
        let report = case.repair();
        assert!(report.whole, "{what}: {report:?}");
        for (stripe, member) in report.repaired.iter().zip(members) {
            assert_eq!(xxh3(&std::fs::read(&stripe.path).unwrap()), originals[*member], "{what}");
            std::fs::remove_file(&stripe.path).unwrap();
        }
        members.iter().for_each(|member| copy(keep(*member), case.member(*member)));
    }
    for member in [0, 3, 4] {
        let size = std::fs::metadata(keep(member)).unwrap().len();
        for length in [0, 100, 512, size / 2, size - 1] {
            cut(&case.member(member), length);
            case.expect_degraded(&format!("member {member} cut to {length}"));
            std::fs::copy(keep(member), case.member(member)).unwrap();
        }
    }
}

/// Frames of another set, of another stripe and of another place, each with right checksums.
#[test]
fn f25_frames_of_another_set_stripe_or_row_are_not_taken() {
    let sets = sets();
    for (from_other_set, from, to) in [(true, 0, 0), (false, 1, 0), (true, 4, 4), (false, 5, 4)] {
        let case = sets.case();
        let originals = case.originals();
        let label = if from_other_set { &sets.other } else { &sets.full };
        let bytes = std::fs::read(case.member_of(label, from)).unwrap();
        let frame = &bytes[512..512 + 64 + u32::from_le_bytes(bytes[548..552].try_into().unwrap()) as usize];
        overwrite(&case.member(to), 512, frame);
        let what = format!("a frame of {from} in {to}, of another set: {from_other_set}");
        case.expect_degraded(&what);
        case.expect_repaired(&what, &[to], &originals);
    }
}

#[test]
fn f25_too_many_damaged_frames_of_a_row_are_named_and_the_others_are_given_back() {
    let sets = sets();
    let case = sets.case();
    for member in 0..PARITY + 1 {
        flip_bit(&case.member(member), 512 + 70, 1);
    }
    flip_bit(&case.member(3), 512 + 70, 1);
    let report = case.verify();
    assert!(!report.restorable && !report.sound);
    let named: Vec<_> = report.damaged_frames.iter().map(|frame| (frame.stripe, frame.frame)).collect();
    assert_eq!(named, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert!(report.damaged_frames.iter().all(|frame| frame.cause.contains("parity")), "{:?}", report.damaged_frames);
    let error = case.restore().expect_err("a row is lost");
    assert_eq!(error.kind(), ErrorKind::Damage);
    let report = case.repair();
    assert!(!report.whole && report.repaired.is_empty() && report.lost.len() == 4, "{report:?}");
}

#[test]
fn f25_the_sets_that_a_set_needs_are_given_back_and_repaired_as_well() {
    let sets = sets();
    let full = sets.case();
    let case = Case { label: sets.incremental.clone(), ..full };
    std::fs::remove_file(case.member_of(&sets.full, 1)).unwrap();
    std::fs::remove_file(case.member_of(&sets.full, 4)).unwrap();
    std::fs::remove_file(case.member(0)).unwrap();
    let report = case.verify();
    assert!(!report.sound && report.restorable, "{report:?}");
    case.restore().unwrap_or_else(|error| panic!("{error}"));
    let report = case.repair();
    let repaired: Vec<_> = report.repaired.iter().map(|one| (one.set.clone(), one.name.as_str())).collect();
    let full = |name| (sets.full.clone(), name);
    assert_eq!(repaired, [full("stripe 1"), full("parity stripe 0"), (sets.incremental.clone(), "stripe 0")]);
    assert!(report.whole && case.verify().sound);
}
