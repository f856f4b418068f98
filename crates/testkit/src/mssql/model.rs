//! What a backup or restore takes: the slowest of reading, packing and writing, as far as buffers let them overlap.

use super::statements::Options;

/// What an algorithm does to these pages.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    /// Plain over packed.
    pub ratio: f64,
    /// Bytes of pages that one core packs in a second.
    pub pack_bytes_per_s: f64,
    /// The same of unpacking.
    pub unpack_bytes_per_s: f64,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Reading the data files.
    pub read_bytes_per_s: f64,
    /// Writing one backup file.
    pub file_write_bytes_per_s: f64,
    /// Writing all backup files together.
    pub write_bytes_per_s: f64,
    /// Writing restored data files.
    pub restore_write_bytes_per_s: f64,
    /// Cores.
    pub cores: u32,
    /// What buffers may take.
    pub buffer_bytes_max: u64,
    /// Bytes that must be in flight for half of the speed.
    pub half_speed_in_flight: f64,
    /// Seconds that do not depend on bytes.
    pub fixed_s: f64,
    /// Of MS_XPRESS, QAT_DEFLATE, ZSTD LOW, MEDIUM and HIGH.
    pub codecs: [Codec; 5],
}

/// A backup's or restore's figures.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    pub(super) stored_bytes: u64,
    pub(super) read_s: f64,
    pub(super) write_s: f64,
}

impl Limits {
    /// Eight cores, a fast source and a target that is fast with four files; figures as published ones are.
    pub fn usual() -> Self {
        let codec = |ratio, pack: f64, unpack: f64| Codec {
            ratio,
            pack_bytes_per_s: pack * 1e6,
            unpack_bytes_per_s: unpack * 1e6,
        };
        Limits {
            read_bytes_per_s: 2400e6,
            file_write_bytes_per_s: 200e6,
            write_bytes_per_s: 700e6,
            restore_write_bytes_per_s: 1500e6,
            cores: 8,
            buffer_bytes_max: 400 << 20,
            half_speed_in_flight: 4e6,
            fixed_s: 1.0,
            codecs: [
                codec(3.0, 150.0, 600.0),
                codec(3.5, 450.0, 900.0),
                codec(3.4, 400.0, 1200.0),
                codec(3.9, 220.0, 1100.0),
                codec(4.1, 60.0, 1000.0),
            ],
        }
    }

    fn codec(&self, options: &Options) -> Option<Codec> {
        let (algorithm, level) = options.packing.as_ref()?;
        Some(
            self.codecs[match (algorithm.as_str(), level.as_str()) {
                ("QAT_DEFLATE", _) => 1,
                ("ZSTD", "MEDIUM") => 3,
                ("ZSTD", "HIGH") => 4,
                ("ZSTD", _) => 2,
                _ => 0,
            }],
        )
    }

    /// Bytes of the buffers: the server's formula for one volume, three sets where pages are packed.
    pub(super) fn buffer_bytes(&self, options: &Options, files: usize) -> u64 {
        let (count, size) = self.buffers(options, files);
        count * size * if options.packing.is_some() { 3 } else { 1 }
    }

    fn buffers(&self, options: &Options, files: usize) -> (u64, u64) {
        let files = files as u64;
        (options.buffer_count.unwrap_or(files * 4 + files + 2), options.transfer_size.unwrap_or(1 << 20))
    }

    /// Share of the full speed that buffers allow.
    fn overlap(&self, options: &Options, files: usize) -> f64 {
        let (count, size) = self.buffers(options, files);
        let in_flight = (count * size) as f64;
        in_flight / (in_flight + self.half_speed_in_flight)
    }

    pub(super) fn backup(&self, data_bytes: u64, options: &Options, files: usize, is_nul: bool) -> Cost {
        let bytes = data_bytes as f64;
        let codec = self.codec(options);
        let ratio = codec.map_or(1.0, |codec| codec.ratio);
        let write = (self.file_write_bytes_per_s * files as f64).min(self.write_bytes_per_s) * ratio;
        let pack = codec.map_or(f64::INFINITY, |codec| codec.pack_bytes_per_s * f64::from(self.cores));
        let write = if is_nul { f64::INFINITY } else { write };
        let rate = self.read_bytes_per_s.min(write).min(pack) * self.overlap(options, files);
        Cost {
            wall_s: self.fixed_s + bytes / rate,
            cpu_s: bytes / 4e9 + codec.map_or(0.0, |codec| bytes / codec.pack_bytes_per_s),
            stored_bytes: (bytes / ratio) as u64,
            read_s: bytes / self.read_bytes_per_s,
            write_s: if is_nul { 0.0 } else { bytes / write },
        }
    }

    pub(super) fn restore(&self, data_bytes: u64, packed_as: &Options, options: &Options, files: usize) -> Cost {
        let bytes = data_bytes as f64;
        let codec = self.codec(packed_as);
        let ratio = codec.map_or(1.0, |codec| codec.ratio);
        let read = (self.file_write_bytes_per_s * 1.5 * files as f64).min(self.write_bytes_per_s) * ratio;
        let unpack = codec.map_or(f64::INFINITY, |codec| codec.unpack_bytes_per_s * f64::from(self.cores));
        let rate = read.min(unpack).min(self.restore_write_bytes_per_s) * self.overlap(options, files);
        Cost {
            wall_s: self.fixed_s + bytes / rate,
            cpu_s: bytes / 4e9 + codec.map_or(0.0, |codec| bytes / codec.unpack_bytes_per_s),
            stored_bytes: (bytes / ratio) as u64,
            read_s: bytes / read,
            write_s: bytes / self.restore_write_bytes_per_s,
        }
    }

    /// Seconds of a backup and of its restore with these settings (`compression` as `ZSTD LOW`, empty for none); None
    /// where the buffers are more than fit.
    pub fn seconds(
        &self,
        data_bytes: u64,
        compression: &str,
        files: usize,
        buffer_count: Option<u64>,
        transfer_size: Option<u64>,
    ) -> Option<[f64; 2]> {
        let packing = (!compression.is_empty()).then(|| {
            let (algorithm, level) = compression.split_once(' ').unwrap_or((compression, ""));
            (algorithm.to_owned(), level.to_owned())
        });
        let options = Options { packing, buffer_count, transfer_size, ..Options::default() };
        if self.buffer_bytes(&options, files) > self.buffer_bytes_max {
            return None;
        }
        let backup = self.backup(data_bytes, &options, files, false);
        Some([backup.wall_s, self.restore(data_bytes, &options, &options, files).wall_s])
    }
}
