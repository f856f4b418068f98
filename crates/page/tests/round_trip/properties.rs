//! Any tuples under any layout, also those that no server makes, shrunk to the smallest ones that fail.

use std::cell::RefCell;

use pagehaul_page::ValueType::{Float, Floats, Integer, Numeric, Opaque, Uuid, Varlena};
use pagehaul_page::{Attribute, RelationKind, RelationLayout, ValueType};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;

use crate::frames::{Codec, Content, OwnedPart};
use crate::pages::{HEADER_BYTES, Manner, PAGE_SIZES, Pointer, page, room};
use crate::random::Random;
use crate::values::attribute;

/// A value before it is put into the form that its column wants.
#[derive(Clone, Debug)]
struct Value {
    bytes: Vec<u8>,
    /// Of those that a value of variable length can have.
    form: u8,
}

#[derive(Clone, Debug)]
struct Row {
    values: Vec<Option<Value>>,
    /// What stands in the header besides the count of columns and where data starts.
    head: [u8; 22],
    /// Columns fewer or more than there are values.
    count_off: i8,
    /// Another start of the data than the right one.
    data_at: Option<u8>,
    padding: u8,
}

#[derive(Clone, Debug)]
struct Pages {
    layout: RelationLayout,
    rows: Vec<Row>,
    copies: usize,
    first_page: u32,
    is_untidy: bool,
    /// What the codec is told instead of the layout.
    told: Option<RelationLayout>,
    changes: Vec<(Index, u8)>,
    /// Bytes that are missing at the end.
    cut: usize,
    level: usize,
}

fn any_attribute() -> impl Strategy<Value = Attribute> {
    let alignment = || prop_oneof![12 => select(&[1, 2, 4, 8][..]), 1 => any::<u8>()];
    let fitting: &[(ValueType, &[i16])] = &[
        (Integer, &[1, 2, 4, 8]),
        (Float, &[4, 8]),
        (Uuid, &[16]),
        (Floats, &[16, 24, 32]),
        (Opaque, &[1, 3, 6, 12, 64]),
        (Varlena, &[-1]),
        (Numeric, &[-1]),
    ];
    let supported =
        select(fitting).prop_flat_map(move |(value_type, lengths)| (Just(value_type), select(lengths), alignment()));
    let odd = (select(&[Opaque, Integer, Float, Uuid, Varlena, Numeric, Floats][..]), any::<i16>(), alignment());
    prop_oneof![20 => supported, 1 => odd]
        .prop_map(|(value_type, length, alignment)| attribute(value_type, length, alignment))
}

fn any_layout() -> impl Strategy<Value = RelationLayout> {
    let kind = select(&[RelationKind::Heap, RelationKind::Heap, RelationKind::Index, RelationKind::Other][..]);
    let size = select(&[PAGE_SIZES[0], PAGE_SIZES[0], PAGE_SIZES[1], PAGE_SIZES[2], PAGE_SIZES[3]][..]);
    (kind, size, vec(any_attribute(), 0..10)).prop_map(|(kind, size, attributes)| RelationLayout {
        kind,
        page_size_bytes: size as u32,
        attributes,
    })
}

fn any_row(columns: usize) -> impl Strategy<Value = Row> {
    let bytes = prop_oneof![6 => vec(any::<u8>(), 0..20), 2 => Just(vec![0; 8]), 1 => vec(any::<u8>(), 100..300)];
    let value = (bytes, 0_u8..8).prop_map(|(bytes, form)| Value { bytes, form });
    let head = prop_oneof![2 => Just([0; 22]), 1 => any::<[u8; 22]>()];
    (
        vec(option::weighted(0.85, value), columns),
        head,
        prop_oneof![8 => Just(0), 1 => -2_i8..3],
        prop_oneof![15 => Just(None), 1 => any::<u8>().prop_map(Some)],
        prop_oneof![8 => Just(0), 1 => any::<u8>()],
    )
        .prop_map(|(values, head, count_off, data_at, padding)| Row { values, head, count_off, data_at, padding })
}

fn any_pages() -> impl Strategy<Value = Pages> {
    any_layout().prop_flat_map(|layout| {
        let rows = vec(any_row(layout.attributes.len()), 0..12);
        let told = prop_oneof![5 => Just(None), 1 => any_layout().prop_map(Some)];
        let changes = prop_oneof![2 => Just(Vec::new()), 1 => vec((any::<Index>(), any::<u8>()), 1..12)];
        let cut = prop_oneof![4 => Just(0), 1 => 1_usize..5000];
        let first_page = select(&[0, 7, 131_071, u32::MAX][..]);
        (Just(layout), rows, 1_usize..30, first_page, any::<bool>(), told, changes, cut, 0_usize..3).prop_map(
            |(layout, rows, copies, first_page, is_untidy, told, changes, cut, level)| Pages {
                layout,
                rows,
                copies,
                first_page,
                is_untidy,
                told,
                changes,
                cut,
                level,
            },
        )
    })
}

/// Appends `value` as a column of `attribute` stores it.
fn put(value: &Value, attribute: Attribute, padding: u8, data: &mut Vec<u8>) {
    // An alignment that the codec cannot have been told by a server is none.
    let alignment = usize::from(attribute.alignment).clamp(1, 8).next_power_of_two();
    let align = |data: &mut Vec<u8>| data.resize(data.len().next_multiple_of(alignment), padding);
    if attribute.length >= 0 {
        align(data);
        data.extend((0..attribute.length.min(100)).zip(value.bytes.iter().chain(&[0]).cycle()).map(|(_, byte)| byte));
        return;
    }
    let length = value.bytes.len() as u32;
    match value.form {
        0..=2 if length < 127 => data.push((length as u8 + 1) << 1 | 1),
        3 => data.extend_from_slice(&[1, 18]),
        4 => {
            align(data);
            data.extend_from_slice(&((length + 4) << 2 | 2).to_le_bytes());
        }
        // Without a header: whatever the bytes say.
        5 => {}
        // Odd bits, and a length beyond what follows.
        6 | 7 => {
            align(data);
            let odd = if value.form == 6 { 1 } else { 60 << 2 };
            data.extend_from_slice(&(((length + 4) << 2) + odd).to_le_bytes());
        }
        _ => {
            align(data);
            data.extend_from_slice(&((length + 4) << 2).to_le_bytes());
        }
    }
    data.extend_from_slice(&value.bytes);
}

impl Row {
    /// The tuple as it lies on a page of a table or of an index.
    fn tuple(&self, layout: &RelationLayout, copy: usize) -> Vec<u8> {
        let is_null = self.values.iter().any(Option::is_none);
        let mut bitmap = vec![0_u8; if is_null { self.values.len().div_ceil(8) } else { 0 }];
        let mut data = Vec::new();
        for (number, (value, attribute)) in self.values.iter().zip(&layout.attributes).enumerate() {
            let Some(value) = value else { continue };
            if let Some(byte) = bitmap.get_mut(number / 8) {
                *byte |= 1 << (number % 8);
            }
            put(value, *attribute, self.padding, &mut data);
        }
        let mut tuple = self.head.to_vec();
        tuple[0] = tuple[0].wrapping_add(copy as u8);
        if layout.kind == RelationKind::Index {
            tuple.truncate(8);
            bitmap.resize(if is_null { 4 } else { 0 }, 0);
            tuple.extend_from_slice(&bitmap);
            tuple.resize(tuple.len().next_multiple_of(8), self.padding);
            tuple.extend_from_slice(&data);
            tuple.resize(tuple.len().next_multiple_of(8), self.padding);
            let info = tuple.len() as u16 | u16::from(is_null) << 15 | u16::from(self.head[7]) << 8 & 0x6000;
            tuple[6..8].copy_from_slice(&info.to_le_bytes());
            return tuple;
        }
        let count = (self.values.len() as u16).wrapping_add_signed(self.count_off.into()) & 0x07FF;
        tuple[18..20].copy_from_slice(&(count | u16::from(self.head[19]) << 8 & 0xF800).to_le_bytes());
        tuple[20] = tuple[20] & !1 | u8::from(is_null);
        let data_at = (23 + bitmap.len()).next_multiple_of(8);
        tuple.push(self.data_at.unwrap_or(data_at as u8));
        tuple.extend_from_slice(&bitmap);
        tuple.resize(data_at, self.padding);
        tuple.extend_from_slice(&data);
        tuple
    }
}

impl Pages {
    fn content(&self) -> Content {
        let size = self.layout.page_size_bytes as usize;
        let special = vec![0; if self.layout.kind == RelationKind::Index { 16 } else { 0 }];
        let mut random = Random::new(self.copies as u64);
        let mut tuples: Vec<Pointer> = (0..self.copies)
            .flat_map(|copy| self.rows.iter().map(move |row| Pointer::Tuple(row.tuple(&self.layout, copy))))
            .filter(|pointer| room(pointer) < size - HEADER_BYTES - special.len())
            .collect();
        let mut raw = Vec::new();
        // Three pages at most: further ones hold nothing new.
        for block in 0..3 {
            let mut left = size - HEADER_BYTES - special.len();
            let fits = |pointer: &Pointer| {
                let rest = left.checked_sub(room(pointer));
                left = rest.unwrap_or(0);
                rest.is_some()
            };
            let count = tuples.iter().map(fits).take_while(|fits| *fits).count();
            let behind = tuples.split_off(count);
            let manner = if self.is_untidy { Manner::any(&mut random, size) } else { Manner::plain(size) };
            raw.extend(page(&mut random, manner, self.first_page.wrapping_add(block), &tuples, &special));
            tuples = behind;
            if tuples.is_empty() {
                break;
            }
        }
        raw.truncate(raw.len() - self.cut.min(raw.len() - 1));
        for (at, value) in &self.changes {
            let length = raw.len();
            raw[at.index(length)] = *value;
        }
        let layout = self.told.as_ref().unwrap_or(&self.layout).clone();
        let part = OwnedPart { start: 0, length: raw.len(), first_page: self.first_page, layout };
        Content { raw, parts: vec![part] }
    }
}

/// Cases of each property; PROPTEST_CASES gives another number.
fn runner(cases: u32) -> TestRunner {
    let given = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    TestRunner::new(ProptestConfig {
        cases: given.unwrap_or(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

#[test]
fn f52_any_tuples_under_any_layout_come_back() {
    let codecs = RefCell::new([1, 2, 5].map(Codec::new));
    let tested = runner(2000).run(&any_pages(), |pages| {
        codecs.borrow_mut()[pages.level].round_trip_apart(&pages.content());
        Ok(())
    });
    tested.unwrap_or_else(|failed| panic!("{failed}"));
}

#[test]
fn s07_changed_frames_of_any_tuples_are_refused_or_harmless() {
    let codec = RefCell::new(Codec::of_all_streams());
    let changes = vec((any::<Index>(), 1_u8..), 1..4);
    let tested = runner(1000).run(&(any_pages(), vec(changes, 8)), |(pages, changes)| {
        let codec = &mut *codec.borrow_mut();
        let content = pages.content();
        let stored = codec.encode(&content);
        let mut back = vec![0; content.raw.len()];
        for changes in changes {
            let mut changed = stored.clone();
            for (at, mask) in changes {
                changed[at.index(stored.len())] ^= mask;
            }
            if codec.decoder.decode(&changed, &mut back).is_ok() {
                prop_assert!(back == content.raw, "other bytes with the same digest");
            }
        }
        prop_assert_eq!(codec.decoder.decode(&stored, &mut back), Ok(()));
        prop_assert!(back == content.raw);
        Ok(())
    });
    tested.unwrap_or_else(|failed| panic!("{failed}"));
}

/// The tuples above are such as the codec takes apart, not only such as it stores as they are.
#[test]
fn tuples_of_every_alignment_are_taken_apart() {
    let mut codec = Codec::new(2);
    for (value_type, length) in
        [(Integer, 4), (Integer, 8), (Float, 8), (Uuid, 16), (Opaque, 6), (Varlena, -1), (Numeric, -1)]
    {
        for alignment in [1, 2, 4, 8] {
            let attributes = vec![attribute(Integer, 1, 1), attribute(value_type, length, alignment)];
            let layout = RelationLayout { kind: RelationKind::Heap, page_size_bytes: 4096, attributes };
            let row = |number: u8| {
                let values = [vec![number], vec![number, number / 3, 0x80]];
                let values = values.map(|bytes| Some(Value { bytes, form: 0 }));
                Row { values: values.into(), head: [0; 22], count_off: 0, data_at: None, padding: 0 }
            };
            let rows: Vec<Row> = (0..50).map(row).collect();
            let told = |layout| Pages {
                layout,
                rows: rows.clone(),
                copies: 1,
                first_page: 0,
                is_untidy: false,
                told: None,
                changes: Vec::new(),
                cut: 0,
                level: 0,
            };
            let known = told(layout.clone());
            let unknown = Pages { told: Some(RelationLayout::default()), ..known.clone() };
            let [known, unknown] = [known, unknown].map(|pages| codec.round_trip(&pages.content()).len());
            assert!(known < unknown, "{value_type:?} {length} {alignment}: {known}, as text {unknown}");
        }
    }
}
