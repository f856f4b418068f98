//! What makes a backup an incremental one: its prior, the comparison with it, and what is read.

use std::sync::Arc;

use super::compare::Comparison;
use super::prior::{Here, choose};
use super::read_plan::{self, ReadPlan};
use super::report::BackupRequest;
use super::server::Server;
use super::source_files::read_root;
use crate::catalog::Repository;
use crate::error::Result;
use crate::format::file_table::FileTable;
use crate::pipeline::ceiling::ComparisonFacts;
use crate::pipeline::{Observer, PipelineSettings};
use crate::source::postgres::timeline_history::read_history;
use crate::terms::BackupKind;

/// How a backup depends on others; of a full one there is nothing but the kind.
pub(super) struct Incremental<'a> {
    pub(super) kind: BackupKind,
    pub(super) comparison: Option<Arc<Comparison<'a>>>,
    pub(super) plan: ReadPlan,
    pub(super) notes: Vec<String>,
}

impl<'a> Incremental<'a> {
    /// Finds and holds the prior, and decides what to read.
    ///
    /// # Errors
    /// `Repository` without a prior where one is demanded, `Damage` if it cannot be built on; those of source and
    /// storage.
    pub(super) fn prepare(
        repository: &'a Repository,
        request: &BackupRequest,
        settings: &PipelineSettings,
        server: &mut Server,
        table: &FileTable,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let timeline = server.session.timeline();
        let here = Here {
            facts: server.session.facts(),
            timeline,
            history: &read_history(&server.pgdata, timeline),
            start_lsn: server.session.start_lsn(),
        };
        let page_size_bytes = here.facts.block_size_bytes;
        let choice = choose(repository, request, &here)?;
        let mut incremental =
            Incremental { kind: choice.kind, comparison: None, plan: ReadPlan::default(), notes: choice.notes };
        if let Some(prior) = choice.prior {
            observer.phase(&format!("find what has changed since {}", prior.set.manifest.label));
            let (mut comparison, notes) = Comparison::new(repository, prior, table, settings, page_size_bytes);
            incremental.notes.extend(notes);
            let place = read_plan::Place {
                pgdata: &server.pgdata,
                root: &read_root(&server.pgdata)?,
                table,
                blocks_per_segment: server.control_file.segment_blocks,
                data_checksums: server.session.facts().data_checksums,
                start_lsn: server.session.start_lsn(),
            };
            incremental.plan = read_plan::plan(&place, &mut comparison, &mut server.session)?;
            incremental.notes.append(&mut incremental.plan.notes);
            incremental.comparison = Some(Arc::new(comparison));
        }
        incremental.notes.iter().for_each(|note| observer.note(note));
        Ok(incremental)
    }

    /// Everything is read and stored.
    pub(super) fn full() -> Self {
        Incremental { kind: BackupKind::Full, comparison: None, plan: ReadPlan::default(), notes: Vec::new() }
    }

    /// How it was found what has changed; None if nothing was compared.
    pub(super) fn changes_found_by(&self) -> Option<&'static str> {
        let by = if self.plan.by_summaries { "wal summaries" } else { "page checksums" };
        self.comparison.as_ref().map(|_| by)
    }

    /// What it holds, for the ceiling.
    pub(super) fn facts(&self) -> Option<ComparisonFacts> {
        self.comparison.as_ref().map(|comparison| comparison.facts(self.plan.memory_bytes()))
    }
}
