//! How small WAL becomes, and what it costs: segments in frames of 1 MiB, through zstd and through the page codec.
//!
//! `wal_speed NAME ROUNDS SEGMENT...` prints one line of CSV for each codec: name, codec, bytes, stored bytes, the least
//! seconds of CPU of all rounds for encoding and for decoding. Rounds of all codecs alternate. Every frame is compared.
#![allow(clippy::unwrap_used, reason = "a measurement may stop where it fails")]

use pagehaul_page::{Level, PageDecoder, PageEncoder, Part, RelationLayout};

const FRAME_BYTES: usize = 1 << 20;

enum Codec {
    Zstd(zstd_safe::CCtx<'static>, zstd_safe::DCtx<'static>),
    Page(Box<PageEncoder>, Box<PageDecoder>),
}

impl Codec {
    fn new(name: &str) -> Self {
        let (codec, level) = name.split_once(':').unwrap();
        if codec == "zstd" {
            let mut encoder = zstd_safe::CCtx::create();
            let level = zstd_safe::CParameter::CompressionLevel(level.parse().unwrap());
            encoder.set_parameter(level).unwrap();
            return Codec::Zstd(encoder, zstd_safe::DCtx::create());
        }
        let level = Level::new(level.parse().unwrap()).unwrap();
        Codec::Page(Box::new(PageEncoder::new(level, FRAME_BYTES).unwrap()), Box::new(PageDecoder::new().unwrap()))
    }

    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> usize {
        match self {
            Codec::Zstd(encoder, _) => encoder.compress2(stored, raw).unwrap(),
            Codec::Page(encoder, _) => {
                let layout = RelationLayout::wal(8192);
                let part = Part { start: 0, length: raw.len(), first_page: 0, layout: &layout };
                encoder.encode(raw, &[part], stored).unwrap().unwrap()
            }
        }
    }

    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) {
        match self {
            Codec::Zstd(_, decoder) => assert_eq!(decoder.decompress(raw, stored), Ok(raw.len())),
            Codec::Page(_, decoder) => decoder.decode(stored, raw).unwrap(),
        }
    }
}

/// Seconds of CPU that this thread has had.
fn cpu_s() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    told.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Encodes and decodes all frames; stored bytes and seconds of each.
fn pass(codec: &mut Codec, frames: &[Vec<u8>]) -> (usize, f64, f64) {
    let mut stored = vec![vec![0; FRAME_BYTES + FRAME_BYTES / 8]; frames.len()];
    let begin = cpu_s();
    for (raw, stored) in frames.iter().zip(&mut stored) {
        let length = codec.encode(raw, stored);
        stored.truncate(length);
    }
    let encoded = cpu_s();
    let mut back = vec![vec![0; FRAME_BYTES]; frames.len()];
    let begin_decode = cpu_s();
    for ((raw, stored), back) in frames.iter().zip(&stored).zip(&mut back) {
        codec.decode(stored, &mut back[..raw.len()]);
    }
    let decoded = cpu_s();
    assert!(frames.iter().zip(&back).all(|(raw, back)| raw[..] == back[..raw.len()]));
    (stored.iter().map(Vec::len).sum(), encoded - begin, decoded - begin_decode)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rounds, paths) = (&arguments[0], arguments[1].parse::<usize>().unwrap(), &arguments[2..]);
    let names = ["zstd:1", "zstd:3", "page:1", "page:2", "page:3"];
    let mut codecs: Vec<Codec> = names.iter().map(|name| Codec::new(name)).collect();
    let mut sums = vec![(0, 0.0, 0.0); names.len()];
    let mut bytes = 0;
    for path in paths {
        let segment = std::fs::read(path).unwrap();
        bytes += segment.len();
        let frames: Vec<Vec<u8>> = segment.chunks(FRAME_BYTES).map(<[u8]>::to_vec).collect();
        let mut best = vec![(0, f64::MAX, f64::MAX); names.len()];
        for _ in 0..rounds {
            for (codec, best) in codecs.iter_mut().zip(&mut best) {
                let (stored, encode_s, decode_s) = pass(codec, &frames);
                *best = (stored, encode_s.min(best.1), decode_s.min(best.2));
            }
        }
        for (sum, best) in sums.iter_mut().zip(best) {
            *sum = (sum.0 + best.0, sum.1 + best.1, sum.2 + best.2);
        }
    }
    for (codec, (stored, encode_s, decode_s)) in names.iter().zip(sums) {
        println!("{name},{codec},{bytes},{stored},{encode_s:.4},{decode_s:.4}");
    }
}
