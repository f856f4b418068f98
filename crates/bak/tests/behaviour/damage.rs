//! Damage is located, and what is around it is still checked.

use pagehaul_bak::container::{FIRST_RECORD, RECORD_HEADER_BYTES};
use pagehaul_bak::damage::Layer;
use pagehaul_bak::fixture::{Database, Media, Set, write};

use crate::kinds::find;
use crate::{causes, check_bytes};

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

#[test]
fn a_cut_file_is_found_wherever_it_is_cut() {
    for media in [Media::plain(), Media::compressed()] {
        let set = Set { has_checksum: true, ..Set::full(Database::new(2)) };
        let bytes = write(&media, &[set]).remove(0);
        // The last filemark and the second end block are not missed.
        let least = bytes.len() - if media.is_compressed { 1024 } else { 3072 };
        for length in (1024..least).step_by(487).chain([least - 1]) {
            let report = check_bytes(bytes[..length].to_vec());
            assert!(!report.sound, "{length} of {}", bytes.len());
        }
    }
}

#[test]
fn extents_that_are_missing_are_counted() {
    let set = Set::full(Database::new(4));
    let mut fewer = set.clone();
    fewer.extents.pop();
    let bytes = write(&Media::plain(), &[fewer]).remove(0);
    let full = write(&Media::plain(), &[set]).remove(0);
    // The description of the whole set in front of one that misses an extent.
    let (at, from) = (find(&bytes, b"MSLS"), find(&full, b"MSLS"));
    let mut bytes = bytes;
    let content = full[from + 52..from + 3000].to_vec();
    bytes[at + 52..at + 3000].copy_from_slice(&content);
    let report = check_bytes(bytes);
    assert!(causes(&report).contains("says that it has 262144 bytes of database file 1"), "{}", causes(&report));
}
