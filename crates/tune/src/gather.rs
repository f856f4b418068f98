//! Stages a and b in order: the sample with every codec, then the devices alone; what the model predicts from.

use pagehaul_engine::codec::CodecId;
use pagehaul_engine::error::Result;
use pagehaul_engine::limits::{FRAME_SIZE_BYTES_DEFAULT, FRAME_SIZE_BYTES_MAX};
use pagehaul_engine::pipeline::machine_cores;
use pagehaul_engine::source::postgres::relation_layouts::read_from_catalog_files;

use crate::codec_bench::{self, BenchOptions, measure_codecs};
use crate::device::stripes::StripeBench;
use crate::device::{Bounds, fill_in_usual_costs, page_cache, read, restore_target};
use crate::figures::{CacheState, DeviceFacts, MachineFacts, SampleFacts};
use crate::guard::Guard;
use crate::rounds::TuneObserver;
use crate::sample::{SampleOptions, take_sample};
use crate::scratch::Scratch;
use crate::source_files::SourceFiles;
use crate::space::Space;
use crate::trial::Targets;

/// What the devices are read and written with.
const TRANSFER_BYTES: u32 = FRAME_SIZE_BYTES_DEFAULT;
/// Less than this does not tell a device's speed from its latency.
const WRITE_BYTES_MIN: u64 = 32 << 20;
/// Name of what is written to time the restore target.
const PROBE_NAME: &str = "probe";

/// Everything the stages need.
pub struct Gather<'a> {
    /// The files.
    pub source: &'a SourceFiles,
    /// The settings that will be asked about.
    pub space: &'a Space,
    /// From where to where.
    pub targets: &'a Targets,
    /// Where may be written.
    pub scratch: &'a Scratch,
    /// Bytes of the sample.
    pub sample_size_bytes: u64,
    /// Whether the page cache is dropped before reading is measured.
    pub drops_caches: bool,
    /// Hears.
    pub observer: &'a dyn TuneObserver,
    /// May stop it.
    pub guard: &'a Guard<'a>,
}

impl Gather<'_> {
    /// Stage a.
    ///
    /// # Errors
    /// `Usage` for a sample that is too small, `Source`, `Interrupted`.
    pub fn sample(&self) -> Result<SampleFacts> {
        let cancelled = || self.guard.stops();
        let wants_layouts = self.space.compressions.iter().any(|codec| codec.codec() == CodecId::Page);
        // As in a backup: what the catalogs do not tell is a loss of size only.
        let layouts = if wants_layouts { read_from_catalog_files(&self.source.pgdata).ok() } else { None };
        let options = SampleOptions { sample_size_bytes: self.sample_size_bytes, layouts, ..SampleOptions::default() };
        let sample = take_sample(self.source, &options, &cancelled)?;
        let options = BenchOptions {
            budget: codec_bench::BUDGET_DEFAULT,
            progress: &|figures, done, total| {
                let what = format!(
                    "{} in frames of {} KiB: ratio {:.2}, {:.0} MB/s a core",
                    figures.compression,
                    figures.frame_size_bytes >> 10,
                    figures.ratio,
                    figures.encode_bytes_per_s / 1e6
                );
                self.observer.measured(&what, done, total);
            },
            cancelled: &cancelled,
        };
        let fixed: Vec<_> = self.space.compressions.iter().copied().filter(|codec| !codec.is_auto()).collect();
        measure_codecs(&sample, &fixed, &self.frame_sizes(), &options)
    }

    fn frame_sizes(&self) -> Vec<u32> {
        let sizes = self.space.transfer_sizes.iter().map(|size| (*size).min(FRAME_SIZE_BYTES_MAX));
        let mut sizes: Vec<u32> = sizes.collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Stage b.
    ///
    /// # Errors
    /// `Source`, `Repository` or `Target` for a place that cannot be used, `Interrupted`.
    pub fn devices(&self) -> Result<DeviceFacts> {
        let cancelled = || self.guard.stops();
        let mut devices = DeviceFacts::default();
        if self.drops_caches {
            page_cache::drop_page_cache()?;
        }
        devices.read_cache = if self.drops_caches { CacheState::Cold } else { page_cache::source_cache(self.source) };
        self.observer.measured("reading the source", 1, 3);
        devices.read =
            read::measure_read(self.source, &self.space.readers, TRANSFER_BYTES, &Bounds::for_reading(), &cancelled)?;
        self.observer.measured("writing stripes and reading them back", 2, 3);
        let stripes = self.stripe_bench(&cancelled)?;
        (devices.write, devices.stripe_read) = (stripes.write, stripes.read);
        self.observer.measured("writing restored files", 3, 3);
        let directory = self.scratch.path(&self.targets.restore_to)?;
        devices.restore_write = restore_target::measure_restore_target(
            &directory,
            PROBE_NAME,
            &self.space.file_writers,
            TRANSFER_BYTES,
            &self.write_bounds(),
            &cancelled,
        )?;
        devices.backup_file_s = read::measure_file_cost(self.source)?.unwrap_or_default();
        devices.restore_file_s = restore_target::measure_file_cost(&directory, PROBE_NAME, &cancelled)?;
        fill_in_usual_costs(&mut devices);
        Ok(devices)
    }

    /// What is written to time a device: as much as a backup could store, within bounds.
    fn write_bounds(&self) -> Bounds {
        let usual = Bounds::default();
        Bounds { bytes_max: self.source.bytes.clamp(WRITE_BYTES_MIN, usual.bytes_max), ..usual }
    }

    fn stripe_bench(&self, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<crate::device::stripes::StripeSpeeds> {
        let targets = match &self.targets.stripe_to[..] {
            [] => vec![self.scratch.below(&self.targets.repo)],
            stripe_to => stripe_to.iter().map(|target| self.scratch.below(target)).collect(),
        };
        let bench = StripeBench {
            targets: &targets,
            scratch_prefix: PROBE_NAME,
            transfer_size_bytes: TRANSFER_BYTES,
            bounds: self.write_bounds(),
            cancelled,
        };
        bench.measure(&self.space.stripes)
    }
}

/// The machine, as far as the kernel tells; `server` is the server's version.
pub fn machine_facts(server: &str) -> MachineFacts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once([':', '=']).map_or(String::new(), |(_, value)| value.trim().trim_matches('"').to_owned())
    };
    let memory_kib = field(&read("/proc/meminfo"), "MemTotal");
    let memory_kib: u64 = memory_kib.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
    MachineFacts {
        host: read("/proc/sys/kernel/hostname").trim().to_owned(),
        processor: field(&read("/proc/cpuinfo"), "model name"),
        cores: machine_cores(),
        memory_bytes: memory_kib * 1024,
        system: format!(
            "{}, Linux {}",
            field(&read("/etc/os-release"), "PRETTY_NAME"),
            read("/proc/sys/kernel/osrelease").trim()
        ),
        pagehaul: env!("CARGO_PKG_VERSION").to_owned(),
        server: server.to_owned(),
    }
}
