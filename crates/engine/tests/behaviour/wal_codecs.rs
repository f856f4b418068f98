//! WAL through each codec: what is stored comes back, and the page codec is worth its name.

use pagehaul_engine::pipeline::{CodecSpec, NoObserver};
use pagehaul_engine::source::postgres::wal_header::SegmentHeader;
use pagehaul_engine::terms::WalSegmentName;
use pagehaul_engine::wal::{Piece, PushRequest, push, put_piece};

use super::wal_archive::{Archive, source};

#[test]
fn every_codec_delivers_what_was_stored() {
    for codec in ["none", "lz4", "zstd:3", "deflate:1", "page:3"] {
        let archive = Archive::new();
        let compression: CodecSpec = codec.parse().unwrap();
        let files = vec![archive.path(0), archive.path(1), archive.path(2)];
        let request = PushRequest { compression, encoders: Some(3), ..PushRequest::new(source(), files) };
        let report = push(&archive.repository(), &request, &NoObserver).unwrap();
        assert!(report.first_error().is_none(), "{codec}: {:?}", report.first_error());
        archive.assert_delivers(&[0, 1, 2]);
    }
}

/// Bytes of all objects after segments 0 to 5 were stored with `codec`.
fn stored_bytes(archive: &Archive, codec: &str) -> u64 {
    let files = (0..6).map(|place| archive.path(place)).collect();
    let request = PushRequest { compression: codec.parse().unwrap(), ..PushRequest::new(source(), files) };
    let report = push(&archive.repository(), &request, &NoObserver).unwrap();
    assert!(report.first_error().is_none(), "{codec}: {:?}", report.first_error());
    archive.assert_delivers(&[0, 1, 2, 3, 4, 5]);
    let bytes = archive.objects().iter().map(|path| path.metadata().unwrap().len()).sum();
    std::fs::remove_dir_all(archive.repo()).unwrap();
    bytes
}

#[test]
fn the_page_codec_stores_wal_much_smaller_than_zstd_does() {
    let archive = Archive::new();
    let [zstd, page] = ["zstd:3", "page:2"].map(|codec| stored_bytes(&archive, codec));
    eprintln!("{zstd} bytes with zstd, {page} with the page codec");
    assert!(page * 100 < zstd * 85, "{zstd} bytes with zstd, {page} with the page codec");
    // Pieces begin anywhere: pages are looked for in each.
    let (name, bytes) = archive.segments[2].clone();
    let segment: WalSegmentName = name.parse().unwrap();
    let header = SegmentHeader::parse(&bytes, &segment).unwrap();
    let cuts = [0, 300_001, 300_002, 700_000, bytes.len()];
    for cut in cuts.windows(2) {
        let piece = Piece {
            source: &source(),
            segment: &segment,
            header,
            offset: cut[0] as u32,
            bytes: &bytes[cut[0]..cut[1]],
            facts: None,
            compression: "page".parse().unwrap(),
        };
        assert!(put_piece(&archive.repository(), &piece).unwrap());
    }
    let pieces: u64 = archive.objects().iter().map(|path| path.metadata().unwrap().len()).sum();
    std::fs::remove_dir_all(archive.repo()).unwrap();
    let request =
        PushRequest { compression: "zstd:3".parse().unwrap(), ..PushRequest::new(source(), vec![archive.path(2)]) };
    assert!(push(&archive.repository(), &request, &NoObserver).unwrap().first_error().is_none());
    let whole = archive.objects()[0].metadata().unwrap().len();
    assert!(pieces < whole, "{pieces} bytes in pieces with the page codec, {whole} as one with zstd");
}
