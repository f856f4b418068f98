//! A stripe or parity stripe as it was written, read through its parity: every frame is checked as it is read, and what is
//! lost or damaged is rebuilt. Who reads it sees an object that is whole.

use std::sync::{Arc, Mutex, PoisonError};

use super::parity_set::{Layout, ParitySet};
use super::rebuilder::Rebuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::ObjectReader;

/// One member of a set with parity.
pub struct HealedStripe {
    set: Arc<ParitySet>,
    member: usize,
    /// The object that is read in the place of the one that was found.
    other: Option<Box<dyn ObjectReader>>,
    layout: Layout,
    /// What is wrong with frames is noted here, and they are given as they are; without it they are rebuilt.
    flaws: Option<Arc<Flaws>>,
    /// The last frame that was wanted in part.
    part: Mutex<Option<(usize, Vec<u8>)>>,
}

/// What is found to be wrong with a member while it is read.
#[derive(Default)]
pub struct Flaws(Mutex<(Option<String>, u64)>);

impl Flaws {
    /// The first one and how many more there are, for people; None if nothing is wrong.
    pub fn text(&self) -> Option<String> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, more) = (found.0.as_ref()?, found.1);
        Some(if more > 0 { format!("{first}, and {more} more") } else { first.clone() })
    }

    fn note(&self, flaw: String) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match found.0 {
            None => found.0 = Some(flaw),
            Some(_) => found.1 += 1,
        }
    }
}

impl HealedStripe {
    /// The stripe, or behind the stripes the parity stripe, with this number.
    ///
    /// # Errors
    /// `Damage` if it is not known where its frames lie.
    pub fn new(set: &Arc<ParitySet>, member: usize) -> Result<Self> {
        let (layout, part) = (set.layout(member)?, Mutex::new(None));
        Ok(HealedStripe { set: Arc::clone(set), member, other: None, layout, flaws: None, part })
    }

    /// The same to be read from end to end, for what is wrong with it as it lies there: nothing is rebuilt, and frames that were found to be
    /// sound while another member was rebuilt are not read again. Gives what is wrong with its ends already, and there the rest as it is read.
    ///
    /// # Errors
    /// As [`HealedStripe::new`]; those of a store that does not answer.
    pub fn to_look_at(set: &Arc<ParitySet>, member: usize) -> Result<(Self, Arc<Flaws>)> {
        Self::looked_at(HealedStripe::new(set, member)?)
    }

    /// The same of an object that is meant to be this member.
    ///
    /// # Errors
    /// As [`HealedStripe::to_look_at`].
    pub fn to_look_at_object(
        set: &Arc<ParitySet>,
        member: usize,
        object: Box<dyn ObjectReader>,
    ) -> Result<(Self, Arc<Flaws>)> {
        Self::looked_at(HealedStripe { other: Some(object), ..HealedStripe::new(set, member)? })
    }

    fn looked_at(mut stripe: Self) -> Result<(Self, Arc<Flaws>)> {
        let flaws = Arc::<Flaws>::default();
        stripe.look_at_ends(&flaws)?;
        stripe.flaws = Some(Arc::clone(&flaws));
        Ok((stripe, flaws))
    }

    /// The member as it lies there.
    fn object(&self) -> Option<&dyn ObjectReader> {
        self.other.as_deref().or_else(|| self.set.member(self.member))
    }

    fn look_at_ends(&self, flaws: &Flaws) -> Result<()> {
        let Some(object) = self.object() else {
            flaws.note(self.missing().message());
            return Ok(());
        };
        let (size, wanted) = (object.size_bytes(), self.size_bytes());
        if size != wanted {
            flaws.note(self.damage(&format!("it has {size} bytes and should have {wanted}")).message());
        }
        let mut bytes = Vec::new();
        for (offset, wanted, name) in [
            (0, &self.layout.header[..], "its header is damaged"),
            (self.end_of_frames(), &self.layout.trailer[..], "its trailer is damaged"),
        ] {
            bytes.resize(wanted.len(), 0);
            match object.read_at(&mut bytes, offset) {
                Ok(()) if bytes == wanted => {}
                Err(error) if object.is_unanswered(&error) => return Err(error),
                _ => flaws.note(self.damage(name).message()),
            }
        }
        Ok(())
    }

    fn damage(&self, cause: &str) -> Error {
        Error::new(ErrorKind::Damage, format!("read {}", self.set.name_of(self.member)), cause)
    }

    fn end_of_frames(&self) -> u64 {
        self.layout.offsets.last().copied().unwrap_or_default()
    }

    fn missing(&self) -> Error {
        self.damage("it is missing")
    }

    /// Reads the whole frames from `first` on that fill `into`.
    fn read_frames(&self, first: usize, into: &mut [u8]) -> Result<()> {
        let offsets = &self.layout.offsets;
        let object = self.object();
        let end = offsets[first] + into.len() as u64;
        let last = offsets.partition_point(|start| *start < end);
        // Who rebuilt another member has read these.
        let is_known = |frame: usize| self.set.is_sound(self.member, frame as u64);
        if self.flaws.is_some() && self.other.is_none() && (first..last).all(is_known) {
            return Ok(());
        }
        let is_read = object.is_some_and(|object| object.read_at(into, offsets[first]).is_ok());
        let (mut rest, mut rebuilder) = (into, None);
        for frame in first..last {
            let (bytes, behind) = rest.split_at_mut((offsets[frame + 1] - offsets[frame]) as usize);
            rest = behind;
            let read = match object {
                Some(_) if is_read => Ok(()),
                Some(object) => object.read_at(bytes, offsets[frame]),
                None => Err(self.missing()),
            };
            let sequence = frame as u64;
            let Err(error) = read.and_then(|()| self.set.check_frame(self.member, sequence, bytes)) else { continue };
            match &self.flaws {
                None if self.reads_older(sequence, offsets[frame], bytes) => {}
                None => {
                    // What does not read as a whole is lost as a whole, most often.
                    let upcoming = if is_read { 0 } else { last - frame - 1 };
                    let rebuilder = rebuilder.get_or_insert_with(|| Rebuilder::new(&self.set, self.member));
                    rebuilder.rebuild(sequence, upcoming as u64, &error, bytes)?;
                }
                Some(_) if object.is_some_and(|object| object.is_unanswered(&error)) => return Err(error),
                Some(flaws) => flaws.note(format!("frame {frame}: {}", error.message())),
            }
        }
        Ok(())
    }

    /// Whether an older object of the member has the frame, which is then in `bytes`.
    fn reads_older(&self, sequence: u64, offset: u64, bytes: &mut [u8]) -> bool {
        self.set.older(self.member).any(|older| {
            older.read_at(bytes, offset).is_ok() && self.set.check_frame(self.member, sequence, bytes).is_ok()
        })
    }

    /// Reads a part of a frame: `into` is what of it begins at byte `within`.
    fn read_part(&self, frame: usize, within: usize, into: &mut [u8]) -> Result<()> {
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = match part.take() {
            Some((kept, bytes)) if kept == frame => bytes,
            kept => {
                let mut bytes = kept.map(|(_, bytes)| bytes).unwrap_or_default();
                bytes.resize((self.layout.offsets[frame + 1] - self.layout.offsets[frame]) as usize, 0);
                self.read_frames(frame, &mut bytes)?;
                bytes
            }
        };
        into.copy_from_slice(&bytes[within..within + into.len()]);
        *part = Some((frame, std::mem::take(&mut bytes)));
        Ok(())
    }
}

/// The part of `buffer`, which begins at `offset` of an object, that lies at `start` to `end` of it; and where it begins.
fn overlap(buffer: &mut [u8], offset: u64, start: u64, end: u64) -> Option<(u64, &mut [u8])> {
    let (first, last) = (offset.max(start), (offset + buffer.len() as u64).min(end));
    (first < last).then(|| (first, &mut buffer[(first - offset) as usize..(last - offset) as usize]))
}

impl ObjectReader for HealedStripe {
    fn size_bytes(&self) -> u64 {
        self.end_of_frames() + self.layout.trailer.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let (size, end) = (self.size_bytes(), self.end_of_frames());
        if offset.checked_add(buffer.len() as u64).is_none_or(|last| last > size) {
            return Err(self.damage(&format!("byte {offset} and the {} behind it are not in it", buffer.len())));
        }
        let (header, trailer) = (&self.layout.header, &self.layout.trailer);
        if let Some((at, into)) = overlap(buffer, offset, 0, header.len() as u64) {
            into.copy_from_slice(&header[at as usize..][..into.len()]);
        }
        if let Some((at, into)) = overlap(buffer, offset, end, size) {
            into.copy_from_slice(&trailer[(at - end) as usize..][..into.len()]);
        }
        let Some((mut at, mut rest)) = overlap(buffer, offset, header.len() as u64, end) else { return Ok(()) };
        let offsets = &self.layout.offsets;
        while !rest.is_empty() {
            let frame = offsets.partition_point(|start| *start <= at) - 1;
            let last = at + rest.len() as u64;
            // As many whole frames as there are from here.
            let next = offsets.partition_point(|start| *start <= last) - 1;
            let is_whole = offsets[frame] == at && next > frame;
            let until = if is_whole { offsets[next] } else { offsets[frame + 1].min(last) };
            let (into, behind) = rest.split_at_mut((until - at) as usize);
            match is_whole {
                true => self.read_frames(frame, into)?,
                false => self.read_part(frame, (at - offsets[frame]) as usize, into)?,
            }
            (at, rest) = (until, behind);
        }
        Ok(())
    }

    fn is_remote(&self) -> bool {
        self.other.as_ref().map_or_else(|| self.set.is_remote(), |object| object.is_remote())
    }
}
