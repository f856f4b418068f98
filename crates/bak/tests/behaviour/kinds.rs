//! Every kind of file that the writer makes is read and found sound.

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::facts::SetKind;
use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::inspect::inspect;
use pagehaul_bak::source::Layout;
use pagehaul_bak::verify::{VerifySettings, verify};

use crate::{causes, check, files};

/// Media of the shapes of 2008 R2 to 2025.
fn all_media() -> Vec<Media> {
    let mut all = Vec::new();
    for base in [Media::plain(), Media::compressed()] {
        for family_count in [1, 3] {
            for block_bytes in [512, 4096] {
                all.push(Media { family_count, block_bytes, ..base.clone() });
            }
        }
    }
    all.push(Media { server_version: (17, 0, 900), database_version: 998, block_bytes: 4096, ..Media::plain() });
    all
}

/// A full, a differential and two log sets.
fn some_sets(has_checksum: bool) -> Vec<Set> {
    let database = Database::new(7);
    let full = Set { has_checksum, ..Set::full(database) };
    let newer = Database { version: 2, ..database };
    let differential = Set::differential(&full, newer, vec![0, 3, 5]);
    vec![full.clone(), Set::log(&full, 8, 200, 250), differential, Set::log(&full, 9, 250, 450)]
}

#[test]
fn every_kind_is_sound() {
    for media in all_media() {
        for has_checksum in [false, true] {
            let files = files("kind", &media, &some_sets(has_checksum));
            let report = check(&files);
            assert!(report.sound, "{media:?} {has_checksum}:\n{}", causes(&report));
            let kinds: Vec<_> = report.sets.iter().map(|set| set.kind.unwrap()).collect();
            assert_eq!(kinds, [SetKind::Full, SetKind::Log, SetKind::Differential, SetKind::Log]);
            let full = &report.sets[0];
            assert_eq!((full.pages.pages, full.pages.damaged, full.pages.unjudged), (56, 0, 0));
            assert_eq!(full.pages.stale, 4, "the old content of pages that are not in use");
            let sums = if has_checksum { u64::from(media.family_count) * 2 + 6 } else { 0 };
            assert!(report.backup_checksum_count >= sums, "{}", report.backup_checksum_count);
        }
    }
}

#[test]
fn several_threads_come_to_the_same() {
    for media in [Media::plain(), Media { family_count: 2, ..Media::compressed() }] {
        let files = files("threads", &media, &some_sets(true));
        let one = check(&files);
        let four = verify(&files, VerifySettings { threads: 4 }, &mut |_| Ok(())).unwrap();
        assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&four).unwrap());
    }
}

#[test]
fn inspect_shows_what_was_written() {
    for media in all_media() {
        let files = files("shown", &media, &some_sets(true));
        let report = inspect(&files).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert_eq!(report.files.len(), usize::from(media.family_count));
        let layout = if media.is_compressed { Layout::Compressed } else { Layout::Plain };
        assert!(report.files.iter().all(|file| file.layout == layout && file.set_count == 4));
        assert_eq!(report.sets.len(), 4);
        let full = &report.sets[0];
        let (major, minor, build) = media.server_version;
        assert_eq!(full.server_version, format!("{major}.{minor}.{build}"));
        assert_eq!((full.server.database_name.as_str(), full.server.server_name.as_str()), ("Sales", "SERVER1"));
        assert_eq!((full.name.as_str(), full.user_name.as_str()), ("the set's name", "SERVER1\\me"));
        assert!(full.has_backup_checksums && full.is_complete && !full.is_copy_only);
        assert_eq!(full.server.first_lsn.to_string(), "24000000010000001");
        assert_eq!(full.server.started_at.to_string(), "2024-02-29T23:59:01");
        let data = &full.server.files[0];
        assert_eq!((data.logical_name.as_str(), data.physical_path.as_str()), ("Sales", "C:\\data\\Sales.mdf"));
        assert_eq!((data.size_bytes, data.backup_size_bytes), (7 * 65536, 7 * 65536));
        let differential = &report.sets[2];
        assert_eq!(differential.kind, SetKind::Differential);
        assert_eq!((differential.base_guid, differential.base_lsn), (full.set_guid, full.server.first_lsn));
    }
}

#[test]
fn families_may_come_in_any_order() {
    let media = Media { family_count: 3, ..Media::compressed() };
    let mut files = files("order", &media, &some_sets(true));
    files.reverse();
    files.swap(0, 1);
    let report = check(&files);
    assert!(report.sound, "{}", causes(&report));
    let numbers: Vec<u16> = report.media_sets[0].families.iter().map(|family| family.family_number).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn the_last_copy_of_an_extent_counts() {
    let database = Database::new(4);
    let mut set = Set::full(database);
    set.recopied = Some((Database { version: 3, ..database }, vec![2]));
    let bytes = write(&Media::plain(), std::slice::from_ref(&set)).remove(0);
    // A page of the first copy was being written while it was read.
    let first_copy = find(&bytes, &database.page(17)[..96]) + 5000;
    let mut torn = bytes.clone();
    torn[first_copy] ^= 4;
    let report = check(&[BakFile::in_memory("torn", torn)]);
    assert!(report.sound, "{}", causes(&report));
    // In the last copy it is damage.
    let last_copy = find(&bytes, &Database { version: 3, ..database }.page(17)[..400]) + 5000;
    let mut damaged = bytes;
    damaged[last_copy] ^= 4;
    let report = check(&[BakFile::in_memory("damaged", damaged)]);
    assert_eq!(report.damage.len(), 1, "{}", causes(&report));
    assert_eq!(report.damage[0].page.unwrap().to_string(), "1:17");
}

/// Where `part` is in `bytes` the first time.
pub(crate) fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|window| window == part).unwrap()
}

#[test]
fn torn_bits_are_checked() {
    let database = Database { has_torn_bits: true, ..Database::new(3) };
    let bytes = write(&Media::plain(), &[Set::full(database)]).remove(0);
    let report = check(&[BakFile::in_memory("torn bits", bytes.clone())]);
    assert!(report.sound, "{}", causes(&report));
    assert!(report.sets[0].pages.not_torn > 15, "{:?}", report.sets[0].pages);
    let at = find(&bytes, &database.page(9)) + 7 * 512 + 511;
    let mut torn = bytes;
    torn[at] ^= 2;
    let report = check(&[BakFile::in_memory("torn", torn)]);
    assert_eq!(report.damage.len(), 1);
    assert_eq!(report.damage[0].page.unwrap().to_string(), "1:9");
}
