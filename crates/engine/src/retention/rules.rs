//! The rules, one by one: each says which sets it wants and why, in words.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::facts::SourceDamage;
use super::judge::{Judged, JudgedSet};
use super::policy::RetentionPolicy;
use super::timelines::Timelines;

/// Of a set that is kept and not offered.
pub(super) const BURIED: &str = "it has a tombstone that these rules do not want";

/// What the rules say of the sets, by their place in order.
pub(super) struct Wanted {
    /// Why each is kept; empty if no rule wants it.
    pub(super) reasons: Vec<Vec<String>>,
    /// Whether it is wanted by a rule that means continuous recovery: count, window, minimum.
    pub(super) for_recovery: Vec<bool>,
    /// Whether it has a tombstone and is wanted all the same.
    pub(super) in_spite_of_tombstone: Vec<bool>,
    /// Whether a rule, and one for recovery, would want more sets than count.
    is_short: bool,
    is_short_for_recovery: bool,
}

impl Wanted {
    pub(super) fn add(&mut self, place: usize, for_recovery: bool, reason: String) {
        if !self.reasons[place].contains(&reason) {
            self.reasons[place].push(reason);
        }
        self.for_recovery[place] |= for_recovery;
    }

    fn falls_short(&mut self, for_recovery: bool) {
        self.is_short = true;
        self.is_short_for_recovery |= for_recovery;
    }
}

/// Asks every rule but the pins.
pub(super) fn ask(judged: &Judged<'_>, policy: &RetentionPolicy, timelines: &Timelines<'_>, at: Timestamp) -> Wanted {
    let count = judged.sets.len();
    let mut wanted = Wanted {
        reasons: vec![Vec::new(); count],
        for_recovery: vec![false; count],
        in_spite_of_tombstone: vec![false; count],
        is_short: false,
        is_short_for_recovery: false,
    };
    keep_minimum(judged, policy, &mut wanted);
    keep_count(judged, policy, &mut wanted);
    if let Some(start) = policy.window_start(at) {
        keep_window(judged, start, timelines, &mut wanted);
    }
    let day = |date: Date| date.to_string();
    let week = |date: Date| format!("{}-W{:02}", date.iso_week_date().year(), date.iso_week_date().week());
    let month = |date: Date| format!("{:04}-{:02}", date.year(), date.month());
    let year = |date: Date| format!("{:04}", date.year());
    keep_periods(judged, "daily", policy.keep_daily, &day, &mut wanted);
    keep_periods(judged, "weekly", policy.keep_weekly, &week, &mut wanted);
    keep_periods(judged, "monthly", policy.keep_monthly, &month, &mut wanted);
    keep_periods(judged, "yearly", policy.keep_yearly, &year, &mut wanted);
    keep_uncounted(judged, policy, &mut wanted);
    keep_whole_pages(judged, timelines, &mut wanted);
    wanted
}

/// Places of the sets that count, newest first.
fn counted<'j>(judged: &'j Judged<'_>) -> impl Iterator<Item = (usize, &'j JudgedSet<'j>)> {
    judged.sets.iter().enumerate().rev().filter(|(_, set)| set.counts.is_ok())
}

fn keep_minimum(judged: &Judged<'_>, policy: &RetentionPolicy, wanted: &mut Wanted) {
    if let Some((place, _)) = counted(judged).next() {
        wanted.add(place, true, "the newest set".to_owned());
    }
    let minimum = policy.min_sets.max(1);
    let full = newest_full(judged, minimum);
    if full.len() < minimum as usize {
        wanted.falls_short(true);
    }
    for place in full {
        wanted.add(place, true, format!("never fewer than {minimum} restorable full"));
    }
}

fn newest_full(judged: &Judged<'_>, count: u32) -> Vec<usize> {
    counted(judged).filter(|(_, set)| set.is_full()).map(|(place, _)| place).take(count as usize).collect()
}

fn keep_count(judged: &Judged<'_>, policy: &RetentionPolicy, wanted: &mut Wanted) {
    let Some(keep_full) = policy.keep_full else { return };
    let full = newest_full(judged, keep_full);
    if full.len() < keep_full as usize {
        wanted.falls_short(true);
    }
    for (number, place) in full.iter().enumerate() {
        wanted.add(*place, true, format!("full {} of the last {keep_full}", number + 1));
    }
    for (place, _) in counted(judged).filter(|(_, set)| !set.is_full()) {
        if let Some(base) = base_of(judged, place).filter(|base| full.contains(base)) {
            wanted.add(place, true, format!("built on {}, which is kept", judged.sets[base].facts.label));
        }
    }
}

/// The full set that a chain begins with.
fn base_of(judged: &Judged<'_>, mut place: usize) -> Option<usize> {
    // Each step goes to an older set; one that does not would go round for ever.
    for _ in 0..judged.sets.len() {
        match judged.sets[place].complete.prior.first() {
            None => return Some(place),
            Some(prior) => place = *judged.index.get(prior)?,
        }
    }
    None
}

/// On every line of history that has moments in the window: the newest set before its start, and all after that.
fn keep_window(judged: &Judged<'_>, start: Timestamp, timelines: &Timelines<'_>, wanted: &mut Wanted) {
    for line in timelines.lines_since(judged, start) {
        let on_line: Vec<usize> = (0..judged.sets.len()).filter(|place| line.has(&judged.sets[*place])).collect();
        let is_before = |place: &&usize| judged.sets[**place].counts.as_ref().is_ok_and(|finished| *finished <= start);
        let anchor = on_line.iter().rfind(is_before).copied();
        if anchor.is_none() {
            wanted.falls_short(true);
        }
        for place in on_line.into_iter().filter(|place| anchor.is_none_or(|anchor| *place >= anchor)) {
            let set = &judged.sets[place];
            if Some(place) == anchor {
                wanted.add(place, true, "the newest before the window: recovery into it begins here".to_owned());
            } else if set.counts.is_ok() {
                wanted.add(place, true, "within the window".to_owned());
            } else if set.is_restorable {
                wanted.add(place, true, "perhaps within the window".to_owned());
            }
        }
    }
}

/// The newest set of each of the last `count` periods that have one.
fn keep_periods(judged: &Judged<'_>, name: &str, count: u32, period_of: &dyn Fn(Date) -> String, wanted: &mut Wanted) {
    let mut seen = BTreeSet::new();
    for (place, set) in counted(judged) {
        let Ok(finished_at) = &set.counts else { continue };
        let period = period_of(finished_at.to_zoned(TimeZone::UTC).date());
        if seen.contains(&period) {
            continue;
        }
        if seen.len() == count as usize {
            break;
        }
        wanted.add(place, false, format!("{name} {period}"));
        seen.insert(period);
    }
    if seen.len() < count as usize {
        wanted.falls_short(false);
    }
}

/// For each page that is damaged in the newest set: the newest set before it in which that page is whole. With the WAL
/// since then it is the last copy there is.
fn keep_whole_pages(judged: &Judged<'_>, timelines: &Timelines<'_>, wanted: &mut Wanted) {
    let mut sets = counted(judged);
    let Some((newest, newest_set)) = sets.next() else { return };
    let older: Vec<(usize, Vec<&SourceDamage>)> = sets
        .filter(|(_, set)| timelines.leads_to(set.complete, newest_set.complete))
        .map(|(place, _)| (place, damage_of(judged, place)))
        .collect();
    let damage = damage_of(judged, newest);
    let pages: BTreeSet<&(String, u32)> = damage.iter().flat_map(|damage| &damage.pages).collect();
    for page in pages {
        let is_whole = |damage: &&SourceDamage| !damage.has_more && !damage.pages.contains(page);
        if let Some((place, _)) = older.iter().find(|(_, damage)| damage.iter().all(is_whole)) {
            keep_as_last_whole(*place, &format!("page {} of {}", page.1, page.0), wanted);
        }
    }
    if damage.iter().any(|damage| damage.has_more)
        && let Some((place, _)) = older.iter().find(|(_, damage)| !damage.iter().any(|damage| damage.is_some()))
    {
        keep_as_last_whole(*place, "every page", wanted);
    }
}

/// One reason is enough, however many pages there are.
fn keep_as_last_whole(place: usize, what: &str, wanted: &mut Wanted) {
    const WORDS: &str = "is whole in it and damaged since";
    if !wanted.reasons[place].iter().any(|reason| reason.ends_with(WORDS)) {
        wanted.add(place, true, format!("{what} {WORDS}"));
    }
}

/// The damage that a set may hold: its own, and that of the sets it is built on, whose pages it may have left as they are.
fn damage_of<'j>(judged: &'j Judged<'_>, place: usize) -> Vec<&'j SourceDamage> {
    let complete = judged.sets[place].complete;
    let priors = complete.prior.iter().filter_map(|prior| judged.index.get(prior));
    std::iter::once(place).chain(priors.copied()).map(|place| &judged.sets[place].complete.damage).collect()
}

/// A set that no rule can count stays while it is newer than one that a rule keeps, or while a rule is short of sets:
/// perhaps it is one that the rule would want.
fn keep_uncounted(judged: &Judged<'_>, policy: &RetentionPolicy, wanted: &mut Wanted) {
    let oldest = (0..judged.sets.len()).find(|place| !wanted.reasons[*place].is_empty());
    let oldest_for_recovery = (0..judged.sets.len()).find(|place| wanted.for_recovery[*place]);
    for (place, set) in judged.sets.iter().enumerate() {
        let Err(doubt) = &set.counts else { continue };
        if set.facts.is_expiring {
            continue;
        }
        if wanted.is_short || oldest.is_none_or(|oldest| place > oldest) {
            let for_recovery = wanted.is_short_for_recovery || oldest_for_recovery.is_none_or(|oldest| place > oldest);
            wanted.add(place, for_recovery, format!("no rule can count it: {doubt}"));
        }
    }
    if policy.keep_full.is_none() {
        return;
    }
    for (place, _) in counted(judged).filter(|(_, set)| !set.is_full()) {
        let is_kept = |base: &usize| judged.sets[*base].counts.is_err() && !wanted.reasons[*base].is_empty();
        if let Some(base) = base_of(judged, place).filter(is_kept) {
            let for_recovery = wanted.for_recovery[base];
            wanted.add(
                place,
                for_recovery,
                format!("built on {}, which no rule can count", judged.sets[base].facts.label),
            );
        }
    }
}
