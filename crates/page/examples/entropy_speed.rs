//! What the entropy coders make of ten typical streams: bytes per value, and the speed in MB of raw values per second.
//!
//! `cargo run --release -p pagehaul-page --example entropy_speed [SECONDS_PER_STREAM]`

#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    unreachable_pub,
    reason = "the crate's private modules, of which this uses a part"
)]

use std::time::{Duration, Instant};

#[path = "../src/entropy/mod.rs"]
mod entropy;
#[path = "../src/error.rs"]
mod error;

use entropy::{ByteCoder, ByteDecoder, Effort, FloatCoder, FloatDecoder, NumberCoder, NumberDecoder, Reader};

const COUNT: u64 = 8000;

struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

enum Stream {
    Bytes(Vec<u8>),
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
    Floats(Vec<u64>),
}

fn streams() -> Vec<(&'static str, Stream)> {
    let mut noise = Noise(1);
    let mut make = |value: &mut dyn FnMut(&mut Noise, u64) -> u64| -> Vec<u64> {
        (0..COUNT).map(|at| value(&mut noise, at)).collect()
    };
    let narrow = |values: Vec<u64>| Stream::Narrow(values.into_iter().map(|value| value as u32).collect());
    let mut time = 700_000_000_000_000;
    let mut key = 0;
    vec![
        ("constant", narrow(make(&mut |_, _| 5))),
        ("progression", narrow(make(&mut |_, at| 100 + at))),
        ("item counts 1..50", narrow(make(&mut |noise, _| 1 + noise.below(50)))),
        ("transaction ids, long runs", narrow(make(&mut |noise, at| 900_000 + at / 300 * 7 + noise.below(400) / 399))),
        ("foreign keys", narrow(make(&mut |noise, _| noise.below(200_000)))),
        (
            "serial keys with gaps",
            narrow(make(&mut |noise, _| {
                key += 1 + noise.below(40) / 36;
                key
            })),
        ),
        ("powers", narrow(make(&mut |noise, _| noise.below(1 << 31) >> noise.below(28)))),
        (
            "jittered times",
            Stream::Wide(make(&mut |noise, _| {
                time += 1_000_000 + noise.below(3000);
                time
            })),
        ),
        ("cents", Stream::Floats(make(&mut |noise, _| ((noise.below(90_000) as f64) / 100.0).to_bits()))),
        (
            "skewed bytes",
            Stream::Bytes(
                make(&mut |noise, _| noise.below(200) * noise.below(200) / 300)
                    .iter()
                    .map(|value| *value as u8)
                    .collect(),
            ),
        ),
        (
            "flag bytes",
            Stream::Bytes(make(&mut |noise, _| noise.below(30) / 28).iter().map(|value| *value as u8).collect()),
        ),
        (
            "letters",
            Stream::Bytes(
                make(&mut |noise, _| 97 + noise.below(5) * noise.below(6)).iter().map(|value| *value as u8).collect(),
            ),
        ),
    ]
}

fn measure(time: Duration, mut work: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let end = Instant::now() + time;
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..20 {
            work();
        }
        best = best.min(start.elapsed().as_secs_f64() / 20.0);
    }
    best
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(0.15);
    let time = Duration::from_secs_f64(seconds);
    for effort in [Effort::Fast, Effort::Default] {
        println!("{effort:?}: bytes per value, MB/s encoded, MB/s decoded");
        let (mut bytes, mut numbers, mut floats) =
            (ByteCoder::new(effort), NumberCoder::new(effort), FloatCoder::new(effort));
        let (mut bytes_back, mut numbers_back, mut floats_back) =
            (ByteDecoder::new(), NumberDecoder::new(), FloatDecoder::new());
        let (mut small, mut narrow, mut wide) = (Vec::new(), Vec::new(), Vec::new());
        for (name, stream) in streams() {
            let mut out = Vec::new();
            let encode = measure(time, || {
                out.clear();
                match &stream {
                    Stream::Bytes(values) => bytes.encode(values, &mut out),
                    Stream::Narrow(values) => numbers.encode_u32(values, None, &mut out),
                    Stream::Wide(values) => numbers.encode_u64(values, None, &mut out),
                    Stream::Floats(values) => floats.encode_f64(values, None, &mut out),
                }
            });
            let count = COUNT as usize;
            let decode = measure(time, || {
                small.clear();
                narrow.clear();
                wide.clear();
                let mut reader = Reader::new(&out);
                let decoded = match &stream {
                    Stream::Bytes(_) => bytes_back.decode(&mut reader, count, &mut small),
                    Stream::Narrow(_) => numbers_back.decode_u32(&mut reader, count, None, &mut narrow),
                    Stream::Wide(_) => numbers_back.decode_u64(&mut reader, count, None, &mut wide),
                    Stream::Floats(_) => floats_back.decode_f64(&mut reader, count, None, &mut wide),
                };
                assert!(decoded.is_ok());
            });
            let size = match stream {
                Stream::Bytes(_) => 1.0,
                Stream::Narrow(_) => 4.0,
                Stream::Wide(_) | Stream::Floats(_) => 8.0,
            } * COUNT as f64
                / 1e6;
            println!(
                "{name:>28} {:7.3} {:8.0} {:8.0}  mode {:?}",
                out.len() as f64 / COUNT as f64,
                size / encode,
                size / decode,
                &out[2..5.min(out.len())]
            );
        }
    }
}
