//! Damage is located, and what is around it is still checked.

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::container::{FIRST_RECORD, RECORD_HEADER_BYTES};
use pagehaul_bak::damage::Layer;
use pagehaul_bak::facts::SetKind;
use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::inspect::inspect;
use pagehaul_bak::sql::Guid;

use crate::kinds::find;
use crate::{causes, check, check_bytes, files};

#[test]
fn a_damaged_page_is_named() {
    let database = Database::new(6);
    let bytes = write(&Media::plain(), &[Set::full(database)]).remove(0);
    let at = find(&bytes, &database.page(25));
    let mut damaged = bytes;
    damaged[at + 4000] ^= 1;
    damaged[at + 8192 * 2 + 17] ^= 0x80;
    let report = check_bytes(damaged);
    let found: Vec<_> =
        report.damage.iter().map(|damage| (damage.layer, damage.page.unwrap().page, damage.offset)).collect();
    assert_eq!(found, [(Layer::Page, 25, Some(at as u64)), (Layer::Page, 27, Some(at as u64 + 16384))]);
    assert_eq!(report.sets[0].pages.damaged, 2);
}

#[test]
fn a_page_in_the_place_of_another_is_named() {
    let database = Database::new(3);
    let mut bytes = write(&Media::plain(), &[Set::full(database)]).remove(0);
    let (to, from) = (find(&bytes, &database.page(10)), find(&bytes, &database.page(18)));
    bytes.copy_within(from..from + 8192, to);
    let report = check_bytes(bytes);
    assert_eq!(report.damage.len(), 1, "{}", causes(&report));
    assert!(report.damage[0].to_string().ends_with("page 1:10: it carries the number 1:18"), "{}", report.damage[0]);
}

#[test]
fn a_lost_chunk_costs_its_own_extent() {
    let set = Set::full(Database::new(5));
    let bytes = write(&Media::compressed(), &[set]).remove(0);
    let chunks = crate::flips::covered_of_compressed(&bytes).1;
    let (range, _) = &chunks[4];
    let mut damaged = bytes.clone();
    damaged[range.start + 300] ^= 1;
    let report = check_bytes(damaged);
    assert_eq!(report.damage[0].layer, Layer::Chunk);
    assert_eq!(report.damage[0].offset, Some((range.start - RECORD_HEADER_BYTES) as u64));
    assert_eq!(report.sets[0].pages.pages, 40);
    // Its sizes damaged as well, the next chunk is found by its checksum.
    let mut damaged = bytes;
    damaged[range.start - RECORD_HEADER_BYTES + 2] ^= 0x11;
    let report = check_bytes(damaged);
    assert!(!report.sound && report.sets[0].kind.is_some(), "{}", causes(&report));
}

#[test]
fn an_unknown_flag_is_refused_with_its_offset() {
    let set = Set::full(Database::new(2));
    let mut bytes = write(&Media::compressed(), &[set]).remove(0);
    bytes[FIRST_RECORD as usize] = 0x41;
    let report = check_bytes(bytes);
    let text = causes(&report);
    assert!(text.contains("at byte 480") && text.contains("chunk flag 0x41 is not known"), "{text}");
}

/// Every cut within the last blocks and filemarks, and many before them.
fn cuts_are_found(media: &Media) {
    let set = Set { has_checksum: true, ..Set::full(Database::new(2)) };
    let bytes = write(media, &[set]).remove(0);
    let block_bytes = usize::from(media.block_bytes);
    let last = bytes.len() - 12_000;
    for length in (1024..last).step_by(487).chain(last..bytes.len()) {
        let file = [BakFile::in_memory("cut", bytes[..length].to_vec())];
        let report = check(&file);
        assert!(!report.sound, "{length} of {}", bytes.len());
        let said = inspect(&file).unwrap();
        assert!(!said.damage.is_empty(), "{length} of {}", bytes.len());
        let has_filemark = length > bytes.len() - block_bytes;
        assert!(has_filemark || said.sets.iter().all(|set| !set.is_complete), "{length} of {}", bytes.len());
    }
}

#[test]
fn a_plain_file_that_is_cut_is_found_wherever_it_is_cut() {
    in_both_block_sizes(&Media::plain());
}

#[test]
fn a_compressed_file_that_is_cut_is_found_wherever_it_is_cut() {
    in_both_block_sizes(&Media::compressed());
}

fn in_both_block_sizes(media: &Media) {
    std::thread::scope(|scope| {
        for block_bytes in [512, 4096] {
            scope.spawn(move || cuts_are_found(&Media { block_bytes, ..media.clone() }));
        }
    });
}

#[test]
fn pages_of_a_differential_are_judged_by_the_pfs_of_its_base() {
    let database = Database::new(7);
    let full = Set::full(database);
    let newer = Database { version: 2, ..database };
    // Of extent 5 the last two pages are not in use, and PFS lies in extent 0.
    let differential = Set::differential(&full, newer, vec![5]);
    let base = files("full", &Media::plain(), std::slice::from_ref(&full)).remove(0);
    let media = Media { guid: Guid([0x12; 16]), ..Media::plain() };
    let bytes = write(&media, std::slice::from_ref(&differential)).remove(0);
    let on_top = || BakFile::in_memory("differential", bytes.clone());
    let alone = check(&[on_top()]);
    assert_eq!((alone.sets[0].pages.unjudged, alone.sets[0].pages.stale), (2, 0));
    let together = check(&[on_top(), base]);
    assert!(together.sound, "{}", causes(&together));
    let pages = together.sets.iter().find(|set| set.kind == Some(SetKind::Differential)).unwrap().pages;
    assert_eq!((pages.unjudged, pages.stale), (0, 2));
    // A page that PFS of the base calls used is damage, whatever number it carries.
    let mut damaged = bytes.clone();
    let at = find(&bytes, &newer.page(43));
    damaged[at + 32] ^= 4;
    let base = files("full", &Media::plain(), &[full]).remove(0);
    let report = check(&[BakFile::in_memory("differential", damaged), base]);
    assert_eq!(report.damage.len(), 1, "{}", causes(&report));
    assert_eq!(report.damage[0].page.unwrap().to_string(), "1:43");
}

/// What inspecting decodes it also checks, so damage that it does not see is in a chunk that it passed over.
#[test]
fn inspecting_decodes_no_chunk_of_pages() {
    let media = Media { family_count: 2, ..Media::compressed() };
    let families = write(&media, &[Set { has_checksum: true, ..Set::full(Database::new(40)) }]);
    for (number, bytes) in families.iter().enumerate() {
        let chunks = crate::flips::covered_of_compressed(bytes).1;
        let sees = |range: &std::ops::Range<usize>| {
            let mut damaged = families.clone();
            damaged[number][range.start + 280] ^= 1;
            let all: Vec<BakFile> = damaged.into_iter().map(|bytes| BakFile::in_memory("file", bytes)).collect();
            assert!(!check(&all).sound);
            !inspect(&all).is_ok_and(|found| found.damage.is_empty())
        };
        let seen = chunks.iter().filter(|(range, _)| sees(range)).count();
        assert!(chunks.len() > 20 && seen < 8, "{seen} of {} chunks are decoded", chunks.len());
    }
}

/// A full set whose description has one extent more than there is.
pub(crate) fn one_that_lacks_an_extent() -> Vec<u8> {
    let set = Set::full(Database::new(4));
    let mut fewer = set.clone();
    fewer.extents.pop();
    let mut bytes = write(&Media::plain(), &[fewer]).remove(0);
    let full = write(&Media::plain(), &[set]).remove(0);
    let (at, from) = (find(&bytes, b"MSLS"), find(&full, b"MSLS"));
    bytes[at + 52..at + 3000].copy_from_slice(&full[from + 52..from + 3000]);
    bytes
}

#[test]
fn extents_that_are_missing_are_counted() {
    let report = check_bytes(one_that_lacks_an_extent());
    assert!(causes(&report).contains("says that it has 262144 bytes of database file 1"), "{}", causes(&report));
}
