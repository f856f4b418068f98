//! Opens the stripes of a set that has parity: what of a stripe is missing or does not read is looked up in the rows.

use std::sync::Arc;

use super::bound_stripe::StripeDigests;
use super::healed_stripe::HealedStripe;
use super::open_set::{OpenStripe, SetProblem, header_of, look_at_index};
use super::parity_set::{Member, ParitySet};
use super::rebuilder::RebuildRooms;
use super::repository::Repository;
use super::stripe_places::{FoundStripe, each_candidate, is_parity, missing, repair_number, written_to};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::xxh3;
use crate::format::manifest::{Manifest, StripeRecord, hex64};
use crate::format::parity::ParityHeader;
use crate::format::stripe::FrameIndex;
use crate::storage::at_once;
use crate::terms::{SetId, SetIndex, StripeIndex};

/// The stripes of one set.
#[derive(Default)]
pub(super) struct OpenedWithParity {
    pub(super) stripes: Vec<Option<OpenStripe>>,
    pub(super) problems: Vec<SetProblem>,
    pub(super) parity: Option<Arc<ParitySet>>,
}

/// A stripe as it was found.
struct Found {
    member: Option<Member>,
    index: Option<FrameIndex>,
    problem: Option<Error>,
}

/// Opens every stripe of `manifest` through its parity.
pub(super) fn open_with_parity(
    repository: &Repository,
    manifest: &Manifest,
    set: SetIndex,
    stripe_from: &[String],
    digests: Option<Vec<StripeDigests>>,
    rooms: &Arc<RebuildRooms>,
) -> OpenedWithParity {
    let opening = Opening { repository, manifest, set, stripe_from, needs_answers: false };
    opening.open(digests, rooms).unwrap_or_else(|error| {
        // A store that cannot be asked says nothing about what is there.
        let place = repository.storage().describe();
        let problem = SetProblem { set, stripe: StripeIndex(0), place, error, harmless: false, by_parity: false };
        let stripes = manifest.stripes.iter().map(|_| None).collect();
        OpenedWithParity { stripes, problems: vec![problem], parity: None }
    })
}

/// Opens the members of one set, for who wants to look at them as they lie there; `digests` are those of its frames, if a
/// signature says what they must be. With `needs_answers` a place that does not answer is an error, whatever parity gives back.
///
/// # Errors
/// Those of the storages.
pub fn open_parity_set(
    repository: &Repository,
    manifest: &Manifest,
    stripe_from: &[String],
    digests: Option<Vec<StripeDigests>>,
    needs_answers: bool,
) -> Result<Option<(Arc<ParitySet>, Vec<SetProblem>)>> {
    if manifest.parity.is_none() {
        return Ok(None);
    }
    let opening = Opening { repository, manifest, set: SetIndex::OWN, stripe_from, needs_answers };
    let opened = opening.open(digests, &RebuildRooms::new())?;
    Ok(opened.parity.map(|parity| (parity, opened.problems)))
}

struct Opening<'a> {
    repository: &'a Repository,
    manifest: &'a Manifest,
    set: SetIndex,
    stripe_from: &'a [String],
    /// A place that does not answer is an error, whatever parity gives back.
    needs_answers: bool,
}

impl Opening<'_> {
    fn open(&self, digests: Option<Vec<StripeDigests>>, rooms: &Arc<RebuildRooms>) -> Result<OpenedWithParity> {
        let (manifest, set) = (self.manifest, self.set);
        let set_id = manifest.set_id()?;
        let (mut members, mut indexes, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        let stripes = (0..).map(StripeIndex).zip(&manifest.stripes).collect();
        for found in at_once(stripes, |(number, record)| self.find_stripe(set_id, number, record))? {
            let Found { member, index, problem } = found;
            members.push(member);
            indexes.push(index);
            wrong.push(problem);
        }
        let parity = manifest.parity_stripes().iter().enumerate().collect();
        members.extend(at_once(parity, |(number, record)| self.find_parity(set_id, number, record))?);
        let own_rows = self.find_rows()?;
        let rooms = Arc::clone(rooms);
        let parity = Arc::new(ParitySet::new(set, manifest, members, own_rows, indexes.clone(), digests, rooms)?);
        let too_much = too_much_is_lost(&parity);
        // What could not be asked for is not lost.
        let is_unasked =
            |problem: &Option<Error>| problem.as_ref().is_some_and(|error| error.kind() == ErrorKind::Repository);
        if too_much.is_some()
            && let Some(number) =
                (0..wrong.len()).find(|number| !parity.is_there(*number) && is_unasked(&wrong[*number]))
            && let Some(error) = wrong.swap_remove(number)
        {
            return Err(error);
        }
        let mut opened = OpenedWithParity { parity: Some(Arc::clone(&parity)), ..OpenedWithParity::default() };
        for (number, (index, problem)) in indexes.into_iter().zip(wrong).enumerate() {
            let (stripe, record) = (StripeIndex(number as u16), &manifest.stripes[number]);
            let place =
                parity.place_of(number).map_or_else(|| written_to(self.repository, manifest, record), str::to_owned);
            let index = match index {
                Some(index) => Ok(index),
                None if !parity.is_there(number) && too_much.is_some() => Err(None),
                None => parity.index_from_rows(number).map_err(Some),
            };
            let healed = index.and_then(|index| Ok((HealedStripe::new(&parity, number).map_err(Some)?, index)));
            let harmless = healed.is_ok();
            let error = match &healed {
                Ok(_) => problem,
                Err(more) => {
                    let more = more.as_ref().map(Error::message).or_else(|| too_much.clone()).unwrap_or_default();
                    Some(unreadable(problem, number, &more))
                }
            };
            if let Some(error) = error {
                let place = place.clone();
                opened.problems.push(SetProblem { set, stripe, place, error, harmless, by_parity: harmless });
            }
            let frame_size_bytes = manifest.frame_size_bytes;
            opened.stripes.push(healed.ok().map(|(healed, index)| {
                let object = Box::new(healed);
                OpenStripe { set, set_id, frame_size_bytes, stripe, object, index, place }
            }));
        }
        Ok(opened)
    }

    /// The stripe, by preference one whose trailer is sound.
    fn find_stripe(&self, set_id: SetId, stripe: StripeIndex, record: &StripeRecord) -> Result<Found> {
        let header = header_of(self.manifest, set_id, stripe);
        let (mut sound, mut older, mut damaged, mut other) = (None::<Found>, Vec::new(), None, None);
        let looked = each_candidate(
            self.repository,
            self.manifest,
            record,
            self.stripe_from,
            &mut |FoundStripe { object, place, name }| {
                match look_at_index(object.as_ref(), &header, record) {
                    Ok((_, None)) if sound.is_some() => older.push(object),
                    Ok((index, None)) => {
                        let member = Some(Member::new(object, place));
                        sound = Some(Found { member, index: Some(index), problem: None });
                    }
                    Ok((index, Some((problem, is_harmless)))) => {
                        let index = is_harmless.then_some(index);
                        let member = Some(Member::new(object, place));
                        damaged = damaged.take().or(Some(Found { member, index, problem: Some(problem) }));
                    }
                    // Another stripe.
                    Err(error) if error.kind() == ErrorKind::Damage => {
                        other = other.take().or(Some(Found { member: None, index: None, problem: Some(error) }));
                    }
                    Err(error) => {
                        let member = Some(Member::new(object, place));
                        damaged = damaged.take().or(Some(Found { member, index: None, problem: Some(error) }));
                    }
                }
                (sound.is_some() && !is_put_back(&record.name, &name)).then_some(())
            },
        );
        match looked {
            Ok(_) => {}
            Err(_) if sound.is_some() && !self.needs_answers => {}
            // As good as lost, as long as parity gives it back.
            Err(error) if error.kind() == ErrorKind::Repository && !self.needs_answers => {
                damaged = damaged.or(Some(Found { member: None, index: None, problem: Some(error) }));
            }
            Err(error) => return Err(error),
        }
        if let Some(member) = sound.as_mut().and_then(|found| found.member.as_mut()) {
            member.older = older;
        }
        Ok(sound.or(damaged).or(other).unwrap_or_else(|| {
            let error = missing(self.repository, self.manifest, &format!("stripe {stripe}"), record);
            Found { member: None, index: None, problem: Some(error) }
        }))
    }

    /// The object that says what the rows are of.
    fn find_rows(&self) -> Result<Option<Member>> {
        let Some(parity) = &self.manifest.parity else { return Ok(None) };
        let rows = &parity.rows;
        let record = StripeRecord {
            name: rows.name.clone(),
            directory: None,
            size_bytes: rows.size_bytes,
            frame_count: 0,
            index_xxh3: String::new(),
        };
        let mut other = None;
        let sound = each_candidate(
            self.repository,
            self.manifest,
            &record,
            self.stripe_from,
            &mut |FoundStripe { object, place, .. }| {
                if object.size_bytes() == rows.size_bytes {
                    let mut bytes = vec![0u8; rows.size_bytes as usize];
                    if object.read_at(&mut bytes, 0).is_ok() && hex64(xxh3(&bytes)) == rows.xxh3 {
                        return Some(Member::new(object, place));
                    }
                }
                other = other.take().or(Some(Member::new(object, place)));
                None
            },
        )?;
        Ok(sound.or(other))
    }

    /// The parity stripe, by preference one whose header and size are right; never another object.
    fn find_parity(&self, set_id: SetId, number: usize, record: &StripeRecord) -> Result<Option<Member>> {
        let manifest = self.manifest;
        let wanted = ParityHeader {
            set_id,
            parity: StripeIndex(number as u16),
            parity_count: manifest.parity_stripes().len() as u16,
            stripe_count: manifest.stripes.len() as u16,
            frame_size_bytes: manifest.frame_size_bytes,
        };
        let (mut sound, mut older, mut damaged) = (None::<Member>, Vec::new(), None);
        let looked = each_candidate(
            self.repository,
            manifest,
            record,
            self.stripe_from,
            &mut |FoundStripe { object, place, name }| {
                match is_parity(object.as_ref(), &wanted) {
                    Some(true) if object.size_bytes() == record.size_bytes => match sound {
                        Some(_) => older.push(object),
                        None => sound = Some(Member::new(object, place)),
                    },
                    Some(false) => {}
                    _ => damaged = damaged.take().or(Some(Member::new(object, place))),
                }
                (sound.is_some() && !is_put_back(&record.name, &name)).then_some(())
            },
        );
        match looked {
            Err(error) if self.needs_answers || sound.is_none() && error.kind() != ErrorKind::Repository => Err(error),
            _ => Ok(sound.map(|member| Member { older, ..member }).or(damaged)),
        }
    }
}

/// Whether the object `name` was put back for the stripe `stripe`.
fn is_put_back(stripe: &str, name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|file| repair_number(stripe, file).is_some())
}

/// What is missing if parity cannot give it back.
fn too_much_is_lost(parity: &ParitySet) -> Option<String> {
    let (stripes, parities) = parity.counts();
    let lost: Vec<usize> = (0..stripes + parities).filter(|member| !parity.is_there(*member)).collect();
    (lost.len() > parities && lost.iter().any(|member| *member < stripes)).then(|| {
        let names: Vec<String> = lost.iter().map(|member| parity.name_of(*member)).collect();
        format!("{} are missing, and parity gives back {parities}", names.join(", "))
    })
}

fn unreadable(problem: Option<Error>, stripe: usize, more: &str) -> Error {
    match problem {
        Some(problem) => {
            let hint = problem.hint_text().map(ToOwned::to_owned);
            let error = Error::new(problem.kind(), problem.action(), format!("{}; {more}", problem.cause()));
            hint.into_iter().fold(error, Error::hint)
        }
        None => Error::new(ErrorKind::Damage, format!("open stripe {stripe}"), more),
    }
}
