//! Facts of a machine that is not there: the same data and codecs, at another size, on other devices and cores.
//!
//! Sampled ratios and codec speeds stay; devices keep the shape of their speeds over threads and get another height.

use crate::figures::{Facts, SpeedAt};

/// What is different; None is as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WhatIf {
    /// Bytes of all files.
    pub source_bytes: Option<u64>,
    /// Their number; by default one file more for each further GiB, the size of a segment.
    pub file_count: Option<u64>,
    /// The source's device, bytes a second.
    pub read_bytes_per_s: Option<f64>,
    /// The stripes' devices, bytes a second.
    pub write_bytes_per_s: Option<f64>,
    /// The stripes' devices when a restore reads them; by default as fast as they are written.
    pub stripe_read_bytes_per_s: Option<f64>,
    /// The restore target, bytes a second; by default as fast as it is read when it is the source.
    pub restore_write_bytes_per_s: Option<f64>,
    /// Cores.
    pub cores: Option<u16>,
}

/// Bytes of a relation's segment.
const SEGMENT_BYTES: u64 = 1 << 30;

/// `facts` as they would be.
pub fn scale(facts: &Facts, what_if: &WhatIf) -> Facts {
    let mut scaled = facts.clone();
    if let Some(source_bytes) = what_if.source_bytes {
        let more_bytes = source_bytes.saturating_sub(facts.source.source_bytes);
        scaled.source.source_bytes = source_bytes;
        scaled.source.file_count += more_bytes / SEGMENT_BYTES;
        scale_strata(&mut scaled, facts.source.source_bytes);
    }
    if let Some(file_count) = what_if.file_count {
        scaled.source.file_count = file_count;
    }
    if let Some(cores) = what_if.cores {
        scaled.machine.cores = cores.max(1);
    }
    let stripe_read = what_if.stripe_read_bytes_per_s.or(what_if.write_bytes_per_s);
    let restore_write = what_if.restore_write_bytes_per_s.or(what_if.read_bytes_per_s);
    let devices = &mut scaled.devices;
    set_height(&mut devices.read, what_if.read_bytes_per_s);
    set_height(&mut devices.write, what_if.write_bytes_per_s);
    set_height(&mut devices.stripe_read, stripe_read);
    set_height(&mut devices.restore_write, restore_write);
    scaled
}

/// Gives a device another greatest speed; one that was not measured has it at any number of threads.
fn set_height(speeds: &mut Vec<SpeedAt>, bytes_per_s: Option<f64>) {
    let Some(wanted) = bytes_per_s.filter(|speed| speed.is_finite() && *speed > 0.0) else { return };
    let greatest = speeds.iter().map(|speed| speed.bytes_per_s).fold(0.0, f64::max);
    if greatest > 0.0 {
        for speed in speeds {
            speed.bytes_per_s *= wanted / greatest;
        }
    } else {
        *speeds = vec![SpeedAt { threads: 1, bytes_per_s: wanted, cpu_s_per_byte: 0.0 }];
    }
}

fn scale_strata(scaled: &mut Facts, before_bytes: u64) {
    let factor = scaled.source.source_bytes as f64 / before_bytes.max(1) as f64;
    for stratum in &mut scaled.sample.strata {
        stratum.source_bytes = (stratum.source_bytes as f64 * factor) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{CodecFigures, LimitKind, MachineFacts, SampleFacts, SourceFacts};
    use crate::model::Model;
    use crate::space::Settings;

    /// Codecs of the shape of the published table: the low level as small as the fast codec, the medium one 12 % and the
    /// high one 17 % smaller.
    const FAST: &str = "lz4:1";
    const LOW: &str = "zstd:1";
    const MEDIUM: &str = "zstd:3";
    const HIGH: &str = "zstd:10";

    /// A small machine with those codecs.
    fn measured() -> Facts {
        let row = |compression: &str, smaller: f64, encode: f64, decode: f64| CodecFigures {
            compression: compression.to_owned(),
            frame_size_bytes: 1 << 20,
            ratio: 3.0 / (1.0 - smaller),
            encode_bytes_per_s: encode * 1e6,
            decode_bytes_per_s: decode * 1e6,
        };
        let codecs = vec![
            row(FAST, 0.0, 1300.0, 4000.0),
            row(LOW, 0.0, 700.0, 1500.0),
            row(MEDIUM, 0.12, 400.0, 1500.0),
            row(HIGH, 0.17, 55.0, 1500.0),
        ];
        Facts {
            machine: MachineFacts { cores: 2, ..MachineFacts::default() },
            source: SourceFacts { source_bytes: 2_300_000_000, file_count: 1000, ..SourceFacts::default() },
            sample: SampleFacts { codecs, check_bytes_per_s: 14e9, hash_bytes_per_s: 24e9, ..SampleFacts::default() },
            ..Facts::default()
        }
    }

    fn settings(compression: &str) -> Settings {
        Settings {
            compression: compression.parse().unwrap(),
            readers: 8,
            encoders: 64,
            stripes: 8,
            buffer_count: 400,
            transfer_size_bytes: 1 << 20,
            stripe_readers: 8,
            decoders: 64,
            file_writers: 16,
        }
    }

    /// A large server: 8 TB, 64 cores, storage that reads and writes at so many MB/s.
    fn predict(storage_mb_per_s: f64) -> [(f64, u64, LimitKind); 4] {
        let what_if = WhatIf {
            source_bytes: Some(8_000_000_000_000),
            read_bytes_per_s: Some(storage_mb_per_s * 1e6),
            write_bytes_per_s: Some(storage_mb_per_s * 1e6),
            cores: Some(64),
            ..WhatIf::default()
        };
        let model = Model::new(scale(&measured(), &what_if));
        [FAST, LOW, MEDIUM, HIGH].map(|compression| {
            let said = model.predict(&settings(compression));
            (said.backup.wall_s, said.stored_bytes, said.backup.limit)
        })
    }

    #[test]
    fn where_storage_is_the_limit_better_levels_are_free() {
        let [fast, low, medium, high] = predict(2000.0);
        assert_eq!(low.1, fast.1, "the same size as the fast codec");
        let smaller = |one: (f64, u64, LimitKind)| 1.0 - one.1 as f64 / fast.1 as f64;
        assert!((smaller(medium) - 0.12).abs() < 0.001 && (smaller(high) - 0.17).abs() < 0.001);
        for one in [fast, low, medium, high] {
            assert_eq!(one.2, LimitKind::Reading);
            assert!((one.0 / fast.0 - 1.0).abs() < 0.01, "the same time: {} and {}", one.0, fast.0);
        }
        assert!((fast.0 / 4000.0 - 1.0).abs() < 0.02, "8 TB at 2000 MB/s: {}", fast.0);
    }

    #[test]
    fn where_it_is_not_the_best_level_costs_a_little() {
        let [fast, low, medium, high] = predict(3300.0);
        assert!((low.0 / fast.0 - 1.0).abs() < 0.01 && (medium.0 / fast.0 - 1.0).abs() < 0.01);
        let slower = high.0 / fast.0 - 1.0;
        assert!((0.02..0.10).contains(&slower), "about a twentieth: {slower}");
        let [fast, .., high] = predict(20_000.0);
        assert!(high.0 > 3.0 * fast.0 && matches!(high.2, LimitKind::Cpu | LimitKind::Coding), "{high:?}");
    }

    #[test]
    fn what_is_not_asked_for_stays() {
        let facts = measured();
        assert_eq!(scale(&facts, &WhatIf::default()), facts);
        let larger = scale(&facts, &WhatIf { source_bytes: Some(102_300_000_000), ..WhatIf::default() });
        assert_eq!(larger.source.file_count, 1000 + 93);
        assert_eq!(larger.sample.codecs, facts.sample.codecs);
    }

    #[test]
    fn devices_keep_their_shape() {
        let at = |threads, bytes_per_s| SpeedAt { threads, bytes_per_s, cpu_s_per_byte: 1e-10 };
        let mut facts = measured();
        facts.devices.write = vec![at(1, 100.0), at(4, 300.0)];
        let scaled = scale(&facts, &WhatIf { write_bytes_per_s: Some(600.0), ..WhatIf::default() });
        assert_eq!(scaled.devices.write, [at(1, 200.0), at(4, 600.0)]);
        assert_eq!(scaled.devices.stripe_read[0].bytes_per_s, 600.0);
        assert!(scaled.devices.read.is_empty());
    }
}
