//! Rounds in turns: of a few frames after another every codec encodes all, then decodes all of them and compares.

use std::ops::Range;

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

/// So many frames a codec encodes before it is another's turn: what is compared was measured within seconds, because a virtual
/// machine's speed moves by half from minute to minute. They are not few, because at the start of a turn nothing of a codec's
/// own is in the caches, unlike in a backup.
const TURN_FRAMES: usize = 32;

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
    let mut codecs = Vec::new();
    for name in &options.compression {
        let step = if is_slow(name) { slow_step } else { 1 };
        let of = OfCodec { name: name.clone(), frames: vec![None; frames.len()], is_sampled: step > 1 };
        codecs.push(Contestant { of, step, coder: Coder::new(name, options.frame_size)?, stored: Vec::new() });
    }
    let mut back = vec![0; options.frame_size];
    for round in 1..=options.rounds {
        let count = codecs.len();
        let mut sums = vec![Sum::default(); count];
        for (turn, first) in (0..frames.len()).step_by(TURN_FRAMES).enumerate() {
            let numbers = first..frames.len().min(first + TURN_FRAMES);
            // Whoever is first brings the frames nearer to the others: that goes round.
            for which in (0..count).map(|place| (place + turn + round as usize) % count) {
                let codec = &mut codecs[which];
                if !codec.of.is_sampled || round == 1 {
                    codec.turn(list, frames, numbers.clone(), &mut back, &mut sums[which])?;
                }
            }
        }
        for (codec, sum) in codecs.iter().zip(&sums).filter(|(_, sum)| sum.raw_bytes > 0) {
            each_round(&codec.of.name, round, sum)?;
        }
    }
    Ok(Measured { raw_bytes, codecs: codecs.into_iter().map(|codec| codec.of).collect() })
}

fn is_slow(name: &str) -> bool {
    name.starts_with(SLOW_PAGE_CODEC)
        || name.parse::<CodecSpec>().is_ok_and(|spec| spec.codec() == CodecId::Zstd && spec.level() >= SLOW_ZSTD_LEVEL)
}

/// A codec at work.
struct Contestant {
    of: OfCodec,
    /// It sees every so many-th frame.
    step: usize,
    coder: Coder,
    /// The frames of a turn.
    stored: Vec<u8>,
}

impl Contestant {
    /// Encodes those of the frames `numbers` that it sees, then decodes them into `back`: what was encoded is not in the nearest
    /// caches any more.
    fn turn(
        &mut self,
        list: &FilesOfDatabase,
        frames: &[Frame],
        numbers: Range<usize>,
        back: &mut [u8],
        sum: &mut Sum,
    ) -> Result<()> {
        let mut places = Vec::new();
        let mut at = 0;
        for number in numbers.filter(|number| number.is_multiple_of(self.step)) {
            let frame = &frames[number];
            let parts = frame.parts(list);
            let raw_len = frame.bytes.len();
            self.stored.resize(self.stored.len().max(at + raw_len), 0);
            // As in a backup: what does not get smaller is stored as it is, and zeros are not stored at all.
            let room = &mut self.stored[at..at + raw_len - 1];
            let started_s = thread_cpu_s();
            let length = match frame.bytes.iter().any(|byte| *byte != 0) {
                true => Some(self.coder.encode(&frame.bytes, &parts, room)?),
                false => None,
            };
            let encode_s = thread_cpu_s() - started_s;
            let stored_bytes = length.map_or(0, |length| length.unwrap_or(raw_len));
            places.push((number, at, length.flatten(), stored_bytes as u64, encode_s));
            at += stored_bytes;
        }
        for (number, at, length, stored_bytes, encode_s) in places {
            let raw = &frames[number].bytes;
            let decode_s = match length {
                Some(length) => {
                    let back = &mut back[..raw.len()];
                    let started_s = thread_cpu_s();
                    self.coder.decode(&self.stored[at..at + length], back)?;
                    let decode_s = thread_cpu_s() - started_s;
                    if back != raw {
                        return Err(not_the_same(&self.of.name, list, &frames[number]));
                    }
                    decode_s
                }
                None => 0.0,
            };
            let best = self.of.frames[number].unwrap_or(Took { stored_bytes, encode_s, decode_s });
            let (encode_best_s, decode_best_s) = (best.encode_s.min(encode_s), best.decode_s.min(decode_s));
            self.of.frames[number] = Some(Took { stored_bytes, encode_s: encode_best_s, decode_s: decode_best_s });
            sum.raw_bytes += raw.len() as u64;
            sum.stored_bytes += stored_bytes;
            sum.encode_s += encode_s;
            sum.decode_s += decode_s;
        }
        Ok(())
    }
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
