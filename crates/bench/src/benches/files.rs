//! The cost of a file: clusters with few, many and very many small tables, by pagehaul and by pgBackRest with bundles.

use std::fmt::Write as _;

use pagehaul_engine::error::Result;

use super::peers::{Contestant, backrests};
use crate::cluster::Cluster;
use crate::load;
use crate::options::BenchOptions;
use crate::pagehaul::{self, PROGRAM_ALLOWANCE_BYTES};
use crate::results::{Results, Run};
use crate::setup::Setup;

const OWN_SETTING: &str = "zstd:1";

/// Runs everything; gives what the README says of the data.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn run(options: &BenchOptions, results: &mut Results) -> Result<String> {
    let mut data = Vec::new();
    let mut clusters = Vec::new();
    for tables in &options.tables {
        let name = format!("files-{tables}");
        let cluster =
            Cluster::open_or_make(&options.pgdata_root, &name, |cluster| load::small_tables(cluster, *tables))?;
        let setup = Setup::on(cluster, options)?;
        let contestants = contestants(&setup, results);
        let first = results.runs.len();
        for repetition in 1..=options.repeat {
            for contestant in &contestants {
                contestant.round(&setup, repetition, results)?;
            }
        }
        for run in &mut results.runs[first..] {
            run.setting = with_tables(&run.setting, *tables);
        }
        data.push(format!("{tables} tables: {}", setup.data_text()));
        clusters.push((*tables, setup.files.files.len() as u64));
        if contestants.len() > 1 {
            compare(*tables, &contestants, results);
        }
    }
    let table = cost_table(&clusters, results);
    results.sections.push(("Cost of a file".to_owned(), table));
    Ok(data.join("; "))
}

fn with_tables(setting: &str, tables: u32) -> String {
    format!("{tables} tables, {setting}")
}

fn contestants(setup: &Setup, results: &mut Results) -> Vec<Contestant> {
    let mut list =
        vec![Contestant::Pagehaul { setting: OWN_SETTING.to_owned(), flags: pagehaul::flags("--compression zstd:1") }];
    list.extend(backrests(setup, &[("zst", 1)], results));
    list.retain(|contestant| setup.wanted(contestant.name(), &contestant.setting()));
    list
}

fn compare(tables: u32, contestants: &[Contestant], results: &mut Results) {
    let own = with_tables(OWN_SETTING, tables);
    for peer in contestants.iter().filter(|contestant| contestant.name() != pagehaul::NAME) {
        let theirs = with_tables(&peer.setting(), tables);
        for (step, target) in [("backup", "files-backup"), ("restore", "files-restore")] {
            let speed = |name: &str, setting: &str| {
                results.median((step, name, setting), |run| run.cost.wall_s).map(|wall_s| 1.0 / wall_s.max(1e-9))
            };
            let (ours, other) = (speed(pagehaul::NAME, &own), speed(peer.name(), &theirs));
            let limit = results.limit((step, pagehaul::NAME, &own));
            let what = format!("{step}, {own} / {} {}", peer.name(), peer.setting());
            results.compare(target, what, ours, other, limit);
        }
    }
    for step in ["backup", "restore"] {
        let key = (step, pagehaul::NAME, own.as_str());
        let allowed = results.median(key, |run| (run.memory_ceiling_bytes + PROGRAM_ALLOWANCE_BYTES) as f64);
        let peak = results.median(key, |run| run.cost.rss_bytes_max as f64);
        let limit = results.limit(key);
        results.compare("memory", format!("{step}, {own}: ceiling + 32 MiB / peak memory"), allowed, peak, limit);
    }
}

/// Wall time and CPU a file, whole and for each file more than in the smallest cluster.
fn cost_table(clusters: &[(u32, u64)], results: &Results) -> String {
    let mut text = "Every other table is a bare one (1 file of 8 KiB), the others have a primary key and a text column (4 files, one of them empty), one row each; the files of three empty databases come on top. `each more` is the difference to the smallest cluster, divided by the difference in files.\n\n| setting | step | contestant | files | wall s | wall us a file | each more, us | CPU us a file | peak MiB |\n|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for first in results.firsts() {
        let Some((tables, inner)) = first.setting.split_once(" tables, ") else { continue };
        let count = |tables: u32| clusters.iter().find(|cluster| cluster.0 == tables).map_or(0, |cluster| cluster.1);
        let files = tables.parse().map_or(0, count).max(1) as f64;
        let (smallest, fewest) = clusters.first().map_or((0, 0), |cluster| (cluster.0, cluster.1));
        let wall = |key| results.median(key, |run: &Run| run.cost.wall_s).unwrap_or_default();
        let wall_s = wall(first.key());
        let base_s = wall((first.step, &first.contestant, &with_tables(inner, smallest)));
        let more = files - fewest as f64;
        let each = if more > 0.0 { format!("{:.1}", (wall_s - base_s) * 1e6 / more) } else { String::new() };
        let cpu_s =
            results.median(first.key(), |run| run.cost.cpu_user_s + run.cost.cpu_system_s + run.cost.server_cpu_s);
        let peak = results.median(first.key(), |run| run.cost.rss_tree_bytes_max.max(run.cost.rss_bytes_max) as f64);
        let row = writeln!(
            text,
            "| {} | {} | {} | {files:.0} | {wall_s:.2} | {:.1} | {each} | {:.1} | {:.1} |",
            first.setting,
            first.step,
            first.contestant,
            wall_s * 1e6 / files,
            cpu_s.unwrap_or_default() * 1e6 / files,
            peak.unwrap_or_default() / 1_048_576.0
        );
        debug_assert!(row.is_ok(), "a String takes everything");
    }
    text
}
