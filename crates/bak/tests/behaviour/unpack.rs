//! Streams and images that are taken out of backup files.

use std::os::unix::fs::FileExt;
use std::path::Path;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::fixture::{Database, Media, Set, write};
use pagehaul_bak::sql::Guid;
use pagehaul_bak::unpack::{ImageReport, ImageRequest, unpack_images, unpack_stream};
use pagehaul_engine::error::{ErrorKind, Result};

use crate::files;

fn images(files: &[BakFile], directory: &Path, change: impl Fn(&mut ImageRequest)) -> Result<ImageReport> {
    let directory = directory.to_owned();
    let mut request = ImageRequest { directory, full: None, with_differential: true, keep_damaged: false, threads: 2 };
    change(&mut request);
    unpack_images(files, &request, &mut |_| Ok(()))
}

fn assert_is(path: &str, extents: u32, of: impl Fn(u32) -> Option<Database>) {
    let image = std::fs::read(path).unwrap();
    assert_eq!(image.len(), extents as usize * 65536);
    for (number, extent) in (0u32..).zip(image.chunks(65536)) {
        let expected = of(number).map_or(vec![0; 65536], |database| database.extent(number));
        assert!(extent == expected, "extent {number}");
    }
}

#[test]
fn the_stream_of_a_compressed_file_is_that_of_a_plain_one() {
    let set = Set { has_checksum: true, ..Set::full(Database::new(5)) };
    let plain = write(&Media { is_compressed: false, ..Media::compressed() }, std::slice::from_ref(&set)).remove(0);
    for media in [Media::compressed(), Media { is_compressed: false, ..Media::compressed() }] {
        let file = files("stream", &media, std::slice::from_ref(&set)).remove(0);
        let mut stream = Vec::new();
        let length = unpack_stream(&file, 3, &mut |_| Ok(()), &mut stream).unwrap();
        assert_eq!(length, plain.len() as u64);
        assert!(stream == plain);
    }
}

#[test]
fn images_hold_full_and_differential() {
    let database = Database::new(9);
    let mut full = Set::full(database);
    full.extents.retain(|extent| *extent != 7);
    let newer = Database { version: 2, ..database };
    let newest = Database { version: 3, ..database };
    full.recopied = Some((newer, vec![3, 4]));
    let differential = Set::differential(&full, newest, vec![0, 4, 6]);
    for base in [Media::plain(), Media { family_count: 3, ..Media::compressed() }] {
        let mut all = files("full", &base, std::slice::from_ref(&full));
        let media = Media { guid: Guid([0x12; 16]), ..base };
        let directory = tempfile::tempdir().unwrap();
        let report = images(&all, directory.path(), |_| {}).unwrap();
        assert_eq!((report.images.len(), report.differential_set_guid), (1, None));
        assert!(report.warning.contains("not transactionally consistent"));
        let of_full = |extent: u32| match extent {
            7 => None,
            3 | 4 => Some(newer),
            _ => Some(database),
        };
        assert!(report.images[0].path.ends_with("/Sales.mdf"));
        assert_is(&report.images[0].path, 9, of_full);
        let differential = Set { recopied: None, ..differential.clone() };
        all.extend(files("differential", &media, std::slice::from_ref(&differential)));
        all.reverse();
        let directory = tempfile::tempdir().unwrap();
        let report = images(&all, directory.path(), |_| {}).unwrap();
        assert_eq!(report.differential_set_guid, Some(differential.guid));
        assert_is(&report.images[0].path, 9, |extent| match extent {
            0 | 4 | 6 => Some(newest),
            extent => of_full(extent),
        });
        // Files that are there are not replaced.
        let error = images(&all, directory.path(), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Target, "{error}");
        assert_is(
            &report.images[0].path,
            9,
            |extent| if matches!(extent, 0 | 4 | 6) { Some(newest) } else { of_full(extent) },
        );
    }
}

#[test]
fn damage_leaves_no_image() {
    let database = Database::new(4);
    let mut bytes = write(&Media::plain(), &[Set::full(database)]).remove(0);
    let at = crate::kinds::find(&bytes, &database.page(10));
    bytes[at + 5000] ^= 1;
    let directory = tempfile::tempdir().unwrap();
    let error = images(&[BakFile::in_memory("file", bytes.clone())], directory.path(), |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage);
    assert!(error.message().contains("page 1:10"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let keep = |request: &mut ImageRequest| request.keep_damaged = true;
    let report = images(&[BakFile::in_memory("file", bytes)], directory.path(), keep).unwrap();
    assert_eq!(report.damage.len(), 1);
    let mut byte = [0];
    std::fs::File::open(&report.images[0].path).unwrap().read_exact_at(&mut byte, 10 * 8192 + 5000).unwrap();
    assert_eq!(byte[0], database.page(10)[5000] ^ 1);
}

#[test]
fn damage_names_the_family_that_it_is_in() {
    let database = Database::new(4);
    let media = Media { family_count: 2, ..Media::plain() };
    let mut families = write(&media, &[Set::full(database)]);
    let at = crate::kinds::find(&families[1], &database.page(10));
    families[1][at + 5000] ^= 1;
    let named = |(number, bytes)| BakFile::in_memory(&format!("family{number}"), bytes);
    let all: Vec<BakFile> = (1..).zip(families).map(named).collect();
    let directory = tempfile::tempdir().unwrap();
    let error = images(&all, directory.path(), |_| {}).unwrap_err();
    assert!(error.message().contains("family2 at byte") && error.message().contains("page 1:10"), "{error}");
}

#[test]
fn a_set_that_lacks_extents_leaves_no_image() {
    let bytes = crate::damage::one_that_lacks_an_extent();
    let directory = tempfile::tempdir().unwrap();
    let error = images(&[BakFile::in_memory("file", bytes)], directory.path(), |_| {}).unwrap_err();
    assert!(error.message().contains("says that it has 262144 bytes of database file 1"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn missing_and_foreign_families_and_unclear_wishes_are_refused() {
    let media = Media { family_count: 2, ..Media::plain() };
    let full = Set::full(Database::new(4));
    let mut all = files("full", &media, std::slice::from_ref(&full));
    let directory = tempfile::tempdir().unwrap();
    let error = images(&all[..1], directory.path(), |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damage);
    assert!(error.message().contains("family 2 of 2"), "{error}");
    let other = Media { guid: Guid([0x13; 16]), ..media };
    all.extend(files("other", &other, &[Set { guid: Guid([0x23; 16]), ..full.clone() }]));
    let error = images(&all, directory.path(), |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains(&full.guid.to_string()), "{error}");
    assert!(images(&all, directory.path(), |request| request.full = Some(full.guid)).is_ok());
}
