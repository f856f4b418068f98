//! What tuning found, as a table and sentences for people.

use pagehaul_tune::figures::{CacheState, Row, TuneReport};
use pagehaul_tune::rows::role;

use crate::output::figures::{bytes, duration, percent, ratio};
use crate::output::table::{Align, block, table};

const HEADER: [(&str, Align); 11] = [
    ("#", Align::Right),
    ("who", Align::Left),
    ("settings", Align::Left),
    ("runs", Align::Right),
    ("restore", Align::Right),
    ("backup", Align::Right),
    ("size", Align::Right),
    ("ratio", Align::Right),
    ("CPU", Align::Right),
    ("memory", Align::Right),
    ("score", Align::Right),
];

/// The table of `rows`, best first; at most `most` of them.
pub(super) fn rows_table(rows: &[Row], most: usize) -> String {
    let lines: Vec<Vec<String>> = rows.iter().take(most).map(cells).collect();
    let mut text = table(&HEADER, &lines);
    if rows.len() > most {
        text.push_str(&format!("... and {} more\n", rows.len() - most));
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let or_dash = |there: bool, text: String| if there { text } else { "-".to_owned() };
    let with_spread = |seconds: f64, spread: f64| match row.runs {
        0 | 1 => duration(seconds),
        _ => format!("{} ±{}", duration(seconds), percent(spread / 2.0)),
    };
    let who = match row.role.as_str() {
        role::DEFAULT => format!("{} (defaults)", row.contestant),
        role::PARITY => format!("{} (with parity)", row.contestant),
        role::BASELINE => format!("{} (reads only)", row.contestant),
        _ => row.contestant.clone(),
    };
    let setting = match &row.failed {
        Some(why) => format!("{}: failed: {}", row.setting, why.lines().next().unwrap_or_default()),
        None => row.setting.clone(),
    };
    vec![
        or_dash(row.rank > 0, row.rank.to_string()),
        who,
        setting,
        row.runs.to_string(),
        or_dash(row.restore_s.is_some(), with_spread(row.restore_s.unwrap_or_default(), row.restore_spread)),
        or_dash(row.backup_s > 0.0, with_spread(row.backup_s, row.backup_spread)),
        or_dash(row.stored_bytes > 0, bytes(row.stored_bytes)),
        ratio(row.ratio),
        or_dash(row.backup_cpu_s > 0.0, duration(row.backup_cpu_s)),
        or_dash(row.rss_bytes_max > 0, bytes(row.rss_bytes_max)),
        or_dash(row.rank > 0, format!("{:.2}", row.score)),
    ]
}

/// The whole answer.
pub(in crate::commands) fn report(done: &TuneReport) -> String {
    let source = &done.facts.source;
    let mut text = format!(
        "measured {} of {} in {}: {} runs\n\n{}\n",
        bytes(source.source_bytes),
        source.pgdata,
        duration(done.elapsed_s),
        done.trials.len(),
        rows_table(&done.rows, usize::MAX)
    );
    let is_own = done.rows.iter().any(|row| row.settings.is_some());
    text.push_str(if is_own {
        "settings: codec, r readers, e encoders, s stripes, b buffers, transfer size / restore: r stripe readers, d decoders, w file writers\n"
    } else {
        "settings: compression, f files, b BUFFERCOUNT, t MAXTRANSFERSIZE, k BLOCKSIZE; what is not there is the server's choice\n"
    });
    text.push_str(match done.facts.devices.read_cache {
        CacheState::Warm => "the source was in the page cache: from a cold disk it is read more slowly (--cold, as root, measures that)\n",
        CacheState::Cold => "the source was read from disk, not from the page cache\n",
        CacheState::Mixed => "the source was partly in the page cache\n",
        CacheState::Unknown => "",
    });
    if done.model_error.runs > 0 {
        text.push_str(&format!(
            "the model was off by {} (median of {} runs, worst {})\n",
            percent(done.model_error.median),
            done.model_error.runs,
            percent(done.model_error.worst)
        ));
    }
    for note in &done.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&answer(done));
    text
}

fn answer(done: &TuneReport) -> String {
    let Some(answer) = &done.recommendation else { return String::new() };
    let row = &answer.row;
    let steps: Vec<String> =
        answer.steps.iter().map(|step| format!("{}: {}: {}", step.wish, step.setting, step.text)).collect();
    let heading = if answer.bounds_met { "recommended" } else { "the nearest to what was asked" };
    let lines = [
        ("settings", row.setting.clone()),
        (
            "gives",
            format!(
                "restore {}, backup {}, {} stored",
                duration(row.restore_s.unwrap_or_default()),
                duration(row.backup_s),
                bytes(row.stored_bytes)
            ),
        ),
        ("missed", answer.bounds_missed.join("\n")),
        ("why", answer.why.join("\n")),
        ("limit", answer.limit.clone()),
        ("how sure", answer.sureness.clone()),
        ("next steps", steps.join("\n")),
        ("commands", answer.commands.join("\n")),
    ];
    let text = format!("\n{heading}\n{}", block(&lines));
    if answer.config.is_empty() {
        return text;
    }
    format!("{text}\npagehaul.toml (--apply writes it):\n{}", indented(&answer.config))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect()
}
