//! Random histories of files against an oracle of byte arrays: every set of every chain gives back exactly what was there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pagehaul_testkit::cluster::is_long_run;
use pagehaul_testkit::random::Random;

use super::compare::{Changed, Comparison, Expected};
use super::compose::{Composed, compose};
use super::layouts::{FileLayouts, Listed};
use super::prior::Prior;
use super::source_files::read_root;
use super::synthetic::plan::Plan;
use super::synthetic::store::{Store, store, stripe_inputs};
use crate::catalog::page_sums::ChainSums;
use crate::catalog::repository::{FILE_TABLE_NAME, MANIFEST_NAME, Repository, page_sums_name, set_prefix, stripe_name};
use crate::catalog::{OpenStripe, open_set};
use crate::error::{ErrorKind, Result};
use crate::format::checksum::{Appender, crc32c};
use crate::format::file_table::{EntryKind, FileTable, Place as RunPlace};
use crate::format::manifest::{Manifest, ObjectDigest, PageSums, StripeRecord, hex64};
use crate::format::page_sums::{PAGE_SUMS_HEADER_BYTES, PageSumsHeader};
use crate::format::stripe::StripeHeader;
use crate::pipeline::frame_reader::FrameReader;
use crate::pipeline::{
    AtEnd, AutoLevel, ContentCheck, EncodeInput, EncodeSource, NoObserver, PipelineSettings, Progress, Selection, Span,
    Stripe, StripeInput, SumsObject, WorkFeed, run_encode,
};
use crate::source::postgres::relation_layouts::RelationLayouts;
use crate::terms::{BackupKind, BackupLabel, FileId, Lsn, SetId, SourceName, StripeIndex};

const PAGE: usize = 8192;
const CODECS: [&str; 5] = ["none", "lz4", "zstd:1", "page:1", "auto"];

/// One file of the history: its content, and when each page was changed last.
#[derive(Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    changed_at: Vec<u64>,
    modified_s: i64,
}

type Files = BTreeMap<String, Content>;

fn is_relation(path: &str) -> bool {
    path.starts_with("base/")
}

/// A page as WAL leaves it: its LSN, then what differs from all others.
fn fresh_page(random: &mut Random, lsn: u64) -> Vec<u8> {
    let mut page = random.bytes(64).repeat(PAGE / 64);
    page[..4].copy_from_slice(&((lsn >> 32) as u32).to_le_bytes());
    page[4..8].copy_from_slice(&(lsn as u32).to_le_bytes());
    page
}

fn disturb(files: &mut Files, random: &mut Random, now: u64) {
    let names: Vec<String> = files.keys().cloned().collect();
    let name = names.get(random.below(names.len().max(1) as u64) as usize).cloned();
    match (random.below(12), name) {
        (0, _) | (_, None) => {
            let kind = if random.below(3) == 0 { "other" } else { "base/5" };
            let name = format!("{kind}/{}", 16_384 + random.below(12));
            let size = if random.below(3) == 0 { 300 } else { random.below(20) };
            files.insert(name.clone(), Content::default());
            resize(files.get_mut(&name).unwrap(), &name, random, size, now);
        }
        (1, Some(name)) => drop(files.remove(&name)),
        (2 | 3, Some(name)) => {
            let size = random.below(60);
            resize(files.get_mut(&name).unwrap(), &name, random, size, now);
        }
        (what, Some(name)) => {
            let file = files.get_mut(&name).unwrap();
            let pages = file.bytes.len() / PAGE;
            for _ in 0..random.below(1 + pages as u64 / 4) {
                let page = random.below(pages as u64) as usize;
                let place = &mut file.bytes[page * PAGE..(page + 1) * PAGE];
                match what {
                    4 => place.fill(0),
                    // A hint bit: no LSN tells of it.
                    5 => place[100 + random.below(8000) as usize] ^= 1,
                    _ => place.copy_from_slice(&fresh_page(random, now)),
                }
                file.changed_at[page] = now;
            }
            file.modified_s = if is_relation(&name) { 0 } else { now as i64 };
        }
    }
}

fn resize(file: &mut Content, name: &str, random: &mut Random, pages: u64, now: u64) {
    file.bytes.truncate(pages as usize * PAGE);
    file.changed_at.truncate(pages as usize);
    while file.changed_at.len() < pages as usize {
        file.bytes.extend(if random.below(5) == 0 { vec![0; PAGE] } else { fresh_page(random, now) });
        file.changed_at.push(now);
    }
    if !is_relation(name) {
        let odd = random.below(3000) as usize;
        file.bytes.extend(random.bytes(odd));
        file.changed_at.extend((odd > 0).then_some(now));
        file.modified_s = now as i64;
    }
}

fn write_files(root: &Path, files: &Files) -> FileTable {
    std::fs::remove_dir_all(root).ok();
    let mut table = FileTable::default();
    for (name, content) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &content.bytes).unwrap();
        let size_bytes = content.bytes.len() as u64;
        table.push(name.as_bytes(), b"", EntryKind::File, 0o600, content.modified_s, size_bytes).unwrap();
    }
    std::fs::create_dir_all(root).unwrap();
    table
}

/// What WAL summaries would name of the files that the prior has, too.
fn spans(table: &FileTable, files: &Files, then: &Files, since: u64) -> BTreeMap<FileId, Vec<Span>> {
    let mut spans = BTreeMap::new();
    for (file, (name, content)) in table.ids().zip(files) {
        let Some(old) = then.get(name).filter(|_| is_relation(name)) else { continue };
        let changed = content.changed_at.iter().enumerate();
        let changed = changed.filter(|(page, at)| **at > since || *page >= old.changed_at.len());
        let span = |page: usize| Span { offset: (page * PAGE) as u64, size_bytes: PAGE as u64 };
        spans.insert(file, changed.map(|(page, _)| span(page)).collect());
    }
    spans
}

fn settings(random: &mut Random, frame_size_bytes: u32, stripe_count: u16) -> PipelineSettings {
    PipelineSettings {
        readers: 1 + random.below(2) as u16,
        encoders: 1 + random.below(3) as u16,
        writers: stripe_count,
        buffer_count: 2 + random.below(8) as u32,
        transfer_size_bytes: frame_size_bytes * (1 + random.below(2) as u32),
        frame_size_bytes,
        max_rate_bytes_per_s: None,
    }
}

/// Of the files that summaries name, those whose pages' checksums are all known.
fn keep_known(read: &mut BTreeMap<FileId, Vec<Span>>, comparison: &Comparison<'_>, table: &FileTable) {
    let all_known = |file: &FileId| {
        let then = comparison.prior_file(*file).unwrap();
        comparison.knows_pages(then, comparison.set().table.entry(then).size_bytes / PAGE as u64)
    };
    read.retain(|file, _| all_known(file));
    read.keys().for_each(|file| comparison.see(*file, table.entry(*file).size_bytes));
}

struct Set {
    label: BackupLabel,
    files: Files,
    taken_at: u64,
    has_sums: bool,
}

/// How many bytes were checked.
#[derive(Default)]
struct CheckedBytes(AtomicU64);

impl ContentCheck for CheckedBytes {
    fn check(&self, _file: FileId, _file_offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.fetch_add(bytes.len() as u64, Relaxed);
        Ok(())
    }
}

/// Takes a set of `files` on top of `prior`.
fn take(
    repository: &Repository,
    root: &Path,
    files: &Files,
    now: u64,
    prior: Option<&Set>,
    random: &mut Random,
) -> Set {
    let source = "main".parse().unwrap();
    let kind = if prior.is_some() { BackupKind::Incremental } else { BackupKind::Full };
    let label: BackupLabel = format!("20260101-{now:06}{}", kind.letter()).parse().unwrap();
    let set_id = SetId::random().unwrap();
    let frame_size_bytes = [65_536, 131_072, 1 << 20][random.below(3) as usize];
    let stripe_count = 1 + random.below(3) as u16;
    let settings = settings(random, frame_size_bytes, stripe_count);
    let has_sums = random.below(5) > 0;
    let place = Place { repository, source, label, set_id, has_sums };
    let mut stripes = place.begin(stripe_count, frame_size_bytes);
    let table = write_files(root, files);
    let mut comparison = prior.map(|prior| {
        let set = open_set(repository, &place.source, &prior.label, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert!(set.problems.is_empty());
        Comparison::new(repository, Prior::for_tests(repository, set), &table, &settings, PAGE as u32).0
    });
    let mut read = BTreeMap::new();
    if let Some((prior, comparison)) =
        prior.zip(comparison.as_mut()).filter(|(prior, _)| prior.has_sums && random.below(2) == 0)
    {
        comparison.sums.check_blocks();
        read = spans(&table, files, &prior.files, prior.taken_at);
        keep_known(&mut read, comparison, &table);
    }
    let feed =
        WorkFeed::with_spans(&table, vec![table.ids().collect()], read, frame_size_bytes, settings.transfer_size_bytes);
    let changed = comparison.as_ref().map(|comparison| Changed { comparison });
    let pages = (has_sums || comparison.is_some()).then(|| Appender::new(PAGE as u64));
    let relations = RelationLayouts::empty(PAGE as u32);
    let (checked, to_read, ends) = (CheckedBytes::default(), feed.left_bytes(), Mutex::new(Vec::new()));
    let note_end = || {
        ends.lock().unwrap().push(checked.0.load(Relaxed));
        Ok(())
    };
    let at_end = Some(AtEnd { then: &note_end, ahead_buffers: random.below(4) as u32 });
    let input = EncodeInput {
        settings,
        codec: CODECS[random.below(CODECS.len() as u64) as usize].parse().unwrap(),
        level: &AutoLevel::default(),
        source: EncodeSource::Files { root: &read_root(root).unwrap(), table: &table, check: &checked, at_end },
        feed: &feed,
        layouts: Some(&FileLayouts { relations: &relations, listed: Listed::All(&table) }),
        pages: pages.as_ref(),
        selection: changed.as_ref().map(|changed| changed as &dyn Selection),
        parity: None,
        progress: &Progress::default(),
    };
    let outcome = run_encode(&input, &mut stripes, &mut |_| Ok(())).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.gone.is_empty());
    assert_eq!(ends.into_inner().unwrap(), [to_read], "the end comes once, when everything has been checked");
    let runs = stripes.iter_mut().flat_map(Stripe::take_runs).collect();
    let composed =
        compose(&table, runs, &[], frame_size_bytes, comparison.as_ref()).unwrap_or_else(|error| panic!("{error}"));
    place.commit(stripes, &composed, &settings, now);
    Set { label: place.label, files: files.clone(), taken_at: now, has_sums }
}

/// Makes a full set of the chain of `of`; gives how many bytes were taken as they were stored, too.
fn synthesize(repository: &Repository, of: &Set, now: u64, random: &mut Random) -> (Set, u64) {
    let label = format!("20260101-{now:06}F").parse().unwrap();
    let source: SourceName = "main".parse().unwrap();
    let mut chain = open_set(repository, &source, &of.label, &[]).unwrap_or_else(|error| panic!("{error}"));
    let largest = chain.chain().max_by_key(|set| set.stripes.iter().map(|stripe| stripe.size_bytes).sum::<u64>());
    let frame_size_bytes = match random.below(3) {
        0 => 262_144,
        _ => largest.unwrap().frame_size_bytes,
    };
    let stripe_count = 1 + random.below(3) as u16;
    let settings = settings(random, frame_size_bytes, stripe_count);
    let codec = CODECS[random.below(CODECS.len() as u64) as usize].parse().unwrap();
    let relations = RelationLayouts::empty(PAGE as u32);
    let plan = Plan::for_tests(settings, codec, random.below(6) > 0);
    let place = Place { repository, source, label, set_id: SetId::random().unwrap(), has_sums: true };
    let mut stripes = place.begin(stripe_count, frame_size_bytes);
    let (sums, _) = ChainSums::open(repository, &chain, PAGE as u32);
    let how = Store {
        parity: None,
        plan: &plan,
        sums: &sums,
        page_size_bytes: PAGE as u32,
        relations: codec.wants_layouts().then_some(&relations),
        progress: &Progress::default(),
        observer: &NoObserver,
    };
    let inputs = stripe_inputs(&mut chain);
    let stored = store(&chain, inputs, &how, &mut stripes).unwrap_or_else(|error| panic!("{error}"));
    place.commit(stripes, &Composed { table: stored.table, priors: Vec::new() }, &settings, of.taken_at);
    let set = Set { label: place.label, files: of.files.clone(), taken_at: of.taken_at, has_sums: true };
    (set, stored.copied_bytes)
}

/// A set that is being written.
struct Place<'a> {
    repository: &'a Repository,
    source: SourceName,
    label: BackupLabel,
    set_id: SetId,
    has_sums: bool,
}

impl Place<'_> {
    fn name(&self, object: &str) -> String {
        format!("{}/{object}", set_prefix(&self.source, &self.label))
    }

    fn begin(&self, stripe_count: u16, frame_size_bytes: u32) -> Vec<Stripe> {
        let create = |object: &str| self.repository.storage().create(&self.name(object), 0).unwrap();
        let begin = |stripe: u16| {
            let header =
                StripeHeader { set_id: self.set_id, stripe: StripeIndex(stripe), stripe_count, frame_size_bytes };
            let sums =
                PageSumsHeader { set_id: self.set_id, stripe: StripeIndex(stripe), page_size_bytes: PAGE as u32 };
            let sums = self.has_sums.then(|| SumsObject::begin(&sums, create(&page_sums_name(stripe))).unwrap());
            Stripe::begin(header, create(&stripe_name(stripe)), sums).unwrap()
        };
        (0..stripe_count).map(begin).collect()
    }

    fn commit(&self, stripes: Vec<Stripe>, composed: &Composed, settings: &PipelineSettings, now: u64) {
        let (mut records, mut sums) = (Vec::new(), Vec::new());
        for (number, stripe) in stripes.into_iter().enumerate() {
            let finished = stripe.finish().unwrap();
            sums.extend(finished.sums.map(|sums| ObjectDigest::new(page_sums_name(number as u16), &sums)));
            records.push(StripeRecord {
                name: stripe_name(number as u16),
                directory: None,
                size_bytes: finished.size_bytes,
                frame_count: finished.frame_count,
                index_xxh3: hex64(finished.index_xxh3),
            });
        }
        let mut object = self.repository.storage().create(&self.name(FILE_TABLE_NAME), 0).unwrap();
        let of_table = composed.table.write(self.set_id, &mut |bytes| object.append(bytes)).unwrap();
        object.finish().unwrap();
        let mut manifest = Manifest {
            label: self.label.clone(),
            set_id: self.set_id.to_string(),
            kind: if composed.priors.is_empty() { BackupKind::Full } else { BackupKind::Incremental },
            prior: composed.priors.iter().map(|prior| prior.label.clone()).collect(),
            prior_set_ids: composed.priors.iter().map(|prior| prior.set_id.clone()).collect(),
            frame_size_bytes: settings.frame_size_bytes,
            transfer_size_bytes: settings.transfer_size_bytes,
            file_table: ObjectDigest::new(FILE_TABLE_NAME.to_owned(), &of_table),
            page_sums: self.has_sums.then_some(PageSums { page_size_bytes: PAGE as u32, objects: sums }),
            stripes: records,
            ..crate::format::manifest::tests::sample()
        };
        // Whatever is changed from now on has a later LSN.
        manifest.postgres.start_lsn = Lsn(now + 1);
        let bytes = manifest.to_bytes().unwrap();
        assert!(self.repository.storage().put_new(&self.name(MANIFEST_NAME), &bytes).unwrap());
    }
}

/// Flips a bit of the checksums of a set's pages, where it has some.
fn damage_sums(repository: &Path, set: &Set, random: &mut Random) {
    let path = repository.join(set_prefix(&"main".parse().unwrap(), &set.label)).join(page_sums_name(0));
    let Ok(size_bytes) = std::fs::metadata(&path).map(|found| found.len()) else { return };
    let behind_header = size_bytes.saturating_sub(PAGE_SUMS_HEADER_BYTES as u64);
    if behind_header > 0 {
        let at = PAGE_SUMS_HEADER_BYTES as u64 + random.below(behind_header);
        pagehaul_testkit::damage::flip_bit(&path, at, random.below(8) as u8);
    }
}

/// Reads every file of a set back, in one piece and in random ones.
fn check(repository: &Repository, set: &Set, random: &mut Random) {
    let open =
        open_set(repository, &"main".parse().unwrap(), &set.label, &[]).unwrap_or_else(|error| panic!("{error}"));
    let inputs = open.stripes.into_iter().flatten().map(|open| {
        let OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, .. } = open;
        StripeInput { set, set_id, frame_size_bytes, stripe, object, index, extents: Vec::new() }
    });
    let mut reader = FrameReader::new(inputs.collect());
    assert_eq!(open.table.entries().len(), set.files.len());
    for (file, (name, content)) in open.table.ids().zip(&set.files) {
        let entry = open.table.entry(file);
        assert_eq!(open.table.path(file), name.as_bytes());
        assert_eq!(entry.size_bytes, content.bytes.len() as u64, "{} {name}", set.label);
        assert_eq!(entry.crc32c, crc32c(&content.bytes), "{} {name}", set.label);
        let mut bytes = vec![0; content.bytes.len()];
        reader.read(&open.table, file, 0, &mut bytes).unwrap_or_else(|error| panic!("{error}"));
        assert!(bytes == content.bytes, "{} {name}", set.label);
        if !bytes.is_empty() {
            let from = random.below(bytes.len() as u64) as usize;
            let part = &mut bytes[from..];
            part.fill(0xAA);
            reader.read(&open.table, file, from as u64, part).unwrap_or_else(|error| panic!("{error}"));
            assert!(bytes == content.bytes, "{} {name} from {from}", set.label);
        }
    }
}

#[test]
fn every_set_of_every_chain_gives_back_exactly_what_was_there() {
    let mut random = Random::new("histories");
    for _ in 0..if is_long_run() { 40 } else { 20 } {
        let work = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&work.path().join("repo").display().to_string()).unwrap();
        let root = work.path().join("files");
        let (mut files, mut now, mut sets) = (Files::new(), 10u64, Vec::<Set>::new());
        for _ in 0..8 {
            for _ in 0..random.below(25) {
                now += 2;
                disturb(&mut files, &mut random, now);
            }
            now += 2;
            // Most often on the last set, sometimes on an older one, sometimes anew.
            let prior = match random.below(5) {
                0 => None,
                1 => sets.get(random.below(sets.len().max(1) as u64) as usize),
                _ => sets.last(),
            };
            if let Some(prior) = prior.filter(|_| random.below(6) == 0) {
                damage_sums(&work.path().join("repo"), prior, &mut random);
            }
            let set = take(&repository, &root, &files, now, prior, &mut random);
            sets.push(set);
        }
        for set in &sets {
            check(&repository, set, &mut random);
        }
    }
}

#[test]
fn what_a_server_does_not_send_is_the_priors_or_zeros() {
    let mut random = Random::new("picked");
    let work = tempfile::tempdir().unwrap();
    let repository = Repository::open_or_create(&work.path().join("repo").display().to_string()).unwrap();
    let mut files = Files::new();
    for name in ["base/5/16384", "base/5/16384_vm"] {
        let bytes: Vec<u8> = (0..10).flat_map(|_| fresh_page(&mut random, 1)).collect();
        files.insert(name.to_owned(), Content { bytes, changed_at: vec![1; 10], modified_s: 0 });
    }
    let mut takes = (10..).map(|now| take(&repository, &work.path().join("files"), &files, now, None, &mut random));
    let full = takes.find(|set| set.has_sums).unwrap();
    drop(takes);
    let open = open_set(&repository, &"main".parse().unwrap(), &full.label, &[]).unwrap();
    let mut table = FileTable::default();
    let mut push = |path: &str| table.push(path.as_bytes(), b"", EntryKind::File, 0o600, 0, 0).unwrap();
    let (file, map) = (push("base/5/16384"), push("base/5/16384_vm"));
    let expected = Expected { file_count: 2, content_bytes: 20 * PAGE as u64, runs_per_mib: 1 };
    let settings = settings(&mut random, 65_536, 1);
    let prior = Prior::for_tests(&repository, open);
    let (comparison, _) = Comparison::of_stream(&repository, prior, expected, &settings, PAGE as u32);

    // It was cut to six pages, and has eight now, of which none came.
    comparison.follow_picked(&table, file, 8, 6, 0).unwrap();
    let composed = compose(&table, Vec::new(), &[], 65_536, Some(&comparison)).unwrap();
    let mut content = files["base/5/16384"].bytes[..6 * PAGE].to_vec();
    content.resize(8 * PAGE, 0);
    assert_eq!(composed.table.entry(file).size_bytes, content.len() as u64);
    assert_eq!(composed.table.entry(file).crc32c, crc32c(&content));
    let last = composed.table.runs(file).last().unwrap();
    assert_eq!((last.place(), last.file_offset), (RunPlace::Zeros, 6 * PAGE as u64));

    let refused = comparison.follow_picked(&table, map, 8, 6, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Source, "{refused}");
    assert!(!comparison.has_too_many_runs());
    let refused = comparison.follow_picked(&table, file, 8, 6, 1 << 20).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    assert!(comparison.has_too_many_runs());
}

#[test]
fn a_full_set_made_of_any_chain_gives_back_the_same_and_is_built_on() {
    let mut random = Random::new("synthetic full sets");
    let mut copied_bytes = 0;
    for _ in 0..if is_long_run() { 30 } else { 15 } {
        let work = tempfile::tempdir().unwrap();
        let repository = Repository::open_or_create(&work.path().join("repo").display().to_string()).unwrap();
        let root = work.path().join("files");
        let (mut files, mut now, mut sets) = (Files::new(), 10u64, Vec::<Set>::new());
        for _ in 0..9 {
            for _ in 0..random.below(25) {
                now += 2;
                disturb(&mut files, &mut random, now);
            }
            now += 2;
            let prior = if random.below(6) == 0 { None } else { sets.last() };
            let mut set = take(&repository, &root, &files, now, prior, &mut random);
            if random.below(2) == 0 {
                now += 2;
                let (made, copied) = synthesize(&repository, &set, now, &mut random);
                copied_bytes += copied;
                check(&repository, &made, &mut random);
                // Most often the next set is built on the made one.
                if random.below(4) > 0 {
                    sets.push(std::mem::replace(&mut set, made));
                }
            }
            sets.push(set);
        }
        for set in &sets {
            check(&repository, set, &mut random);
        }
        // What was made needs nothing of what it was made of.
        for set in sets.iter().filter(|set| set.label.as_str().ends_with('F')) {
            for other in sets.iter().filter(|other| other.label != set.label) {
                let manifest = set_prefix(&"main".parse().unwrap(), &other.label);
                std::fs::rename(work.path().join("repo").join(&manifest), work.path().join("away")).unwrap();
                check(&repository, set, &mut random);
                std::fs::rename(work.path().join("away"), work.path().join("repo").join(&manifest)).unwrap();
            }
        }
    }
    assert!(copied_bytes > 0, "no frame was taken as it was stored");
}
