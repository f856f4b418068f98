//! Parts without a store: what they are made of, and that its memory goes round.

use std::sync::Arc;

use bytes::Bytes;

use super::parts::{Part, PartMemory, memory_bytes};
use crate::io::AlignedBytes;
use crate::storage::{HEAD_BYTES, HeadedBytes};

const SIZE: u64 = 1 << 20;
const BUFFER: usize = 1 << 17;

/// A buffer's frames: of these lengths, one behind the other.
fn frames(lengths: &[usize]) -> Vec<HeadedBytes> {
    let mut end = 0;
    let mut frame = |length: &usize| {
        end += length;
        HeadedBytes { head: [7; HEAD_BYTES], bytes: end - length..end }
    };
    lengths.iter().map(&mut frame).collect()
}

fn buffer(value: u8) -> AlignedBytes {
    let mut bytes = AlignedBytes::new(BUFFER).unwrap();
    bytes.fill(value);
    bytes
}

#[test]
fn full_buffers_are_sent_from_where_they_are_and_others_take_their_place() {
    let memory = Arc::default();
    let mut part = Part::new(&memory, SIZE);
    // A header that was copied is no hindrance.
    assert!(part.copy(&[1; 512]).unwrap().is_empty());
    let mut bytes = buffer(2);
    let place = bytes.as_ptr();
    let mut kept = part.keep(&mut bytes, &frames(&[BUFFER])).unwrap().expect("a full buffer is kept");
    assert_eq!((kept.as_ptr(), bytes.len()), (place, BUFFER), "it is the buffer's memory");
    assert_ne!(bytes.as_ptr(), place, "the buffer has other memory");
    bytes.fill(9);
    part.share(&mut kept);
    let pieces = part.into_pieces();
    assert_eq!(
        pieces.concat(),
        [vec![1; 512], vec![2; BUFFER]].concat(),
        "what the buffer is filled with next is elsewhere"
    );
    assert_eq!(pieces[1].as_ptr(), place);
    // Once it has arrived, its memory is what the next buffer gets.
    drop((pieces, kept));
    let mut part = Part::new(&memory, SIZE);
    let _kept = part.keep(&mut bytes, &frames(&[BUFFER])).unwrap().expect("kept");
    assert_eq!(bytes.as_ptr(), place);
}

#[test]
fn buffers_that_are_not_full_are_copied_together() {
    let memory = Arc::default();
    let mut part = Part::new(&memory, SIZE);
    let mut bytes = buffer(2);
    let place = bytes.as_ptr();
    for _ in 0..16 {
        assert!(part.keep(&mut bytes, &frames(&[BUFFER / 16, BUFFER / 16])).unwrap().is_none());
        assert!(part.copy(&bytes[..BUFFER / 8]).unwrap().is_empty());
    }
    assert_eq!(bytes.as_ptr(), place);
    assert!(part.keep(&mut bytes, &frames(&[BUFFER])).unwrap().is_some(), "one that is full goes on");
    assert_eq!(part.into_pieces(), vec![Bytes::from(vec![2; BUFFER / 4]); 8], "blocks are full");

    // In all at most one block of a part is memory without use.
    let mut part = Part::new(&memory, SIZE);
    let nearly = [BUFFER - BUFFER / 8];
    assert!(part.keep(&mut bytes, &frames(&nearly)).unwrap().is_some());
    assert!(part.keep(&mut bytes, &frames(&nearly)).unwrap().is_some());
    assert!(part.keep(&mut bytes, &frames(&nearly)).unwrap().is_none());
    assert!(part.copy(&bytes[..1]).unwrap().is_empty());
    assert!(
        part.keep(&mut bytes, &frames(&[BUFFER])).unwrap().is_none(),
        "the block that is begun is as good as unused"
    );
    assert!(
        Part::new(&memory, SIZE / 16).keep(&mut bytes, &frames(&[BUFFER])).unwrap().is_none(),
        "larger than the part"
    );
}

#[test]
fn a_part_ends_where_it_should_whatever_it_is_made_of() {
    let memory = Arc::default();
    let mut part = Part::new(&memory, SIZE);
    assert!(part.copy(&vec![1; SIZE as usize - 10]).unwrap().is_empty());
    let mut bytes = Bytes::from(vec![2; 100]);
    part.share(&mut bytes);
    assert!(part.is_full() && bytes.len() == 90);
    assert_eq!(part.into_pieces().concat(), [vec![1; SIZE as usize - 10], vec![2; 10]].concat());
    let mut part = Part::new(&memory, SIZE);
    part.share(&mut Bytes::from(vec![1; SIZE as usize - 10]));
    assert_eq!(part.copy(&[2; 100]).unwrap().len(), 90);
    assert!(part.is_full());
    assert_eq!(part.into_pieces().concat().len() as u64, SIZE);
}

/// A part made of buffers, the last of which is left over in part; each has room for `unused` more.
fn part_of_buffers(memory: &Arc<PartMemory>, unused: usize) -> Vec<Bytes> {
    let mut part = Part::new(memory, SIZE);
    while !part.is_full() {
        let mut kept = part.keep(&mut buffer(1), &frames(&[BUFFER - unused])).unwrap().expect("kept");
        let mut kept = kept.split_to(BUFFER - unused);
        part.share(&mut kept);
    }
    part.into_pieces()
}

#[test]
fn memory_is_no_more_than_what_parts_held_at_once_whatever_they_were_made_of() {
    for unused in [0, BUFFER / 64] {
        let memory: Arc<PartMemory> = Arc::default();
        for _ in 0..3 {
            let made_of_buffers = part_of_buffers(&memory, unused);
            let mut copied = Part::new(&memory, SIZE);
            assert!(copied.copy(&vec![1; SIZE as usize]).unwrap().is_empty());
            drop((copied, made_of_buffers));
            let two_of_buffers = [part_of_buffers(&memory, unused), part_of_buffers(&memory, unused)];
            drop(two_of_buffers);
            assert!(memory.free_bytes() as u64 <= memory_bytes(2, SIZE) + 2 * BUFFER as u64);
        }
    }
}
