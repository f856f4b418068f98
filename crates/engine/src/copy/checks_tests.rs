//! A stripe made by hand, whole, cut, swapped, and with every bit flipped in turn.

use super::*;
use crate::format::checksum::crc32c;
use crate::format::stripe::FrameIndex;
use crate::terms::{SetId, StripeIndex};

const HEADER: StripeHeader =
    StripeHeader { set_id: SetId([7; 16]), stripe: StripeIndex(1), stripe_count: 3, frame_size_bytes: 65_536 };

/// A stripe of three frames, and where each begins.
fn stripe() -> (Vec<u8>, Vec<u64>, FrameIndex) {
    let (mut bytes, mut starts, mut index) = (HEADER.to_bytes().to_vec(), Vec::new(), FrameIndex::default());
    for (sequence, length) in [(0u64, 700usize), (1, 1), (2, 130)] {
        let stored: Vec<u8> = (0..length).map(|at| (at * 31 + sequence as usize) as u8).collect();
        let header = FrameHeader {
            set_id: HEADER.set_id,
            stripe: HEADER.stripe,
            sequence,
            codec: 0,
            raw_size_bytes: length as u32,
            stored_size_bytes: length as u32,
            raw_crc32c: crc32c(&stored),
            stored_xxh3: xxh3(&stored),
        };
        starts.push(bytes.len() as u64);
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(&stored);
        index.push(IndexEntry { stored_size_bytes: length as u32, raw_size_bytes: length as u32 });
    }
    bytes.extend_from_slice(&index.to_trailer(&HEADER));
    (bytes, starts, index)
}

fn expected(size_bytes: u64, index: &FrameIndex) -> ExpectedFrames {
    let trailer = index.to_trailer(&HEADER);
    ExpectedFrames {
        action: "copy it".to_owned(),
        hint: "look".to_owned(),
        first_bytes: HEADER.to_bytes(),
        header: HEADER,
        frame_count: index.frame_count(),
        index_xxh3: hex64(xxh3(&trailer[..trailer.len() - FOOTER_BYTES])),
        size_bytes,
        digests: None,
    }
}

/// What comes of `bytes` in pieces of this size, for a stripe that should have `size_bytes`.
fn check(bytes: &[u8], size_bytes: u64, piece: usize) -> Result<()> {
    let index = stripe().2;
    let mut check = FramesCheck::begin(expected(size_bytes, &index), size_bytes)?;
    bytes.chunks(piece).try_for_each(|bytes| check.take(bytes))?;
    Box::new(check).end()
}

#[test]
fn a_sound_stripe_passes_however_it_is_cut() {
    let (bytes, ..) = stripe();
    for piece in [1, 7, 63, 64, 65, 512, 1000, bytes.len()] {
        check(&bytes, bytes.len() as u64, piece).unwrap_or_else(|error| panic!("{piece}: {error}"));
    }
}

#[test]
fn every_flipped_bit_is_found_and_its_frame_is_named() {
    let (good, starts, index) = stripe();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        let error = check(&bytes, good.len() as u64, 100 + at % 50).expect_err("a flipped bit");
        assert_eq!(error.kind(), ErrorKind::Damage, "byte {at}");
        assert!(error.message().starts_with("unable to copy it: "), "byte {at}: {error}");
        if let Some(frame) = starts.iter().rposition(|start| *start <= at as u64)
            && (at as u64) < index.end_offset()
        {
            let place = format!("frame {frame} at byte {}: ", starts[frame]);
            assert!(error.cause().starts_with(&place), "byte {at}: {error}");
        }
    }
}

#[test]
fn what_is_cut_longer_or_of_another_stripe_is_refused() {
    let (bytes, starts, index) = stripe();
    let size = bytes.len() as u64;
    for length in 0..bytes.len() {
        assert!(check(&bytes[..length], size, 200).is_err(), "cut at {length}");
    }
    assert!(check(&[&bytes[..], b"x"].concat(), size, 200).unwrap_err().message().contains("bytes follow"));
    assert!(FramesCheck::begin(expected(size, &index), size - 1).is_err());
    // Two frames that are sound, in each other's place.
    let (first, second) = (starts[1] as usize..starts[2] as usize, starts[2] as usize..index.end_offset() as usize);
    let swapped = [&bytes[..first.start], &bytes[second.clone()], &bytes[first], &bytes[second.end..]].concat();
    assert!(check(&swapped, size, 200).unwrap_err().message().contains("another frame is in its place"));
    // Another index than the manifest's, though it fits the frames.
    let mut other = expected(size, &index);
    other.index_xxh3 = hex64(1);
    let mut check = FramesCheck::begin(other, size).unwrap();
    assert!(check.take(&bytes).unwrap_err().message().contains("not those that belong to it"));
}

#[test]
fn an_object_is_what_its_digest_says() {
    let bytes = [5u8; 300];
    let digest = ObjectDigest::new("files.table".into(), &crate::format::object_digest::ObjectSums::of(&bytes));
    let check = |bytes: &[u8]| {
        let size_bytes = bytes.len() as u64;
        let mut check = DigestCheck::begin(digest.clone(), "copy it".into(), "look".into(), size_bytes)?;
        bytes.chunks(7).try_for_each(|part| check.take(part))?;
        Box::new(check).end()
    };
    check(&bytes).unwrap();
    assert_eq!(check(&bytes[1..]).unwrap_err().kind(), ErrorKind::Damage);
    let mut flipped = bytes;
    flipped[299] ^= 1;
    assert!(check(&flipped).unwrap_err().message().contains("300 bytes"));
}
