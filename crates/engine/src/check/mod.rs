//! Verb: does WAL of this server arrive in the repository? It asks, and then it proves it with a marker.
//!
//! [`check`] reads like the list it prints. Nothing is believed that can be tried: the marker is a restore point with a
//! random name, and it counts when its bytes are read back from the repository.

mod archive;
mod report;

use std::time::Instant;

pub use report::{CheckLine, CheckReport, CheckRequest, CheckState, MarkerReport};

use self::archive::LastArchived;
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Observer;
use crate::source::postgres::archiving::{Archiving, ArchivingSession, Marker};
use crate::source::postgres::conninfo::ConnectSettings;
use crate::storage::absolute_target;
use crate::terms::{SetId, WalSegmentName};

/// How long the server waits between two looks into the repository.
const LOOK_EVERY_S: f64 = 0.2;
/// Markers are recognised by their first letters.
const MARKER_PREFIX: &str = "pagehaul-check-";
/// So many waiting segments are more than an archiver that keeps up has.
const WAITING_COUNT_USUAL: u64 = 8;
/// An archiver that does not keep up is a problem when pg_wal is full within a day.
const FULL_TOO_SOON_S: u64 = 24 * 3600;

/// Checks archiving end to end. What is wrong is in the report, not an error.
///
/// # Errors
/// `Interrupted`.
pub fn check(request: &CheckRequest, observer: &dyn Observer) -> Result<CheckReport> {
    let mut lines = Vec::new();
    let mut marker_report = None;
    let mut archived = None;
    observer.phase("open the repository");
    let repository = noted("repository", &mut lines, open_repository(request));
    observer.phase("ask the server");
    let session = noted("server", &mut lines, connect(request));
    if let Some(mut session) = session {
        if let Some(repository) = &repository {
            lines.push(archive::identity(request, repository, session.facts()));
        }
        match session.archiving() {
            Err(error) => lines.push(CheckLine::of_error("settings", &error)),
            Ok(archiving) => {
                archived = last_archived(&archiving, &request.repo);
                let settings = settings(&archiving);
                let may_arrive = settings.state != CheckState::Problem;
                lines.push(settings);
                lines.push(archiver(&archiving, session.facts().wal_segment_size_bytes));
                match why_no_marker(request, &archiving, repository.is_some(), may_arrive) {
                    Some(why) => lines.push(CheckLine::new("marker", CheckState::Skipped, why)),
                    None => {
                        if let Some(repository) = &repository {
                            observer.phase("put a marker into WAL and wait for it");
                            let (line, report) = prove(request, repository, &mut session, observer)?;
                            lines.push(line);
                            marker_report = report;
                        }
                    }
                }
            }
        }
        if let Some(repository) = &repository {
            observer.phase("look for gaps");
            lines.extend(archive::backups_and_wal(request, repository, session.facts(), archived.as_ref()));
        }
    }
    let ok = lines.iter().all(|line| line.state != CheckState::Problem);
    Ok(CheckReport { source: request.source.clone(), repo: request.repo.clone(), ok, lines, marker: marker_report })
}

/// Puts how it went into the lines.
fn noted<T>(what: &'static str, lines: &mut Vec<CheckLine>, outcome: Result<(T, String)>) -> Option<T> {
    match outcome {
        Ok((value, text)) => {
            lines.push(CheckLine::new(what, CheckState::Ok, text));
            Some(value)
        }
        Err(error) => {
            lines.push(CheckLine::of_error(what, &error));
            None
        }
    }
}

fn open_repository(request: &CheckRequest) -> Result<(Repository, String)> {
    let repository = Repository::open(&request.repo)?;
    let text = repository.storage().describe();
    Ok((repository, text))
}

fn connect(request: &CheckRequest) -> Result<(ArchivingSession, String)> {
    let conninfo = request.connection.as_deref().unwrap_or("");
    let settings = match &request.pgdata {
        Some(pgdata) => ConnectSettings::parse_for_data_directory(conninfo, pgdata)?,
        None => ConnectSettings::parse(conninfo)?,
    };
    let session = ArchivingSession::begin(&settings)?;
    let facts = session.facts();
    let version = facts.server_version_num;
    let text =
        format!("PostgreSQL {}.{}, system {}, {settings}", version / 10_000, version % 10_000, facts.system_identifier);
    Ok((session, text))
}

/// The segment that the archiver says it archived last; none if that was a file of another kind, or somebody else's command, of
/// which only the marker tells where it stores.
fn last_archived(archiving: &Archiving, repo: &str) -> Option<LastArchived> {
    let command = &archiving.command;
    let names_us = archiving.mode != "off" && archiving.library.is_empty() && command.contains("pagehaul");
    let (name, _) = archiving.last_archived.as_ref().filter(|_| names_us)?;
    let absolute = absolute_target(repo).unwrap_or_else(|_| repo.to_owned());
    let place = absolute.split('?').next().unwrap_or_default().trim_end_matches('/');
    // Without the option it is the configuration's, which may be this one.
    let goes_elsewhere = command.contains("--repo") && !command.contains(place);
    Some(LastArchived { segment: name.parse().ok()?, goes_elsewhere })
}

/// Whether the settings can bring WAL into any archive.
fn settings(archiving: &Archiving) -> CheckLine {
    let problem = |text: &str, next: &str| CheckLine::problem("settings", ErrorKind::Source, text, next);
    let ok = |text: String| CheckLine::new("settings", CheckState::Ok, text);
    if archiving.is_standby && archiving.mode != "always" && !archiving.is_streamed {
        let text = format!("a standby with archive_mode = {}: it archives nothing", archiving.mode);
        return CheckLine::new("settings", CheckState::Note, text);
    }
    if archiving.mode == "off" {
        return match archiving.is_streamed {
            true => ok("archive_mode is off, and a program of pagehaul streams WAL from here".to_owned()),
            false => problem(
                "archive_mode is off: no WAL is archived",
                "set archive_mode = on and archive_command = 'pagehaul wal push %p --repo ...', then restart the server",
            ),
        };
    }
    let way = match (archiving.library.as_str(), archiving.command.as_str()) {
        ("", "") => {
            return problem(
                "archive_mode is on, and neither archive_command nor archive_library is set: WAL piles up in pg_wal",
                "set archive_command = 'pagehaul wal push %p --repo ...' and reload the server",
            );
        }
        ("", command) => format!("archive_command = {command:?}"),
        (library, _) => format!("archive_library = {library:?}"),
    };
    let timeout = match archiving.timeout_s {
        0 => "no archive_timeout: an idle server archives nothing".to_owned(),
        seconds => format!("archive_timeout = {seconds} s"),
    };
    let text = format!("archive_mode = {}, {way}, {timeout}", archiving.mode);
    if way.contains("pagehaul") {
        return ok(text);
    }
    let text = format!("{text}: it does not name pagehaul; what it brings where is only known by the marker");
    CheckLine::new("settings", CheckState::Note, text)
}

/// What the archiver said of its last tries; it does not keep the words of the error, the server's log does.
fn archiver(archiving: &Archiving, segment_size_bytes: u64) -> CheckLine {
    let room = archiving.wal_room_bytes;
    let full_after_s =
        archiving.waiting.zip(room).and_then(|(waiting, room)| waiting.full_after_s(segment_size_bytes, room));
    let mut waiting = match archiving.waiting.map(|waiting| waiting.count) {
        Some(1) => "1 finished segment waits".to_owned(),
        Some(count) => format!("{count} finished segments wait"),
        None => "how many segments wait is not known (GRANT pg_monitor TO the role)".to_owned(),
    };
    if let (Some(seconds), Some(room)) = (full_after_s, room) {
        let room_mib = room >> 20;
        waiting += &format!("; pg_wal, with {room_mib} MiB free, is full in about {} at this rate", about(seconds));
    }
    let last = match &archiving.last_archived {
        Some((name, age_s)) => format!("{name} was archived {age_s} s ago"),
        None => "nothing was archived yet".to_owned(),
    };
    let failed_since = match (&archiving.last_failed, &archiving.last_archived) {
        (Some(failed), Some(archived)) if failed.1 > archived.1 => None,
        (failed, _) => failed.as_ref(),
    };
    if let Some((name, age_s)) = failed_since {
        let count = archiving.failed_count;
        let text = format!("archiving {name} failed {age_s} s ago ({count} failures in all); {last}; {waiting}");
        let next = "the server's log has what the command said; run it by hand as the server's OS user";
        return CheckLine::problem("archiver", ErrorKind::Source, text, next);
    }
    let is_behind = archiving.waiting.is_some_and(|waiting| waiting.count > WAITING_COUNT_USUAL);
    let text = format!("{last}; {waiting}");
    if is_behind && full_after_s.is_some_and(|seconds| seconds < FULL_TOO_SOON_S) {
        let next = "a full pg_wal stops the server: look what the archiver waits for, or give pg_wal more room";
        return CheckLine::problem("archiver", ErrorKind::Source, text, next);
    }
    CheckLine::new("archiver", if is_behind { CheckState::Note } else { CheckState::Ok }, text)
}

/// A time that nobody needs to the second.
fn about(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Why no marker is made, if none is.
fn why_no_marker(
    request: &CheckRequest,
    archiving: &Archiving,
    has_repository: bool,
    may_arrive: bool,
) -> Option<&'static str> {
    if !request.with_marker {
        Some("--no-marker: nothing was written, so that WAL arrives is not proven")
    } else if archiving.is_standby {
        Some("the server is a standby and cannot write a marker: run the check on the primary")
    } else if !has_repository {
        Some("there is no repository to look for it in")
    } else if !may_arrive {
        Some("the server's settings keep it from arriving")
    } else {
        None
    }
}

/// Makes a marker and waits until its bytes are read back from the repository.
fn prove(
    request: &CheckRequest,
    repository: &Repository,
    session: &mut ArchivingSession,
    observer: &dyn Observer,
) -> Result<(CheckLine, Option<MarkerReport>)> {
    let name = format!("{MARKER_PREFIX}{}", &SetId::random()?.to_string()[..16]);
    let marker = match session.make_marker(&name) {
        Ok(marker) => marker,
        Err(error) => return Ok((CheckLine::of_error("marker", &error), None)),
    };
    let started = Instant::now();
    let mut report = MarkerReport { name, lsn: marker.lsn, segment: marker.segment.to_string(), lag_s: None };
    loop {
        let look = archive::has_marker(request, repository, session.facts().system_identifier, &marker);
        let elapsed = started.elapsed();
        let line = match look {
            Ok(true) => {
                report.lag_s = Some(elapsed.as_secs_f64());
                let text = format!(
                    "{} with restore point {} was read back from the repository after {:.1} s",
                    marker.segment,
                    marker.name,
                    elapsed.as_secs_f64()
                );
                CheckLine::new("marker", CheckState::Ok, text)
            }
            Err(error) => CheckLine::of_error("marker", &error),
            Ok(false) if elapsed >= request.timeout => not_arrived(request, session, &marker),
            Ok(false) => {
                if observer.interrupted() {
                    return Err(Error::new(ErrorKind::Interrupted, "wait for the marker", "a signal asked to stop"));
                }
                if let Err(error) = session.wait(LOOK_EVERY_S) {
                    return Ok((CheckLine::of_error("marker", &error), Some(report)));
                }
                continue;
            }
        };
        return Ok((line, Some(report)));
    }
}

/// The archiver's own account of why the marker is not there.
fn not_arrived(request: &CheckRequest, session: &mut ArchivingSession, marker: &Marker) -> CheckLine {
    let waited_s = request.timeout.as_secs();
    let name = marker.segment.as_str();
    let archiving = session.archiving().unwrap_or_default();
    let (text, next) = match (&archiving.last_failed, &archiving.last_archived) {
        (_, Some((archived, _))) if is_behind(archived, &marker.segment) => (
            format!(
                "the server says that {archived} is archived, and {name} is not in this repository after {waited_s} s"
            ),
            "archive_command reports success without storing here: does it name this repository and source?",
        ),
        (Some((failed, age_s)), _) if *age_s <= waited_s + 60 => (
            format!("{name} did not arrive within {waited_s} s: archiving {failed} failed {age_s} s ago"),
            "the server's log has what the command said; run it by hand as the server's OS user",
        ),
        _ => (
            format!("{name} did not arrive within {waited_s} s, and the archiver reports no failure"),
            "the archiver may be busy with older segments, or its command may hang: look at its process, and give \
             --timeout more seconds",
        ),
    };
    CheckLine::problem("marker", ErrorKind::Repository, text, next)
}

/// Whether the archiver, which goes in order, has come to `segment` when it says that `archived` was the last file.
fn is_behind(archived: &str, segment: &WalSegmentName) -> bool {
    // Histories and labels of backups come in between.
    let archived = archived.get(..24).and_then(|name| name.parse::<WalSegmentName>().ok());
    archived.is_some_and(|archived| archived.timeline() == segment.timeline() && archived >= *segment)
}
