//! The end of a backup: its manifest, the commit, the report.

use std::time::Instant;

use super::protected::{protect_after_commit, protect_before_commit};
use super::report::{BackupReport, Made};
use super::repositories;
use super::run::Run;
use super::set_writer::with_space_needed;
use crate::catalog::new_set::withdraw_without_priors;
use crate::error::Result;
use crate::format::FORMAT_VERSION;
use crate::format::file_table::FileTable;
use crate::format::manifest::{
    Database, Manifest, ObjectDigest, PageSums, ParityRecord, PostgresRecord, StripeRecord, Tablespace,
};
use crate::pipeline::ceiling::Ceiling;
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{Observer, not_proven_note};
use crate::source::postgres::server_facts;
use crate::terms::{BackupKind, Lsn, SetIndex};

/// A backup whose bytes are all durable; only its commit is missing.
pub(super) struct Finished<'a> {
    pub(super) run: Run<'a>,
    pub(super) stop_lsn: Lsn,
    pub(super) stop_time: Option<String>,
    pub(super) table: FileTable,
    pub(super) priors: Vec<Manifest>,
    pub(super) file_table: ObjectDigest,
    pub(super) page_sums: Option<PageSums>,
    pub(super) frame_digests: Option<ObjectDigest>,
    pub(super) stripes: Vec<StripeRecord>,
    pub(super) parity: Option<ParityRecord>,
}

impl Finished<'_> {
    /// Commits the set and reports.
    pub(super) fn commit(
        self,
        started_at: jiff::Timestamp,
        started: Instant,
        usage: &ProcessUsage,
        ceiling: &Ceiling,
    ) -> Result<BackupReport> {
        let manifest = self.manifest(started_at);
        let (stripes, parity_stripes) = self.run.set.all_reports(&manifest);
        let changed_bytes = self.own_bytes();
        let Run {
            incremental,
            set,
            settings,
            request,
            repository,
            stats,
            observer,
            progress,
            level,
            not_proven_frames,
            ..
        } = self.run;
        let discards = repository.storage().discards();
        let protection = protect_before_commit(repository, request, &manifest, &self.priors)?;
        set.commit(&manifest, observer).map_err(|error| with_space_needed(progress, manifest.source_bytes, error))?;
        repository.each(|copy| withdraw_without_priors(copy, &manifest))?;
        protection.map_or(Ok(()), |wanted| protect_after_commit(repository, &manifest, wanted))?;
        note_damage(&manifest, observer);
        let notes = incremental.notes.iter().cloned().chain(hardly_compresses(&manifest));
        let notes = notes.chain(not_proven_note(not_proven_frames)).collect();
        let made = Made {
            manifest,
            state: if discards { "discarded" } else { "complete" },
            changes_found_by: incremental.changes_found_by(),
            changed_bytes,
            notes,
            stripes,
            parity_stripes,
            repositories: repositories::reports(repository),
            codec: request.compression,
            levels: level.shares(),
            settings: &settings,
            stats: &stats,
            ceiling,
            started,
            usage,
        };
        let protected_until = protection.map(|protection| protection.until.to_string());
        Ok(BackupReport { protected_until, ..made.report() })
    }

    /// Bytes of files that lie in the set's own stripes.
    fn own_bytes(&self) -> u64 {
        use crate::format::file_table::Place;
        let runs = self.table.ids().flat_map(|file| self.table.runs(file));
        let own = runs.filter(|run| run.place() != Place::Zeros && run.set() == SetIndex::OWN);
        own.map(|run| run.size_bytes).sum()
    }

    fn manifest(&self, started_at: jiff::Timestamp) -> Manifest {
        let run = &self.run;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            label: run.set.label.clone(),
            set_id: run.set.set_id.to_string(),
            kind: run.incremental.kind,
            prior: self.priors.iter().map(|prior| prior.label.clone()).collect(),
            prior_set_ids: self.priors.iter().map(|prior| prior.set_id.clone()).collect(),
            synthesized_from: None,
            source: run.set.source.clone(),
            description: run.request.description.clone(),
            started_at: started_at.to_string(),
            finished_at: jiff::Timestamp::now().to_string(),
            compression: run.request.compression.resolved().to_string(),
            frame_size_bytes: run.settings.frame_size_bytes,
            transfer_size_bytes: run.settings.transfer_size_bytes,
            source_bytes: self.table.content_bytes(),
            stored_bytes: 0,
            file_count: self.table.entries().len() as u64,
            vanished_file_count: run.gone.len() as u64,
            file_table: self.file_table.clone(),
            page_sums: self.page_sums.clone(),
            frame_digests: self.frame_digests.clone(),
            stripes: self.stripes.clone(),
            encryption: None,
            parity: self.parity.clone(),
            postgres: self.postgres_record(),
            bad_page_count: run.bad_pages.count,
            bad_pages: run.bad_pages.listed.clone(),
            lost_file_count: run.lost_files.count,
            lost_files: run.lost_files.listed.clone(),
        };
        Manifest { stored_bytes: manifest.object_bytes(), ..manifest }
    }

    fn postgres_record(&self) -> PostgresRecord {
        let run = &self.run;
        let text = |path: &std::path::Path| path.display().to_string();
        PostgresRecord {
            version_num: run.facts.server_version_num,
            system_identifier: run.facts.system_identifier.to_string(),
            timeline: run.timeline,
            start_lsn: run.start_lsn,
            stop_lsn: self.stop_lsn,
            stop_time: self.stop_time.clone(),
            wal_segment_size_bytes: run.facts.wal_segment_size_bytes,
            block_size_bytes: run.facts.block_size_bytes,
            data_checksums: run.facts.data_checksums,
            data_directory: text(&run.origin.data_directory),
            owner: run.origin.owner.clone(),
            tablespaces: run
                .facts
                .tablespaces
                .iter()
                .map(|space| Tablespace { oid: space.oid, location: text(&space.location) })
                .collect(),
            wal_segments: run.wal_segments.iter().map(ToString::to_string).collect(),
            external_files: run.facts.outside_config_files.iter().map(|path| text(path)).collect(),
            databases: run.facts.databases.as_ref().map(|all| all.iter().map(database_record).collect()),
            bootstrap_role: run.facts.bootstrap_role.clone(),
            postmaster_start_us: run.facts.postmaster_start_us,
        }
    }
}

fn database_record(database: &server_facts::Database) -> Database {
    Database { oid: database.oid, name: database.name.clone(), is_template: database.is_template }
}

fn note_damage(manifest: &Manifest, observer: &dyn Observer) {
    if manifest.bad_page_count > 0 {
        observer.note(&format!(
            "{} pages of the source are damaged; the set keeps them as they are",
            manifest.bad_page_count
        ));
    }
    if manifest.lost_file_count > 0 {
        observer.note(&format!("{} files of the source are lost; the set is without them", manifest.lost_file_count));
    }
}

/// Below this a ratio says little: a small cluster is mostly catalogs, which compress.
const JUDGED_BYTES_MIN: u64 = 64 * 1024 * 1024;

/// What to make of a full set that compression has not made smaller.
fn hardly_compresses(manifest: &Manifest) -> Option<String> {
    let is_judged = manifest.kind == BackupKind::Full
        && manifest.compression != "none"
        && manifest.source_bytes >= JUDGED_BYTES_MIN
        && manifest.stored_bytes > manifest.source_bytes / 20 * 19;
    is_judged.then(|| {
        let ratio = manifest.source_bytes as f64 / manifest.stored_bytes as f64;
        format!(
            "the data hardly compresses (ratio {ratio:.2}), as if it were compressed or encrypted already: what does not is \
             stored raw; --compression none or lz4 may save time"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::manifest::tests::sample;

    #[test]
    fn only_large_full_sets_that_stayed_large_are_spoken_of() {
        let mut set = sample();
        (set.kind, set.source_bytes, set.stored_bytes) = (BackupKind::Full, JUDGED_BYTES_MIN, JUDGED_BYTES_MIN - 1);
        set.compression = "zstd:1".to_owned();
        assert!(hardly_compresses(&set).unwrap().contains("ratio 1.00"));
        set.stored_bytes = JUDGED_BYTES_MIN / 10 * 9;
        assert_eq!(hardly_compresses(&set), None);
        set.stored_bytes = JUDGED_BYTES_MIN;
        set.compression = "none".to_owned();
        assert_eq!(hardly_compresses(&set), None);
    }
}
