//! What a remote backup asks the server for: everything, or, of an incremental one, only what has changed since the prior.
//!
//! A server of version 17 or later sends a relation's file as those of its blocks that its WAL summaries name, if the
//! manifest of an earlier backup has that file. So what we list is what we let it leave out: main forks whose pages'
//! checksums are all known. It is asked to only while it is sure that its summaries tell of the WAL from the prior to
//! here. If not, it sends all pages, and what the prior has is left out on this side, as of files that are read here.

use std::io::Write;
use std::sync::Arc;

use super::compare::{Comparison, Expected};
use super::incremental::Incremental;
use super::prior::{Here, choose};
use super::read_plan::ReadPlan;
use super::remote::Remote;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::EntryKind;
use crate::source::postgres::backup_manifest::{ManifestFile, ManifestHeader, write_backup_manifest};
use crate::source::postgres::base_backup::{BaseBackup, Order};
use crate::source::postgres::replication::Replication;
use crate::source::postgres::server_error::QueryError;
use crate::source::postgres::server_facts::{RemoteFacts, ServerFacts};
use crate::source::postgres::server_life::ServerLife;
use crate::source::postgres::session::OBJECT_NOT_IN_STATE;
use crate::source::postgres::timeline_history;
use crate::terms::{BackupKind, TimelineHistory, TimelineId};

/// The first version that knows what has changed.
const MAJOR_MIN: u32 = 17;
/// Runs that each MiB may make: nothing can be joined over pages that do not come.
const RUNS_PER_MIB: u64 = 16;

/// Who leaves out what has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changes {
    /// The server, if it can be trusted with that.
    PickedThere,
    /// We: all pages are sent.
    FoundHere,
}

/// A base backup that has begun.
pub(super) struct Ordered<'a> {
    pub(super) base: BaseBackup,
    pub(super) incremental: Incremental<'a>,
    /// Whether the server sends only what has changed.
    pub(super) changes_only: bool,
}

impl<'a> Remote<'a> {
    /// Finds the prior of an incremental backup, and begins the base backup on `replication`.
    ///
    /// # Errors
    /// `Usage` for a server that cannot tell what has changed, `Source` if it is told not to; those of
    /// [`choose`] and of the server.
    pub(super) fn order(
        &self,
        changes: Changes,
        wal: &mut Replication,
        mut replication: Replication,
        facts: &RemoteFacts,
        life: std::result::Result<&ServerLife, &Error>,
    ) -> Result<Ordered<'a>> {
        let mut incremental = Incremental::full();
        if self.request.kind != BackupKind::Full {
            check_can_tell(&mut replication)?;
            incremental = self.prepare(wal, &facts.facts, life.ok())?;
        }
        let comparison = incremental.comparison.clone();
        let mut whole = match comparison.as_deref() {
            Some(comparison) => whole_because(comparison, &facts.facts, life.err()),
            None => None,
        };
        let mut changes_only = comparison.is_some() && whole.is_none() && changes == Changes::PickedThere;
        if let Some(comparison) = comparison.as_deref().filter(|_| changes_only)
            && let Err(reason) = upload(&mut replication, comparison)?
        {
            (changes_only, whole) = (false, Some(reason));
        }
        let label = format!("pagehaul backup of {}", self.request.source);
        let order = Order { label: &label, fast_checkpoint: self.request.fast_checkpoint, changes_only };
        let accepted = match BaseBackup::ask(&mut replication, &order) {
            Err(QueryError::Server(refused)) if changes_only && refused.sqlstate == OBJECT_NOT_IN_STATE => {
                (changes_only, whole) = (false, Some(refused.message.clone()));
                BaseBackup::ask(&mut replication, &Order { changes_only, ..order })
            }
            accepted => accepted,
        };
        let accepted = accepted.map_err(|error| error.into_error("begin the base backup"))?;
        let base = BaseBackup::begin(replication, &accepted)?;
        incremental.notes.extend(whole.map(|reason| format!("the server sends all pages: {reason}")));
        incremental.notes.iter().for_each(|note| self.observer.note(note));
        incremental.plan.by_summaries = changes_only;
        if let Some(comparison) = comparison.as_deref() {
            check_begins_behind(comparison, &base)?;
        }
        Ok(Ordered { base, incremental, changes_only })
    }

    /// Chooses and opens the prior.
    fn prepare(
        &self,
        wal: &mut Replication,
        facts: &ServerFacts,
        life: Option<&ServerLife>,
    ) -> Result<Incremental<'a>> {
        let identity = wal.identify_system()?;
        let timeline = identity.timeline;
        // A primary's backup begins with a checkpoint that is still to come.
        let redo_lsn = life.map(|life| life.redo_lsn).filter(|_| facts.is_standby());
        let start_lsn = redo_lsn.unwrap_or(identity.flush_lsn);
        let here = Here { facts, timeline, history: &history_of(wal, timeline), start_lsn };
        let choice = choose(self.repository, self.request, &here)?;
        let mut incremental =
            Incremental { kind: choice.kind, comparison: None, plan: ReadPlan::default(), notes: choice.notes };
        if let Some(prior) = choice.prior {
            self.observer.phase(&format!("ask for what has changed since {}", prior.set.manifest.label));
            let expected = Expected {
                file_count: prior.set.manifest.file_count,
                content_bytes: prior.set.manifest.source_bytes,
                runs_per_mib: RUNS_PER_MIB,
            };
            let (mut comparison, notes) =
                Comparison::of_stream(self.repository, prior, expected, &self.settings, facts.block_size_bytes);
            incremental.notes.extend(notes);
            incremental.notes.extend(comparison.sums.check_blocks());
            incremental.comparison = Some(Arc::new(comparison));
        }
        Ok(incremental)
    }
}

/// Refuses a server that does not keep account of what changes.
fn check_can_tell(replication: &mut Replication) -> Result<()> {
    let action = "make an incremental backup of a remote server";
    if replication.major() < MAJOR_MIN {
        let cause = format!(
            "it is PostgreSQL {}, and servers can send what has changed from {MAJOR_MIN} on",
            replication.major()
        );
        return Err(
            Error::new(ErrorKind::Usage, action, cause).hint("leave out --type, or run it on the server with --pgdata")
        );
    }
    let setting = replication.show("summarize_wal").map_err(|error| error.into_error(action))?;
    if setting != "on" {
        return Err(Error::new(ErrorKind::Source, action, "its setting summarize_wal is off")
            .hint("on the server: ALTER SYSTEM SET summarize_wal = on; SELECT pg_reload_conf(); or leave out --type"));
    }
    Ok(())
}

/// Why the server's word on what has changed would not do; None if it does.
fn whole_because(comparison: &Comparison<'_>, facts: &ServerFacts, life: Option<&Error>) -> Option<String> {
    let then = &comparison.set().manifest.postgres;
    // A server can be set back to an older copy of itself without a new timeline. Its summaries then tell of other WAL under
    // the same positions, and nothing in them shows it; but for that it must have been stopped.
    if let Some(error) = life {
        return Some(format!(
            "since when it runs must be asked for with SQL, and that failed ({}); let the role connect to a database, too",
            error.message()
        ));
    }
    if then.postmaster_start_us.is_none() {
        return Some("the prior set does not say since when the server ran".to_owned());
    }
    if then.postmaster_start_us != facts.postmaster_start_us {
        return Some("it was started anew since the prior set".to_owned());
    }
    if then.data_checksums != facts.data_checksums {
        return Some("page checksums were switched since the prior set".to_owned());
    }
    comparison.set().manifest.page_sums.is_none().then(|| "the prior set has no page checksums".to_owned())
}

/// Tells the server which files it need not send as a whole; or why it does not take that.
fn upload(replication: &mut Replication, comparison: &Comparison<'_>) -> Result<std::result::Result<(), String>> {
    let (manifest, table) = (&comparison.set().manifest, &comparison.set().table);
    let header = ManifestHeader {
        major: replication.major(),
        system_identifier: manifest.postgres.system_identifier.parse().unwrap_or(0),
        timeline: manifest.postgres.timeline,
        start_lsn: manifest.postgres.start_lsn,
        stop_lsn: manifest.postgres.stop_lsn,
    };
    let is_listed = |file: &_| table.entry(*file).kind == EntryKind::File && comparison.may_be_picked(*file);
    let files = table.ids().filter(is_listed).map(|file| {
        let (entry, path) = (table.entry(file), table.path(file));
        // The server looks at neither time nor checksum.
        ManifestFile { path, size_bytes: entry.size_bytes, mtime_s: 0, crc32c: entry.crc32c }
    });
    let write = |output: &mut dyn Write| write_backup_manifest(output, &header, files);
    match replication.upload_manifest(write) {
        Ok(()) => Ok(Ok(())),
        Err(QueryError::Server(refused)) if refused.severity == "ERROR" => {
            Ok(Err(format!("it does not take the list of the prior set's files ({refused})")))
        }
        Err(error) => Err(error.into_error("send the list of the prior set's files")),
    }
}

/// The prior must have ended before this backup began, on the way to here.
fn check_begins_behind(comparison: &Comparison<'_>, base: &BaseBackup) -> Result<()> {
    let manifest = &comparison.set().manifest;
    let planned = comparison.prior.wal.last().map(|stretch| stretch.timeline);
    let refuse = |cause: String| {
        Err(Error::new(ErrorKind::Source, format!("build on set {}", manifest.label), cause)
            .hint("try again after the server's next checkpoint (of a standby: its primary's), or with --type full"))
    };
    if planned != Some(base.timeline) {
        return refuse(format!(
            "the backup began on timeline {}, which is not the one it was planned on",
            base.timeline
        ));
    }
    if manifest.postgres.timeline == base.timeline && manifest.postgres.stop_lsn > base.start_lsn {
        let (stop_lsn, start_lsn) = (manifest.postgres.stop_lsn, base.start_lsn);
        return refuse(format!("that set ends at {stop_lsn}, and the backup began at {start_lsn}"));
    }
    Ok(())
}

/// Where a timeline comes from, as the server has it.
fn history_of(wal: &mut Replication, timeline: TimelineId) -> Result<TimelineHistory> {
    if timeline.0 <= 1 {
        return Ok(TimelineHistory { timeline, branches: Vec::new() });
    }
    timeline_history::parse(timeline, &wal.timeline_history(timeline)?.content)
}
