//! The answer: the best row, why, and the statements that use it. Pure.

use pagehaul_engine::source::mssql::statement::Compression;

use super::point::Point;
use crate::figures::{Recommendation, Row};
use crate::objective::Objective;
use crate::recommend::{differences, shell_word, steps, sureness};
use crate::rows::{outcome, role};

/// How the trials ended, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every point was run.
    All,
    /// No neighbour of the best is better.
    Settled,
    /// Time or a guard ended them.
    Early,
}

/// The answer for `rows` (best first) of `database`; None if nothing was measured.
pub fn recommend(
    rows: &[Row],
    objective: &Objective,
    cores: u16,
    database: &str,
    backup_to: &[String],
    ending: Ending,
    point_count: usize,
) -> Option<Recommendation> {
    let own: Vec<&Row> = rows.iter().filter(|row| row.rank > 0).collect();
    let best = *own.first()?;
    let missed = objective.missed(&outcome(best)?, cores);
    let end = match ending {
        Ending::All => "all of them were to be run",
        Ending::Settled => "none that differs from the best in one setting is better",
        Ending::Early => "the trials ended before that, so a better one may be left",
    };
    let mut why =
        vec![format!("Asked for {}; {} of {point_count} settings were run: {end}.", objective.describe(), own.len())];
    if !missed.is_empty() {
        why.push(format!("Not possible here: {}. This is the nearest.", missed.join("; ")));
    }
    if let Some(default) = own.iter().find(|row| row.role == role::DEFAULT) {
        why.push(if default.setting == best.setting {
            "These are the server's defaults: nothing else was better.".to_owned()
        } else {
            format!("Against the server's defaults: {}.", differences(best, default))
        });
    }
    Some(Recommendation {
        row: best.clone(),
        objective: objective.describe(),
        has_bounds: objective.has_bounds(),
        bounds_met: missed.is_empty(),
        bounds_missed: missed,
        why,
        limit: format!("backup: {}; restore: {}", best.backup_limit, best.restore_limit),
        sureness: sureness(&own, objective),
        steps: steps(best, &own, &[]),
        commands: commands(best, database, backup_to),
        ..Recommendation::default()
    })
}

/// Command lines of the best row's settings.
fn commands(best: &Row, database: &str, backup_to: &[String]) -> Vec<String> {
    let Ok(point) = best.setting.parse::<Point>() else { return Vec::new() };
    let directory = |number: usize| backup_to.get(number % backup_to.len().max(1)).map_or("DIRECTORY", String::as_str);
    let device = |number| format!("{}/{database}-{number}.bak", directory(usize::from(number)).trim_end_matches('/'));
    let files = |flag: &str| {
        let words: Vec<String> =
            (0..point.files).map(|number| format!("{flag} {}", shell_word(&device(number)))).collect();
        words.join(" ")
    };
    let mut sizes = String::new();
    if let Some(count) = point.buffer_count {
        sizes.push_str(&format!(" --buffer-count {count}"));
    }
    if let Some(size) = point.transfer_size {
        sizes.push_str(&format!(" --max-transfer-size {size}"));
    }
    let block_size = point.block_size.map_or_else(String::new, |size| format!(" --block-size {size}"));
    let compression = match point.compression {
        Compression::Configured => String::new(),
        other => format!(" --compression {other}"),
    };
    let database = shell_word(database);
    vec![
        format!("pagehaul mssql backup --database {database} {}{compression}{sizes}{block_size}", files("--to")),
        format!("pagehaul mssql restore --database {database} {}{sizes}", files("--from")),
    ]
}
