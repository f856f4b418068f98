//! What a backup will do, decided before it does anything: counts, sizes, places of stripes. Pure.

use super::report::{BackupPlan, BackupRequest};
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::FileTable;
use crate::format::frame::FrameDigest;
use crate::format::row_code::SHARDS_MAX;
use crate::limits::{PARITY_COUNT_MAX, STRIPE_COUNT_MAX};
use crate::pipeline::ceiling::{Ceiling, CeilingFacts, ComparisonFacts, MachineMemory};
use crate::pipeline::{Observer, Parity, PipelineSettings, STACK_BYTES};
use crate::pipeline::{check_codec, encoder_state_bytes};
use crate::source::postgres::relation_layouts::RelationLayouts;
use crate::storage::{PART_BYTES_LARGE, PARTS_NEEDED, Uploads, open_storage, writer_bytes_max};
use crate::terms::{BackupKind, is_elsewhere};

/// Every count and size, from the request or by default, on a machine of `cores`.
///
/// # Errors
/// `Usage` if one is out of range.
pub(super) fn settings(request: &BackupRequest, cores: u16) -> Result<PipelineSettings> {
    // One stripe keeps a disk busy; several directories want one each.
    let stripes = request.stripes.unwrap_or(request.stripe_to.len().max(1) as u16);
    if stripes == 0 || stripes > STRIPE_COUNT_MAX {
        let hint = format!("--stripes may be 1 to {STRIPE_COUNT_MAX}");
        return Err(Error::new(ErrorKind::Usage, format!("use --stripes {stripes}"), "out of range").hint(hint));
    }
    if usize::from(stripes) < request.stripe_to.len() {
        let cause = format!("{} directories are given with --stripe-to", request.stripe_to.len());
        return Err(Error::new(ErrorKind::Usage, format!("use --stripes {stripes}"), cause)
            .hint("use at least one stripe for each directory"));
    }
    check_parity(request, stripes)?;
    let readers = request.readers.unwrap_or_else(|| cores.clamp(1, 8));
    let encoders = request.encoders.unwrap_or(cores);
    let usual_frame = request.compression.default_frame_size_bytes();
    let usual_transfer =
        request.compression.default_transfer_size_bytes(request.frame_size_bytes.unwrap_or(usual_frame));
    let transfer_size_bytes = request.transfer_size_bytes.unwrap_or(usual_transfer);
    let buffers_for_auto = match request.compression.is_auto() {
        true => PipelineSettings::default_buffers_for_auto(encoders, stripes),
        false => 0,
    };
    let settings = PipelineSettings {
        readers,
        encoders,
        writers: stripes,
        buffer_count: request
            .buffer_count
            .unwrap_or_else(|| PipelineSettings::default_buffer_count(readers, encoders, stripes) + buffers_for_auto),
        transfer_size_bytes,
        frame_size_bytes: request.frame_size_bytes.unwrap_or(usual_frame.min(transfer_size_bytes)),
        max_rate_bytes_per_s: request.max_rate_bytes_per_s,
    };
    settings.check()?;
    check_codec(request.compression, settings.frame_size_bytes)?;
    Ok(settings)
}

fn check_parity(request: &BackupRequest, stripes: u16) -> Result<()> {
    let parity = request.parity;
    let most = PARITY_COUNT_MAX.min((SHARDS_MAX as u16).saturating_sub(stripes));
    if parity > most {
        let hint = format!("with {stripes} stripes --parity may be 0 to {most}");
        return Err(Error::new(ErrorKind::Usage, format!("use --parity {parity}"), "out of range").hint(hint));
    }
    if usize::from(parity) < request.parity_to.len() {
        let cause = format!("{} directories are given with --parity-to", request.parity_to.len());
        return Err(Error::new(ErrorKind::Usage, format!("use --parity {parity}"), cause)
            .hint("use at least one parity stripe for each directory"));
    }
    Ok(())
}

/// The memory ceiling of a backup of `table`.
pub(super) fn ceiling(
    request: &BackupRequest,
    settings: &PipelineSettings,
    table: &FileTable,
    comparison: Option<ComparisonFacts>,
    relations: Option<&RelationLayouts>,
) -> Ceiling {
    let stored_bytes = expected_bytes(kind_of(&comparison), table.content_bytes());
    let facts = CeilingFacts {
        file_count: table.entries().len() as u64,
        path_bytes: table.path_bytes(),
        content_bytes: table.content_bytes(),
        codec_state_bytes: encoder_state_bytes(request.compression, settings.frame_size_bytes),
        object_writer_bytes: object_writer_bytes(request, settings, stored_bytes),
        sums_writer_bytes: sums_writer_bytes(request, settings),
        comparison,
        ..CeilingFacts::default()
    };
    let ceiling = with_objects(Ceiling::of_backup(settings, &facts), settings, request, stored_bytes);
    with_relations(ceiling, relations)
}

/// Content that is read ahead while the server ends the backup: it fills up a segment of 16 MiB of WAL and makes it durable, which takes a disk
/// of 200 MB/s about a tenth of a second, in which two cores encode so much.
const AHEAD_BYTES: u32 = 32 << 20;

/// Adds the buffers for the end of reading, if nobody chose how many buffers there are and memory allows them; how many there are.
///
/// # Errors
/// As [`Ceiling::check`], without them.
pub(super) fn with_ahead(
    ceiling: Ceiling,
    request: &BackupRequest,
    settings: &PipelineSettings,
    machine: &MachineMemory,
) -> Result<(Ceiling, u32)> {
    let count = if request.buffer_count.is_some() { 0 } else { AHEAD_BYTES.div_ceil(settings.transfer_size_bytes) };
    let mut more = ceiling.clone();
    let size = u64::from(settings.transfer_size_bytes);
    more.add(format!("{count} transfer buffers for the end x {} KiB", size / 1024), u64::from(count) * size);
    if count > 0 && more.check(request.max_memory_bytes, machine).is_ok() {
        return Ok((more, count));
    }
    ceiling.check(request.max_memory_bytes, machine)?;
    Ok((ceiling, 0))
}

/// What is compared is an increment.
fn kind_of(comparison: &Option<ComparisonFacts>) -> BackupKind {
    if comparison.is_some() { BackupKind::Incremental } else { BackupKind::Full }
}

/// The ceiling of a run that makes parity, too, and sends what it can of `content_bytes` from its buffers.
pub(super) fn with_objects(
    mut ceiling: Ceiling,
    settings: &PipelineSettings,
    request: &BackupRequest,
    content_bytes: u64,
) -> Ceiling {
    if request.parity > 0 {
        let (count, writer) = (request.parity, object_writer_bytes(request, settings, content_bytes));
        let writers = u64::from(count) * (writer + STACK_BYTES as u64);
        ceiling.add(
            format!("rows and writers of {count} parity stripes"),
            Parity::memory_bytes(settings, count) + writers,
        );
    }
    let stripes = stripes_elsewhere(request, settings);
    if stripes > 0 {
        // The first part that is under way may begin in one, the last one end in one.
        let size = settings.buffer_bytes() as u64;
        ceiling.add(
            format!("{} transfer buffers at the ends of parts x {} KiB", 2 * stripes, size / 1024),
            2 * stripes * size,
        );
    }
    ceiling
}

/// The ceiling of a run into `repository` that keeps a digest of each frame which it writes, if it does.
pub(super) fn with_digests(
    mut ceiling: Ceiling,
    repository: &Repository,
    settings: &PipelineSettings,
    content_bytes: u64,
) -> Ceiling {
    if repository.keys().bind_content() {
        let frames = content_bytes / u64::from(settings.frame_size_bytes) + u64::from(settings.writers);
        // Lists that grow take twice as much.
        ceiling.add_digests(2 * frames * size_of::<FrameDigest>() as u64);
    }
    ceiling
}

/// The memory ceiling of a backup that comes as a stream of about `size_bytes`; how many files is not known before, so
/// the sum reckons with many: a database of small tables has a file for each 64 KiB.
pub(super) fn ceiling_of_stream(
    request: &BackupRequest,
    settings: &PipelineSettings,
    size_bytes: u64,
    comparison: Option<ComparisonFacts>,
    relations: Option<&RelationLayouts>,
) -> Ceiling {
    let file_count = size_bytes / (64 * 1024) + 2000;
    let stored_bytes = expected_bytes(kind_of(&comparison), size_bytes);
    let facts = CeilingFacts {
        file_count,
        path_bytes: file_count * 40,
        content_bytes: size_bytes,
        codec_state_bytes: encoder_state_bytes(request.compression, settings.frame_size_bytes),
        object_writer_bytes: object_writer_bytes(request, settings, stored_bytes),
        sums_writer_bytes: sums_writer_bytes(request, settings),
        comparison,
        ..CeilingFacts::default()
    };
    let ceiling = with_objects(Ceiling::of_backup(settings, &facts), settings, request, stored_bytes);
    with_relations(ceiling, relations)
}

/// The ceiling of a run that also knows what pages hold.
pub(super) fn with_relations(mut ceiling: Ceiling, relations: Option<&RelationLayouts>) -> Ceiling {
    if let Some(relations) = relations {
        let count = relations.relation_count();
        ceiling.add(format!("what the pages of {count} relations hold"), relations.memory_bytes());
    }
    ceiling
}

/// The directory of each stripe; None is beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StripeDirectories {
    pub(super) stripes: Vec<Option<String>>,
    pub(super) parity: Vec<Option<String>>,
}

impl StripeDirectories {
    /// Stripes take turns over the directories of stripes, parity goes on with them, or takes turns over its own.
    pub(super) fn of(request: &BackupRequest, stripes: u16) -> Self {
        let turn = |directories: &[String], number: usize| match directories.len() {
            0 => None,
            count => Some(directories[number % count].clone()),
        };
        let own = request.parity_to.as_slice();
        let (directories, first) =
            if own.is_empty() { (&request.stripe_to[..], usize::from(stripes)) } else { (own, 0) };
        StripeDirectories {
            stripes: (0..usize::from(stripes)).map(|stripe| turn(&request.stripe_to, stripe)).collect(),
            parity: (0..usize::from(request.parity)).map(|parity| turn(directories, first + parity)).collect(),
        }
    }

    /// What should be said of parity that does not help when a directory is lost that holds more stripes than there are
    /// parity stripes; nothing if all lie in one place, as then it is meant for damaged and lost objects.
    pub(super) fn note(&self) -> Option<String> {
        let all: Vec<&Option<String>> = self.stripes.iter().chain(&self.parity).collect();
        let count = |place: &Option<String>| all.iter().filter(|other| **other == place).count();
        let largest = all.iter().max_by_key(|place| count(place))?;
        let (held, parity) = (count(largest), self.parity.len());
        let may_be_lost = parity == 0 || held <= parity || held == all.len();
        (!may_be_lost).then(|| {
            let place = largest.as_deref().unwrap_or("the repository");
            format!(
                "{held} of the {} stripes go to {place}, and parity gives back {parity}: the set does not survive the loss \
                 of that place",
                all.len()
            )
        })
    }
}

/// The directory of each stripe; what should be said of them, and of how much they get of `content_bytes`, is a note.
pub(super) fn stripe_directories(
    request: &BackupRequest,
    settings: &PipelineSettings,
    content_bytes: Option<u64>,
    observer: &dyn Observer,
) -> StripeDirectories {
    let places = StripeDirectories::of(request, settings.writers);
    let of_sizes = content_bytes.and_then(|bytes| note_of_large_stripes(request, settings, bytes));
    places.note().into_iter().chain(of_sizes).for_each(|note| observer.note(&note));
    places
}

/// How many stripes go to stores.
fn stripes_elsewhere(request: &BackupRequest, settings: &PipelineSettings) -> u64 {
    let places = StripeDirectories::of(request, settings.writers).stripes;
    places.iter().filter(|place| is_elsewhere(place.as_ref().unwrap_or(&request.repo))).count() as u64
}

/// Up to here stores take an object in parts that cost little memory: 9000 of 32 MiB.
const CHEAP_BYTES: u64 = PARTS_NEEDED * PART_BYTES_LARGE;
/// The most that is prepared for: parts of 128 MiB, of which a stripe takes half a GiB.
const PREPARED_BYTES_MAX: u64 = 4 * CHEAP_BYTES;

/// What a stripe may get of `content_bytes` if nothing becomes smaller: its share, and more where another stripe is slower, as far as
/// that is cheap to prepare for.
pub(super) fn largest_stripe_bytes(content_bytes: u64, stripe_count: u16) -> u64 {
    let share = content_bytes / u64::from(stripe_count.max(1));
    content_bytes.min(2 * share).min(CHEAP_BYTES).max(share).min(PREPARED_BYTES_MAX)
}

/// What counts of `content_bytes` where stripes are prepared for: an increment is not known before it is read, and is mostly small.
pub(super) fn expected_bytes(kind: BackupKind, content_bytes: u64) -> u64 {
    if kind == BackupKind::Full { content_bytes } else { content_bytes.min(CHEAP_BYTES) }
}

/// What should be said of stripes whose share of the content is about as much as their store takes of one object, or more.
fn note_of_large_stripes(request: &BackupRequest, settings: &PipelineSettings, content_bytes: u64) -> Option<String> {
    const GB: u64 = 1_000_000_000;
    let expected = largest_stripe_bytes(content_bytes, settings.writers);
    let beside = std::slice::from_ref(&request.repo);
    let places = if request.stripe_to.is_empty() { beside } else { &request.stripe_to[..] };
    let of_parity = if request.parity > 0 { &request.parity_to[..] } else { &[] };
    let places = places.iter().chain(&request.more_repos).chain(of_parity);
    let stores = places.filter_map(|place| open_storage(place).ok());
    let (longest, store) = stores.map(|store| (store.longest_bytes(expected), store.describe())).min()?;
    let share = content_bytes / u64::from(settings.writers.max(1));
    // One stripe gets more than another, and WAL comes on top.
    let safe = longest / 10 * 9;
    if share <= safe {
        return None;
    }
    let each =
        if settings.writers == 1 { "the stripe".to_owned() } else { format!("each of {} stripes", settings.writers) };
    let stripes = Some(content_bytes.div_ceil(safe)).filter(|count| *count <= u64::from(STRIPE_COUNT_MAX));
    let part_mib =
        Some(share.div_ceil(PARTS_NEEDED).next_multiple_of(PART_BYTES_LARGE) >> 20).filter(|mib| *mib <= 1024);
    let ways = [
        stripes.map(|count| format!("--stripes {count}")),
        part_mib.map(|mib| format!("part-size={mib}MiB (more memory)")),
    ];
    let ways = ways.into_iter().flatten().collect::<Vec<_>>().join(" or ");
    let way = if ways.is_empty() { String::new() } else { format!("; to be safe use {ways}") };
    Some(format!(
        "{each} gets about {} GB before compression, and an object in {store} holds {} GB at most: the backup fails if a stripe \
         does not get smaller than that{way}",
        share / GB,
        longest / GB
    ))
}

/// Memory of one writer while so much is backed up: with several repositories, of the writer in each.
pub(super) fn object_writer_bytes(request: &BackupRequest, settings: &PipelineSettings, content_bytes: u64) -> u64 {
    // Stripes, and the checksums of their pages.
    let sums = if request.page_sums && is_elsewhere(&request.repo) { u64::from(settings.writers) } else { 0 };
    let largest_bytes = largest_stripe_bytes(content_bytes, settings.writers);
    let uploads = Uploads { count: stripes_elsewhere(request, settings) + sums, largest_bytes };
    let copies: u64 = request.more_repos.iter().map(|copy| writer_bytes_max(std::iter::once(copy), uploads)).sum();
    writer_bytes_max(std::iter::once(&request.repo).chain(&request.stripe_to).chain(&request.parity_to), uploads)
        + copies
}

/// Memory of one writer of page checksums, which stay small; 0 if none are kept.
pub(super) fn sums_writer_bytes(request: &BackupRequest, settings: &PipelineSettings) -> u64 {
    if request.page_sums { object_writer_bytes(request, settings, 0) } else { 0 }
}

/// What `--dry-run` and `--explain` show.
pub(super) fn describe(
    request: &BackupRequest,
    settings: &PipelineSettings,
    table: &FileTable,
    ceiling: &Ceiling,
) -> BackupPlan {
    let places = StripeDirectories::of(request, settings.writers);
    let paths = |places: Vec<Option<String>>| -> Vec<String> {
        places.into_iter().map(|place| place.unwrap_or_else(|| request.repo.clone())).collect()
    };
    BackupPlan {
        file_count: table.entries().len() as u64,
        source_bytes: table.content_bytes(),
        readers: settings.readers,
        encoders: settings.encoders,
        stripes: settings.writers,
        stripe_paths: paths(places.stripes),
        parity: request.parity,
        parity_paths: paths(places.parity),
        buffer_count: settings.buffer_count,
        transfer_size_bytes: settings.transfer_size_bytes,
        frame_size_bytes: settings.frame_size_bytes,
        compression: request.compression.resolved().to_string(),
        memory_ceiling: ceiling.clone(),
        memory_ceiling_bytes: ceiling.total_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> BackupRequest {
        BackupRequest::new("main".parse().unwrap(), "repo")
    }

    #[test]
    fn stripes_take_turns_over_directories() {
        let request = BackupRequest { stripe_to: vec!["b".into(), "c".into()], stripes: Some(4), ..request() };
        let names = |places: &[Option<String>]| places.iter().map(|place| place.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(names(&StripeDirectories::of(&request, 4).stripes), ["b", "c", "b", "c"]);
        let with_parity = BackupRequest { parity: 2, ..request.clone() };
        assert_eq!(names(&StripeDirectories::of(&with_parity, 3).parity), ["c", "b"]);
        assert!(StripeDirectories::of(&with_parity, 3).note().unwrap().contains("3 of the 5"));
        assert_eq!(StripeDirectories::of(&with_parity, 2).note(), None);
        let parity_to = vec!["d".into(), "e".into()];
        assert_eq!(names(&StripeDirectories::of(&BackupRequest { parity_to, ..with_parity }, 3).parity), ["d", "e"]);
        assert_eq!(settings(&BackupRequest { stripes: None, ..request }, 2).unwrap().writers, 2);
    }

    #[test]
    fn stripes_are_prepared_for_what_they_may_get_as_far_as_memory_goes() {
        const GB: u64 = 1_000_000_000;
        let expected = [(10, 1), (10, 4), (1000, 4), (2000, 4), (10_000, 4), (10_000, 16)]
            .map(|(content, stripes)| largest_stripe_bytes(content * GB, stripes) / GB);
        assert_eq!(expected, [10, 5, 301, 500, 1207, 625]);
        let of_kind = [BackupKind::Full, BackupKind::Incremental, BackupKind::Differential];
        assert_eq!(of_kind.map(|kind| expected_bytes(kind, 5000 * GB) / GB), [5000, 301, 301]);
    }

    #[test]
    fn f48_stripes_that_may_get_more_than_their_store_takes_are_spoken_of_before_anything_is_read() {
        const GB: u64 = 1_000_000_000;
        let note = |options: &str, stripes, content_gb: u64| {
            let repo = format!("s3://b?region=eu-1{options}");
            let request = BackupRequest { repo, stripes: Some(stripes), ..request() };
            note_of_large_stripes(&request, &settings(&request, 2).unwrap(), content_gb * GB)
        };
        assert_eq!(note("", 4, 4800), None);
        let said = note("", 4, 10_000).unwrap();
        let begin = "each of 4 stripes gets about 2500 GB before compression, and an object in s3://b?region=eu-1 holds 1342 GB at";
        assert!(said.starts_with(begin), "{said}");
        assert!(said.ends_with("to be safe use --stripes 9 or part-size=288MiB (more memory)"), "{said}");
        assert_eq!((note("", 9, 10_000), note("&part-size=288MiB", 4, 10_000)), (None, None));
        assert!(note("", 1, 1_000_000).unwrap().ends_with("smaller than that"));
        // Who asks for small parts gets them, and is told.
        assert!(note("&part-size=8MiB", 8, 10_000).unwrap().contains("holds 335 GB at most"));
        assert_eq!(note("&part-size=512MiB", 4, 10_000), None);
    }

    #[test]
    fn a_frame_holds_what_the_codec_looks_back_at() {
        let sizes = |compression: &str, transfer_size_bytes, frame_size_bytes| {
            let compression = compression.parse().unwrap();
            let request = BackupRequest { compression, transfer_size_bytes, frame_size_bytes, ..request() };
            let settings = settings(&request, 2).unwrap();
            (settings.transfer_size_bytes >> 10, settings.frame_size_bytes >> 10)
        };
        assert_eq!(sizes("zstd:1", None, None), (1024, 1024));
        assert_eq!(sizes("zstd:3", None, None), (4096, 4096));
        assert_eq!(sizes("zstd:3", Some(256 << 10), None), (256, 256));
        assert_eq!(sizes("lz4", None, Some(2 << 20)), (2048, 2048));
        assert_eq!(sizes("zstd:3", None, Some(128 << 10)), (1024, 128));
        assert_eq!(sizes("page:4", None, None), (4096, 4096));
        assert_eq!(sizes("auto", None, None), (4096, 1024));
        assert_eq!(sizes("auto", None, Some(4 << 20)), (4096, 4096));
        assert_eq!(sizes("auto", Some(512 << 10), None), (512, 512));
    }

    #[test]
    fn there_are_buffers_for_the_end_where_memory_allows_them_and_nobody_chose_how_many_there_are() {
        let machine = MachineMemory { available_bytes: 1 << 40, whose: "the machine's" };
        let count = |change: &dyn Fn(&mut BackupRequest)| {
            let mut request = request();
            change(&mut request);
            let settings = settings(&request, 2).unwrap();
            let (with, count) = with_ahead(Ceiling::default(), &request, &settings, &machine).unwrap();
            (with.total_bytes() >> 20, count)
        };
        assert_eq!(count(&|_| ()), (32, 32));
        assert_eq!(count(&|request| request.transfer_size_bytes = Some(4 << 20)), (32, 8));
        assert_eq!(count(&|request| request.buffer_count = Some(12)), (0, 0));
        assert_eq!(count(&|request| request.max_memory_bytes = Some(20 << 20)), (0, 0));
        let mut ceiling = Ceiling::default();
        ceiling.add("what there must be".to_owned(), 30 << 20);
        let request = BackupRequest { max_memory_bytes: Some(20 << 20), ..request() };
        let refused = with_ahead(ceiling, &request, &settings(&request, 2).unwrap(), &machine).unwrap_err();
        assert!(!refused.hint_text().unwrap().contains("for the end"), "{refused}");
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_the_range() {
        for bad in [
            BackupRequest { stripes: Some(0), ..request() },
            BackupRequest { stripes: Some(300), ..request() },
            BackupRequest { transfer_size_bytes: Some(1000), ..request() },
            BackupRequest { transfer_size_bytes: Some(1 << 30), ..request() },
            BackupRequest { frame_size_bytes: Some(100_000), ..request() },
            BackupRequest { buffer_count: Some(1), ..request() },
            BackupRequest { readers: Some(0), ..request() },
            BackupRequest { stripe_to: vec!["a".into(), "b".into()], stripes: Some(1), ..request() },
            BackupRequest { parity: 17, ..request() },
            BackupRequest { parity: 1, stripes: Some(256), ..request() },
            BackupRequest { parity: 1, parity_to: vec!["a".into(), "b".into()], ..request() },
        ] {
            let error = settings(&bad, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{bad:?}");
        }
    }
}
