//! Pages of a real server, where the caller has some.

use pagehaul_page::{Attribute, RelationKind, RelationLayout, ValueType};

use crate::frames::{Codec, Content, FRAME_SIZE_BYTES, OwnedPart};
use crate::random::Random;

/// A line of a list of files: path, kind, first page, columns as `typid:attlen:attalign` by comma, name; by tabs.
pub(crate) fn read_layout(line: &str) -> Option<(&str, u32, RelationLayout)> {
    let mut fields = line.split('\t');
    let (path, kind, first_page, columns) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let kind = match kind {
        "heap" | "toast" => RelationKind::Heap,
        "btree" | "hash" | "gist" => RelationKind::Index,
        _ => RelationKind::Other,
    };
    let attribute = |column: &str| {
        let mut numbers = column.split(':').map(|number| number.parse::<i64>().ok());
        let (type_oid, length, alignment) = (numbers.next()??, numbers.next()?? as i16, numbers.next()?? as u8);
        Some(Attribute { value_type: ValueType::of_postgres(type_oid as u32, length), length, alignment })
    };
    let attributes = columns.split(',').filter_map(attribute).collect();
    Some((path, first_page.parse().ok()?, RelationLayout { kind, page_size_bytes: 8192, attributes }))
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
    for (path, first_page, layout) in list.lines().filter_map(read_layout) {
        let Ok(file) = std::fs::read(path) else { continue };
        let middle = file.len() / 2 / 8192 * 8192;
        let starts = if file.len() > 4 * FRAME_SIZE_BYTES { vec![0, middle] } else { vec![0] };
        for start in starts {
            let raw = file[start..file.len().min(start + FRAME_SIZE_BYTES)].to_vec();
            let (length, first_page) = (raw.len(), first_page + (start / 8192) as u32);
            let mut content =
                Content { raw, parts: vec![OwnedPart { start: 0, length, first_page, layout: layout.clone() }] };
            let stored = codec.round_trip(&content);
            raw_total += content.raw.len();
            stored_total += stored.len();
            frames += 1;
            content.spoil(&mut random);
            codec.round_trip(&content);
        }
    }
    println!("{frames} frames, {raw_total} bytes as {stored_total}");
    assert!(frames > 0, "the list names no file that is there");
}
