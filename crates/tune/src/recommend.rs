//! From the table to an answer: which settings, why, how sure that is, and what the next step costs. Pure.

use crate::figures::{Prediction, Recommendation, Row, Step};
use crate::objective::{Goal, Objective};
use crate::rows::{outcome, role};
use crate::search::{WORTH_TRYING, predicted};
use crate::space::{Settings, size_text};
use crate::trial::Targets;

/// A step must gain at least this share to be worth naming.
const STEP_MIN: f64 = 0.03;

/// How the trials ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every point was run.
    All,
    /// No untried point promised to be better.
    Settled,
    /// The budget or a guard ended them.
    Early,
}

/// The answer for `rows` (best first); None if none of ours was measured.
pub fn recommend(
    rows: &[Row],
    predictions: &[Prediction],
    objective: &Objective,
    cores: u16,
    targets: &Targets,
    ending: Ending,
) -> Option<Recommendation> {
    let own: Vec<&Row> = rows.iter().filter(|row| row.settings.is_some() && row.rank > 0).collect();
    let best = *own.first()?;
    let figures = outcome(best)?;
    let settings = best.settings.clone()?;
    let missed = objective.missed(&figures, cores);
    Some(Recommendation {
        row: best.clone(),
        objective: objective.describe(),
        bounds_met: missed.is_empty(),
        has_bounds: objective.has_bounds(),
        why: [how_found(rows, predictions, objective, ending)]
            .into_iter()
            .chain(why(best, rows, objective, &missed, predictions, cores))
            .collect(),
        bounds_missed: missed,
        limit: limit(best),
        sureness: sureness(&own, objective),
        steps: steps(best, &own, predictions),
        config: config(&settings, targets),
        commands: commands(&settings, targets),
        settings: Some(settings),
    })
}

fn how_found(rows: &[Row], predictions: &[Prediction], objective: &Objective, ending: Ending) -> String {
    let run = rows.iter().filter(|row| row.settings.is_some() && row.rank > 0).count();
    let points = predictions.len().max(run);
    let end = match ending {
        Ending::All => "every one was to be run".to_owned(),
        Ending::Settled => format!(
            "the model, corrected by those, finds none of the others better by more than {:.0} %",
            WORTH_TRYING * 100.0
        ),
        Ending::Early => "the trials ended before the search did, so a better one may be left".to_owned(),
    };
    format!("Asked for {}; {run} of {points} points of the space were run: {end}.", objective.describe())
}

fn why(
    best: &Row,
    rows: &[Row],
    objective: &Objective,
    missed: &[String],
    predictions: &[Prediction],
    cores: u16,
) -> Vec<String> {
    let mut why = Vec::new();
    if !missed.is_empty() {
        let met = predictions.iter().any(|prediction| objective.excess(&predicted(prediction), cores) == 0.0);
        let hope = if met {
            "a point that the model says would keep it was not confirmed"
        } else {
            "no point of the space keeps it"
        };
        why.push(format!("Not possible here: {}; {hope}. This is the nearest.", missed.join("; ")));
    }
    if let Some(default) = rows.iter().find(|row| row.role == role::DEFAULT && row.rank > 0) {
        why.push(if default.setting == best.setting {
            "These are the defaults: nothing else was better.".to_owned()
        } else {
            format!("Against the defaults ({}): {}.", default.setting, differences(best, default))
        });
    }
    for tool in ["pg_basebackup", "pgBackRest"] {
        let of_tool = rows.iter().filter(|row| row.contestant == tool && row.rank > 0);
        if let Some(rival) = of_tool.min_by_key(|row| row.rank) {
            why.push(format!("Against the best of {tool} ({}): {}.", rival.setting, differences(best, rival)));
        }
    }
    why
}

/// "restore 12 % shorter, backup 3 % longer, 20 % smaller".
pub(crate) fn differences(own: &Row, other: &Row) -> String {
    let figures = [
        ("restore", own.restore_s.unwrap_or_default(), other.restore_s.unwrap_or_default(), "shorter", "longer"),
        ("backup", own.backup_s, other.backup_s, "shorter", "longer"),
        ("size", own.stored_bytes as f64, other.stored_bytes as f64, "smaller", "larger"),
        ("CPU of the backup", own.backup_cpu_s, other.backup_cpu_s, "less", "more"),
    ];
    let words = figures.iter().filter(|(_, _, other, _, _)| *other > 0.0).map(|(name, own, other, less, more)| {
        let change = own / other - 1.0;
        match (change.abs() * 100.0).round() as i64 {
            0 => format!("{name} the same"),
            share if change < 0.0 => format!("{name} {share} % {less}"),
            share if share < 200 => format!("{name} {share} % {more}"),
            _ => format!("{name} {:.1} times {more}", own / other),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

fn limit(best: &Row) -> String {
    format!("backup: {}; restore: {}", best.backup_limit, best.restore_limit)
}

/// The figure that the goal looks at, and its spread over the repetitions.
fn goal_figure(row: &Row, goal: Goal) -> (f64, f64) {
    match goal {
        Goal::Restore => (row.restore_s.unwrap_or_default(), row.restore_spread),
        Goal::Backup => (row.backup_s, row.backup_spread),
        Goal::Size => (row.stored_bytes as f64, 0.0),
        Goal::Cpu => (row.backup_cpu_s, row.backup_spread),
        Goal::Score => (row.score, row.backup_spread.max(row.restore_spread)),
    }
}

pub(crate) fn sureness(own: &[&Row], objective: &Objective) -> String {
    let Some((best, rest)) = own.split_first() else { return String::new() };
    let (figure, spread) = goal_figure(best, objective.goal);
    let runs = match best.runs {
        1 => "measured once, so the spread is not known".to_owned(),
        runs => format!("{runs} runs, which differ by {:.0} %", spread * 100.0),
    };
    let Some(next) = rest.iter().find(|row| row.runs == best.runs).or(rest.first()) else {
        return format!("{runs}; nothing to compare with.");
    };
    let gap = goal_figure(next, objective.goal).0 / figure.max(1e-9) - 1.0;
    let verdict = if best.runs > 1 && gap > spread {
        "more than the spread: the order is sure"
    } else {
        "within the spread: either may be the better one, and both will do"
    };
    format!("{runs}; the next ({}) is {:.0} % behind, {verdict}.", next.setting, gap * 100.0)
}

pub(crate) fn steps(best: &Row, own: &[&Row], predictions: &[Prediction]) -> Vec<Step> {
    type Figure = fn(&Row) -> f64;
    let wishes: [(&str, Figure); 4] = [
        ("a smaller backup", |row| row.stored_bytes as f64),
        ("a shorter restore", |row| row.restore_s.unwrap_or_default()),
        ("a shorter backup", |row| row.backup_s),
        ("less CPU time", |row| row.backup_cpu_s),
    ];
    let predicted: Vec<Row> =
        predictions.iter().filter(|point| !is_measured(own, &point.settings)).map(as_row).collect();
    let step = |(wish, figure): (&str, Figure)| {
        let gains = |row: &&Row| figure(row) < figure(best) * (1.0 - STEP_MIN) && figure(row) > 0.0;
        // The cheapest step: the least time lost, of what was measured; what is only predicted is a second choice.
        let loss = |row: &Row| row.restore_s.unwrap_or_default() + row.backup_s;
        let cheapest = |rows: Vec<&Row>| rows.into_iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).cloned();
        let measured = cheapest(own.iter().copied().filter(gains).collect());
        let (row, how) = match measured {
            Some(row) => (row, "measured"),
            None => (cheapest(predicted.iter().filter(gains).collect())?, "predicted"),
        };
        let text = format!("{} ({how})", differences(&row, best));
        Some(Step { wish: wish.to_owned(), setting: row.setting, text })
    };
    wishes.into_iter().filter_map(step).collect()
}

fn is_measured(own: &[&Row], settings: &Settings) -> bool {
    own.iter().any(|row| row.settings.as_ref() == Some(settings))
}

fn as_row(point: &Prediction) -> Row {
    Row {
        setting: point.settings.to_string(),
        stored_bytes: point.stored_bytes,
        backup_s: point.backup.wall_s,
        restore_s: Some(point.restore.wall_s),
        backup_cpu_s: point.backup.cpu_s,
        ..Row::default()
    }
}

/// Keys of pagehaul.toml in their tables, with the values of `settings`.
pub fn config_values(settings: &Settings, targets: &Targets) -> [(&'static str, Vec<(&'static str, ConfigValue)>); 2] {
    use ConfigValue::{Count, Text, Texts};
    let mut backup = vec![
        ("compression", Text(settings.compression.to_string())),
        ("stripes", Count(settings.stripes.into())),
        ("readers", Count(settings.readers.into())),
        ("encoders", Count(settings.encoders.into())),
        ("buffer-count", Count(settings.buffer_count)),
        ("transfer-size", Text(size_text(settings.transfer_size_bytes))),
        ("frame-size", Text(size_text(settings.frame_size_bytes()))),
    ];
    if !targets.stripe_to.is_empty() {
        backup.insert(1, ("stripe-to", Texts(targets.stripe_to.clone())));
    }
    let restore = vec![
        ("readers", Count(settings.stripe_readers.into())),
        ("decoders", Count(settings.decoders.into())),
        ("file-writers", Count(settings.file_writers.into())),
    ];
    [("backup", backup), ("restore", restore)]
}

/// A value in pagehaul.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigValue {
    /// A number.
    Count(u32),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
}

fn config(settings: &Settings, targets: &Targets) -> String {
    let quoted = |text: &String| serde_json::Value::from(text.as_str()).to_string();
    let value = |value: &ConfigValue| match value {
        ConfigValue::Count(count) => count.to_string(),
        // TOML's basic strings are written as JSON's.
        ConfigValue::Text(text) => quoted(text),
        ConfigValue::Texts(texts) => format!("[{}]", texts.iter().map(quoted).collect::<Vec<_>>().join(", ")),
    };
    let table = |(name, keys): (&str, Vec<(&str, ConfigValue)>)| {
        let lines: String = keys.iter().map(|(key, own)| format!("{key} = {}\n", value(own))).collect();
        format!("[{name}]\n{lines}")
    };
    config_values(settings, targets).map(table).join("\n")
}

/// The flags of `settings`: of a backup, then of a restore.
pub fn flags(settings: &Settings, targets: &Targets) -> [String; 2] {
    config_values(settings, targets).map(|(_, keys)| {
        let words = keys.iter().flat_map(|(key, value)| match value {
            ConfigValue::Count(count) => vec![format!("--{key} {count}")],
            ConfigValue::Text(word) => vec![format!("--{key} {word}")],
            ConfigValue::Texts(words) => words.iter().map(|word| format!("--{key} {}", shell_word(word))).collect(),
        });
        words.collect::<Vec<_>>().join(" ")
    })
}

/// The command lines of `settings`: backup, then restore.
pub fn commands(settings: &Settings, targets: &Targets) -> Vec<String> {
    let [backup, restore] = flags(settings, targets);
    let (pgdata, repo) = (shell_word(&targets.pgdata.display().to_string()), shell_word(&targets.repo));
    vec![
        format!("pagehaul backup --pgdata {pgdata} --repo {repo} {backup}"),
        format!("pagehaul restore --repo {repo} --target-dir DIR {restore}"),
    ]
}

/// A word of a command that the user may copy into a shell.
pub fn shell_word(text: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-=:,@%+".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Trial;
    use crate::rows::{table, tests::trial};
    use crate::space::Space;

    fn targets() -> Targets {
        Targets {
            pgdata: "/pg/main".into(),
            connection: None,
            repo: "/backup".to_owned(),
            stripe_to: vec!["/disk 1".to_owned()],
            restore_to: "/backup".to_owned(),
        }
    }

    fn trials() -> Vec<Trial> {
        let defaults = Space::defaults(2, 1);
        let with = |compression: &str, backup_s, restore_s, stored| {
            let settings = Settings { compression: compression.parse().unwrap(), ..defaults.clone() };
            Trial { settings: Some(settings.clone()), ..trial(&settings.to_string(), backup_s, restore_s, stored) }
        };
        let mut trials = vec![
            with("lz4", 9.0, 8.0, 400_000_000),
            with("zstd:1", 10.0, 9.0, 250_000_000),
            with("zstd:9", 30.0, 9.5, 200_000_000),
        ];
        trials[1].role = role::DEFAULT.to_owned();
        trials.push(Trial {
            contestant: "pgBackRest".to_owned(),
            ..trial("zst:1 process-max 2", 20.0, 24.0, 250_000_000)
        });
        trials
    }

    #[test]
    fn the_answer_says_why_and_what_the_next_step_costs() {
        let objective = Objective::default();
        let rows = table(&trials(), &objective, 2);
        let answer = recommend(&rows, &[], &objective, 2, &targets(), Ending::Settled).unwrap();
        assert_eq!(answer.settings.as_ref().unwrap().compression.to_string(), "lz4:1");
        assert!(answer.bounds_met);
        let why = answer.why.join("\n");
        assert!(why.contains("Against the defaults (zstd:1"), "{why}");
        assert!(why.contains("restore 11 % shorter, backup 10 % shorter, size 60 % larger"), "{why}");
        assert!(why.contains("Against the best of pgBackRest"), "{why}");
        assert_eq!(answer.steps[0].wish, "a smaller backup");
        assert!(answer.steps[0].setting.starts_with("zstd:1"), "{:?}", answer.steps);
        assert!(answer.steps[0].text.contains("size 38 % smaller") && answer.steps[0].text.contains("(measured)"));
        assert!(answer.sureness.starts_with("measured once"), "{}", answer.sureness);
        let config: toml::Table = answer.config.parse().unwrap();
        assert_eq!(config["backup"]["compression"].as_str(), Some("lz4:1"));
        assert_eq!(config["backup"]["stripe-to"][0].as_str(), Some("/disk 1"));
        assert_eq!(config["restore"]["decoders"].as_integer(), Some(2));
        assert!(answer.commands[0].contains("--stripe-to '/disk 1' --stripes 1"), "{:?}", answer.commands);
    }

    #[test]
    fn a_bound_nobody_meets_is_said_with_the_best_that_is_possible() {
        let objective = Objective { restore_s_max: Some(2.0), goal: Goal::Score, ..Objective::default() };
        let rows = table(&trials(), &objective, 2);
        let answer = recommend(&rows, &[], &objective, 2, &targets(), Ending::Settled).unwrap();
        assert!(!answer.bounds_met);
        assert_eq!(answer.bounds_missed, ["--rto 2.0 s: the restore takes 8.0 s"]);
        assert_eq!(answer.settings.unwrap().compression.to_string(), "lz4:1");
        assert!(answer.why[1].contains("Not possible here"), "{:?}", answer.why);
        assert!(recommend(&[], &[], &objective, 2, &targets(), Ending::Settled).is_none());
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(shell_word("/backup/x-1"), "/backup/x-1");
        assert_eq!(shell_word("/my backup"), "'/my backup'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
