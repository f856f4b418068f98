//! Stage c: what a point of the space would take, predicted from facts by the limit law, corrected by trials. Pure.
//!
//! ```text
//! backup    read source --> encode, check, hash --> write stored bytes      restore   read stored bytes --> decode --> write files
//!           speed = least of these three, and of all CPUs over all their work; plus what does not depend on bytes
//! ```
//!
//! All speeds are in bytes of the source a second. `law` is the arithmetic, `correction` what trials add to it.

mod correction;
mod kriging;
mod law;
#[cfg(test)]
mod tests;

use pagehaul_engine::codec::CodecId;
use pagehaul_engine::pipeline::ceiling::{Ceiling, CeilingFacts};
use pagehaul_engine::pipeline::{PipelineSettings, encoder_state_bytes};
use pagehaul_engine::storage::OBJECT_WRITER_BYTES;

pub use correction::model_error;

use crate::codec_table::{CodecTable, Coding, UNLIMITED_BYTES_PER_S};
use crate::figures::{Facts, LimitKind, PredictedRun, Prediction, SourceFacts, Trial};
use crate::space::Settings;
use correction::Correction;
use kriging::Place;
use law::{Crew, Load, Stage, Verdict, at_threads};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Backup,
    Restore,
}

/// Bytes of a path in the file list, for the memory ceiling: `base/16384/16385.1` and the like.
const PATH_BYTES_USUAL: u64 = 24;
/// What is assumed of a codec of which nothing was measured: it does nothing, at a speed that wins no comparison.
const UNKNOWN_CODEC: Coding = Coding { ratio: 1.0, encode_bytes_per_s: 1e6, decode_bytes_per_s: 1e6 };
/// A run whose fixed costs are more than this share of its time is limited by them.
const FIXED_SHARE: f64 = 0.5;

/// Predicts runs.
#[derive(Clone, Debug)]
pub struct Model {
    facts: Facts,
    codecs: CodecTable,
    backup: Correction,
    restore: Correction,
    ratio: kriging::Kriging,
    max_rate_bytes_per_s: Option<f64>,
}

impl Model {
    /// A model that knows the facts and no trial yet.
    pub fn new(facts: Facts) -> Self {
        Model {
            codecs: CodecTable::new(&facts.sample),
            facts,
            backup: Correction::default(),
            restore: Correction::default(),
            ratio: kriging::Kriging::new(kriging::RATIO, &[]),
            max_rate_bytes_per_s: None,
        }
    }

    /// The same model for runs with `--max-rate`: source bytes of a backup, stored bytes of a restore, a second.
    #[must_use]
    pub fn with_max_rate(mut self, max_rate_bytes_per_s: Option<u64>) -> Self {
        self.max_rate_bytes_per_s = max_rate_bytes_per_s.map(|rate| rate as f64);
        self
    }

    /// What it predicts from.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Backup and restore with `settings`: finite, positive, never faster for more bytes.
    ///
    /// A codec of which no level was measured counts as one that is slow and saves nothing.
    pub fn predict(&self, settings: &Settings) -> Prediction {
        let coding = self.coding(settings);
        Prediction {
            settings: settings.clone(),
            backup: self.predict_run(Direction::Backup, settings, &coding),
            restore: self.predict_run(Direction::Restore, settings, &coding),
            stored_bytes: (self.facts.source.source_bytes as f64 / coding.ratio) as u64,
            memory_bytes: ceiling_bytes(settings, &self.facts.source),
        }
    }

    /// Learns from trials what the law does not know; see [`correction`]. Replaces what was learned before: give it all
    /// trials each time. Trials of other tools, failed ones and those without settings teach nothing.
    pub fn correct(&mut self, trials: &[Trial]) {
        let own: Vec<&Trial> =
            trials.iter().filter(|trial| trial.contestant == "pagehaul" && trial.failed.is_none()).collect();
        self.ratio = correction::learn_ratio(self, &own);
        self.backup = Correction::default();
        self.restore = Correction::default();
        self.backup = correction::learn(self, Direction::Backup, &own);
        self.restore = correction::learn(self, Direction::Restore, &own);
    }

    fn predict_run(&self, direction: Direction, settings: &Settings, coding: &Coding) -> PredictedRun {
        let source_bytes = self.facts.source.source_bytes as f64;
        let correction = self.correction(direction);
        let verdict = self.verdict(direction, settings, coding);
        let place = place(direction, settings, verdict.limit);
        let data_s = source_bytes * verdict.wall_s_per_byte * correction.wall_factor(&place);
        let beside_s = self.beside_s(direction);
        let cpu_s = source_bytes * verdict.cpu_s_per_byte + self.file_costs_s(direction);
        let limit = if beside_s > FIXED_SHARE * (data_s + beside_s) { LimitKind::Fixed } else { verdict.limit };
        // A run that moves no bytes still takes some time: nobody divides by zero.
        PredictedRun { wall_s: (data_s + beside_s).max(1e-3), cpu_s: cpu_s.max(1e-3), limit }
    }

    /// The law's word on each byte, with CPU costs as trials have them.
    fn verdict(&self, direction: Direction, settings: &Settings, coding: &Coding) -> Verdict {
        let plain = self.load(direction, settings, coding, 1.0).verdict();
        let factor = self.correction(direction).cpu_factor(&place(direction, settings, plain.limit));
        self.load(direction, settings, coding, factor).verdict()
    }

    fn load(&self, direction: Direction, settings: &Settings, coding: &Coding, cpu_factor: f64) -> Load {
        let (devices, sample) = (&self.facts.devices, &self.facts.sample);
        let cores = f64::from(self.facts.machine.cores.max(1));
        let (crew, first, last, code_bytes_per_s) = match direction {
            Direction::Backup => {
                let (readers, encoders, stripes) = (settings.readers, settings.encoders, settings.stripes);
                let enough = PipelineSettings::default_buffer_count(readers, encoders, stripes);
                let crew = Crew::new(readers, encoders, stripes, settings.buffer_count, enough);
                (crew, &devices.read, &devices.write, coding.encode_bytes_per_s)
            }
            Direction::Restore => {
                // A restore makes its own buffers by default, as many as are enough.
                let (readers, decoders, writers) = (settings.stripe_readers, settings.decoders, settings.file_writers);
                let enough = PipelineSettings::default_buffer_count(readers, decoders, writers);
                let crew = Crew::new(readers, decoders, writers, enough, enough);
                (crew, &devices.stripe_read, &devices.restore_write, coding.decode_bytes_per_s)
            }
        };
        // Stored bytes become bytes of the source by the ratio.
        // Threads that wait for buffers take no part in the speed; what a byte costs is a matter of all of them.
        let device = |speeds, working: f64, threads: u16, ratio: f64| {
            let cpu_s_per_byte = at_threads(speeds, f64::from(threads.max(1))).cpu_s_per_byte;
            let bytes_per_s = at_threads(speeds, working).bytes_per_s * ratio;
            Stage { bytes_per_s, cpu_s_per_byte: cpu_factor * cpu_s_per_byte / ratio }
        };
        let (first_ratio, last_ratio) = match direction {
            Direction::Backup => (1.0, coding.ratio),
            Direction::Restore => (coding.ratio, 1.0),
        };
        let (first_threads, last_threads) = match direction {
            Direction::Backup => (settings.readers, settings.stripes),
            Direction::Restore => (settings.stripe_readers, settings.file_writers),
        };
        let per_byte = |bytes_per_s: f64| if bytes_per_s > 0.0 { 1.0 / bytes_per_s } else { 0.0 };
        let code_s_per_byte = cpu_factor
            * (per_byte(code_bytes_per_s)
                + per_byte(sample.check_bytes_per_s)
                + per_byte(sample.hash_bytes_per_s) / coding.ratio);
        let max_rate = self.max_rate_bytes_per_s.map(|rate| rate * first_ratio);
        Load {
            first: device(first, crew.first, first_threads, first_ratio),
            middle: Stage {
                bytes_per_s: crew.middle.min(cores) / code_s_per_byte.max(1.0 / UNLIMITED_BYTES_PER_S),
                cpu_s_per_byte: code_s_per_byte,
            },
            last: device(last, crew.last, last_threads, last_ratio),
            cores,
            transfer_size_bytes: f64::from(settings.transfer_size_bytes),
            overlap: crew.overlap,
            max_rate_bytes_per_s: max_rate,
        }
    }

    fn correction(&self, direction: Direction) -> &Correction {
        match direction {
            Direction::Backup => &self.backup,
            Direction::Restore => &self.restore,
        }
    }

    fn correction_mut(&mut self, direction: Direction) -> &mut Correction {
        match direction {
            Direction::Backup => &mut self.backup,
            Direction::Restore => &mut self.restore,
        }
    }

    /// The codec on this source, its ratio as trials have it.
    fn coding(&self, settings: &Settings) -> Coding {
        let coding = self.measured_coding(settings);
        let factor = self.ratio.at(&place(Direction::Backup, settings, LimitKind::Fixed)).clamp(-1.0, 1.0).exp();
        Coding { ratio: coding.ratio * factor, ..coding }
    }

    fn measured_coding(&self, settings: &Settings) -> Coding {
        let spec = settings.compression;
        let unknown = match spec.codec() {
            // Without a codec nothing is encoded; that needs no measurement.
            CodecId::None => Coding {
                ratio: 1.0,
                encode_bytes_per_s: UNLIMITED_BYTES_PER_S,
                decode_bytes_per_s: UNLIMITED_BYTES_PER_S,
            },
            _ => UNKNOWN_CODEC,
        };
        self.codecs.get(spec, settings.frame_size_bytes()).unwrap_or(unknown)
    }

    /// Seconds beside the data path: as trials had it, or as the facts say.
    fn beside_s(&self, direction: Direction) -> f64 {
        let fixed_s = match direction {
            Direction::Backup => self.facts.devices.backup_fixed_s,
            Direction::Restore => self.facts.devices.restore_fixed_s,
        };
        let by_facts = finite_or_zero(fixed_s) + self.file_costs_s(direction);
        self.correction(direction).beside_s(by_facts)
    }

    fn file_costs_s(&self, direction: Direction) -> f64 {
        let file_s = match direction {
            Direction::Backup => self.facts.devices.backup_file_s,
            Direction::Restore => self.facts.devices.restore_file_s,
        };
        finite_or_zero(file_s) * self.facts.source.file_count as f64
    }
}

fn finite_or_zero(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}

/// A point as the residuals of one direction depend on it; what only the other direction uses is left out.
fn place(direction: Direction, settings: &Settings, limit: LimitKind) -> Place {
    let step = |value: u32| f64::from(value.max(1)).log2();
    let (first, middle, last, more) = match direction {
        Direction::Backup => (settings.readers, settings.encoders, settings.stripes, settings.buffer_count),
        Direction::Restore => {
            (settings.stripe_readers, settings.decoders, settings.file_writers, u32::from(settings.stripes))
        }
    };
    let [first, middle, last] = [first, middle, last].map(|threads| step(u32::from(threads)));
    Place {
        limit,
        codec: settings.compression,
        steps: [first, middle, last, step(more), step(settings.transfer_size_bytes)],
    }
}

/// The memory ceiling of a backup with these settings.
pub fn ceiling_bytes(point: &Settings, source: &SourceFacts) -> u64 {
    let frame_size_bytes = point.frame_size_bytes();
    let settings = PipelineSettings {
        readers: point.readers,
        encoders: point.encoders,
        writers: point.stripes,
        buffer_count: point.buffer_count,
        transfer_size_bytes: point.transfer_size_bytes.max(frame_size_bytes),
        frame_size_bytes,
        max_rate_bytes_per_s: None,
    };
    let facts = CeilingFacts {
        file_count: source.file_count,
        path_bytes: source.file_count * PATH_BYTES_USUAL,
        content_bytes: source.source_bytes,
        codec_state_bytes: encoder_state_bytes(point.compression, frame_size_bytes),
        object_writer_bytes: OBJECT_WRITER_BYTES,
        sums_writer_bytes: OBJECT_WRITER_BYTES,
        ..CeilingFacts::default()
    };
    Ceiling::of_backup(&settings, &facts).total_bytes()
}
