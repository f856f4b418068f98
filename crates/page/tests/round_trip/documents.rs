//! jsonb as the server writes it (src/backend/utils/adt/jsonb_util.c, convertJsonb...), and as it never would.

use pagehaul_page::ValueType;

use crate::frames::{Codec, Content};
use crate::heap::Table;
use crate::random::{Random, with_seeds};
use crate::values::{Column, Habit, attribute, numeric};

#[derive(Clone, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// As stored, without the word of its length.
    Number(Vec<u8>),
    Text(Vec<u8>),
    Array(Vec<Json>),
    /// Keys in the server's order, if it is to be as the server's.
    Object(Vec<(Vec<u8>, Json)>),
}

impl Json {
    /// The payload of a value of type jsonb.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Json::Array(_) | Json::Object(_) => drop(self.put(&mut out)),
            scalar => put_container(0x5000_0001, &[], &[scalar], &mut out),
        }
        out
    }

    /// Appends a value's bytes; its type.
    fn put(&self, out: &mut Vec<u8>) -> u32 {
        match self {
            Json::Null => 4,
            Json::Bool(value) => 2 + u32::from(*value),
            Json::Text(text) => {
                out.extend_from_slice(text);
                0
            }
            Json::Number(number) => {
                out.resize(out.len().next_multiple_of(4), 0);
                out.extend_from_slice(&((number.len() as u32 + 4) << 2).to_le_bytes());
                out.extend_from_slice(number);
                1
            }
            Json::Array(values) => {
                let values: Vec<&Json> = values.iter().collect();
                put_container(0x4000_0000 | values.len() as u32, &[], &values, out);
                5
            }
            Json::Object(pairs) => {
                let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
                let values: Vec<&Json> = pairs.iter().map(|(_, value)| value).collect();
                put_container(0x2000_0000 | pairs.len() as u32, &keys, &values, out);
                5
            }
        }
    }
}

fn put_container(word: u32, keys: &[&[u8]], values: &[&Json], out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(&word.to_le_bytes());
    let table = out.len();
    out.resize(table + 4 * (keys.len() + values.len()), 0);
    let data = out.len();
    let entry = |number: usize, kind: u32, start: usize, out: &mut Vec<u8>| {
        let (length, end) = ((out.len() - start) as u32, (out.len() - data) as u32);
        let measure = if number.is_multiple_of(32) { end | 0x8000_0000 } else { length };
        out[table + 4 * number..][..4].copy_from_slice(&(kind << 28 | measure).to_le_bytes());
    };
    for (number, key) in keys.iter().enumerate() {
        let start = out.len();
        out.extend_from_slice(key);
        entry(number, 0, start, out);
    }
    for (number, value) in values.iter().enumerate() {
        let start = out.len();
        let kind = value.put(out);
        entry(keys.len() + number, kind, start, out);
    }
}

fn text(random: &mut Random, length_max: usize) -> Vec<u8> {
    let length = random.below(length_max + 1);
    (0..length).map(|_| b"etaoin shrdlu-0123"[random.below(18)]).collect()
}

/// A value with containers at most `depth` deep.
fn any_value(random: &mut Random, depth: usize) -> Json {
    match random.below(if depth == 0 { 6 } else { 10 }) {
        0 => Json::Null,
        1 => Json::Bool(random.chance(70)),
        2 | 3 => Json::Number(numeric(random.next())),
        4 => Json::Text(text(random, 6)),
        5 => Json::Text(text(random, 60)),
        6 => {
            let count = random.pick(&[0, 1, 3, 5, 40]);
            Json::Array((0..count).map(|_| any_value(random, depth - 1)).collect())
        }
        7 => {
            let one = any_value(random, 0);
            Json::Array(vec![one; random.pick(&[1, 2, 31, 32, 33, 64, 65])])
        }
        _ => {
            let count = random.pick(&[0, 1, 2, 4, 7, 17, 35]);
            let mut keys: Vec<Vec<u8>> = (0..count).map(|_| key(random)).collect();
            keys.sort_by(|one, other| one.len().cmp(&other.len()).then(one.cmp(other)));
            keys.dedup();
            Json::Object(keys.into_iter().map(|key| (key, any_value(random, depth - 1))).collect())
        }
    }
}

fn key(random: &mut Random) -> Vec<u8> {
    if random.chance(3) {
        return text(random, 12);
    }
    format!("{}{}", random.pick(&["id", "name", "at", "tags", "value"]), random.below(6)).into_bytes()
}

/// Mostly one of few shapes, with leaves of its own; sometimes any; sometimes spoilt.
pub(crate) fn any_document(random: &mut Random) -> Vec<u8> {
    let mut stored = match random.below(8) {
        0 => any_value(random, 3).stored(),
        1 => any_value(random, 0).stored(),
        _ => record(random).stored(),
    };
    if random.chance(4) {
        let at = random.below(stored.len().max(1)).min(stored.len() - 1);
        stored[at] = random.pick(&[0, 0xFF, stored[at] ^ 1, stored[at].wrapping_add(1), stored[at] ^ 0x80]);
    }
    stored
}

/// What a program writes again and again.
fn record(random: &mut Random) -> Json {
    let pair = |key: &str, value: Json| (key.as_bytes().to_vec(), value);
    let levels = ["info", "warning", "error"].map(|level| Json::Text(level.as_bytes().to_vec()));
    let mut pairs = vec![
        pair("ms", Json::Number(numeric(random.next() | 15))),
        pair("ok", Json::Bool(random.chance(90))),
        pair("tags", Json::Array((0..random.below(4)).map(|_| Json::Text(text(random, 4))).collect())),
        pair("text", Json::Text(text(random, 40))),
        pair("user", Json::Object(vec![pair("id", Json::Text(text(random, 8))), pair("ip", Json::Null)])),
        pair("level", levels[random.below(3)].clone()),
    ];
    if random.chance(10) {
        pairs.push(pair("closed", Json::Bool(true)));
    }
    Json::Object(pairs)
}

/// A heap of documents whose strings all have one length.
pub(crate) fn heap_of_codes(random: &mut Random) -> Content {
    let codes = (0..300).map(|_| Json::Object(vec![(b"code".to_vec(), Json::Text(random.bytes(12)))]).stored());
    let [content, _] = heaps(codes);
    content
}

/// A heap of documents, and the same bytes told as values of no known meaning.
fn heaps(documents: impl Iterator<Item = Vec<u8>>) -> [Content; 2] {
    let mut documents = documents.peekable();
    let column =
        |value_type| Column { attribute: attribute(value_type, -1, 4), habit: Habit::Constant(0), null_percent: 0 };
    let mut content = Content::default();
    let mut table = Table::new(8192, vec![column(ValueType::Jsonb)]);
    let mut random = Random::new(7);
    let mut number = 0;
    while documents.peek().is_some() {
        content.push(table.layout(), number, 1, |block| table.page_of(&mut random, block, &mut documents));
        number += 1;
    }
    let first = content.parts[0].clone();
    content.parts = vec![crate::frames::OwnedPart { length: content.raw.len(), ..first }];
    let mut plain = content.clone();
    plain.parts[0].layout.attributes[0].value_type = ValueType::Varlena;
    [content, plain]
}

/// The sizes of both.
fn sizes(documents: impl Iterator<Item = Vec<u8>>) -> [usize; 2] {
    let mut codec = Codec::of_all_streams();
    let sizes = heaps(documents).map(|content| codec.round_trip(&content).len());
    println!("{sizes:?}");
    sizes
}

#[test]
fn documents_of_all_kinds_come_back() {
    let mut codec = Codec::of_all_streams();
    with_seeds(60, |random| {
        let count = random.pick(&[1, 10, 300]);
        let documents: Vec<Vec<u8>> = (0..count).map(|_| any_document(random)).collect();
        for content in heaps(documents.into_iter().filter(|one| one.len() < 8000)) {
            codec.round_trip(&content);
        }
    });
}

#[test]
fn records_are_less_than_three_quarters_of_what_they_are_as_text() {
    let mut random = Random::new(51);
    let [taken, plain] = sizes((0..4000).map(|_| record(&mut random).stored()));
    assert!(taken * 4 < plain * 3, "{taken} {plain}");
}

/// What the model does not take keeps its neighbours apart all the same.
#[test]
fn documents_that_no_server_writes_stand_as_they_are() {
    let mut random = Random::new(52);
    let nested = |depth: usize| (0..depth).fold(Json::Null, |inner, _| Json::Array(vec![inner]));
    let object = |keys: [&[u8]; 2]| {
        Json::Object(keys.map(|key| (key.to_vec(), Json::Text(b"value".to_vec()))).to_vec()).stored()
    };
    let odd = [
        Vec::new(),
        vec![1, 2, 3],
        vec![0xFF; 40],
        nested(24).stored(),
        nested(25).stored(),
        nested(26).stored(),
        nested(300).stored(),
        // Keys in no order, the same key twice, zero bytes in keys and texts.
        object([b"zz", b"a"]),
        object([b"a", b"a"]),
        object([b"a\0b", b"c"]),
        Json::Array(vec![Json::Text(b"a\0b".to_vec()), Json::Text(Vec::new())]).stored(),
        // A scalar that is nested, or of two values; an unknown kind; a length of an array that is none.
        [0x5000_0002_u32, 0xC000_0000, 0x4000_0000].iter().flat_map(|word| word.to_le_bytes()).collect(),
        [0x4000_0001_u32, 0xD000_0008, 0x5000_0001, 0xC000_0000].iter().flat_map(|word| word.to_le_bytes()).collect(),
        [0x6000_0000_u32].iter().flat_map(|word| word.to_le_bytes()).collect(),
        [0x4FFF_FFFF_u32, 0x8000_0000].iter().flat_map(|word| word.to_le_bytes()).collect(),
        [0x2FFF_FFFF_u32, 0x8000_0000].iter().flat_map(|word| word.to_le_bytes()).collect(),
    ];
    let all = (0..2000)
        .map(|number| if number % 9 == 0 { odd[number / 9 % odd.len()].clone() } else { record(&mut random).stored() });
    let [taken, plain] = sizes(all);
    assert!(taken * 10 < plain * 9, "{taken} {plain}");
}

#[test]
fn every_changed_byte_of_a_document_comes_back() {
    let mut random = Random::new(53);
    let mut codec = Codec::of_all_streams();
    let document = loop {
        let document = any_value(&mut random, 3).stored();
        if (200..400).contains(&document.len()) {
            break document;
        }
    };
    let spoilt = (0..document.len()).flat_map(|at| {
        let document = &document;
        [1, 0x10, 0x80, 0xFF].map(move |change| {
            let mut spoilt = document.clone();
            spoilt[at] ^= change;
            spoilt
        })
    });
    heaps(spoilt).iter().for_each(|content| drop(codec.round_trip(content)));
}

/// More keys than columns, more shapes than are kept, and a frame in which every document is alike after it.
#[test]
fn keys_and_shapes_without_end_come_back() {
    let mut random = Random::new(54);
    let many = (0..20_000).map(|number: u32| {
        Json::Object(vec![(format!("key {number}").into_bytes(), Json::Text(text(&mut random, 3)))]).stored()
    });
    let mut codec = Codec::of_all_streams();
    let [content, _] = heaps(many);
    for part in content.raw.chunks(crate::frames::FRAME_SIZE_BYTES) {
        let mut frame = content.clone();
        frame.raw = part.to_vec();
        frame.parts[0].length = part.len();
        codec.round_trip(&frame);
    }
    let [alike, _] = heaps((0..500).map(|_| record(&mut Random::new(1)).stored()));
    let stored = codec.round_trip(&alike);
    assert!(stored.len() * 200 < alike.raw.len(), "{}", stored.len());
}
