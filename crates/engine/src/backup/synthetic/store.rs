//! The bytes of a synthetic full: from the chain's stripes to its own, compared with the chain's file table, and what is
//! written behind them.

use super::super::layouts::{FileLayouts, Listed};
use super::super::set_writer::{SetWriter, StripesWritten};
use super::super::wal_read_back::{WalReadBack, reopen};
use super::HINT_OF_DAMAGE;
use super::bad_pages::bad_pages;
use super::known_sums::SumsOfChain;
use super::plan::Plan;
use crate::catalog::page_sums::ChainSums;
use crate::catalog::{OpenSet, OpenStripe};
use crate::error::{Error, ErrorKind, Result};
use crate::format::FORMAT_VERSION;
use crate::format::checksum::Appender;
use crate::format::file_table::{EntryKind, FileTable, ZeroFill};
use crate::format::manifest::{Manifest, ObjectDigest, PageSums, ParityRecord, StripeRecord, SynthesizedFrom};
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::limit::Direction;
use crate::pipeline::stats::PipelineStats;
use crate::pipeline::{
    AutoLevel, ChainSource, ContentLayouts, EncodeInput, EncodeSource, FrameDamage, KnownSums, LevelShare, Observer,
    Parity, Progress, Stripe, StripeInput, WorkFeed, not_proven_note, run_encode,
};
use crate::source::postgres::control_file::{self, CONTROL_FILE_PATH, ControlFile, ParsedControlFile};
use crate::source::postgres::relation_layouts::RelationLayouts;
use crate::source::postgres::wal::WalExpectation;
use crate::terms::{BackupKind, FileId};

/// Larger than pg_control ever was; a lie about it must not cost memory.
const CONTROL_FILE_BYTES_MAX: u64 = 64 * 1024;

/// How the bytes are stored.
pub(in crate::backup) struct Store<'a> {
    pub(in crate::backup) plan: &'a Plan,
    pub(in crate::backup) sums: &'a ChainSums,
    pub(in crate::backup) page_size_bytes: u32,
    /// What the pages hold; None if the codec does not want to know.
    pub(in crate::backup) relations: Option<&'a RelationLayouts>,
    pub(in crate::backup) parity: Option<&'a Parity>,
    pub(in crate::backup) progress: &'a Progress,
    pub(in crate::backup) observer: &'a dyn Observer,
}

impl<'a> Store<'a> {
    /// With what the pages hold and the parity, if there are any, and with who hears of it.
    pub(in crate::backup) fn new(
        plan: &'a Plan,
        sums: &'a ChainSums,
        page_size_bytes: u32,
        (relations, parity): (Option<&'a RelationLayouts>, Option<&'a Parity>),
        (progress, observer): (&'a Progress, &'a dyn Observer),
    ) -> Self {
        Store { plan, sums, page_size_bytes, relations, parity, progress, observer }
    }
}

/// What was stored.
pub(in crate::backup) struct Stored {
    /// The chain's files, with places in the new stripes.
    pub(in crate::backup) table: FileTable,
    pub(in crate::backup) copied_bytes: u64,
    pub(in crate::backup) stats: PipelineStats,
    pub(in crate::backup) levels: Vec<LevelShare>,
}

/// Takes the stripes of the chain to read them.
pub(in crate::backup) fn stripe_inputs(chain: &mut OpenSet) -> Vec<StripeInput> {
    let inputs = chain.stripes.drain(..).flatten().map(|open| {
        let OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, .. } = open;
        StripeInput { set, set_id, frame_size_bytes, stripe, object, index, extents: Vec::new() }
    });
    inputs.collect()
}

/// Stores the content of every file, read from the chain's `inputs`, in `stripes`, and compares its length and CRC32C with what the chain's table says.
///
/// # Errors
/// `Damage` if the chain does not give what it promises; those of the storages; `Interrupted`.
pub(in crate::backup) fn store(
    chain: &OpenSet,
    inputs: Vec<StripeInput>,
    store: &Store<'_>,
    stripes: &mut [Stripe],
) -> Result<Stored> {
    let (plan, settings) = (store.plan, store.plan.settings);
    let sums = SumsOfChain(store.sums);
    let sums = plan.takes_stored.then_some(&sums as &dyn KnownSums);
    let on_damage = |damage: FrameDamage| damage_error(chain, &damage);
    let source = ChainSource::new(&chain.table, inputs, sums, plan.cached_frames, &on_damage);
    let lanes = super::super::lanes::lanes(&chain.table, &[], settings.frame_size_bytes);
    let feed = WorkFeed::new(&chain.table, lanes, settings.frame_size_bytes, settings.transfer_size_bytes);
    store.progress.set_total(feed.left_bytes());
    let (pages, level) = (Appender::new(store.page_size_bytes.into()), AutoLevel::default());
    let listed = Listed::All(&chain.table);
    let layouts = store.relations.map(|relations| FileLayouts { relations, listed });
    let input = EncodeInput {
        settings,
        codec: plan.codec,
        level: &level,
        source: EncodeSource::Chain(&source),
        feed: &feed,
        layouts: layouts.as_ref().map(|layouts| layouts as &dyn ContentLayouts),
        pages: Some(&pages),
        selection: None,
        parity: store.parity,
        progress: store.progress,
    };
    let outcome = run_encode(&input, stripes, &mut |live| {
        store.observer.progress(Direction::Backup, live);
        if store.observer.interrupted() {
            return Err(Error::new(ErrorKind::Interrupted, "finish the synthetic full", "a signal asked to stop")
                .hint("nothing of this set is kept; the chain is not touched"));
        }
        Ok(())
    })?;
    if let Some(note) = not_proven_note(outcome.not_proven_frames) {
        store.observer.note(&note);
    }
    let runs = stripes.iter_mut().flat_map(Stripe::take_runs).collect();
    let table = chain.table.with_content(runs, &[], &[settings.frame_size_bytes], &mut ZeroFill)?;
    compare(chain, &table)?;
    let copied_bytes = source.copied_bytes();
    Ok(Stored { table, copied_bytes, stats: outcome.stats, levels: level.shares() })
}

fn damage_error(chain: &OpenSet, damage: &FrameDamage) -> Error {
    let files: Vec<String> = damage.files.iter().map(|file| chain.table.path_text(*file)).collect();
    let action = format!(
        "make a full set of {}: frame {} of stripe {} of set {} (byte {}), which holds {}",
        chain.manifest.label,
        damage.sequence,
        damage.stripe,
        chain.manifest_of(damage.set).label,
        damage.offset.unwrap_or_default(),
        files.join(", ")
    );
    Error::new(ErrorKind::Damage, action, &damage.cause).hint(HINT_OF_DAMAGE)
}

/// What was stored must be what the chain promises.
fn compare(chain: &OpenSet, stored: &FileTable) -> Result<()> {
    let is_same = |(one, other): (FileId, FileId)| {
        let (promised, entry) = (chain.table.entry(one), stored.entry(other));
        let is_right =
            entry.kind != EntryKind::File || (promised.size_bytes, promised.crc32c) == (entry.size_bytes, entry.crc32c);
        is_right && chain.table.path(one) == stored.path(other)
    };
    let mut wrong = chain.table.ids().zip(stored.ids()).filter(|pair| !is_same(*pair));
    let first = wrong.next();
    if first.is_none() && chain.table.entries().len() == stored.entries().len() {
        return Ok(());
    }
    let file = first.map_or_else(String::new, |(file, _)| chain.table.path_text(file));
    let action = format!("make a full set of {}: put {file} together", chain.manifest.label);
    let cause = format!(
        "its length or CRC32C is not the one that the chain's file table has ({} such files)",
        1 + wrong.count()
    );
    Err(Error::new(ErrorKind::Damage, action, cause).hint(HINT_OF_DAMAGE))
}

/// The end of a synthetic full.
pub(super) struct Finish<'a> {
    pub(super) set: &'a SetWriter<'a>,
    /// The set whose content it has.
    pub(super) chain: &'a Manifest,
    pub(super) plan: &'a Plan,
    pub(super) page_size_bytes: u32,
    pub(super) observer: &'a dyn Observer,
}

/// What is durable before the commit.
pub(super) struct Finished {
    file_table: ObjectDigest,
    page_sums: Option<PageSums>,
    frame_digests: Option<ObjectDigest>,
    stripes: Vec<StripeRecord>,
    parity: Option<ParityRecord>,
}

impl Finish<'_> {
    /// Finishes stripes and file table, and reads pg_control and the WAL back from them.
    pub(super) fn run(&self, table: &FileTable, stripes: Vec<Stripe>, parity: Option<Parity>) -> Result<Finished> {
        let parity = self.set.finish_parity(parity, self.observer)?;
        let StripesWritten { stripes, page_sums, frame_digests } = self.set.finish_stripes(stripes, self.observer)?;
        let page_sums = page_sums.map(|objects| PageSums { page_size_bytes: self.page_size_bytes, objects });
        let file_table = self.set.write_file_table(table, parity.is_some())?;
        let mut reader = reopen(self.set, &stripes, self.plan.settings.frame_size_bytes)?;
        let control_file = read_control_file(&mut reader, table)?;
        let postgres = &self.chain.postgres;
        if control_file.system_identifier.to_string() != postgres.system_identifier {
            let action = format!("make a full set of {}", self.chain.label);
            return Err(
                Error::new(ErrorKind::Damage, action, "its pg_control is of another cluster").hint(HINT_OF_DAMAGE)
            );
        }
        let expectation = WalExpectation {
            major: postgres.version_num / 10_000,
            system_identifier: control_file.system_identifier,
            segment_size_bytes: postgres.wal_segment_size_bytes,
            block_size_bytes: control_file.wal_block_size_bytes,
            timeline: postgres.timeline,
        };
        let wal = WalReadBack { expectation, start_lsn: postgres.start_lsn, stop_lsn: postgres.stop_lsn };
        // The chain's newest set has the directories that this WAL needs.
        wal.check(&mut reader, table).map(drop)?;
        Ok(Finished { file_table, page_sums, frame_digests, stripes, parity })
    }

    /// The manifest: what the chain's newest set says of the cluster, and what is stored here.
    pub(super) fn manifest(
        &self,
        chain: &OpenSet,
        table: &FileTable,
        finished: Finished,
        description: Option<&str>,
    ) -> Manifest {
        let Finished { file_table, page_sums, frame_digests, stripes, parity } = finished;
        let (bad_page_count, bad_pages) = bad_pages(&chain.table, chain.chain());
        let of = self.chain;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            label: self.set.label.clone(),
            set_id: self.set.set_id.to_string(),
            kind: BackupKind::Full,
            prior: Vec::new(),
            prior_set_ids: Vec::new(),
            synthesized_from: Some(SynthesizedFrom {
                label: of.label.clone(),
                set_id: of.set_id.clone(),
                prior: of.prior.clone(),
                synthesized_at: jiff::Timestamp::now().to_string(),
            }),
            description: description.map(ToOwned::to_owned).or_else(|| of.description.clone()),
            compression: self.plan.codec.resolved().to_string(),
            frame_size_bytes: self.plan.settings.frame_size_bytes,
            transfer_size_bytes: self.plan.settings.transfer_size_bytes,
            source_bytes: table.content_bytes(),
            stored_bytes: 0,
            file_count: table.entries().len() as u64,
            file_table,
            page_sums,
            frame_digests,
            stripes,
            parity,
            bad_page_count,
            bad_pages,
            // That of the chain is not this set's.
            encryption: None,
            ..of.clone()
        };
        Manifest { stored_bytes: manifest.object_bytes(), ..manifest }
    }
}

/// The cluster's pg_control out of a set.
///
/// # Errors
/// `Damage` if there is no sound one; those of the storage.
pub(super) fn read_control_file(reader: &mut FrameReader, table: &FileTable) -> Result<ControlFile> {
    let bad = |cause: &str| Error::new(ErrorKind::Damage, format!("read back {CONTROL_FILE_PATH}"), cause);
    let file = table.ids().rfind(|file| table.path(*file) == CONTROL_FILE_PATH.as_bytes());
    let file = file.ok_or_else(|| bad("it is not in the set"))?;
    let size_bytes = table.entry(file).size_bytes;
    if size_bytes > CONTROL_FILE_BYTES_MAX {
        return Err(bad("it is far too long"));
    }
    let mut bytes = vec![0u8; size_bytes as usize];
    reader.read(table, file, 0, &mut bytes)?;
    match control_file::parse(&bytes)? {
        ParsedControlFile::Sound(control_file) => Ok(control_file),
        ParsedControlFile::Torn => Err(bad("its CRC does not hold")),
    }
}
