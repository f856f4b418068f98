//! Pages of a real server, where the caller has some.

use pagehaul_page::{Attribute, RelationKind, RelationLayout, ValueType};

use crate::frames::{Codec, Content, FRAME_SIZE_BYTES, OwnedPart};
use crate::random::Random;

/// What a list says of a file: its path, the number of its first page, what its pages hold.
pub(crate) type RealFile<'a> = (&'a str, u32, RelationLayout);

/// The files of a list as bench/page/files.sql makes it, or of several ones in a row: pages are of the size that the line
/// at the beginning of each tells.
pub(crate) fn real_files(list: &str) -> impl Iterator<Item = RealFile<'_>> {
    let mut page_size_bytes = 8192;
    list.lines().filter_map(move |line| {
        if let Some(beginning) = line.strip_prefix("# pagehaul page files\t1\t") {
            page_size_bytes = beginning.split('\t').next()?.parse().ok()?;
            return None;
        }
        read_layout(line, page_size_bytes)
    })
}

/// A line of it: path, kind, first page, columns as `typid:attlen:attalign` by comma, name; by tabs.
fn read_layout(line: &str, page_size_bytes: u32) -> Option<RealFile<'_>> {
    let mut fields = line.split('\t');
    let (path, kind, first_page, columns) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let kind = match kind {
        "heap" | "toast" => RelationKind::Heap,
        "btree" | "hash" | "gist" => RelationKind::Index,
        "gin" => RelationKind::Gin,
        "spgist" => RelationKind::SpGist,
        _ => RelationKind::Other,
    };
    let attribute = |column: &str| {
        let mut numbers = column.split(':').map(|number| number.parse::<i64>().ok());
        let (type_oid, length, alignment) = (numbers.next()??, numbers.next()?? as i16, numbers.next()?? as u8);
        Some(Attribute { value_type: ValueType::of_postgres(type_oid as u32, length), length, alignment })
    };
    let attributes = columns.split(',').filter_map(attribute).collect();
    Some((path, first_page.parse().ok()?, RelationLayout { kind, page_size_bytes, attributes }))
}

/// `PAGEHAUL_PAGE_FILES` names the list. Of every file its first MiB and one in the middle, as it is and spoilt.
#[test]
fn real_pages_come_back() {
    let Some(list) = std::env::var_os("PAGEHAUL_PAGE_FILES") else {
        eprintln!("skipped: PAGEHAUL_PAGE_FILES does not name a list of data files of a real server");
        return;
    };
    let list = std::fs::read_to_string(list).unwrap();
    let mut codec = Codec::new(2);
    let mut random = Random::new(31);
    let (mut raw_total, mut stored_total, mut frames) = (0, 0, 0);
    for (path, first_page, layout) in real_files(&list) {
        let page_bytes = layout.page_size_bytes as usize;
        let Ok(file) = std::fs::read(path) else { continue };
        let middle = file.len() / 2 / page_bytes * page_bytes;
        let starts = if file.len() > 4 * FRAME_SIZE_BYTES { vec![0, middle] } else { vec![0] };
        for start in starts {
            let raw = file[start..file.len().min(start + FRAME_SIZE_BYTES)].to_vec();
            let (length, first_page) = (raw.len(), first_page + (start / page_bytes) as u32);
            let mut content =
                Content { raw, parts: vec![OwnedPart { start: 0, length, first_page, layout: layout.clone() }] };
            let stored = codec.round_trip(&content);
            raw_total += content.raw.len();
            stored_total += stored.len();
            frames += 1;
            codec.round_trip_apart(&content);
            content.spoil(&mut random);
            codec.round_trip_apart(&content);
        }
    }
    println!("{frames} frames, {raw_total} bytes as {stored_total}");
    assert!(frames > 0, "the list names no file that is there");
}
