//! The verdict: which stage limited a run, how surely, and what would help. Pure.

use serde::Serialize;

use super::stats::{PipelineStats, StageStats};
use crate::codec::{CodecId, CodecSpec};

/// Which way the bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Readers, encoders, writers.
    Backup,
    /// Stripe readers, decoders, file writers.
    Restore,
}

/// What limited a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// The stage, or "max-rate".
    pub stage: String,
    /// Share of its threads' time that it worked, 0 to 1.
    pub share: f64,
    /// Whether the machine's CPUs were used up.
    pub cpu_bound: bool,
    /// What to try.
    pub advice: String,
}

/// CPU use above this share of all cores means that more threads cannot help.
const CPU_BOUND_SHARE: f64 = 0.85;
/// A stage that worked less than this share of its time did not limit the run alone.
const BUSY_SHARE: f64 = 0.5;

/// A stage that only computes and got less CPU than this share of its busy time shared the CPUs with others.
const CPU_SHARED: f64 = 0.9;

/// Finds the limit of a run on `cores` cores; `throttled` if --max-rate was set, `codec` what its backup is or was encoded by,
/// where that is known.
pub fn find_limit(
    direction: Direction,
    codec: Option<CodecSpec>,
    stats: &PipelineStats,
    cores: f64,
    throttled: bool,
) -> Limit {
    let stages = [&stats.first, &stats.middle, &stats.last];
    let cpu_s: f64 = stages.iter().map(|stage| stage.cpu_s).sum();
    let cpu_bound = stats.elapsed_s > 0.0 && cpu_s / (stats.elapsed_s * cores) >= CPU_BOUND_SHARE;
    let names = match direction {
        Direction::Backup => ["readers", "encoders", "writers"],
        Direction::Restore => ["stripe readers", "decoders", "file writers"],
    };
    // With the CPUs used up a thread that waits for a core looks busy; then CPU time tells, not wall time.
    let weight = |stage: &StageStats| if cpu_bound { stage.cpu_s } else { stage.busy_share() };
    let index = (0..3).max_by(|a, b| weight(stages[*a]).total_cmp(&weight(stages[*b]))).unwrap_or(1);
    let share = stages[index].busy_share();
    if throttled && share < BUSY_SHARE {
        let advice = "the run was held back by --max-rate; raise it to go faster".to_owned();
        return Limit { stage: "max-rate".to_owned(), share: 1.0 - share, cpu_bound, advice };
    }
    let advice = advice(direction, codec, index, share, cpu_bound, stages[index]);
    Limit { stage: names[index].to_owned(), share, cpu_bound, advice }
}

fn advice(
    direction: Direction,
    codec: Option<CodecSpec>,
    index: usize,
    share: f64,
    cpu_bound: bool,
    stage: &StageStats,
) -> String {
    let threads = stage.threads;
    let is_shared = stage.cpu_s < stage.busy_s * CPU_SHARED;
    match (direction, index, cpu_bound) {
        (_, _, false) if share < BUSY_SHARE => {
            "no stage was busy most of the time: the run is short, or more buffers (--buffer-count) would let the stages overlap".to_owned()
        }
        (Direction::Backup, 0, true) => "the CPUs were used up, most of it by reading: a larger --transfer-size may help".to_owned(),
        (Direction::Backup, 1, true) => format!("the CPUs were used up, most of it by encoding: {}", way_to_go_faster(codec)),
        (Direction::Backup, _, true) => match way_to_write_less(codec) {
            Some(way) => format!("the CPUs were used up, most of it by writing: {way} writes less"),
            None => "the CPUs were used up, most of it by writing: more cores are the way to go faster".to_owned(),
        },
        (Direction::Backup, 0, false) => {
            let way = way_to_write_less(codec).map(|way| format!("; {way} costs no time here")).unwrap_or_default();
            format!("reading the source was the limit: try more --readers than {threads}{way}")
        }
        (Direction::Backup, 1, false) if is_shared => format!(
            "encoding wanted the CPUs and other processes used them too: run at a quieter time; beyond that {}",
            way_to_go_faster(codec)
        ),
        (Direction::Backup, 1, false) => format!("encoding was the limit and CPUs were free: try more --encoders than {threads}"),
        (Direction::Backup, _, false) => {
            let way = way_to_write_less(codec).map(|way| format!(", or use {way}; it costs no time here")).unwrap_or_default();
            format!("writing the stripes was the limit: spread the stripes over more disks or stores (--stripe-to){way}")
        }
        (Direction::Restore, 2, true) => {
            "the CPUs were used up, most of it by writing the files: a faster disk will not help, more cores will".to_owned()
        }
        (Direction::Restore, _, true) => format!("the CPUs were used up: {}", way_to_decode_faster(codec)),
        (Direction::Restore, 0, false) => format!("reading the stripes was the limit: try more --readers than {threads}, or spread the stripes over more disks or stores when you back up"),
        (Direction::Restore, 1, false) if is_shared => {
            "decoding wanted the CPUs and other processes used them too: run at a quieter time".to_owned()
        }
        (Direction::Restore, 1, false) => format!("decoding was the limit and CPUs were free: try more --decoders than {threads}"),
        (Direction::Restore, _, false) => format!("writing the files was the limit: try more --file-writers than {threads}, or a faster disk"),
    }
}

/// What takes less CPU than encoding by `codec`, by bench/page on the mean: page:1 has 0.7 of lz4's speed at a third of its
/// bytes, and is faster than all others but zstd's levels below 0.
fn way_to_go_faster(codec: Option<CodecSpec>) -> &'static str {
    const OF_OTHERS: &str = "a faster --compression (page:1 where there are pages, else lz4) is the way to go faster";
    let Some(codec) = codec else { return OF_OTHERS };
    match (codec.codec(), codec.level()) {
        _ if codec.is_auto() => "auto goes down to lz4 by itself where that is so; more cores are the way to go faster",
        (CodecId::None, _) => "they only check and copy; more cores are the way to go faster",
        (CodecId::Lz4, 1) => {
            "only --compression none costs less, and it writes more; more cores are the way to go faster"
        }
        (CodecId::Page, 1) | (CodecId::Zstd, ..0) => {
            "--compression lz4 costs less, and writes more; beyond that more cores are the way to go faster"
        }
        (CodecId::Page, _) => "a faster --compression (page:1) is the way to go faster",
        (CodecId::Lz4, _) => "a faster --compression (lz4:1) is the way to go faster",
        _ => OF_OTHERS,
    }
}

/// What makes fewer bytes than `codec`, if anything does, by bench/page on the mean: page's levels each fewer than the one
/// below, and its second less than half of what any other codec makes.
fn way_to_write_less(codec: Option<CodecSpec>) -> Option<String> {
    const OF_OTHERS: &str = "a stronger --compression (page:2 where there are pages, else a higher level)";
    let Some(codec) = codec else { return Some(OF_OTHERS.to_owned()) };
    match (codec.codec(), codec.level()) {
        // It goes up by itself where that costs no time.
        _ if codec.is_auto() => None,
        (CodecId::Page, level) => {
            let higher = CodecSpec::new(CodecId::Page, level + 1).ok()?;
            Some(format!("a stronger --compression ({higher})"))
        }
        _ => Some(OF_OTHERS.to_owned()),
    }
}

/// What takes less CPU to decode than frames of `codec`, by bench/page on the mean: page:1 is faster than zstd and slower
/// than lz4.
fn way_to_decode_faster(codec: Option<CodecSpec>) -> &'static str {
    match codec.map(|codec| (codec.codec(), codec.level())) {
        Some((CodecId::None | CodecId::Lz4, _)) => "restore on more cores",
        Some((CodecId::Page, 1)) => {
            "back up with a codec that decodes faster (lz4, for more bytes), or restore on more cores"
        }
        _ => {
            "back up with a codec that decodes faster (page:1 where there are pages, else lz4), or restore on more cores"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(busy_s: f64, wait_s: f64, cpu_s: f64) -> StageStats {
        StageStats { threads: 2, busy_s, wait_input_s: wait_s, cpu_s, ..StageStats::default() }
    }

    fn check(stats: [StageStats; 3], throttled: bool, expected: (&str, bool)) {
        let stats = PipelineStats { first: stats[0], middle: stats[1], last: stats[2], elapsed_s: 10.0 };
        let limit = find_limit(Direction::Backup, None, &stats, 2.0, throttled);
        assert_eq!((limit.stage.as_str(), limit.cpu_bound), expected, "{limit:?}");
    }

    #[test]
    fn the_stage_that_worked_is_the_limit() {
        check([stage(2.0, 18.0, 1.0), stage(9.0, 11.0, 9.0), stage(19.0, 1.0, 1.0)], false, ("writers", false));
        check([stage(18.0, 2.0, 1.0), stage(9.0, 11.0, 5.0), stage(1.0, 19.0, 1.0)], false, ("readers", false));
    }

    #[test]
    fn with_the_cpus_used_up_cpu_time_tells() {
        check([stage(19.0, 1.0, 3.0), stage(18.0, 2.0, 15.0), stage(15.0, 5.0, 1.0)], false, ("encoders", true));
    }

    /// What is said of each way a run can be limited, in the order of its stages, with the CPUs used up and not.
    fn all_advice(direction: Direction, codec: Option<CodecSpec>) -> Vec<String> {
        let stages = [[19.0, 1.0], [1.0, 19.0]];
        let of = |limiting: usize, cpu_s: f64| {
            let [first, middle, last] = [0, 1, 2].map(|at| {
                let [busy, wait] = stages[usize::from(at != limiting)];
                stage(busy, wait, if at == limiting { cpu_s } else { 0.1 })
            });
            let stats = PipelineStats { first, middle, last, elapsed_s: 10.0 };
            find_limit(direction, codec, &stats, 2.0, false).advice
        };
        (0..3).flat_map(|at| [18.0, 3.0].map(|cpu_s| of(at, cpu_s))).collect()
    }

    #[test]
    fn nobody_is_told_to_use_what_they_use() {
        for codec in CodecId::ALL.into_iter().flat_map(CodecSpec::all_of) {
            let name = if codec.codec() == CodecId::None { codec.name().to_owned() } else { codec.to_string() };
            let of = |direction| all_advice(direction, Some(codec));
            for advice in [of(Direction::Backup), of(Direction::Restore)].concat() {
                assert!(!advice.contains(&format!("--compression {name}")), "{codec}: {advice}");
                assert!(!advice.contains(&format!("({name}")), "{codec}: {advice}");
            }
        }
        let backup = |text: &str| all_advice(Direction::Backup, text.parse().ok());
        let restore = |text: &str| all_advice(Direction::Restore, text.parse().ok());
        // Where encoding used the CPUs up.
        assert!(backup("zstd:1")[2].contains("page:1") && backup("page:2")[2].contains("page:1"));
        assert!(backup("page:1")[2].contains("lz4") && backup("zstd:-3")[2].contains("lz4"));
        // Where reading or writing was the limit.
        for at in [1, 4, 5] {
            assert!(backup("zstd:19")[at].contains("page:2") && backup("page:2")[at].contains("page:3"));
            assert!(!backup("page:max")[at].contains("--compression"));
        }
        assert!(backup("auto").iter().all(|advice| !advice.contains("--compression")));
        // Where decoding used the CPUs up.
        assert!(restore("zstd:1")[2].contains("page:1") && restore("page:1")[2].contains("lz4"));
        assert!(["lz4:9", "none"].iter().all(|codec| !restore(codec)[2].contains("back up with")));
    }

    #[test]
    fn a_throttle_is_named() {
        check([stage(2.0, 18.0, 1.0), stage(2.0, 18.0, 2.0), stage(1.0, 19.0, 1.0)], true, ("max-rate", false));
    }
}
