//! Verb: read everything back, decode every byte, check every digest, and name each damaged frame with its files.

mod report;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub use report::{DamagedFile, DamagedFrame, StripeProblem, VerifyReport, VerifyRequest, VerifyStages};

use crate::catalog::reader_lease::hold_to_read;
use crate::catalog::repository::{ROWS_NAME, set_prefix};
use crate::catalog::second_copies::{damaged_objects, sums_of};
use crate::catalog::{HealedStripe, OpenSet, OpenStripe, RebuiltFrame, Repository, SetProblem, newest_set, open_set};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::ObjectDigest;
use crate::pipeline::ceiling::{Ceiling, CeilingFacts, MachineMemory};
use crate::pipeline::limit::{Direction, find_limit};
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{
    BUFFERS_PER_LANE, CopySettings, DecodeInput, DecodeOutcome, Extent, FrameDamage, Observer, PipelineSettings,
    Progress, StripeInput, decoder_state_bytes, machine_cores, read_through, run_decode,
};
use crate::storage::{ObjectReader, at_once, object_place};
use crate::terms::{FileId, SetIndex, StripeIndex};

/// Most damaged frames and files that a report names one by one.
const NAMED_MAX: usize = 10_000;
/// Parity stripes that are read at the same time.
const LANES_MAX: u16 = 4;

/// Reads and checks every byte of a set; damage is in the report, not an error.
///
/// # Errors
/// `Repository` if the set cannot be found or its storage not be read, `Damage` if its manifest or file table does not
/// read: then nothing can be said of its files.
pub fn verify(request: &VerifyRequest, observer: &dyn Observer) -> Result<VerifyReport> {
    let started = Instant::now();
    let usage = ProcessUsage::now();
    let repository = Repository::open(&request.repo)?;
    let source = repository.source_or_only(request.source.as_ref())?;
    let label = match &request.label {
        Some(label) => label.clone(),
        None => newest_set(&repository, &source)?,
    };
    let reading = hold_to_read(&repository, &source, &label)?;
    if let Some(note) = &reading.note {
        observer.note(note);
    }
    observer.phase(&format!("open set {label}"));
    let mut set = open_set(&repository, &source, &label, &request.stripe_from)?;
    // A stripe that may not be opened, or cannot be for now, says nothing about its bytes: that is no damage.
    let is_unknown = |problem: &SetProblem| !problem.harmless && problem.error.kind() == ErrorKind::Repository;
    if let Some(position) = set.problems.iter().position(is_unknown) {
        return Err(set.problems.swap_remove(position).error);
    }
    let settings = settings(request, &set)?;
    let ceiling = check_memory(request, &settings, &set)?;

    observer.phase("read, decode and check every frame");
    let damage = Mutex::new(Vec::new());
    let outcome = decode_everything(&mut set, settings, &damage, observer)?;
    let used = ProcessUsage::now().since(&usage);
    let damaged_files = outcome.totals.mismatches(&set.table);
    let mut frames = damage.into_inner().unwrap_or_else(PoisonError::into_inner);
    frames.sort_by_key(|frame: &FrameDamage| (frame.set, frame.stripe, frame.sequence));
    let stats = outcome.stats;
    let (parity_bytes, stripe_problems) = all_stripe_problems(&repository, &set, &settings, observer)?;
    let harmful = stripe_problems.iter().any(|problem| !problem.harmless);
    let (repaired_frame_count, repaired) = set.rebuilt();
    let restorable = frames.is_empty() && damaged_files.is_empty() && !harmful;
    let degraded = repaired_frame_count > 0 || stripe_problems.iter().any(|problem| problem.by_parity);
    Ok(VerifyReport {
        label,
        prior: set.manifest.prior.clone(),
        source,
        sound: restorable && !degraded,
        restorable,
        elapsed_s: started.elapsed().as_secs_f64(),
        source_bytes: set.table.content_bytes(),
        verified_bytes: stats.middle.bytes,
        stored_bytes: stats.first.bytes + parity_bytes,
        file_count: set.table.entries().len() as u64,
        frame_count: set.manifest.stripes.iter().map(|stripe| stripe.frame_count).sum(),
        damaged_frame_count: frames.len() as u64,
        damaged_frames: frames.iter().take(NAMED_MAX).map(|frame| describe_frame(&set, frame)).collect(),
        repaired_frame_count,
        repaired_frames: repaired.iter().map(|frame| describe_repaired(&set, frame)).collect(),
        damaged_file_count: damaged_files.len() as u64,
        damaged_files: describe_files(&set, &frames, &damaged_files),
        stripe_problems,
        memory_ceiling_bytes: ceiling.total_bytes(),
        rss_bytes_max: used.rss_bytes_max,
        cpu_user_s: used.cpu_user_s,
        cpu_system_s: used.cpu_system_s,
        stages: VerifyStages { stripe_readers: stats.first, decoders: stats.middle },
        limit: find_limit(
            Direction::Restore,
            set.manifest.compression.parse().ok(),
            &stats,
            f64::from(machine_cores()),
            request.max_rate_bytes_per_s.is_some(),
        ),
    })
}

fn check_memory(request: &VerifyRequest, settings: &PipelineSettings, set: &OpenSet) -> Result<Ceiling> {
    let facts = CeilingFacts {
        file_count: set.table.entries().len() as u64,
        path_bytes: set.table.memory_bytes(),
        content_bytes: set.table.content_bytes(),
        codec_state_bytes: decoder_state_bytes(set.may_hold_page_frames()),
        frame_count: Some(set.frame_count()),
        reads_from_elsewhere: set.is_remote(),
        ..CeilingFacts::default()
    };
    let mut ceiling = Ceiling::of_restore(settings, &facts, set.table.run_count());
    ceiling.add_parity(set.parity_memory_bytes());
    ceiling.add_digests(set.digests_bytes());
    ceiling.add_decryption(settings.readers, set.decryption_bytes());
    ceiling.check(request.max_memory_bytes, &MachineMemory::now())?;
    Ok(ceiling)
}

fn settings(request: &VerifyRequest, set: &OpenSet) -> Result<PipelineSettings> {
    let readers = request.readers.unwrap_or_else(|| set.default_readers(machine_cores()));
    let encoders = request.decoders.unwrap_or_else(machine_cores);
    let (_, frame_size_bytes) = set.frame_sizes_bytes();
    let settings = PipelineSettings {
        readers,
        encoders,
        writers: 1,
        buffer_count: PipelineSettings::default_buffer_count(readers, encoders, 0),
        transfer_size_bytes: set.transfer_size_bytes(request.max_memory_bytes),
        frame_size_bytes,
        max_rate_bytes_per_s: request.max_rate_bytes_per_s,
    };
    settings.check()?;
    Ok(settings)
}

fn decode_everything(
    set: &mut OpenSet,
    settings: PipelineSettings,
    damage: &Mutex<Vec<FrameDamage>>,
    observer: &dyn Observer,
) -> Result<DecodeOutcome> {
    let extents = Extent::by_stripe(&set.table, &set.stripe_counts());
    let opened = set.stripes.iter_mut().zip(extents).filter_map(|(stripe, extents)| Some((stripe.take()?, extents)));
    let stripes: Vec<StripeInput> = opened
        .map(|(open, extents)| {
            let OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, .. } = open;
            StripeInput { set, set_id, frame_size_bytes, stripe, object, index, extents }
        })
        .collect();
    let progress = Progress::default();
    progress.set_total(set.manifest.source_bytes);
    run_decode(
        &DecodeInput {
            settings,
            stripes: &stripes,
            table: &set.table,
            target: None,
            on_damage: &|frame| {
                damage.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
                Ok(())
            },
            progress: &progress,
        },
        &mut |live| {
            observer.progress(Direction::Restore, live);
            if observer.interrupted() {
                return Err(stopped());
            }
            Ok(())
        },
    )
}

fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "finish the verification", "a signal asked to stop")
}

/// What is wrong with stripes, parity stripes and page checksums; with the bytes of parity that were read.
fn all_stripe_problems(
    repository: &Repository,
    set: &OpenSet,
    settings: &PipelineSettings,
    observer: &dyn Observer,
) -> Result<(u64, Vec<StripeProblem>)> {
    let mut problems = stripe_problems(set);
    if set.parity.iter().any(Option::is_some) {
        observer.phase("read and check the parity stripes");
    }
    let (parity_bytes, of_parity) = check_parity(set, settings, observer)?;
    problems.extend(of_parity);
    problems.extend(check_page_sums(repository, set)?);
    problems.extend(check_frame_digests(repository, set)?);
    problems.extend(check_copies(repository, set)?);
    Ok((parity_bytes, problems))
}

/// Manifests and file tables of which one more may not be lost.
fn check_copies(repository: &Repository, set: &OpenSet) -> Result<Vec<StripeProblem>> {
    let mut problems = Vec::new();
    for manifest in set.chain() {
        problems.extend(damaged_objects(repository, manifest)?.into_iter().map(|damaged| StripeProblem {
            set: manifest.label.clone(),
            stripe: 0,
            path: damaged.name.to_owned(),
            cause: damaged.cause,
            harmless: true,
            by_parity: true,
        }));
    }
    Ok(problems)
}

fn stripe_problems(set: &OpenSet) -> Vec<StripeProblem> {
    let problem = |problem: &crate::catalog::SetProblem| StripeProblem {
        set: set.manifest_of(problem.set).label.clone(),
        stripe: problem.stripe.0,
        path: problem.place.clone(),
        cause: problem.error.message(),
        harmless: problem.harmless,
        by_parity: problem.by_parity,
    };
    set.problems.iter().map(problem).collect()
}

/// Reads the parity stripes of the set and looks whether those of the sets that it needs are there. What is wrong with them
/// keeps nothing from being restored, as long as nothing else goes. Gives the bytes that were read, too.
fn check_parity(
    set: &OpenSet,
    settings: &PipelineSettings,
    observer: &dyn Observer,
) -> Result<(u64, Vec<StripeProblem>)> {
    let settings = CopySettings {
        // With no more buffers than were there to decode.
        lanes: (settings.buffer_count as u16 / BUFFERS_PER_LANE as u16).clamp(1, settings.readers.min(LANES_MAX)),
        transfer_size_bytes: settings.transfer_size_bytes,
        max_rate_bytes_per_s: settings.max_rate_bytes_per_s,
    };
    let (mut bytes, mut problems) = (0, Vec::new());
    for (number, parity) in
        set.parity.iter().enumerate().filter_map(|(number, parity)| Some((number, parity.as_ref()?)))
    {
        let label = &set.manifest_of(SetIndex(number as u16)).label;
        let (stripes, parities) = parity.counts();
        problems.extend(parity.what_is_wrong_with_rows().map(|cause| StripeProblem {
            set: label.clone(),
            stripe: 0,
            path: ROWS_NAME.to_owned(),
            cause: format!("the object that says what the rows of parity are of: {cause}"),
            harmless: true,
            by_parity: true,
        }));
        let (mut wrong, mut looks, mut objects) = (Vec::new(), Vec::new(), Vec::<Box<dyn ObjectReader>>::new());
        for member in stripes..stripes + parities {
            if !parity.is_there(member) {
                wrong.push((member, "it is missing, or its place does not answer".to_owned()));
            } else if number == 0 {
                bytes += parity.record(member).size_bytes;
                match HealedStripe::to_look_at(parity, member) {
                    Ok((stripe, flaws)) => {
                        objects.push(Box::new(stripe));
                        looks.push((member, flaws));
                    }
                    Err(error) if error.kind() == ErrorKind::Damage => wrong.push((member, error.message())),
                    Err(error) => return Err(error),
                }
            }
        }
        read_through(objects, settings, observer, stopped)?;
        wrong.extend(looks.into_iter().filter_map(|(member, flaws)| Some((member, flaws.text()?))));
        wrong.sort_unstable();
        problems.extend(wrong.into_iter().map(|(member, cause)| StripeProblem {
            set: label.clone(),
            stripe: (member - stripes) as u16,
            path: parity.place_of(member).unwrap_or(&parity.record(member).name).to_owned(),
            cause: format!("{}: {cause}", parity.name_of(member)),
            harmless: true,
            by_parity: true,
        }));
    }
    Ok((bytes, problems))
}

/// The objects with the checksums of pages: a later backup needs them, a restore does not.
fn check_page_sums(repository: &Repository, set: &OpenSet) -> Result<Vec<StripeProblem>> {
    let objects = set.manifest.page_sums.iter().flat_map(|sums| sums.objects.iter().enumerate()).collect();
    let problems = at_once(objects, |(stripe, digest)| {
        let name = format!("{}/{}", set_prefix(&set.manifest.source, &set.manifest.label), digest.name);
        let cause = what_is_wrong_with(repository, "use page checksums", &name, digest)?;
        Ok(cause.map(|cause| StripeProblem {
            set: set.manifest.label.clone(),
            stripe: stripe as u16,
            path: name,
            cause: format!("{cause}; the next backup on this set stores more again"),
            harmless: true,
            by_parity: false,
        }))
    })?;
    Ok(problems.into_iter().flatten().collect())
}

/// The digests of frames: who asks for signatures needs them, and has read them when the set was opened.
fn check_frame_digests(repository: &Repository, set: &OpenSet) -> Result<Option<StripeProblem>> {
    let Some(digest) = &set.manifest.frame_digests else { return Ok(None) };
    let name = format!("{}/{}", set_prefix(&set.manifest.source, &set.manifest.label), digest.name);
    let wrong = what_is_wrong_with(repository, "use digests of frames", &name, digest)?;
    Ok(wrong.map(|cause| StripeProblem {
        set: set.manifest.label.clone(),
        stripe: 0,
        path: name,
        cause: format!("{cause}; nobody who gives --signer restores the set"),
        harmless: true,
        by_parity: false,
    }))
}

/// None if the object is what `digest` says; an error if the store does not say.
fn what_is_wrong_with(
    repository: &Repository,
    action: &str,
    name: &str,
    digest: &ObjectDigest,
) -> Result<Option<String>> {
    let bad = |cause: &str| Ok(Some(format!("unable to {action} {name}: {cause}")));
    let Some(object) = repository.storage().open(name)? else { return bad("they are missing") };
    if object.size_bytes() != digest.size_bytes {
        return bad("they have not the size that the manifest says");
    }
    match sums_of(object.as_ref()) {
        Ok(sums) if digest.fits(&sums) => Ok(None),
        Ok(_) => bad("they are not what was written"),
        Err(error) if object.is_unanswered(&error) => Err(error),
        Err(error) => Ok(Some(error.message())),
    }
}

fn place_of(set: &OpenSet, index: SetIndex, stripe: StripeIndex) -> String {
    let record = &set.manifest_of(index).stripes[usize::from(stripe.0)];
    match &record.directory {
        Some(directory) => object_place(directory, &format!(".../{}", record.name)),
        None => record.name.clone(),
    }
}

fn describe_frame(set: &OpenSet, frame: &FrameDamage) -> DamagedFrame {
    let files: BTreeSet<FileId> = frame.files.iter().copied().collect();
    DamagedFrame {
        set: set.manifest_of(frame.set).label.clone(),
        stripe: frame.stripe.0,
        path: place_of(set, frame.set, frame.stripe),
        frame: frame.sequence,
        offset: frame.offset,
        cause: frame.cause.clone(),
        files: files.into_iter().map(|file| set.table.path_text(file)).collect(),
    }
}

fn describe_repaired(set: &OpenSet, frame: &RebuiltFrame) -> DamagedFrame {
    DamagedFrame {
        set: set.manifest_of(frame.set).label.clone(),
        stripe: frame.stripe.0,
        path: place_of(set, frame.set, frame.stripe),
        frame: frame.sequence,
        offset: None,
        cause: frame.cause.clone(),
        files: Vec::new(),
    }
}

/// Each damaged file with the reason that is nearest to its cause.
fn describe_files(set: &OpenSet, frames: &[FrameDamage], damaged: &[FileId]) -> Vec<DamagedFile> {
    let hit: BTreeSet<FileId> = frames.iter().flat_map(|frame| frame.files.iter().copied()).collect();
    let describe = |file: &FileId| DamagedFile {
        path: set.table.path_text(*file),
        cause: if hit.contains(file) {
            "a damaged frame holds some of its bytes".to_owned()
        } else {
            "some of its bytes are missing, or its digest does not match".to_owned()
        },
    };
    damaged.iter().take(NAMED_MAX).map(describe).collect()
}
