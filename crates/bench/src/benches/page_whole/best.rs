//! pagehaul against each peer at its best: the fastest setting by time and the smallest by size, which may be two.

use super::target::Target;
use crate::benches::peers::Contestant;
use crate::page::tables::{geometric_mean, verdict};
use crate::pagehaul;
use crate::results::{Results, Run};

/// Those of pagehaul's settings that are compared; the others are shown.
const COMPARED: [&str; 2] = ["page:1", "page:2"];
const PEERS: [&str; 2] = ["pgBackRest", "pg_basebackup"];

/// A figure of a setting; less is better.
type Figure = fn(&Setting) -> Option<f64>;
/// What is compared, and whether it is a time.
const FIGURES: [(&str, Figure, bool); 3] = [
    ("backup time", |setting| Some(setting.backup_s), true),
    ("stored bytes", |setting| Some(setting.stored_bytes), false),
    ("restore time", |setting| setting.restore_s, true),
];

/// One setting of one contestant, by medians.
#[derive(Clone, Debug)]
struct Setting {
    contestant: &'static str,
    name: String,
    backup_s: f64,
    stored_bytes: f64,
    restore_s: Option<f64>,
}

/// One database to one target.
#[derive(Clone, Debug)]
pub(super) struct Row {
    database: String,
    settings: Vec<Setting>,
}

impl Row {
    /// Of what these contestants did.
    pub(super) fn of(database: &str, target: &Target, contestants: &[Contestant], results: &Results) -> Self {
        let of = |contestant: &Contestant| {
            let (tool, name) = (contestant.name(), contestant.setting());
            let label = target.label(database, &name);
            let median = |step, figure: fn(&Run) -> f64| results.median((step, tool, &label), figure);
            Some(Setting {
                contestant: tool,
                backup_s: median("backup", |run| run.cost.wall_s)?,
                stored_bytes: median("backup", |run| run.stored_bytes as f64)?,
                restore_s: median("restore", |run| run.cost.wall_s),
                name,
            })
        };
        Row { database: database.to_owned(), settings: contestants.iter().filter_map(of).collect() }
    }

    fn own(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.contestant == pagehaul::NAME && setting.name == name)
    }

    /// The least of a figure among these contestants, and the setting that has it.
    fn least(&self, is_one: impl Fn(&Setting) -> bool, figure: Figure) -> Option<(f64, &Setting)> {
        let those = self.settings.iter().filter(|setting| is_one(setting));
        those.filter_map(|setting| Some((figure(setting)?, setting))).min_by(|one, two| one.0.total_cmp(&two.0))
    }

    /// How many times ours the best of these peers is; above 1 ours is the better.
    fn gain(&self, own: &str, peers: &[&str], figure: Figure) -> Option<f64> {
        let (best, _) = self.least(|setting| peers.contains(&setting.contestant), figure)?;
        Some(best / figure(self.own(own)?)?)
    }
}

/// The tables of one target.
pub(super) fn text(rows: &[&Row]) -> String {
    let mut text = goals(rows);
    for (what, figure, is_time) in FIGURES {
        text += &format!("\n{}\n\n", heading(what));
        text += &table(rows, figure, is_time);
    }
    text + "\nThe best of both peers over pagehaul's; above 1 pagehaul's is the lower.\n\n" + &gains(rows)
}

fn heading(what: &str) -> String {
    let mut letters = what.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}, medians", first.to_uppercase(), letters.as_str()))
}

/// What is wanted: time and size below both peers' best on every database.
fn goals(rows: &[&Row]) -> String {
    let mut text = "Goals of the project; the peer's best, in any of its settings, over pagehaul's:\n\n\
         | goal | peer | asked | least | mean (geometric) | holds |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for own in COMPARED {
        for ((what, figure, _), peer) in FIGURES.iter().flat_map(|figure| PEERS.map(|peer| (*figure, peer))) {
            let gain = |row: &Row| row.gain(own, &[peer], figure);
            let gains: Vec<(f64, &str)> =
                rows.iter().filter_map(|row| Some((gain(row)?, row.database.as_str()))).collect();
            let Some((least, database)) = gains.iter().copied().min_by(|one, two| one.0.total_cmp(&two.0)) else {
                continue;
            };
            let mean = geometric_mean(gains.iter().map(|(gain, _)| Some(*gain))).unwrap_or_default();
            let won = gains.iter().filter(|(gain, _)| *gain > 1.0).count();
            text += &format!(
                "| {own}: {what} lower on every database | {peer} | > 1 | {least:.2} ({database}) | {mean:.2} | {}, {won} of {} |\n",
                verdict(won == rows.len()),
                rows.len()
            );
        }
    }
    text
}

/// A line a database: pagehaul's settings, then the best of each peer, by one figure.
fn table(rows: &[&Row], figure: Figure, is_time: bool) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let own: Vec<&str> = first
        .settings
        .iter()
        .filter(|setting| setting.contestant == pagehaul::NAME)
        .map(|setting| setting.name.as_str())
        .collect();
    let show = |value: f64| if is_time { format!("{value:.2} s") } else { format!("{:.1} MB", value / 1e6) };
    let mut text = format!(
        "| database | {} | {} |\n|---|{}\n",
        own.join(" | "),
        PEERS.map(|peer| format!("{peer} at its best")).join(" | "),
        "---|".repeat(own.len() + PEERS.len())
    );
    for row in rows {
        let ours = own.iter().map(|name| row.own(name).and_then(figure).map_or_else(String::new, show));
        let peers = PEERS.iter().map(|peer| {
            let best = row.least(|setting| setting.contestant == *peer, figure);
            best.map_or_else(String::new, |(value, setting)| format!("{} ({})", show(value), setting.name))
        });
        text += &format!("| {} | {} |\n", row.database, ours.chain(peers).collect::<Vec<_>>().join(" | "));
    }
    text
}

/// A line a database: ratios to the best of both peers, and whether time and size of the backup are both lower.
fn gains(rows: &[&Row]) -> String {
    let mut text = "| database |".to_owned();
    for own in COMPARED {
        for (what, _, _) in FIGURES {
            text += &format!(" {own} {what} |");
        }
        text += &format!(" {own} backup: both lower |");
    }
    text += &format!("\n|---|{}\n", "---|".repeat(COMPARED.len() * (FIGURES.len() + 1)));
    for row in rows {
        text += &format!("| {} |", row.database);
        for own in COMPARED {
            let gains = FIGURES.map(|(_, figure, _)| row.gain(own, &PEERS, figure));
            for gain in gains {
                text += &gain.map_or_else(|| " |".to_owned(), |gain| format!(" {gain:.2} |"));
            }
            let both = gains[..2].iter().all(|gain| gain.is_some_and(|gain| gain > 1.0));
            text += &format!(" {} |", verdict(both));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(contestant: &'static str, name: &str, backup_s: f64, stored_bytes: f64) -> Setting {
        Setting { contestant, name: name.to_owned(), backup_s, stored_bytes, restore_s: None }
    }

    #[test]
    fn the_fastest_and_the_smallest_setting_of_a_peer_may_be_two() {
        let settings = vec![
            setting("pagehaul", "page:1", 1.0, 50.0),
            setting("pagehaul", "page:2", 2.5, 40.0),
            setting("pgBackRest", "lz4", 2.0, 200.0),
            setting("pgBackRest", "zst", 4.0, 100.0),
        ];
        let row = Row { database: "d".to_owned(), settings };
        let gain = |own, number: usize| row.gain(own, &PEERS, FIGURES[number].1);
        assert_eq!((gain("page:1", 0), gain("page:1", 1), gain("page:1", 2)), (Some(2.0), Some(2.0), None));
        let text = text(&[&row]);
        for line in [
            "| page:1: backup time lower on every database | pgBackRest | > 1 | 2.00 (d) | 2.00 | yes, 1 of 1 |",
            "| page:2: backup time lower on every database | pgBackRest | > 1 | 0.80 (d) | 0.80 | **no**, 0 of 1 |",
            "| d | 1.00 s | 2.50 s | 2.00 s (lz4) |  |",
            "| d | 2.00 | 2.00 | | yes | 0.80 | 2.50 | | **no** |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
