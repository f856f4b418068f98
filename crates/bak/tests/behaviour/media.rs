//! Files that belong together, and files that do not.

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::sql::Guid;

use crate::{causes, check};

fn families(media: &Media, set: &Set) -> Vec<Vec<u8>> {
    write(media, std::slice::from_ref(set))
}

fn named(files: &[&Vec<u8>]) -> Vec<BakFile> {
    (1..).zip(files).map(|(number, bytes)| BakFile::in_memory(&format!("file{number}"), bytes.to_vec())).collect()
}

/// F25: a stripe that is missing, cut, there twice, or of another set.
#[test]
fn f25_every_missing_doubled_or_swapped_family_is_named() {
    for base in [Media::plain(), Media::compressed()] {
        let media = Media { family_count: 3, ..base };
        let set = Set::full(Database::new(9));
        let ours = families(&media, &set);
        let later = Set { guid: Guid([0x77; 16]), database: Database { version: 2, ..set.database }, ..set.clone() };
        let of_later = families(&media, &later);
        let of_others = families(&Media { guid: Guid([0x99; 16]), ..media.clone() }, &set);
        for (missing, _) in ours.iter().enumerate() {
            let rest: Vec<&Vec<u8>> =
                ours.iter().enumerate().filter(|(index, _)| *index != missing).map(|(_, file)| file).collect();
            let text = causes(&check(&named(&rest)));
            assert!(text.contains(&format!("family {} of 3 of media set", missing + 1)), "{text}");
            for other in &ours {
                let mut files = rest.clone();
                files.push(other);
                let report = check(&named(&files));
                let is_whole = std::ptr::eq(other, &ours[missing]);
                assert_eq!(report.sound, is_whole, "{}", causes(&report));
                assert!(
                    is_whole || causes(&report).contains("of the media set, and so is file"),
                    "{}",
                    causes(&report)
                );
            }
            // The same place in the same media set, of a backup that overwrote it.
            let mut files = rest.clone();
            files.push(&of_later[missing]);
            let text = causes(&check(&named(&files)));
            assert!(text.contains("its set 1 is of another backup than set 1 of file"), "{text}");
            // And of another media set.
            let mut files = rest.clone();
            files.push(&of_others[missing]);
            let report = check(&named(&files));
            assert_eq!(report.media_sets.len(), 2);
            assert!(!report.sound && report.media_sets.iter().all(|media_set| !media_set.is_complete()));
        }
    }
}

#[test]
fn pages_are_judged_by_the_use_map_of_another_family() {
    let media = Media { family_count: 2, ..Media::plain() };
    let set = Set::full(Database::new(8));
    let files = families(&media, &set);
    // Page 22 is not in use; its extent lies in family 1 with PFS. Extent 5 with pages 46 and 47 lies in family 2.
    let report = check(&named(&[&files[1], &files[0]]));
    assert!(report.sound, "{}", causes(&report));
    assert_eq!(report.sets[0].pages.stale, 4);
}
