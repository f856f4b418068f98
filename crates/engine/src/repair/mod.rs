//! Verb: stripes and parity stripes that are lost or damaged, put back from the others of their set.
//!
//! Nothing that is there is touched. What is put back is a new object with a name of its own, which appears whole or not at
//! all, and is read back before it counts; readers prefer it. So the set is as restorable at every moment as it was before.

mod report;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use report::{CheckedSet, LostStripe, RepairReport, RepairRequest, RepairedStripe};

use crate::catalog::parity_set::{healed_memory_bytes, layouts_memory_bytes, may_be_elsewhere};
use crate::catalog::place_owner::Owner;
use crate::catalog::reader_lease::{ReaderLease, hold_to_read};
use crate::catalog::repository::{ROWS_NAME, set_prefix};
use crate::catalog::second_copies::{DamagedObject, damaged_objects, put_copy};
use crate::catalog::stripe_places::{repair_number, repaired_name};
use crate::catalog::{
    Flaws, HealedStripe, ParitySet, Repository, check_key, digests_memory_bytes, frame_digests, keys_of, newest_set,
    open_parity_set, read_manifest, read_priors,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::{Manifest, StripeRecord};
use crate::limits::TRANSFER_SIZE_BYTES_DEFAULT;
use crate::pipeline::ceiling::{Ceiling, MachineMemory};
use crate::pipeline::usage::ProcessUsage;
use crate::pipeline::{
    CopyRun, CopySettings, Observer, Progress, Transfer, TransferTo, Transfers, Unchecked, machine_cores, read_through,
};
use crate::storage::{
    ObjectReader, StagedObject, Storage, Uploads, at_once, confirm, is_same_store, object_place, refuse_too_large,
    writer_bytes_max,
};
use crate::terms::{BackupLabel, SourceName};

/// Stripes that are put back at the same time, and looked at.
const LANES_MAX: u16 = 4;
/// Stripes that are looked at at the same time where each read is a request.
const REMOTE_LANES: u16 = 16;

/// Looks at every byte of a set's stripes and parity stripes, and of those of the sets it needs, and puts back what is lost or
/// damaged. What cannot be put back is in the report, not an error.
///
/// # Errors
/// `Usage` if neither the set nor any that it needs has parity; `Repository` if one cannot be found or its storage not be read
/// or written; `Damage` if a manifest does not read; `Configuration`, `Conflict`, `Interrupted`.
pub fn repair(request: &RepairRequest, observer: &dyn Observer) -> Result<RepairReport> {
    repair_in(&Repository::open(&request.repo)?, request, observer)
}

/// The same in a repository that the caller opened; the request's is not looked at.
///
/// # Errors
/// As [`repair`].
pub fn repair_in(repository: &Repository, request: &RepairRequest, observer: &dyn Observer) -> Result<RepairReport> {
    let (started, usage) = (Instant::now(), ProcessUsage::now());
    let source = repository.source_or_only(request.source.as_ref())?;
    let label = match &request.label {
        Some(label) => label.clone(),
        None => newest_set(repository, &source)?,
    };
    let _lease = hold_chain(repository, &source, &label)?;
    let manifest = read_manifest(repository, &source, &label)?;
    let chain: Vec<Manifest> = read_priors(repository, &manifest)?.into_iter().rev().chain([manifest]).collect();
    if chain.iter().all(|manifest| manifest.parity.is_none()) {
        let cause = "neither it nor a set that it needs has parity stripes";
        return Err(Error::new(ErrorKind::Usage, format!("repair set {label} of {source}"), cause)
            .hint("copy it back from another repository (pagehaul copy); new backups can have parity (--parity)"));
    }
    let settings = CopySettings {
        lanes: machine_cores().min(LANES_MAX),
        transfer_size_bytes: TRANSFER_SIZE_BYTES_DEFAULT,
        max_rate_bytes_per_s: request.max_rate_bytes_per_s,
    };
    let is_remote = chain.iter().any(|manifest| may_be_elsewhere(repository, manifest, &request.stripe_from));
    let looks = CopySettings { lanes: if is_remote { REMOTE_LANES } else { settings.lanes }, ..settings };
    let ceiling = ceiling(repository, request, &settings, &looks, &chain);
    ceiling.check(request.max_memory_bytes, &MachineMemory::now())?;
    let mut found = Found::default();
    for manifest in &chain {
        let own = repository.with_keys(keys_of(repository, manifest)?);
        let work = Work { repository: &own, request, settings, looks, observer };
        work.repair_set(manifest, &mut found)?;
    }
    let used = ProcessUsage::now().since(&usage);
    let Found { sets, repaired, lost, check_s, rebuild_s } = found;
    Ok(RepairReport {
        label,
        source,
        whole: lost.is_empty(),
        sets,
        rebuilt_bytes: repaired.iter().map(|stripe| stripe.bytes).sum(),
        repaired,
        lost,
        elapsed_s: started.elapsed().as_secs_f64(),
        check_s,
        rebuild_s,
        memory_ceiling_bytes: ceiling.total_bytes(),
        rss_bytes_max: used.rss_bytes_max,
        cpu_user_s: used.cpu_user_s,
        cpu_system_s: used.cpu_system_s,
    })
}

/// Holds leases in the set and in all that it needs; as objects are to be written there, one that cannot be made is an error.
fn hold_chain<'a>(repository: &'a Repository, source: &SourceName, label: &BackupLabel) -> Result<ReaderLease<'a>> {
    let reading = hold_to_read(repository, source, label)?;
    match reading.note {
        None => Ok(reading.lease),
        Some(note) => Err(Error::new(ErrorKind::Repository, format!("repair set {label}"), note)),
    }
}

/// Of looking or of putting back, whichever takes more.
fn ceiling(
    repository: &Repository,
    request: &RepairRequest,
    settings: &CopySettings,
    looks: &CopySettings,
    chain: &[Manifest],
) -> Ceiling {
    let directories: Vec<String> =
        chain.iter().flat_map(Manifest::all_stripes).filter_map(|stripe| stripe.directory.clone()).collect();
    let sizes = chain.iter().flat_map(Manifest::all_stripes).map(|stripe| stripe.size_bytes);
    let uploads = Uploads { count: 1, largest_bytes: sizes.max().unwrap_or_default() };
    let writer_bytes = writer_bytes_max(directories.iter(), uploads).max(repository.storage().writer_bytes(uploads));
    let of = |settings: &CopySettings, writer_bytes| {
        let mut ceiling = settings.ceiling(writer_bytes);
        // Each lane's reader, and who reads back what it put.
        let healed = |manifest| {
            healed_memory_bytes(repository, manifest, &request.stripe_from, 2 * settings.lanes)
                + layouts_memory_bytes(manifest)
        };
        ceiling.add_parity(chain.iter().map(healed).max().unwrap_or_default());
        let digests = chain.iter().map(|manifest| digests_memory_bytes(repository, manifest)).max();
        ceiling.add_digests(digests.unwrap_or_default());
        ceiling
    };
    let (mut put_back, look) = (of(settings, writer_bytes), of(looks, 0));
    let (lanes, size) = (u64::from(settings.lanes), u64::from(settings.transfer_size_bytes));
    put_back.add(format!("{lanes} buffers to read back x {} KiB", size / 1024), lanes * size);
    if look.total_bytes() > put_back.total_bytes() { look } else { put_back }
}

#[derive(Default)]
struct Found {
    sets: Vec<CheckedSet>,
    repaired: Vec<RepairedStripe>,
    lost: Vec<LostStripe>,
    check_s: f64,
    rebuild_s: f64,
}

struct Work<'a> {
    repository: &'a Repository,
    request: &'a RepairRequest,
    /// Of putting back.
    settings: CopySettings,
    looks: CopySettings,
    observer: &'a dyn Observer,
}

impl Work<'_> {
    fn repair_set(&self, manifest: &Manifest, found: &mut Found) -> Result<()> {
        let digests = frame_digests(self.repository, manifest)?;
        let opened = open_parity_set(self.repository, manifest, &self.request.stripe_from, digests, true)?;
        found.sets.push(CheckedSet {
            set: manifest.label.clone(),
            stripes: manifest.stripes.len() as u16,
            parity: manifest.parity_stripes().len() as u16,
            bytes: manifest.all_stripes().map(|stripe| stripe.size_bytes).sum(),
        });
        let Some((parity, _)) = opened else { return Ok(()) };
        parity.keep_sound();
        let started = Instant::now();
        self.put_small_objects_back(manifest, &parity, found)?;
        let (mut missing, mut flaws, mut objects) = (Vec::new(), Vec::new(), Vec::<Box<dyn ObjectReader>>::new());
        for (member, looked) in self.open_members(manifest, &parity)? {
            match looked {
                Ok((stripe, noted)) if parity.is_there(member) => {
                    flaws.push((member, noted));
                    objects.push(Box::new(stripe));
                }
                Ok((_, noted)) => missing.extend(noted.text().map(|cause| (member, cause))),
                Err(error) => found.lost.push(lost(manifest, &parity, member, error.message())),
            }
        }
        found.check_s += started.elapsed().as_secs_f64();
        // First: what is read of the others for it needs no other look.
        self.put_members_back(manifest, &parity, &missing, found)?;
        let started = Instant::now();
        self.observer.phase(&format!("read the stripes of set {}", manifest.label));
        read_through(objects, self.looks, self.observer, stopped)?;
        let damaged: Vec<(usize, String)> =
            flaws.into_iter().filter_map(|(member, flaws)| Some((member, flaws.text()?))).collect();
        found.check_s += started.elapsed().as_secs_f64();
        self.put_members_back(manifest, &parity, &damaged, found)
    }

    /// Puts back what lies beside the manifest and is whole or not at a glance, whatever becomes of the stripes.
    fn put_small_objects_back(&self, manifest: &Manifest, parity: &ParitySet, found: &mut Found) -> Result<()> {
        for damaged in damaged_objects(self.repository, manifest)? {
            found.repaired.push(self.put_copy_back(manifest, damaged)?);
        }
        let Some(cause) = parity.what_is_wrong_with_rows() else { return Ok(()) };
        match parity.rows_bytes() {
            Ok(bytes) => found.repaired.push(self.put_rows_back(manifest, &bytes, cause)?),
            Err(error) => {
                let (set, name) = (manifest.label.clone(), "rows of parity".to_owned());
                found.lost.push(LostStripe { set, name, cause: error.message() });
            }
        }
        Ok(())
    }

    /// Puts members back, each with what is wrong with it.
    fn put_members_back(
        &self,
        manifest: &Manifest,
        parity: &Arc<ParitySet>,
        damaged: &[(usize, String)],
        found: &mut Found,
    ) -> Result<()> {
        if damaged.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let what = if damaged.len() == 1 { "a stripe".to_owned() } else { format!("{} stripes", damaged.len()) };
        self.observer.phase(&format!("put back {what} of set {}", manifest.label));
        let stripes = Stripes { work: self, manifest, parity, damaged, done: Mutex::default() };
        let progress = Progress::default();
        progress.set_total(damaged.iter().map(|(member, _)| parity.record(*member).size_bytes).sum());
        CopyRun::new(self.settings, &progress, self.observer, stopped).run(&stripes)?;
        let Done { mut repaired, failed, .. } = stripes.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        repaired.sort_by_key(|(member, _)| *member);
        found.repaired.extend(repaired.into_iter().map(|(_, stripe)| stripe));
        found.lost.extend(failed.into_iter().map(|(member, cause)| lost(manifest, parity, member, cause)));
        found.rebuild_s += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Puts another copy beside a manifest or a file table that is damaged.
    fn put_copy_back(&self, manifest: &Manifest, damaged: DamagedObject) -> Result<RepairedStripe> {
        let (name, bytes) = put_copy(self.repository, manifest, &damaged)?;
        let storage = self.repository.storage();
        confirm(storage, &name, bytes)?;
        let (set, path) = (manifest.label.clone(), object_place(&storage.describe(), &name));
        Ok(RepairedStripe { set, name: damaged.name.to_owned(), cause: damaged.cause, path, bytes })
    }

    /// Puts back the object that says what the rows of parity are of.
    fn put_rows_back(&self, manifest: &Manifest, bytes: &[u8], cause: String) -> Result<RepairedStripe> {
        let (storage, prefix) = (self.repository.storage(), set_prefix(&manifest.source, &manifest.label));
        let used = storage.list(&prefix)?.iter().filter_map(|file| repair_number(ROWS_NAME, file)).max();
        let name = format!("{prefix}/{}", repaired_name(ROWS_NAME, used.unwrap_or(0) + 1));
        // The loser of a race has the same bytes.
        let mut object = storage.stage(&name, 0)?;
        object.append(bytes)?;
        object.commit()?;
        confirm(storage, &name, bytes.len() as u64)?;
        let path = object_place(&storage.describe(), &name);
        let (set, name, bytes) = (manifest.label.clone(), "rows of parity".to_owned(), bytes.len() as u64);
        Ok(RepairedStripe { set, name, cause, path, bytes })
    }

    fn go_on(&self) -> Result<()> {
        if self.observer.interrupted() { Err(stopped()) } else { Ok(()) }
    }

    /// All members to be looked at; `Damage` where it is not known what one should be.
    fn open_members(&self, manifest: &Manifest, parity: &Arc<ParitySet>) -> Result<Vec<(usize, Result<Look>)>> {
        at_once((0..manifest.all_stripes().count()).collect(), |member| {
            match HealedStripe::to_look_at(parity, member) {
                Err(error) if error.kind() != ErrorKind::Damage => Err(error),
                looked => Ok((member, looked)),
            }
        })
    }
}

fn lost(manifest: &Manifest, parity: &ParitySet, member: usize, cause: String) -> LostStripe {
    LostStripe { set: manifest.label.clone(), name: parity.name_of(member), cause }
}

/// A member, and what is wrong with it.
type Look = (HealedStripe, Arc<Flaws>);

fn stopped() -> Error {
    Error::new(ErrorKind::Interrupted, "finish the repair", "a signal asked to stop")
        .hint("what was put back stays; the next `pagehaul repair` goes on with the rest")
}

/// Where a stripe is put.
struct Target {
    name: String,
    /// None is the repository itself.
    storage: Option<Box<dyn Storage>>,
}

#[derive(Default)]
struct Done {
    /// Of those that are under way.
    targets: BTreeMap<usize, Target>,
    repaired: Vec<(usize, RepairedStripe)>,
    failed: Vec<(usize, String)>,
}

/// The stripes of one set that are to be put back.
struct Stripes<'a> {
    work: &'a Work<'a>,
    manifest: &'a Manifest,
    parity: &'a Arc<ParitySet>,
    /// Each with what is wrong with it.
    damaged: &'a [(usize, String)],
    done: Mutex<Done>,
}

impl Stripes<'_> {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store that a stripe goes to: where it was written if that place is still there, otherwise beside the manifest.
    fn place(&self, record: &StripeRecord) -> Result<Option<Box<dyn Storage>>> {
        let Some(directory) = &record.directory else { return Ok(None) };
        let storage = self.work.repository.open_place(directory)?;
        // A disk that is gone leaves an empty directory, and what is put there is gone when the disk comes back. A disk that is new there says of
        // nothing whose it is, and another repository may have taken the place since.
        let (repository, prefix) = (self.work.repository, set_prefix(&self.manifest.source, &self.manifest.label));
        let is_usable = !storage.list("")?.is_empty()
            && (is_same_store(storage.as_ref(), repository.storage())
                || Owner::new(repository)?.put(storage.as_ref(), &prefix)?
                || !Owner::is_another(repository, storage.as_ref(), &prefix)?);
        Ok(is_usable.then_some(storage))
    }

    /// Begins an object under the next name that nobody has.
    fn stage(&self, storage: &dyn Storage, record: &StripeRecord) -> Result<(String, Box<dyn StagedObject>)> {
        let prefix = set_prefix(&self.manifest.source, &self.manifest.label);
        storage.sweep(&prefix)?;
        let used = storage.list(&prefix)?.iter().filter_map(|file| repair_number(&record.name, file)).max();
        let name = format!("{prefix}/{}", repaired_name(&record.name, used.unwrap_or(0) + 1));
        refuse_too_large(storage, &name, record.size_bytes)?;
        Ok((name.clone(), storage.stage(&name, record.size_bytes)?))
    }

    /// Reads an object back that was put there; one that is not what it should be is removed.
    fn read_back(&self, member: usize, target: &Target) -> Result<()> {
        let storage = target.storage.as_deref().unwrap_or(self.work.repository.storage());
        let wrong = |cause: &str| {
            let action =
                format!("put back {} as {} in {}", self.parity.name_of(member), target.name, storage.describe());
            Error::new(ErrorKind::Repository, action, cause)
                .hint("the store does not give back what was written; the set is as it was")
        };
        let object = storage.open(&target.name)?.ok_or_else(|| wrong("it is not there"))?;
        check_key(self.manifest, object.as_ref(), &target.name)?;
        let (stripe, flaws) = HealedStripe::to_look_at_object(self.parity, member, object)?;
        let mut buffer = vec![0u8; self.work.settings.transfer_size_bytes as usize];
        for offset in (0..stripe.size_bytes()).step_by(buffer.len()) {
            let length = (stripe.size_bytes() - offset).min(buffer.len() as u64);
            stripe.read_at(&mut buffer[..length as usize], offset)?;
            if let Err(stopped) = self.work.go_on() {
                // Readers prefer it, and nobody has looked at it.
                storage.delete(&target.name)?;
                return Err(stopped);
            }
        }
        match flaws.text() {
            None => Ok(()),
            Some(cause) => {
                storage.delete(&target.name)?;
                Err(wrong(&cause))
            }
        }
    }
}

impl Transfers for Stripes<'_> {
    fn count(&self) -> usize {
        self.damaged.len()
    }

    fn begin(&self, number: usize) -> Result<Option<Transfer>> {
        let (member, _) = self.damaged[number];
        let record = self.parity.record(member);
        let storage = self.place(record)?;
        let (name, to) = self.stage(storage.as_deref().unwrap_or(self.work.repository.storage()), record)?;
        self.done().targets.insert(number, Target { name, storage });
        let from = Box::new(HealedStripe::new(self.parity, member)?);
        Ok(Some(Transfer { from, to: TransferTo::Staged(to), check: Box::new(Unchecked) }))
    }

    fn done(&self, number: usize, is_new: bool, size_bytes: u64) -> Result<()> {
        let (member, cause) = &self.damaged[number];
        let Some(target) = self.done().targets.remove(&number) else { return Ok(()) };
        if !is_new {
            let cause = "somebody else repairs it at the same time: run the repair again";
            self.done().failed.push((*member, cause.to_owned()));
            return Ok(());
        }
        self.read_back(*member, &target)?;
        let storage = target.storage.as_deref().unwrap_or(self.work.repository.storage());
        let stripe = RepairedStripe {
            set: self.manifest.label.clone(),
            name: self.parity.name_of(*member),
            cause: cause.clone(),
            path: object_place(&storage.describe(), &target.name),
            bytes: size_bytes,
        };
        self.done().repaired.push((*member, stripe));
        Ok(())
    }

    fn failed(&self, number: usize, error: Error) -> Result<()> {
        // A place that cannot be written, or a store that cannot be asked, is no loss of the stripe.
        if error.kind() != ErrorKind::Damage {
            return Err(error);
        }
        self.done().failed.push((self.damaged[number].0, error.message()));
        Ok(())
    }
}
