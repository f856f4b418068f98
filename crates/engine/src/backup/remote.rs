//! A backup over the replication protocol: the server reads its files and sends them, and its WAL over a second
//! connection. Nothing of the server's machine is touched, so this runs on any other one. What an incremental one asks the
//! server for is decided in `remote_changes.rs`.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::begun::{Begun, Hold, Origin, Stop};
use super::cluster_stream::{ClusterStream, Compared, Received};
use super::compare::Comparison;
use super::incremental::Incremental;
use super::layouts;
use super::page_check::BadPages;
use super::plan;
use super::prior::refuse_set_back;
use super::remote_changes::{Changes, Ordered};
use super::report::{BackupReport, BackupRequest};
use super::run::Run;
use super::sent_files::Sent;
use super::set_writer::SetWriter;
use super::source_files::no_root;
use super::stream_pages::StreamPages;
use super::wal_stream::WalFiles;
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::pipeline::ceiling::MachineMemory;
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{NoCheck, Observer, PipelineSettings, Progress};
use crate::source::postgres::base_backup::{BackupTablespace, BaseBackup, check_version};
use crate::source::postgres::catalog_files::{CatalogMoment, catalog_moment};
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::control_file::{ControlFile, ParsedControlFile, parse};
use crate::source::postgres::relation_layouts::RelationLayouts;
use crate::source::postgres::replication::{Replication, SystemIdentity};
use crate::source::postgres::server_error::QueryError;
use crate::source::postgres::server_facts::{RemoteFacts, Tablespace, gather_without_sql};
use crate::source::postgres::server_life::ask_for_life;
use crate::source::postgres::server_manifest;
use crate::source::postgres::session::parse_backup_label;
use crate::source::postgres::tls_settings::exposure;
use crate::source::postgres::wal::segments_between;
use crate::terms::{BackupKind, Lsn, SetId, TimelineId};

/// A remote backup before it begins.
pub(super) struct Remote<'a> {
    pub(super) repository: &'a Repository,
    pub(super) request: &'a BackupRequest,
    pub(super) settings: PipelineSettings,
    pub(super) observer: &'a dyn Observer,
}

/// The two connections of a remote backup, begun.
struct Link<'a> {
    wal: Replication,
    /// The temporary slot that holds the WAL; None if the server gave none.
    slot: Option<String>,
    identity: SystemIdentity,
    facts: RemoteFacts,
    base: BaseBackup,
    incremental: Incremental<'a>,
    relations: Option<RelationLayouts>,
    /// Whether the server sends only what has changed.
    changes_only: bool,
    /// What the catalogs say of the moment before the server reads its files.
    moment: Result<CatalogMoment>,
}

impl<'a> Remote<'a> {
    /// Backs up; the phases in the order in which they happen to the server.
    ///
    /// # Errors
    /// As a backup of local files.
    pub(super) fn backup(
        &self,
        started_at: jiff::Timestamp,
        started: Instant,
        usage: &ProcessUsage,
    ) -> Result<BackupReport> {
        let mut too_scattered = false;
        let outcome = self.attempt(Changes::PickedThere, &mut too_scattered, started_at, started, usage);
        match outcome {
            Err(error) if too_scattered => {
                self.observer.note(&format!("{}; it begins again, with all pages sent", error.message()));
                self.attempt(Changes::FoundHere, &mut too_scattered, started_at, started, usage)
            }
            outcome => outcome,
        }
    }

    /// Backs up, with `changes` if it is an incremental backup; says if that brought too many parts of files.
    fn attempt(
        &self,
        changes: Changes,
        too_scattered: &mut bool,
        started_at: jiff::Timestamp,
        started: Instant,
        usage: &ProcessUsage,
    ) -> Result<BackupReport> {
        self.observer.phase("begin the backup on the server (checkpoint)");
        let mut link = self.begin(changes)?;
        let size_bytes = link.base.size_bytes();
        let incremental = std::mem::replace(&mut link.incremental, Incremental::full());
        let comparison = incremental.comparison.clone();
        let relations = link.relations.take();
        let ceiling =
            plan::ceiling_of_stream(self.request, &self.settings, size_bytes, incremental.facts(), relations.as_ref());
        let ceiling = plan::with_digests(ceiling, self.repository, &self.settings, size_bytes);
        ceiling.check(self.request.max_memory_bytes, &MachineMemory::now())?;
        let content_bytes = (incremental.kind == BackupKind::Full).then_some(size_bytes);
        let directories = plan::stripe_directories(self.request, &self.settings, content_bytes, self.observer);
        let (source, kind) = (&self.request.source, incremental.kind);
        let set = SetWriter::begin(self.repository, source, kind, directories, size_bytes, None)?;
        let progress = Progress::default();
        let table = FileTable::default();
        let (request, observer) = (self.request, self.observer);
        let (repository, settings, begun) = (self.repository, self.settings, Begun { relations, ..link.begun() });
        let mut run = Run::new(request, repository, settings, begun, table, incremental, set, &progress, observer)?;
        progress.set_total(size_bytes);
        let changes_only = link.changes_only;
        if let Err(error) = self.receive(&mut run, link, size_bytes, comparison.as_deref()) {
            *too_scattered = changes_only && comparison.is_some_and(|comparison| comparison.has_too_many_runs());
            return Err(error);
        }

        self.observer.phase("make the stripes durable, read WAL back, commit");
        run.finish()?.commit(started_at, started, usage, &ceiling)
    }

    /// Connects twice, reserves WAL, and begins the base backup.
    fn begin(&self, changes: Changes) -> Result<Link<'a>> {
        let settings = self.connection()?;
        let mut wal = Replication::connect(&settings)?;
        exposure(&settings, wal.is_encrypted()).iter().for_each(|text| self.observer.note(text));
        check_version(&wal)?;
        let identity = wal.identify_system()?;
        let slot = self.reserve_wal(&mut wal)?;
        let mut replication = Replication::connect(&settings)?;
        if replication.identify_system()?.system_identifier != identity.system_identifier {
            let cause = "two connections reached two different clusters";
            return Err(Error::new(ErrorKind::Source, format!("connect to the {settings}"), cause)
                .hint("name the server itself, not a load balancer"));
        }
        let mut facts = gather_without_sql(&mut replication, &identity)?;
        let life = ask_for_life(&settings, identity.system_identifier);
        facts.facts.postmaster_start_us = life.as_ref().ok().map(|life| life.postmaster_start_us);
        refuse_set_back(self.repository, self.request, &facts.facts, identity.timeline, || {
            Ok(wal.identify_system()?.flush_lsn)
        })?;
        let moment = catalog_moment(&settings, identity.system_identifier);
        // Before the server begins to send, or it would wait for us meanwhile.
        let page_size_bytes = facts.facts.block_size_bytes;
        let relations = layouts::of_server(self.request, &settings, page_size_bytes, self.observer);
        let Ordered { base, incremental, changes_only } =
            self.order(changes, &mut wal, replication, &facts, life.as_ref())?;
        facts.facts.tablespaces = base.tablespaces.iter().filter_map(tablespace).collect();
        for file in &facts.facts.outside_config_files {
            self.observer.note(&format!("{} lies outside the data directory and is not in the set", file.display()));
        }
        Ok(Link { wal, slot, identity, facts, base, incremental, relations, changes_only, moment })
    }

    fn connection(&self) -> Result<ConnectSettings> {
        ConnectSettings::parse(self.request.connection.as_deref().unwrap_or(""))
    }

    /// A temporary slot; a server that gives none is no reason to have no backup.
    fn reserve_wal(&self, wal: &mut Replication) -> Result<Option<String>> {
        let name = format!("pagehaul_{}", &SetId::random()?.to_string()[..16]);
        match wal.create_slot(&name, true) {
            Ok(()) => Ok(Some(name)),
            Err(QueryError::Server(refused)) if refused.severity != "FATAL" => {
                self.observer.note(&format!(
                    "WAL is not held by a slot ({refused}); if the server removes some of it the backup fails"
                ));
                Ok(None)
            }
            Err(error) => Err(error.into_error("reserve WAL for the backup")),
        }
    }

    /// Stores everything that the server sends, and its WAL.
    fn receive(
        &self,
        run: &mut Run<'_>,
        link: Link<'_>,
        size_bytes: u64,
        comparison: Option<&Comparison<'_>>,
    ) -> Result<()> {
        let Link { mut wal, slot, identity, facts, base, changes_only, moment, .. } = link;
        let (start_lsn, timeline) = (base.start_lsn, base.timeline);
        let block_size_bytes = facts.facts.block_size_bytes;
        let table = Mutex::new(FileTable::default());
        let check =
            StreamPages::new(block_size_bytes, facts.segment_blocks, facts.facts.data_checksums, start_lsn, &table);

        self.observer.phase("receive, encode and write the data files");
        let compared = match comparison {
            None => Compared::No,
            Some(comparison) if changes_only => Compared::ThereToo { comparison, segment_blocks: facts.segment_blocks },
            Some(comparison) => Compared::Here(comparison),
        };
        let mut stream = ClusterStream::compared(base, &table, compared)?;
        run.store_stream((&mut stream, &table), size_bytes, &check, comparison, &mut || {
            // Tells where WAL ends, that the link to it is sound, and the server that we are still there.
            check.set_lsn_limit(wal.identify_system()?.flush_lsn);
            Ok(())
        })?;
        let received = stream.finish()?;
        check_received(&received, start_lsn, timeline, &facts)?;
        check_based_on(&received, &compared)?;
        let stop_lsn = received.end.stop_lsn;
        let bad_pages = self.judge(check, &received, stop_lsn);
        let sent = Sent { files: server_manifest::parse(&received.manifest)?, otherwise: received.otherwise };

        self.observer.phase("receive and store the WAL of the backup");
        let segment_size = facts.facts.wal_segment_size_bytes;
        let segments = segments_between(timeline, start_lsn, stop_lsn, segment_size);
        let histories = if timeline.0 > 1 { vec![wal.timeline_history(timeline)?] } else { Vec::new() };
        if wal.identify_system()?.system_identifier != identity.system_identifier {
            return Err(Error::new(ErrorKind::Source, "receive the WAL of the backup", "it is another cluster now"));
        }
        let first = Lsn(start_lsn.0 / segment_size * segment_size);
        let wal_stream = wal
            .start_streaming(slot.as_deref(), first, timeline)
            .map_err(|error| wal_refused(error, slot.is_some()))?;
        let wal_bytes = segments.len() as u64 * segment_size;
        let mut files = WalFiles::new(wal_stream, &table, histories, segments, segment_size, first, stop_lsn);
        run.store_stream((&mut files, &table), wal_bytes, &NoCheck, None, &mut || Ok(()))?;
        let stop_time = files.stop_time();
        drop(files);
        let table = table.into_inner().unwrap_or_else(PoisonError::into_inner);
        run.end_stream(table, Stop { stop_lsn, stop_time, hold: Hold::Stream(wal) }, sent, bad_pages);

        self.observer.phase("look for lost files");
        match moment {
            Ok(since) => run.look_for_files_not_sent(self.connection()?, since)?,
            Err(error) => run.note_losses_unknown(&error),
        }
        Ok(())
    }

    fn judge(&self, check: StreamPages<'_>, received: &Received, stop_lsn: Lsn) -> BadPages {
        let bad_pages = check.bad_pages(stop_lsn);
        if received.end.has_bad_checksums && bad_pages.count == 0 {
            self.observer.note("the server reports wrong page checksums, and every page that it sent is right");
        }
        bad_pages
    }
}

impl Link<'_> {
    fn begun(&self) -> Begun {
        let facts = &self.facts;
        Begun {
            origin: Origin {
                data_directory: facts.facts.data_directory.clone().unwrap_or_default(),
                owner: None,
                segment_blocks: facts.segment_blocks,
                wal_block_size_bytes: facts.wal_block_size_bytes,
            },
            facts: facts.facts.clone(),
            start_lsn: self.base.start_lsn,
            timeline: self.base.timeline,
            session: None,
            root: no_root(),
            relations: None,
        }
    }
}

fn tablespace(space: &BackupTablespace) -> Option<Tablespace> {
    use std::os::unix::ffi::OsStringExt;
    let location = std::ffi::OsString::from_vec(space.location.clone()).into();
    space.oid.map(|oid| Tablespace { oid, location })
}

/// Label and pg_control must be of this backup and this cluster.
fn check_received(received: &Received, start_lsn: Lsn, timeline: TimelineId, facts: &RemoteFacts) -> Result<()> {
    let refuse = |cause: String| Err(Error::new(ErrorKind::Source, "accept the base backup", cause));
    if parse_backup_label(&received.backup_label) != Some((start_lsn, timeline)) {
        return refuse(format!("its label is not of the backup that began at {start_lsn} on timeline {timeline}"));
    }
    if received.end.timeline != timeline {
        return refuse(format!("the timeline changed from {timeline} to {}", received.end.timeline));
    }
    let Ok(ParsedControlFile::Sound(ControlFile { system_identifier, segment_blocks, wal_block_size_bytes, .. })) =
        parse(&received.control_file)
    else {
        return refuse("its pg_control is damaged".into());
    };
    let expected = (facts.facts.system_identifier, facts.segment_blocks, facts.wal_block_size_bytes);
    if (system_identifier, segment_blocks, wal_block_size_bytes) != expected {
        return refuse("its pg_control is that of another cluster".into());
    }
    Ok(())
}

/// What the server compared its files with must be the prior.
fn check_based_on(received: &Received, compared: &Compared<'_>) -> Result<()> {
    let prior = match compared {
        Compared::ThereToo { comparison, .. } => Some(comparison.set().manifest.postgres.start_lsn),
        _ => None,
    };
    if received.based_on == prior {
        return Ok(());
    }
    let place = |lsn: Option<Lsn>| lsn.map_or("none".to_owned(), |lsn| format!("the one that began at {lsn}"));
    let cause = format!("it is built on {}, and not on {}", place(received.based_on), place(prior));
    Err(Error::new(ErrorKind::Source, "accept the base backup", cause))
}

fn wal_refused(error: QueryError, has_slot: bool) -> Error {
    let error = error.into_error("receive the WAL of the backup");
    match has_slot {
        true => error.more_hint("was the slot invalidated? see max_slot_wal_keep_size"),
        false => error.more_hint("give the server a free slot (max_replication_slots), or raise wal_keep_size"),
    }
}
