//! How much memory the two ends take, counted allocation by allocation; zstd's own is not seen here, and small for decoding.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use pagehaul_page::{Level, PageDecoder, PageEncoder, decoder_state_size_bytes, encoder_state_size_bytes};

use crate::documents::Json;
use crate::frames::{Codec, Content};
use crate::gin::GinIndex;
use crate::gist::GistIndex;
use crate::hash::HashIndex;
use crate::heap::Table;
use crate::random::Random;
use crate::spgist::SpGistIndex;
use crate::values::{Column, Habit, attribute};
use crate::wal::short_records;
use pagehaul_page::ValueType::{Float, Floats, Integer, Jsonb, Numeric, Uuid, Varlena};

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: everything is System's; only sizes are counted, in cells of the thread that need no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new exist side by side while the bytes move.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// The most bytes at one time that were not there before.
    pub(crate) peak: usize,
}

pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, Measured) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, Measured { peak: (PEAK.get() - before) as usize })
}

/// Of values of variable length.
const LARGE_VALUES: [Habit; 5] = [Habit::Geometries, Habit::Chunks, Habit::Noise, Habit::PackedChunks, Habit::Packed];

/// Frames of `size` bytes, each hard on memory in another way.
fn frames(size: usize) -> Vec<(String, Content)> {
    let mut random = Random::new(21);
    let mut frames = Vec::new();
    let mut add = |name: &str, columns: Vec<Column>, is_untidy: bool| {
        let mut random = Random::new(22);
        let mut table = Table { is_untidy, ..Table::new(8192, columns) };
        let mut content = Content::default();
        content.push(table.layout(), 0, (size / 8192) as u32, |block| table.page(&mut random, block));
        frames.push((name.to_owned(), content));
    };
    let column = |value_type, length: i16, habit| Column {
        attribute: attribute(value_type, length, length.unsigned_abs() as u8),
        habit,
        null_percent: 0,
    };
    add("no columns", Vec::new(), false);
    add("numbers", vec![column(Integer, 4, Habit::Serial(1)), column(Integer, 8, Habit::Any)], false);
    add("halves", vec![column(Integer, 2, Habit::Any); 300], false);
    add("bytes", vec![column(Integer, 1, Habit::Any); 1500], false);
    add("wide numbers", vec![column(Integer, 8, Habit::Any); 120], false);
    add("numerics", vec![column(Numeric, -1, Habit::Any); 100], false);
    add("texts", vec![column(Varlena, -1, Habit::Any); 4], true);
    add("few texts", vec![column(Varlena, -1, Habit::Few(1)); 100], false);
    add("hundreds of texts", vec![column(Varlena, -1, Habit::Hundreds(1)); 4], false);
    add("same numerics", vec![column(Numeric, -1, Habit::Constant(0)); 500], false);
    add("mixed numerics", vec![column(Numeric, -1, Habit::Constant(0)), column(Numeric, -1, Habit::Any)], true);
    // Values that are nothing but their header: four bytes of length for one of content.
    add("empty texts", vec![column(Varlena, -1, Habit::Constant(0)); 1500], false);
    add("floats", vec![column(Float, 8, Habit::Decimals(1)), column(Float, 8, Habit::Any)], false);
    let shape = |length, habit| Column { attribute: attribute(Floats, length, 8), habit, null_percent: 0 };
    add("shapes", vec![shape(32, Habit::Any), shape(16, Habit::Decimals(1)), shape(24, Habit::Decimals(1))], false);
    add("arrays of floats", vec![column(Varlena, -1, Habit::Decimals(1)); 2], false);
    LARGE_VALUES.iter().for_each(|habit| add(&format!("{habit:?}"), vec![column(Varlena, -1, *habit)], false));
    add("keys", vec![column(Integer, 8, Habit::Hundreds(1))], false);
    let uuid = Column { attribute: attribute(Uuid, 16, 1), habit: Habit::Hundreds(1), null_percent: 0 };
    add("many keys", vec![uuid; 60], false);
    add("documents", vec![column(Jsonb, -1, Habit::Any); 2], false);
    add("few documents", vec![column(Jsonb, -1, Habit::Few(1)); 100], false);
    frames.extend(documents(size));
    frames.extend(untold(size));
    frames.extend(indexes(size));
    let mut unused = Content::default();
    let layout = Table::new(8192, Vec::new()).layout();
    unused.push(layout, 0, (size / 8192) as u32, |_| {
        let mut page = vec![0; 8192];
        let bounds: [u16; 4] = [8192, 8192, 8192, 8196];
        page[12..20].copy_from_slice(bounds.map(u16::to_le_bytes).as_flattened());
        (0..2042).for_each(|n: usize| {
            page[24 + 4 * n..][..4].copy_from_slice(&random.pick(&[5_u32, 0x10001, 0]).to_le_bytes());
        });
        page
    });
    frames.push(("pointers only".to_owned(), unused));
    let mut wal = Content::default();
    wal.push_wal(&mut random, size * 3 / 4);
    for (name, mut content) in [("any WAL", wal), ("short records of WAL", short_records(size))] {
        content.raw.resize(size, 0);
        content.parts[0].length = size;
        frames.push((name.to_owned(), content));
    }
    frames.push(("noise".to_owned(), Content { raw: random.bytes(size), parts: Vec::new() }));
    let hashes = random.bytes(size).into_iter().map(|byte| b"0123456789abcdef"[usize::from(byte % 16)]).collect();
    frames.push(("hashes".to_owned(), Content { raw: hashes, parts: Vec::new() }));
    let mut floats = random.bytes(size);
    floats.iter_mut().skip(3).step_by(4).for_each(|exponent| *exponent = 0x3d);
    frames.push(("floats alone".to_owned(), Content { raw: floats, parts: Vec::new() }));
    frames.push(("anything".to_owned(), anything(size)));
    frames
}

/// Content of all kinds, one behind the other.
fn anything(size: usize) -> Content {
    let mut random = Random::new(23);
    let mut any = Content::default();
    while any.raw.len() < size {
        let more = Content::any(&mut random);
        let at = any.raw.len();
        any.raw.extend_from_slice(&more.raw);
        any.parts
            .extend(more.parts.into_iter().map(|part| crate::frames::OwnedPart { start: part.start + at, ..part }));
    }
    any.raw.truncate(size);
    any.parts.retain(|part| part.start + part.length <= size);
    any
}

/// Columns that nobody told of, as many as are looked for.
fn untold(size: usize) -> Vec<(String, Content)> {
    let mut random = Random::new(21);
    let columns = [("untold bytes", attribute(Integer, 1, 1), 250), ("untold texts", attribute(Varlena, -1, 1), 12)];
    let content_of = |(name, attribute, count): (&str, _, usize)| {
        let columns = vec![Column { attribute, habit: Habit::Any, null_percent: 0 }; count];
        let mut table = Table { is_untidy: true, ..Table::new(8192, columns) };
        let mut content = Content::default();
        content.push(table.layout(), 0, (size / 8192) as u32, |block| table.page(&mut random, block));
        content.parts[0].layout.attributes.clear();
        (name.to_owned(), content)
    };
    columns.map(content_of).into()
}

/// Indexes of all kinds that have tuples.
fn indexes(size: usize) -> Vec<(String, Content)> {
    let mut random = Random::new(21);
    let mut frames = Vec::new();
    let (mut hash, mut gist) = (HashIndex::new(8192, false), GistIndex::of_boxes(8192));
    let mut indexes = Content::default();
    indexes.push(hash.layout(), 1, (size / 16384) as u32, |block| hash.bucket(&mut random, block));
    indexes.push(gist.layout(), 1, (size / 16384) as u32, |block| gist.leaf(&mut random, block));
    frames.push(("hash and GiST indexes".to_owned(), indexes));
    let (mut spgist, mut index) = (SpGistIndex::of_points(8192), Content::default());
    index.push(spgist.layout(), 1, (size / 8192) as u32, |block| spgist.leaf(&mut random, block));
    frames.push(("SP-GiST indexes".to_owned(), index));
    for (name, step) in [("near", 2), ("far", 300), ("scattered", 70_000)] {
        let mut index = Content::default();
        let mut gin = GinIndex::new(8192, attribute(Integer, 4, 4), step);
        index.push(gin.layout(), 1, (size / 8192) as u32, |block| gin.leaf(&mut random, block));
        frames.push((format!("GIN indexes of rows {name}"), index));
    }
    frames
}

/// Documents that are small for what the model keeps of them: shapes and keys of their own, lists of nothing much.
fn documents(size: usize) -> Vec<(String, Content)> {
    let texts = |count: usize, one: &[u8]| vec![Json::Text(one.to_vec()); count];
    let mut number = 0;
    let mut key = || {
        number += 1;
        (format!("{number:x}").into_bytes(), Json::Null)
    };
    let keys: Vec<Json> = (0..size / 900).map(|_| Json::Object((0..60).map(|_| key()).collect())).collect();
    let shapes = (0..1 << 20_u32).map(|number| {
        let one = |bit| if number >> bit & 1 == 0 { Json::Null } else { Json::Text(Vec::new()) };
        Json::Array((0..12).map(one).collect())
    });
    let cases: [(&str, Vec<Json>); 6] = [
        ("keys", keys),
        ("shapes", shapes.take(size / 80).collect()),
        ("empty texts", vec![Json::Array(texts(1900, b"")); size / 8000]),
        ("short texts", vec![Json::Array(texts(1500, b"a")); size / 8000]),
        ("booleans", vec![Json::Array(vec![Json::Bool(true); 1900]); size / 8000]),
        ("empty lists", vec![Json::Array(vec![Json::Array(Vec::new()); 900]); size / 8000]),
    ];
    let frame = |(name, documents): (&str, Vec<Json>)| {
        let mut content = Content { raw: Vec::new(), parts: Vec::new() };
        let attribute = attribute(Jsonb, -1, 4);
        let mut table = Table::new(8192, vec![Column { attribute, habit: Habit::Any, null_percent: 0 }]);
        let mut stored = documents.iter().map(Json::stored).peekable();
        let mut random = Random::new(23);
        content.push(table.layout(), 0, (size / 8192) as u32, |block| match stored.peek() {
            Some(_) => table.page_of(&mut random, block, &mut stored),
            None => vec![0; 8192],
        });
        (format!("documents of {name}"), content)
    };
    cases.into_iter().map(frame).collect()
}

/// The most bytes that an encoder and a decoder held, of all frames one after the other and of each alone.
fn hold_their_promises(level: u8, size: usize) {
    let level = Level::new(level).unwrap();
    let frames = frames(size);
    let (encoder_max, decoder_max) = (encoder_state_size_bytes(level, size), decoder_state_size_bytes());
    let mut failed = Vec::new();
    let mut check = |name: &str, who: &str, measured: Measured, most: u64| {
        println!("{size} level {level} {name}: {who} {} of {most}", measured.peak);
        if measured.peak as u64 > most {
            failed.push(format!("{name}: {who} {} of {most}", measured.peak));
        }
    };
    let mut stored = vec![0; size * 2];
    let mut back = vec![0; size];
    let (_, all) = measured(|| {
        let mut encoder = PageEncoder::new(level, size).unwrap();
        frames.iter().for_each(|(_, content)| {
            encoder.encode(&content.raw, &content.parts(), &mut stored).unwrap().unwrap();
        });
    });
    check("all frames", "encoder", all, encoder_max);
    let mut every_frame = Vec::new();
    for (name, content) in &frames {
        let parts = content.parts();
        let (length, one) = measured(|| {
            let mut encoder = PageEncoder::new(level, size).unwrap();
            encoder.encode(&content.raw, &parts, &mut stored).unwrap().unwrap()
        });
        check(name, "encoder", one, encoder_max);
        every_frame.push(stored[..length].to_vec());
        let (_, one) = measured(|| PageDecoder::new().unwrap().decode(&stored[..length], &mut back).unwrap());
        check(name, "decoder", one, decoder_max);
    }
    let (_, all) = measured(|| {
        let mut decoder = PageDecoder::new().unwrap();
        every_frame.iter().for_each(|stored| decoder.decode(stored, &mut back).unwrap());
    });
    check("all frames", "decoder", all, decoder_max);
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn small_frames_keep_to_the_memory_told() {
    hold_their_promises(2, 128 << 10);
    hold_their_promises(5, 128 << 10);
}

#[test]
fn usual_frames_keep_to_the_memory_told() {
    hold_their_promises(1, 1 << 20);
}

#[test]
fn large_frames_keep_to_the_memory_told() {
    [2, 5].into_iter().for_each(|level| hold_their_promises(level, 4 << 20));
}

#[test]
fn a_moving_level_keeps_to_the_memory_of_the_largest() {
    let size = 1 << 20;
    let (frames, most) = (frames(size), encoder_state_size_bytes(Level::MAX, size));
    let mut stored = vec![0; size * 2];
    let (_, all) = measured(|| {
        let mut encoder = PageEncoder::new(Level::FAST, size).unwrap();
        for ((_, content), level) in frames.iter().zip((1..=Level::MAX.number()).filter_map(Level::new).cycle()) {
            encoder.set_level(level);
            encoder.encode(&content.raw, &content.parts(), &mut stored).unwrap().unwrap();
        }
    });
    println!("{} of {most}", all.peak);
    assert!(all.peak as u64 <= most, "{} of {most}", all.peak);
}

/// What one frame needed the next one finds.
#[test]
fn documents_again_allocate_nothing() {
    let mut random = Random::new(24);
    let columns = vec![Column { attribute: attribute(Jsonb, -1, 4), habit: Habit::Any, null_percent: 5 }];
    let mut table = Table::new(8192, columns);
    let mut content = Content::default();
    content.push(table.layout(), 0, 32, |block| table.page(&mut random, block));
    let (parts, mut codec) = (content.parts(), Codec::of_all_streams());
    let mut stored = codec.round_trip(&content);
    let mut back = vec![0; content.raw.len()];
    let (length, encoded) = measured(|| codec.encoder.encode(&content.raw, &parts, &mut stored));
    let length = length.unwrap().unwrap();
    let (decoded, Measured { peak }) = measured(|| codec.decoder.decode(&stored[..length], &mut back));
    assert_eq!(decoded, Ok(()));
    assert_eq!((encoded.peak, peak), (0, 0));
}

/// The engine's threads have four times this stack. One that is too small ends the whole test.
#[test]
fn a_stack_of_128_kib_suffices() {
    let work = || {
        let frames = frames(128 << 10);
        for level in 1..=Level::MAX.number() {
            let mut codec = Codec::new(level);
            frames.iter().for_each(|(_, content)| drop(codec.round_trip(content)));
        }
    };
    std::thread::Builder::new().stack_size(128 << 10).spawn(work).unwrap().join().unwrap();
}
