//! The memory ceiling: a sum with one line per holder, compared with what the user allows and the machine has
//! before anything starts. It is true: a run's resident memory stays below it and a fixed allowance for the program.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::PipelineSettings;
use super::encode_run::STACK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{FileEntry, Run, StoredRun};
use crate::format::stripe::INDEX_ENTRY_BYTES;

/// What the program itself takes (code, libraries, allocator, connection), beside the ceiling.
pub const PROGRAM_ALLOWANCE_BYTES: u64 = 32 * 1024 * 1024;

/// What a connection holds of an answer that comes: the HTTP library reads at most 408 KiB at once, and while the last of it is copied
/// on, the next is read.
const ANSWER_BYTES: u64 = 1 << 20;

/// One holder of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CeilingLine {
    /// Who holds it, with the numbers it comes from.
    pub holder: String,
    /// At most this much.
    pub bytes: u64,
}

/// The whole sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ceiling {
    /// The lines.
    pub lines: Vec<CeilingLine>,
}

/// What the sums depend on, beside the settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct CeilingFacts {
    /// Entries of the file table.
    pub file_count: u64,
    /// Bytes of all their paths.
    pub path_bytes: u64,
    /// Bytes of all files.
    pub content_bytes: u64,
    /// State of one encoder or decoder.
    pub codec_state_bytes: u64,
    /// Frames of all stripes; None makes it from `content_bytes`.
    pub frame_count: Option<u64>,
    /// Buffer of one stripe's object writer.
    pub object_writer_bytes: u64,
    /// Each reader's connection holds a piece of an answer besides the buffer that it goes to.
    pub reads_from_elsewhere: bool,
    /// Buffer of the writer of the object that each stripe has for the checksums of its pages; 0 without.
    pub sums_writer_bytes: u64,
    /// What comparing with a prior set takes; None for a full backup.
    pub comparison: Option<ComparisonFacts>,
}

/// What an incremental backup holds beside what a full one does.
#[derive(Clone, Copy, Debug, Default)]
pub struct ComparisonFacts {
    /// The prior's file table, indexes of its stripes, places of their checksums, the list of what is to be read.
    pub prior_bytes: u64,
    /// Runs of the prior's files.
    pub prior_run_count: u64,
    /// Most runs that comparing may add.
    pub run_budget: u64,
    /// What each encoder keeps of the prior's checksums.
    pub cursor_bytes: u64,
}

impl Ceiling {
    /// Adds a holder that only some runs have.
    pub fn add(&mut self, holder: String, bytes: u64) {
        self.lines.push(CeilingLine { holder, bytes });
    }

    /// Adds what parity takes of who reads a set, if it is anything.
    pub fn add_parity(&mut self, bytes: u64) {
        if bytes > 0 {
            self.add("rows of parity, and room to rebuild frames".to_owned(), bytes);
        }
    }

    /// Adds what the digests of frames take, if there are any.
    pub fn add_digests(&mut self, bytes: u64) {
        if bytes > 0 {
            self.add("digests of frames, which were signed".to_owned(), bytes);
        }
    }

    /// Adds what threads that read encrypted objects take, if there are any.
    pub fn add_decryption(&mut self, readers: u16, each_bytes: u64) {
        if each_bytes > 0 {
            let holder = format!("decryption in {readers} readers x {} KiB", each_bytes / 1024);
            self.add(holder, u64::from(readers) * each_bytes);
        }
    }

    /// The sum of a backup.
    pub fn of_backup(settings: &PipelineSettings, facts: &CeilingFacts) -> Self {
        let mut ceiling = Ceiling::common(settings, facts, "encoder");
        for (what, each_bytes) in [("stripes", facts.object_writer_bytes), ("page checksums", facts.sums_writer_bytes)]
        {
            if each_bytes > 0 {
                let (count, each_kib) = (settings.writers, each_bytes / 1024);
                ceiling.add(format!("writers of {count} {what} x {each_kib} KiB"), u64::from(count) * each_bytes);
            }
        }
        // Planned and final table exist side by side while the set is committed, and a stored run becomes a run.
        let runs = facts.content_bytes / u64::from(settings.transfer_size_bytes) + facts.file_count;
        let bytes = 2 * (facts.file_count * size_of::<FileEntry>() as u64 + facts.path_bytes)
            + runs * (size_of::<StoredRun>() + size_of::<Run>()) as u64 * 2;
        ceiling.add(format!("file list of {} files", facts.file_count), bytes);
        if let Some(comparison) = &facts.comparison {
            let encoders = u64::from(settings.encoders);
            let each = u64::from(settings.frame_size_bytes) + comparison.cursor_bytes;
            ceiling.add(format!("packing and comparing in {encoders} encoders x {} KiB", each / 1024), encoders * each);
            ceiling.add("the prior set's file list and indexes".to_owned(), comparison.prior_bytes);
            let runs = comparison.prior_run_count * size_of::<Run>() as u64
                + comparison.run_budget * (size_of::<StoredRun>() + size_of::<Run>()) as u64;
            ceiling.add(format!("runs, {} of the prior's files", comparison.prior_run_count), 2 * runs);
        }
        ceiling
    }

    /// The sum of a restore or a verification.
    pub fn of_restore(settings: &PipelineSettings, facts: &CeilingFacts, run_count: u64) -> Self {
        let mut ceiling = Ceiling::common(settings, facts, "decoder");
        let entry = size_of::<FileEntry>() as u64 + super::FileTotals::memory_bytes(1);
        let bytes = facts.file_count * entry + facts.path_bytes + run_count * 3 * size_of::<Run>() as u64;
        ceiling.add(format!("file list of {} files, {run_count} runs", facts.file_count), bytes);
        if facts.reads_from_elsewhere {
            let readers = u64::from(settings.readers);
            let answer = ANSWER_BYTES.min(settings.buffer_bytes() as u64);
            ceiling.add(format!("{readers} answers x {} KiB on their way", answer / 1024), readers * answer);
        }
        ceiling
    }

    fn common(settings: &PipelineSettings, facts: &CeilingFacts, middle: &str) -> Self {
        let mut ceiling = Ceiling::default();
        let buffer_bytes = settings.buffer_bytes() as u64;
        ceiling.add(
            format!("{} transfer buffers x {} KiB", settings.buffer_count, buffer_bytes / 1024),
            u64::from(settings.buffer_count) * buffer_bytes,
        );
        ceiling.add(
            format!("{} {middle}s x {} KiB state", settings.encoders, facts.codec_state_bytes / 1024),
            u64::from(settings.encoders) * facts.codec_state_bytes,
        );
        let threads = u64::from(settings.readers) + u64::from(settings.encoders) + u64::from(settings.writers);
        ceiling.add(format!("{threads} thread stacks x {} KiB", STACK_BYTES / 1024), threads * STACK_BYTES as u64);
        let frames =
            facts.frame_count.unwrap_or(facts.content_bytes / u64::from(settings.frame_size_bytes) + facts.file_count);
        ceiling.add(format!("index of {frames} frames"), 2 * frames * INDEX_ENTRY_BYTES as u64);
        ceiling
    }

    /// All lines together.
    pub fn total_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }

    /// The sum as people read it.
    pub fn explain(&self) -> String {
        let lines = self.lines.iter().map(|line| format!("  {:>9.1} MiB  {}\n", mib(line.bytes), line.holder));
        lines.chain([format!("  {:>9.1} MiB  ceiling", mib(self.total_bytes()))]).collect()
    }

    /// Compares with `max_memory_bytes` and with what the machine or its control group has.
    ///
    /// # Errors
    /// `Configuration`, with the sum.
    pub fn check(&self, max_memory_bytes: Option<u64>, machine: &MachineMemory) -> Result<()> {
        let total = self.total_bytes();
        let refuse = |limit: u64, whose: &str| {
            let cause = format!("the memory ceiling is {:.1} MiB, and {whose} is {:.1} MiB", mib(total), mib(limit));
            let hint = format!(
                "use fewer or smaller buffers (--buffer-count, --transfer-size), fewer --encoders, or of an object store smaller \
                 parts, or fewer at once (its options part-size and parallel); the sum is:\n{}",
                self.explain()
            );
            Err(Error::new(ErrorKind::Configuration, "start the data path", cause).hint(hint))
        };
        match max_memory_bytes {
            Some(limit) if total > limit => return refuse(limit, "--max-memory"),
            _ => {}
        }
        let needed = total + PROGRAM_ALLOWANCE_BYTES;
        if needed > machine.available_bytes { refuse(machine.available_bytes, machine.whose) } else { Ok(()) }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// How much memory a run may take without an out-of-memory kill.
#[derive(Clone, Copy, Debug)]
pub struct MachineMemory {
    /// Bytes.
    pub available_bytes: u64,
    /// What sets the bound.
    pub whose: &'static str,
}

impl MachineMemory {
    /// The smaller of what the kernel calls available and what the control groups leave.
    pub fn now() -> Self {
        let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_available(&text));
        let machine =
            MachineMemory { available_bytes: machine.unwrap_or(u64::MAX), whose: "the machine's available memory" };
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limits = cgroup_files(&groups).into_iter().filter_map(|(limit, used)| {
            let read = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
            Some(read(limit)?.saturating_sub(read(used)?))
        });
        match limits.min() {
            Some(available_bytes) if available_bytes < machine.available_bytes => {
                MachineMemory { available_bytes, whose: "what this control group has left" }
            }
            _ => machine,
        }
    }
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The files with limit and use of this process's memory control groups, and of their parents, version 2 and 1.
fn cgroup_files(groups: &str) -> Vec<(PathBuf, PathBuf)> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (mount, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let directory = Path::new(mount).join(group.strip_prefix("/").unwrap_or(group));
            files.push((directory.join(limit), directory.join(used)));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> PipelineSettings {
        PipelineSettings {
            readers: 2,
            encoders: 2,
            writers: 4,
            buffer_count: 18,
            transfer_size_bytes: 1 << 20,
            frame_size_bytes: 131_072,
            max_rate_bytes_per_s: None,
        }
    }

    #[test]
    fn the_sum_is_shown_when_it_is_too_much() {
        let ceiling =
            Ceiling::of_backup(&settings(), &CeilingFacts { codec_state_bytes: 1 << 20, ..CeilingFacts::default() });
        let machine = MachineMemory { available_bytes: 1 << 40, whose: "the machine's available memory" };
        assert!(ceiling.check(None, &machine).is_ok());
        let error = ceiling.check(Some(10 << 20), &machine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.hint_text().unwrap().contains("18 transfer buffers x 1088 KiB"), "{error}");
        let small = MachineMemory { available_bytes: 40 << 20, whose: "what this control group has left" };
        assert!(ceiling.check(None, &small).unwrap_err().message().contains("control group"));
    }

    #[test]
    fn limits_are_read_from_both_kinds_of_control_groups() {
        assert_eq!(meminfo_available("MemTotal: 5 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        let files = cgroup_files("0::/a/b\n5:cpu,memory:/x\n7:pids:/y\n");
        let limits: Vec<_> = files.iter().map(|(limit, _)| limit.display().to_string()).collect();
        assert_eq!(
            limits,
            [
                "/sys/fs/cgroup/a/b/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/memory.max",
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
    }
}
