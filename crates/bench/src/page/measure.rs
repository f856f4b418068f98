//! Rounds in turns: in each every codec encodes all frames, then decodes all of them and compares.

use pagehaul_engine::codec::{CodecId, CodecSpec};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use rustix::time::{ClockId, clock_gettime};

use super::coder::Coder;
use super::frames::Frame;
use super::list::FilesOfDatabase;
use super::options::Measuring;

/// What the codecs that take minutes for a database see of it, in frames spread over all.
const SLOW_SAMPLE_BYTES: usize = 24 << 20;
/// zstd's levels from here on are such codecs, and the page codec's that use them for text.
const SLOW_ZSTD_LEVEL: i32 = 16;
const SLOW_PAGE_CODEC: &str = "page:5";

/// What one frame took: the best of all rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) stored_bytes: u64,
    pub(crate) encode_s: f64,
    pub(crate) decode_s: f64,
}

/// One codec.
#[derive(Clone, Debug)]
pub(crate) struct OfCodec {
    pub(crate) name: String,
    /// By frame; None if the codec was not run on it.
    pub(crate) frames: Vec<Option<Took>>,
    /// It saw only a part of the frames, once.
    pub(crate) is_sampled: bool,
}

/// Sums over some frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) raw_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) encode_s: f64,
    pub(crate) decode_s: f64,
}

/// One database.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) raw_bytes: Vec<u64>,
    pub(crate) codecs: Vec<OfCodec>,
}

impl Measured {
    /// Over those of `frames` that both `codec` and `same_as` were run on.
    pub(crate) fn sum(&self, codec: &OfCodec, same_as: &OfCodec, frames: impl Iterator<Item = usize>) -> Sum {
        let mut sum = Sum::default();
        for frame in frames {
            if let (Some(took), Some(_)) = (codec.frames[frame], same_as.frames[frame]) {
                sum.raw_bytes += self.raw_bytes[frame];
                sum.stored_bytes += took.stored_bytes;
                sum.encode_s += took.encode_s;
                sum.decode_s += took.decode_s;
            }
        }
        sum
    }

    /// Over all frames that it was run on.
    pub(crate) fn whole(&self, codec: &OfCodec, same_as: &OfCodec) -> Sum {
        self.sum(codec, same_as, 0..self.raw_bytes.len())
    }

    /// The codec of that name.
    pub(crate) fn codec(&self, name: &str) -> Option<&OfCodec> {
        self.codecs.iter().find(|codec| codec.name == name)
    }
}

/// Runs everything; `each_round` gets every single run: codec, round from 1, and the sums of that round.
///
/// # Errors
/// What codecs return, and `Bug` if one did not give the same bytes back.
pub(crate) fn measure(
    list: &FilesOfDatabase,
    frames: &[Frame],
    options: &Measuring,
    mut each_round: impl FnMut(&str, u32, &Sum) -> Result<()>,
) -> Result<Measured> {
    let raw_bytes: Vec<u64> = frames.iter().map(|frame| frame.bytes.len() as u64).collect();
    let all_bytes: u64 = raw_bytes.iter().sum();
    let slow_step = (all_bytes as usize).div_ceil(SLOW_SAMPLE_BYTES).max(1);
    let of_codec = |name: &String| {
        let is_sampled = slow_step > 1 && is_slow(name);
        OfCodec { name: name.clone(), frames: vec![None; frames.len()], is_sampled }
    };
    let mut codecs: Vec<OfCodec> = options.compression.iter().map(of_codec).collect();
    let mut stored = Vec::new();
    for round in 1..=options.rounds {
        for codec in &mut codecs {
            if codec.is_sampled && round > 1 {
                continue;
            }
            let step = if codec.is_sampled { slow_step } else { 1 };
            let sum = one_round(list, frames, codec, options.frame_size, step, &mut stored)?;
            each_round(&codec.name, round, &sum)?;
        }
    }
    Ok(Measured { raw_bytes, codecs })
}

fn is_slow(name: &str) -> bool {
    name.starts_with(SLOW_PAGE_CODEC)
        || name.parse::<CodecSpec>().is_ok_and(|spec| spec.codec() == CodecId::Zstd && spec.level() >= SLOW_ZSTD_LEVEL)
}

/// Encodes every `step`-th frame into `stored`, then decodes them: nothing of a frame is in the caches when it is decoded.
fn one_round(
    list: &FilesOfDatabase,
    frames: &[Frame],
    codec: &mut OfCodec,
    frame_size: usize,
    step: usize,
    stored: &mut Vec<u8>,
) -> Result<Sum> {
    let mut coder = Coder::new(&codec.name, frame_size)?;
    let (mut sum, mut at) = (Sum::default(), 0);
    let mut places = Vec::new();
    for (number, frame) in frames.iter().enumerate().step_by(step) {
        let parts = frame.parts(list);
        let raw_len = frame.bytes.len();
        stored.resize(stored.len().max(at + raw_len), 0);
        // As in a backup: what does not get smaller is stored as it is, and zeros are not stored at all.
        let room = &mut stored[at..at + raw_len - 1];
        let started_s = thread_cpu_s();
        let length = match frame.bytes.iter().any(|byte| *byte != 0) {
            true => Some(coder.encode(&frame.bytes, &parts, room)?),
            false => None,
        };
        let encode_s = thread_cpu_s() - started_s;
        let stored_bytes = length.map_or(0, |length| length.unwrap_or(raw_len));
        places.push((number, at, length.flatten(), stored_bytes as u64, encode_s));
        at += stored_bytes;
    }
    let mut back = vec![0; frame_size];
    for (number, at, length, stored_bytes, encode_s) in places {
        let raw = &frames[number].bytes;
        let decode_s = match length {
            Some(length) => {
                let back = &mut back[..raw.len()];
                let started_s = thread_cpu_s();
                coder.decode(&stored[at..at + length], back)?;
                let decode_s = thread_cpu_s() - started_s;
                if back != raw {
                    return Err(not_the_same(&codec.name, list, &frames[number]));
                }
                decode_s
            }
            None => 0.0,
        };
        let best = codec.frames[number].unwrap_or(Took { stored_bytes, encode_s, decode_s });
        let (encode_best_s, decode_best_s) = (best.encode_s.min(encode_s), best.decode_s.min(decode_s));
        codec.frames[number] = Some(Took { stored_bytes, encode_s: encode_best_s, decode_s: decode_best_s });
        sum.raw_bytes += raw.len() as u64;
        sum.stored_bytes += stored_bytes;
        sum.encode_s += encode_s;
        sum.decode_s += decode_s;
    }
    Ok(sum)
}

fn not_the_same(codec: &str, list: &FilesOfDatabase, frame: &Frame) -> Error {
    let file = frame.runs.first().map_or_else(String::new, |run| list.files[run.file].path.display().to_string());
    let page = frame.runs.first().map_or(0, |run| run.first_page);
    let cause = format!("the frame from page {page} of {file} came back with other bytes");
    Error::new(ErrorKind::Bug, format!("decode what {codec} encoded"), cause)
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
