//! FORMAT.md from outside: a decoder of its own, which was written from that document alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use pagehaul_page::ValueType::{Jsonb, Varlena};

use crate::discover::{pages_of, references};
use crate::documents::heap_of_codes;
use crate::frames::{Codec, Content};
use crate::heap::Table;
use crate::random::Random;
use crate::values::{Column, Habit, attribute};
use crate::wal::wal_of_all_kinds;

#[test]
fn what_the_document_says_is_enough_to_decode_frames() {
    let has_libraries = Command::new("python3").args(["-c", "import ctypes; ctypes.CDLL('libzstd.so.1')"]).output();
    if !has_libraries.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no python3 with libzstd.so.1: whether FORMAT.md is enough is not tested");
        return;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("frames");
    fs::remove_dir_all(&directory).ok();
    fs::create_dir_all(&directory).unwrap();
    let (mut random, mut codecs) = (Random::new(63), [1, 2, 3, 4, 5].map(Codec::new));
    let level_count = codecs.len();
    let mut contents = pages_of(&mut Table::new(8192, references()), &mut random, 1);
    // What any pages have only now and then.
    let of_any_type = [Habit::Chunks, Habit::Geometries, Habit::Noise, Habit::PackedChunks, Habit::Packed]
        .map(|habit| (Varlena, habit));
    for (value_type, habit) in of_any_type.into_iter().chain([(Jsonb, Habit::Any)]) {
        let columns = vec![Column { attribute: attribute(value_type, -1, 4), habit, null_percent: 0 }];
        contents.extend(pages_of(&mut Table::new(8192, columns), &mut random, level_count as u32));
    }
    contents.extend((0..level_count).map(|_| heap_of_codes(&mut random)));
    for number in 0..2 * level_count {
        let mut content = wal_of_all_kinds(&mut random);
        // A page that nobody has written yet, and one that is none of WAL.
        for page in content.raw.chunks_mut(8192).skip(1).step_by(2).take(number % 3) {
            page.fill(if number % 2 == 0 { 0 } else { 0x5A });
        }
        contents.push(content);
    }
    contents.extend((0..150).map(|_| Content::any(&mut random)));
    for (number, mut content) in contents.into_iter().enumerate() {
        if number % 3 == 1 {
            content.spoil(&mut random);
        }
        let stored = codecs[number % level_count].encode(&content);
        fs::write(directory.join(format!("{number}.frame")), stored).unwrap();
        fs::write(directory.join(format!("{number}.raw")), &content.raw).unwrap();
    }
    let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format/decode.py");
    let decoded = Command::new("python3").args(["-B", decoder]).arg(&directory).output().unwrap();
    let said = [decoded.stdout, decoded.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(decoded.status.success(), "{}", said.concat());
}
