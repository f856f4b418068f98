//! One running backup: the state that its phases share.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::begun::{Begun, Hold, Origin, Stop};
use super::compare::{Changed, Comparison};
use super::compose::compose;
use super::finished::Finished;
use super::incremental::Incremental;
use super::lanes::lanes;
use super::layouts::{FileLayouts, Listed};
use super::lost_files::{Files, LostFiles, Search};
use super::page_check::{BadPages, PageCheck};
use super::report::BackupRequest;
use super::sent_files::Sent;
use super::server::connect_settings;
use super::server_end::{Ended, ServerEnd};
use super::set_writer::{SetWriter, StripesWritten, with_space_needed};
use super::source_files::{add_dropped_databases, add_memory_file, add_wal, tablespace_lanes, with_wal_hint};
use super::standby;
use super::wal_read_back::{WalReadBack, reopen};
use super::zero_pages::find_lost_pages;
use crate::catalog::encryption_mark::keep_encrypted;
use crate::catalog::identity::{ClusterFacts, check_or_create};
use crate::catalog::{Repository, newest_complete_of};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::Appender;
use crate::format::file_table::{FileTable, StoredRun};
use crate::format::manifest::{Manifest, PageSums, StripeRecord};
use crate::pipeline::limit::Direction;
use crate::pipeline::stats::PipelineStats;
use crate::pipeline::{
    AtEnd, AutoLevel, ContentCheck, ContentLayouts, EncodeInput, EncodeOutcome, EncodeSource, LiveView, NoCheck,
    Observer, Parity, PipelineSettings, Progress, ReadRoot, Selection, StreamSource, Stripe, WorkFeed, run_encode,
};
use crate::source::postgres::catalog_files::{CatalogMoment, catalog_moment};
use crate::source::postgres::catalog_pages::named_files::NamedFiles;
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::control_file::CONTROL_FILE_PATH;
use crate::source::postgres::page::PageJudge;
use crate::source::postgres::relation_layouts::RelationLayouts;
use crate::source::postgres::server_facts::ServerFacts;
use crate::source::postgres::session::BackupSession;
use crate::source::postgres::wal::{WalExpectation, segments_between};
use crate::source::postgres::wal_records::MappedDatabase;
use crate::terms::{FileId, Lsn, TimelineId, WalSegmentName};

/// How often the server is asked whether the backup is still on.
const SESSION_CHECK: Duration = Duration::from_secs(1);

/// A backup between its first byte and the end of its data path.
pub(super) struct Run<'a> {
    pub(super) request: &'a BackupRequest,
    pub(super) repository: &'a Repository,
    pub(super) settings: PipelineSettings,
    pub(super) observer: &'a dyn Observer,
    pub(super) progress: &'a Progress,
    pub(super) origin: Origin,
    pub(super) facts: ServerFacts,
    pub(super) start_lsn: Lsn,
    pub(super) timeline: TimelineId,
    session: Option<BackupSession>,
    stop: Option<Stop>,
    pub(super) wal_segments: Vec<WalSegmentName>,
    table: FileTable,
    root: ReadRoot,
    relations: Option<RelationLayouts>,
    newest: Option<Manifest>,
    pub(super) incremental: Incremental<'a>,
    pages: Option<Appender>,
    pub(super) bad_pages: BadPages,
    pub(super) lost_files: LostFiles,
    // The stripes before the set: their files are closed before the set removes them.
    stripes: Vec<Stripe>,
    parity: Option<Parity>,
    pub(super) set: SetWriter<'a>,
    pub(super) gone: Vec<FileId>,
    /// Frames that did not decode to their content.
    pub(super) not_proven_frames: u64,
    pub(super) stats: PipelineStats,
    pub(super) level: AutoLevel,
    zero_check: Option<ZeroCheckLeft>,
    /// What a server that sent its files itself says of them.
    sent: Option<Sent>,
}

/// What one run of the data path stores.
struct Content<'r> {
    source: EncodeSource<'r>,
    feed: &'r WorkFeed,
    layouts: Option<&'r FileLayouts<'r>>,
    selection: Option<&'r dyn Selection>,
}

/// What the check of the data files leaves for the check of zero pages.
struct ZeroCheckLeft {
    old_pages: Vec<AtomicU32>,
    zeros: Vec<super::page_check::ZeroPages>,
}

impl<'a> Run<'a> {
    /// Opens the stripes.
    #[expect(
        clippy::too_many_arguments,
        reason = "the verb's phases made each of them; a struct would exist for this call only"
    )]
    pub(super) fn new(
        request: &'a BackupRequest,
        repository: &'a Repository,
        settings: PipelineSettings,
        begun: Begun,
        table: FileTable,
        incremental: Incremental<'a>,
        set: SetWriter<'a>,
        progress: &'a Progress,
        observer: &'a dyn Observer,
    ) -> Result<Self> {
        let Begun { origin, facts, start_lsn, timeline, session, root, relations } = begun;
        let page_size_bytes = facts.block_size_bytes;
        let stripes = set.create_stripes(settings.frame_size_bytes, request.page_sums.then_some(page_size_bytes))?;
        let parity = set.create_parity(&settings)?;
        let wants_sums = request.page_sums || incremental.comparison.is_some();
        let pages = wants_sums.then(|| Appender::new(page_size_bytes.into()));
        let cluster =
            ClusterFacts { system_identifier: facts.system_identifier, pg_version_num: facts.server_version_num };
        repository.each(|copy| check_or_create(copy, &request.source, &cluster))?;
        repository.each(|copy| keep_encrypted(copy, &request.source, repository.keys()))?;
        let newest = newest_complete_of(repository, &request.source, facts.system_identifier)?;
        // A standby may be behind a set of its primary, and such a set says nothing about what is older than it.
        let newest = newest.filter(|newest| newest.postgres.stop_lsn <= start_lsn);
        progress.set_total(table.content_bytes());
        Ok(Run {
            request,
            repository,
            settings,
            observer,
            progress,
            root,
            relations,
            origin,
            facts,
            start_lsn,
            timeline,
            session,
            stop: None,
            wal_segments: Vec::new(),
            table,
            newest,
            incremental,
            pages,
            bad_pages: BadPages::default(),
            lost_files: LostFiles::default(),
            stripes,
            parity,
            set,
            gone: Vec::new(),
            not_proven_frames: 0,
            stats: PipelineStats::default(),
            level: AutoLevel::default(),
            zero_check: None,
            sent: None,
        })
    }

    /// Reads every file of the list but pg_control, checks its pages, and writes it to the stripes. Once everything has been read the
    /// backup is ended on the server; `ahead_buffers` more buffers than the settings have are filled until then.
    pub(super) fn store_data_files(&mut self, ahead_buffers: u32) -> Result<()> {
        let settings = connect_settings(self.request)?;
        let spans = std::mem::take(&mut self.incremental.plan.spans);
        let PipelineSettings { frame_size_bytes, transfer_size_bytes, .. } = self.settings;
        let tablespaces = tablespace_lanes(&self.origin.data_directory, &self.table);
        let lanes = lanes(&self.table, &tablespaces, frame_size_bytes);
        let session = Mutex::new(Some(self.session.take().ok_or_else(session_gone)?));
        let mut stripes = std::mem::take(&mut self.stripes);
        let mut check = self.page_check(&session);
        check.refresh_lsn_limit()?;
        let feed = WorkFeed::with_spans(&self.table, lanes, spans, frame_size_bytes, transfer_size_bytes);
        self.progress.set_total(feed.left_bytes());
        let changed = self.incremental.comparison.as_deref().map(|comparison| Changed { comparison });
        let selection = changed.as_ref().map(|changed| changed as &dyn Selection);
        let mut last_check = Instant::now();
        let observer = self.observer;
        let directory = &self.origin.data_directory;
        let named = NamedFiles {
            pgdata: directory,
            major: self.facts.major(),
            block_size_bytes: self.facts.block_size_bytes,
            start_lsn: self.start_lsn,
        };
        let search = self.search(settings.clone(), Files::Here(named, &self.root));
        let end = ServerEnd::new(settings, self.facts.system_identifier, directory, search);
        let at_end = Some(AtEnd { then: &|| end.run(&session), ahead_buffers });
        let source = EncodeSource::Files { root: &self.root, table: &self.table, check: &check, at_end };
        let layouts = self.layouts(Listed::All(&self.table));
        let content = Content { source, feed: &feed, layouts: layouts.as_ref(), selection };
        let outcome = self.encode(content, &mut stripes, &mut |live| {
            observer.progress(Direction::Backup, live);
            if last_check.elapsed() >= SESSION_CHECK {
                last_check = Instant::now();
                check.refresh_lsn_limit()?;
            }
            Ok(())
        });
        let zeros = std::mem::take(check.zeros.get_mut().unwrap_or_else(PoisonError::into_inner));
        let old_pages = std::mem::take(&mut check.old_pages);
        let bad_pages = std::mem::take(check.bad.get_mut().unwrap_or_else(PoisonError::into_inner));
        drop(check);
        let ended = end.into_ended();
        self.zero_check = Some(ZeroCheckLeft { old_pages, zeros });
        self.bad_pages = bad_pages;
        self.stripes = stripes;
        self.note_outcome(outcome)?;
        self.take_end(ended?)
    }

    fn page_check<'c>(&'c self, session: &'c Mutex<Option<BackupSession>>) -> PageCheck<'c> {
        let old_lsn = self.newest.as_ref().map_or(self.start_lsn, |prior| prior.postgres.stop_lsn);
        PageCheck {
            judge: PageJudge::new(self.facts.block_size_bytes, self.facts.data_checksums, self.start_lsn),
            block_size_bytes: self.facts.block_size_bytes,
            blocks_per_segment: self.origin.segment_blocks,
            table: &self.table,
            root: &self.root,
            session,
            lsn_limit: AtomicU64::new(self.start_lsn.0),
            old_lsn,
            old_pages: std::iter::repeat_with(AtomicU32::default).take(self.table.entries().len()).collect(),
            zeros: Mutex::default(),
            bad: Mutex::default(),
        }
    }

    /// Tells pages that were lost from pages that were never used. What it looks at says nothing if it changed since the backup began.
    pub(super) fn check_zero_pages(&mut self) -> Result<()> {
        let Some(left) = self.zero_check.take().filter(|left| !left.zeros.is_empty()) else { return Ok(()) };
        let ended = Mutex::new(None);
        let mut check = self.page_check(&ended);
        check.old_pages = left.old_pages;
        check.zeros = Mutex::new(left.zeros);
        let found = find_lost_pages(&check, self.newest.as_ref(), self.repository, self.start_lsn, self.observer);
        let found_pages = std::mem::take(check.bad.get_mut().unwrap_or_else(PoisonError::into_inner));
        drop(check);
        for page in found_pages.listed {
            self.bad_pages.add(page.path, page.page, page.reason);
        }
        found
    }

    /// Asks the catalogs for files that should be there, and that a server has not sent; it sent all of them after `since`.
    pub(super) fn look_for_files_not_sent(&mut self, settings: ConnectSettings, since: CatalogMoment) -> Result<()> {
        let (asked, cluster) = (settings.clone(), self.facts.system_identifier);
        let mut databases = || catalog_moment(&asked, cluster).map(|now| now.databases);
        match self.search(settings, Files::sent(&self.table, since)).run(&mut databases) {
            Err(error) if error.kind() != ErrorKind::Interrupted => self.note_losses_unknown(&error),
            found => self.keep_lost_files(found?),
        }
        Ok(())
    }

    /// Says that nobody could be asked for what is lost.
    pub(super) fn note_losses_unknown(&mut self, error: &Error) {
        let note = format!(
            "whether files were lost on the server is not known: {}; a role that may connect to the databases can ask",
            error.message()
        );
        self.keep_lost_files((LostFiles::default(), vec![note]));
    }

    fn search<'s>(&'s self, settings: ConnectSettings, files: Files<'s>) -> Search<'s> {
        let prior = self.incremental.comparison.as_ref().map(|comparison| comparison.set());
        Search {
            settings,
            files,
            table: &self.table,
            prior: prior.map(|set| (&set.manifest.label, &set.table)),
            is_standby: self.facts.is_standby(),
            observer: self.observer,
            found: LostFiles::default(),
            notes: Vec::new(),
        }
    }

    fn keep_lost_files(&mut self, (found, notes): (LostFiles, Vec<String>)) {
        notes.iter().for_each(|note| self.observer.note(note));
        self.incremental.notes.extend(notes);
        self.lost_files = found;
    }

    /// Adds what the server gave at the end to the list of files.
    fn take_end(&mut self, ended: Ended) -> Result<()> {
        let Ended { control_bytes, control_file, stop, lost } = ended;
        self.keep_lost_files(lost);
        if self.facts.is_standby() {
            standby::check_control_file(&control_file, self.start_lsn, stop.stop_lsn, self.timeline)?;
        }
        add_memory_file(&mut self.table, &mut self.root, "backup_label", stop.backup_label)?;
        if !stop.tablespace_map.is_empty() {
            add_memory_file(&mut self.table, &mut self.root, "tablespace_map", stop.tablespace_map)?;
        }
        add_memory_file(&mut self.table, &mut self.root, CONTROL_FILE_PATH, control_bytes)?;
        self.wal_segments =
            segments_between(self.timeline, self.start_lsn, stop.stop_lsn, self.facts.wal_segment_size_bytes);
        self.stop =
            Some(Stop { stop_lsn: stop.stop_lsn, stop_time: Some(stop.stop_time), hold: Hold::Session(stop.wal_hold) });
        Ok(())
    }

    /// Writes labels, pg_control and the WAL from start to stop to the stripes.
    pub(super) fn store_tail(&mut self) -> Result<()> {
        let memory: Vec<FileId> = self.root.memory.keys().copied().collect();
        let wal = add_wal(
            &self.origin.data_directory,
            &mut self.table,
            &self.wal_segments,
            self.facts.wal_segment_size_bytes,
        )?;
        let files = memory.into_iter().chain(wal).collect();
        let feed =
            WorkFeed::new(&self.table, vec![files], self.settings.frame_size_bytes, self.settings.transfer_size_bytes);
        let mut stripes = std::mem::take(&mut self.stripes);
        let observer = self.observer;
        let source = EncodeSource::Files { root: &self.root, table: &self.table, check: &NoCheck, at_end: None };
        let layouts = self.layouts(Listed::All(&self.table));
        let content = Content { source, feed: &feed, layouts: layouts.as_ref(), selection: None };
        let outcome = self.encode(content, &mut stripes, &mut |live| {
            observer.progress(Direction::Backup, live);
            Ok(())
        });
        self.stripes = stripes;
        let outcome = outcome.map_err(|error| with_wal_hint(&self.origin.data_directory, &self.wal_segments, error));
        self.note_outcome(outcome)
    }

    /// Stores the files of a stream, which puts them into `table`, in the order in which they come, or what a comparison selects of them;
    /// `each_second` is asked whether to go on.
    pub(super) fn store_stream(
        &mut self,
        (source, table): (&mut dyn StreamSource, &Mutex<FileTable>),
        size_bytes: u64,
        check: &dyn ContentCheck,
        comparison: Option<&Comparison<'_>>,
        each_second: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let feed = WorkFeed::of_stream(size_bytes, self.settings.frame_size_bytes, self.settings.transfer_size_bytes);
        let mut stripes = std::mem::take(&mut self.stripes);
        let (observer, mut last_check) = (self.observer, Instant::now());
        let source = EncodeSource::Stream { source: Mutex::new(source), check };
        let changed = comparison.map(|comparison| Changed { comparison });
        let selection = changed.as_ref().map(|changed| changed as &dyn Selection);
        let layouts = self.layouts(Listed::SoFar(table));
        let content = Content { source, feed: &feed, layouts: layouts.as_ref(), selection };
        let outcome = self.encode(content, &mut stripes, &mut |live| {
            observer.progress(Direction::Backup, live);
            if last_check.elapsed() >= SESSION_CHECK {
                last_check = Instant::now();
                each_second()?;
            }
            Ok(())
        });
        self.stripes = stripes;
        self.note_outcome(outcome)
    }

    /// Takes what a stream left: its file table, where the backup ended, and what the server says to have sent.
    pub(super) fn end_stream(&mut self, table: FileTable, stop: Stop, sent: Sent, bad_pages: BadPages) {
        self.wal_segments =
            segments_between(self.timeline, self.start_lsn, stop.stop_lsn, self.facts.wal_segment_size_bytes);
        self.table = table;
        self.stop = Some(stop);
        self.sent = Some(sent);
        self.bad_pages = bad_pages;
    }

    fn layouts<'r>(&'r self, listed: Listed<'r>) -> Option<FileLayouts<'r>> {
        self.relations.as_ref().map(|relations| FileLayouts { relations, listed })
    }

    fn encode<'r>(
        &'r self,
        content: Content<'r>,
        stripes: &mut [Stripe],
        tick: &mut dyn FnMut(&LiveView<'_>) -> Result<()>,
    ) -> Result<EncodeOutcome> {
        let Content { source, feed, layouts, selection } = content;
        let input = EncodeInput {
            settings: self.settings,
            codec: self.request.compression,
            level: &self.level,
            source,
            feed,
            layouts: layouts.map(|layouts| layouts as &dyn ContentLayouts),
            pages: self.pages.as_ref(),
            selection,
            parity: self.parity.as_ref(),
            progress: self.progress,
        };
        run_encode(&input, stripes, &mut |live| {
            if self.observer.interrupted() {
                return Err(Error::new(ErrorKind::Interrupted, "finish the backup", "a signal asked to stop")
                    .hint("nothing of this set is kept; earlier sets are not touched"));
            }
            tick(live)
        })
    }

    fn note_outcome(&mut self, outcome: Result<EncodeOutcome>) -> Result<()> {
        let content_bytes = self.table.content_bytes();
        let outcome = outcome.map_err(|error| with_space_needed(self.progress, content_bytes, error))?;
        self.not_proven_frames += outcome.not_proven_frames;
        self.gone.extend(outcome.gone);
        self.stats.add(&outcome.stats);
        Ok(())
    }

    /// Finishes the stripes and the file table, and reads the WAL back from them.
    pub(super) fn finish(self) -> Result<Finished<'a>> {
        let (progress, content_bytes) = (self.progress, self.table.content_bytes());
        self.finish_files().map_err(|error| with_space_needed(progress, content_bytes, error))
    }

    fn finish_files(mut self) -> Result<Finished<'a>> {
        // Held until the WAL is read back: the server's replication slot lives as long.
        let stop = self.stop.take().ok_or_else(session_gone)?;
        let mut runs: Vec<StoredRun> = Vec::new();
        for stripe in &mut self.stripes {
            runs.append(&mut stripe.take_runs());
        }
        self.gone.sort_unstable();
        if let Some(sent) = &mut self.sent {
            runs.sort_unstable_by_key(|stored| (stored.file, stored.run.file_offset));
            sent.note_stored(&runs)?;
        }
        let frame_size_bytes = self.settings.frame_size_bytes;
        let comparison = self.incremental.comparison.as_deref();
        let composed = compose(&self.table, runs, &self.gone, frame_size_bytes, comparison)?;
        let mut table = composed.table;
        self.table = FileTable::default();
        if let Some(sent) = &self.sent {
            sent.compare(&table)?;
        }
        let StripesWritten { stripes, page_sums, frame_digests } =
            self.set.finish_stripes(std::mem::take(&mut self.stripes), self.observer)?;
        let parity = self.set.finish_parity(self.parity.take(), self.observer)?;
        let page_sums = page_sums.map(|objects| PageSums { page_size_bytes: self.facts.block_size_bytes, objects });
        let sums = page_sums.iter().flat_map(|sums| &sums.objects);
        let parities = parity.iter().flat_map(|parity| &parity.stripes);
        self.set.confirm_objects(
            stripes.iter().chain(parities),
            sums.chain(&frame_digests).chain(parity.iter().map(|parity| &parity.rows)),
        )?;
        if !self.repository.storage().discards() {
            let mapped = self.read_wal_back(&stripes, stop.stop_lsn, &table)?;
            add_dropped_databases(&mut table, &mapped)?;
        }
        let file_table = self.set.write_file_table(&table, parity.is_some())?;
        let Stop { stop_lsn, stop_time, .. } = stop;
        let priors = composed.priors;
        Ok(Finished {
            stop_lsn,
            stop_time,
            file_table,
            page_sums,
            frame_digests,
            priors,
            stripes,
            parity,
            table,
            run: self,
        })
    }

    fn read_wal_back(&self, stripes: &[StripeRecord], stop_lsn: Lsn, table: &FileTable) -> Result<Vec<MappedDatabase>> {
        let expectation = WalExpectation {
            major: self.facts.major(),
            system_identifier: self.facts.system_identifier,
            segment_size_bytes: self.facts.wal_segment_size_bytes,
            block_size_bytes: self.origin.wal_block_size_bytes,
            timeline: self.timeline,
        };
        let wal = WalReadBack { expectation, start_lsn: self.start_lsn, stop_lsn };
        wal.check(&mut reopen(&self.set, stripes, self.settings.frame_size_bytes)?, table)
    }
}

pub(super) fn session_gone() -> Error {
    Error::new(ErrorKind::Bug, "go on with the backup", "its session was given away")
}
