//! "Where the time went": one line a stage, the limit, and what to try.

use pagehaul_engine::pipeline::limit::Limit;
use pagehaul_engine::pipeline::stats::StageStats;

use super::figures::{percent, rate_of};

/// Characters of a stage's bar.
const BAR_WIDTH: usize = 20;

/// The lines, for stages in the order of the data path that took `data_path_s`.
pub(crate) fn where_the_time_went(stages: &[(&str, &StageStats)], data_path_s: f64, limit: &Limit) -> String {
    let mut text = String::from("where the time went (# is work)\n");
    let name_width = stages.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, stage) in stages {
        let total = stage.busy_s + stage.wait_input_s + stage.wait_output_s;
        let share = |seconds: f64| if total > 0.0 { seconds / total } else { 0.0 };
        text.push_str(&format!(
            "  {name:name_width$} x{:<3} [{}]  busy {:>5}  waiting for input {:>5}, for a buffer {:>5}  {:>10}\n",
            stage.threads,
            bar(stage.busy_share()),
            percent(share(stage.busy_s)),
            percent(share(stage.wait_input_s)),
            percent(share(stage.wait_output_s)),
            rate_of(stage.bytes, data_path_s),
        ));
    }
    text.push_str(&limit_lines(limit));
    text
}

/// The verdict and the advice.
fn limit_lines(limit: &Limit) -> String {
    let cpus = if limit.cpu_bound { ", CPUs used up" } else { "" };
    format!("limit: {} (busy {}{cpus})\n  {}\n", limit.stage, percent(limit.share), limit.advice)
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(BAR_WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_stage_and_the_verdict() {
        let stage = StageStats {
            threads: 2,
            busy_s: 5.0,
            wait_input_s: 4.0,
            wait_output_s: 1.0,
            bytes: 50 << 20,
            ..StageStats::default()
        };
        let limit = Limit { stage: "encoders".into(), share: 0.97, cpu_bound: true, advice: "try more".into() };
        let text = where_the_time_went(&[("readers", &stage), ("encoders", &stage)], 5.0, &limit);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1].len(), lines[2].len());
        assert!(lines[1].contains("[##########..........]  busy  50 %"), "{text}");
        assert!(lines[1].ends_with("10.0 MiB/s"), "{text}");
        assert_eq!(lines[3], "limit: encoders (busy 97 %, CPUs used up)");
        assert_eq!(bar(2.0), "#".repeat(BAR_WIDTH));
    }
}
