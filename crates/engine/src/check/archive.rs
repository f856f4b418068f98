//! What the repository has of the server's WAL.

use super::report::{CheckLine, CheckRequest, CheckState};
use crate::catalog::timeline_path::TimelinePath;
use crate::catalog::{
    ArchiveFacts, ArchivedWal, Repository, SetPoint, SetState, TimedWindow, identity, list_sets, set_points,
    timed_windows,
};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::bundle::decode_member;
use crate::source::postgres::archiving::Marker;
use crate::source::postgres::server_facts::ServerFacts;
use crate::terms::{TimelineId, WalSegmentName};

/// Whether the source's name belongs to this cluster.
pub(super) fn identity(request: &CheckRequest, repository: &Repository, facts: &ServerFacts) -> CheckLine {
    let source = &request.source;
    let found = identity::newest(repository, source).and_then(|found| match found {
        Some((number, identity)) => Ok(Some((number, identity.system_identifier()?))),
        None => Ok(None),
    });
    match found {
        Err(error) => CheckLine::of_error("identity", &error),
        Ok(None) => {
            let text =
                format!("no cluster has written as {source} yet; the first backup or wal push makes the name its own");
            CheckLine::new("identity", CheckState::Note, text)
        }
        Ok(Some((number, identifier))) if identifier == facts.system_identifier => {
            CheckLine::new("identity", CheckState::Ok, format!("{source} belongs to this cluster (identity {number})"))
        }
        Ok(Some((_, identifier))) => CheckLine::problem(
            "identity",
            ErrorKind::Conflict,
            format!("{source} belongs to cluster {identifier}, and this server is {}", facts.system_identifier),
            "give this cluster another name; if it replaces that one for good, as after pg_upgrade: pagehaul wal adopt",
        ),
    }
}

/// Whether the segment of the marker is in the repository, read back, and holds the marker.
///
/// # Errors
/// `Repository` if the segment is there and the marker is not in it: that is not this server's WAL; `Damage` if it does
/// not read; those of the store.
pub(super) fn has_marker(
    request: &CheckRequest,
    repository: &Repository,
    system_identifier: u64,
    marker: &Marker,
) -> Result<bool> {
    let archive = ArchiveFacts::load(repository, &request.source, system_identifier)?;
    let timeline = marker.segment.timeline();
    let number = marker.segment.number(archive.wal().segment_size_bytes);
    let Some(number) = number.filter(|number| archive.wal().has(timeline, number.0)) else { return Ok(false) };
    let (bundle, place) = archive.open(timeline, number.0)?;
    let Some(member) = bundle.table.members.get(place) else { return Ok(false) };
    let mut search = Search::new(&marker.name);
    decode_member(bundle.object.as_ref(), &bundle.header, &bundle.index, member, 1, &mut |bytes| {
        search.feed(bytes);
        Ok(())
    })?;
    // A page header may lie in the middle of the name; the facts were taken from the bytes that were just read back.
    let in_facts =
        || member.wal_facts().is_some_and(|facts| facts.restore_points.iter().any(|at| at.name == marker.name));
    if search.found || in_facts() {
        return Ok(true);
    }
    let action = format!("find restore point {} in {}", marker.name, bundle.name);
    Err(Error::new(ErrorKind::Repository, action, "the segment is there, and the restore point is not in it")
        .hint("another server archives the same segments into this repository: look who else pushes there"))
}

/// Looks for a word in bytes that come in pieces.
struct Search<'a> {
    word: &'a [u8],
    /// The end of what came before.
    tail: Vec<u8>,
    found: bool,
}

impl<'a> Search<'a> {
    fn new(word: &'a str) -> Self {
        Search { word: word.as_bytes(), tail: Vec::new(), found: false }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.found |= self.tail.windows(self.word.len()).any(|window| window == self.word);
        let keep = self.tail.len().min(self.word.len() - 1);
        self.tail.drain(..self.tail.len() - keep);
    }
}

/// The newest set with what can be reached from it, the gaps of the archive, and whether what the server says it archived last
/// is there.
pub(super) fn backups_and_wal(
    request: &CheckRequest,
    repository: &Repository,
    facts: &ServerFacts,
    archived: Option<&LastArchived>,
) -> Vec<CheckLine> {
    let system_identifier = facts.system_identifier;
    let loaded = set_points(repository, &request.source, system_identifier)
        .and_then(|sets| Ok((sets, ArchiveFacts::load(repository, &request.source, system_identifier)?)));
    let (sets, mut archive) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return vec![CheckLine::of_error("backups", &error)],
    };
    let Some(newest) = sets.iter().max_by_key(|set| (set.timeline, set.stop_lsn)) else {
        let text =
            "there is none of this cluster: archived WAL is of no use without one; make one with pagehaul backup";
        return vec![CheckLine::new("backups", CheckState::Note, text)];
    };
    let size_bytes = facts.wal_segment_size_bytes;
    let lost = archived.and_then(|archived| newest_wal_line(archived, newest, archive.wal(), size_bytes));
    let mut lines = vec![newest_line(newest, &sets, &mut archive)];
    lines.extend(damage_line(request, repository, newest));
    lines.push(gaps_line(&archive));
    lines.extend(lost);
    lines
}

/// What the archiver stored last, by its own account.
pub(super) struct LastArchived {
    pub(super) segment: WalSegmentName,
    /// Whether the command that runs now names another repository than the one that is checked.
    pub(super) goes_elsewhere: bool,
}

/// What is wrong if WAL of the newest set's time that the server says it archived is not there, and nothing behind it either. Nothing in
/// the repository can say so of its newest WAL: there is nothing behind it that would make a gap.
fn newest_wal_line(
    archived: &LastArchived,
    newest: &SetPoint,
    wal: &ArchivedWal,
    segment_size_bytes: u64,
) -> Option<CheckLine> {
    let (segment, timeline) = (&archived.segment, archived.segment.timeline());
    let number = segment.number(segment_size_bytes)?.0;
    // WAL from before a set expires with the sets before it.
    let is_of_before = (timeline, number) < (newest.timeline, newest.stop_lsn.0 / segment_size_bytes);
    let is_there = wal.conflicts.contains(&(timeline, number)) || wal.has_at_or_behind(timeline, number);
    if is_of_before || is_there {
        return None;
    }
    let text = format!("the server says that it archived {segment}, and this repository has neither it nor later WAL");
    if archived.goes_elsewhere {
        let text = format!("{text}: archive_command names another one, and a copy may lag behind");
        return Some(CheckLine::new("newest WAL", CheckState::Note, text));
    }
    Some(CheckLine::problem(
        "newest WAL",
        ErrorKind::Repository,
        text,
        "if archive_command stored elsewhere until lately, a backup is needed; otherwise the newest WAL was taken away: \
         what was committed in it cannot be recovered from here, so make a backup now, and look who may delete there",
    ))
}

/// What was wrong with the source when the newest set was made.
fn damage_line(request: &CheckRequest, repository: &Repository, newest: &SetPoint) -> Option<CheckLine> {
    let set = list_sets(repository, &request.source).ok()?.into_iter().find(|set| set.label == newest.label)?;
    let SetState::Complete(manifest) = set.state else { return None };
    let (pages, files) = (manifest.bad_page_count, manifest.lost_file_count);
    if pages == 0 && files == 0 {
        return None;
    }
    let text = format!(
        "when {} was made, {pages} pages of the source were damaged and {files} of its files were lost",
        newest.label
    );
    Some(CheckLine::problem(
        "damage",
        ErrorKind::Damage,
        text,
        "mend the source (older sets may have what is damaged or lost), and make a new backup",
    ))
}

fn newest_line(newest: &SetPoint, sets: &[SetPoint], archive: &mut ArchiveFacts<'_>) -> CheckLine {
    let wal = archive.wal().clone();
    let timeline = wal.timelines(sets).last().copied().unwrap_or(newest.timeline);
    let is_on_path = TimelinePath::new(timeline, &wal.histories).holds(newest.timeline, newest.stop_lsn);
    let timeline = if is_on_path { timeline } else { newest.timeline };
    let windows = match timed_windows(timeline, sets, &wal, archive) {
        Ok(windows) => windows,
        Err(error) => return CheckLine::of_error("backups", &error),
    };
    let holds = |timed: &&TimedWindow| timed.window.sets.iter().any(|set| set.label == newest.label);
    let Some(timed) = windows.iter().find(holds) else {
        return CheckLine::new("backups", CheckState::Ok, format!("the newest is {}", newest.label));
    };
    let last = timed.end_time.map_or_else(String::new, |time| format!(" (last commit {time})"));
    let text = format!(
        "the newest is {}, consistent at {}; its WAL goes on to {}{last} on timeline {timeline}",
        newest.label, newest.stop_lsn, timed.window.end_lsn
    );
    if timed.window.ends_in_gap {
        let text = format!("{text}, where a gap begins");
        return CheckLine::problem(
            "backups",
            ErrorKind::Repository,
            text,
            "nothing behind the gap can be recovered to until there is a new backup: make one now",
        );
    }
    CheckLine::new("backups", CheckState::Ok, text)
}

fn gaps_line(archive: &ArchiveFacts<'_>) -> CheckLine {
    let wal = archive.wal();
    let name = |timeline: TimelineId, number: u64| {
        let number = crate::terms::SegmentNumber(number);
        WalSegmentName::new(timeline, number, wal.segment_size_bytes)
    };
    let mut gaps = Vec::new();
    for timeline in wal.ranges.keys() {
        for gap in wal.gaps(*timeline) {
            gaps.push(format!("{} to {}", name(*timeline, gap.start), name(*timeline, gap.end - 1)));
        }
    }
    let count: u64 = wal.ranges.values().flatten().map(|range| range.end - range.start).sum();
    if gaps.is_empty() {
        return CheckLine::new("WAL", CheckState::Ok, format!("{count} segments, no gap"));
    }
    let text = format!("{count} segments; missing: {}", gaps.join(", "));
    CheckLine::new("WAL", CheckState::Note, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_across_pieces() {
        for cut in 0..12 {
            let mut search = Search::new("marker");
            let (one, two) = b"..a marker.!".split_at(cut);
            search.feed(one);
            search.feed(two);
            assert!(search.found, "{cut}");
        }
        let mut search = Search::new("marker");
        b"mark mar ker markex".chunks(2).for_each(|piece| search.feed(piece));
        assert!(!search.found);
    }
}
