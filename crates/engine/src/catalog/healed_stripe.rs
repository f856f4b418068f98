//! A stripe or parity stripe as it was written, read through its parity: every frame is checked as it is read, and what is
//! lost or damaged is rebuilt. Who reads it sees an object that is whole.

use std::sync::{Arc, Mutex, PoisonError};

use super::parity_set::{Layout, ParitySet};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::ObjectReader;

/// One member of a set with parity.
pub struct HealedStripe {
    set: Arc<ParitySet>,
    member: usize,
    layout: Layout,
    /// The last frame that was wanted in part.
    part: Mutex<Option<(usize, Vec<u8>)>>,
}

impl HealedStripe {
    /// The stripe, or behind the stripes the parity stripe, with this number.
    ///
    /// # Errors
    /// `Damage` if it is not known where its frames lie.
    pub fn new(set: &Arc<ParitySet>, member: usize) -> Result<Self> {
        let layout = set.layout(member)?;
        Ok(HealedStripe { set: Arc::clone(set), member, layout, part: Mutex::new(None) })
    }

    /// Looks at every byte of the member as it lies there, and tells what is wrong: the number of the frame, if it is one.
    ///
    /// # Errors
    /// Those of `tell`.
    pub fn check(&self, tell: &mut dyn FnMut(Option<u64>, &Error) -> Result<()>) -> Result<()> {
        match self.set.member(self.member) {
            Some(object) => self.check_object(object, tell),
            None => tell(None, &self.missing()),
        }
    }

    /// The same of an object that is meant to be this member.
    ///
    /// # Errors
    /// Those of `tell`, and those of a store that does not answer.
    pub fn check_object(
        &self,
        object: &dyn ObjectReader,
        tell: &mut dyn FnMut(Option<u64>, &Error) -> Result<()>,
    ) -> Result<()> {
        if object.size_bytes() != self.size_bytes() {
            tell(
                None,
                &self.damage(&format!("it has {} bytes and should have {}", object.size_bytes(), self.size_bytes())),
            )?;
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
                _ => tell(None, &self.damage(name))?,
            }
        }
        for (frame, place) in self.layout.offsets.windows(2).enumerate() {
            bytes.resize((place[1] - place[0]) as usize, 0);
            let read = object.read_at(&mut bytes, place[0]);
            match read.and_then(|()| self.set.check_frame(self.member, frame as u64, &bytes)) {
                Ok(()) => {}
                Err(error) if object.is_unanswered(&error) => return Err(error),
                Err(error) => tell(Some(frame as u64), &error)?,
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
        let start = offsets[first];
        let object = self.set.member(self.member);
        let is_read = object.is_some_and(|object| object.read_at(into, start).is_ok());
        let (mut frame, mut rest) = (first, into);
        while !rest.is_empty() {
            let (bytes, behind) = rest.split_at_mut((offsets[frame + 1] - offsets[frame]) as usize);
            let read = match object {
                Some(_) if is_read => Ok(()),
                Some(object) => object.read_at(bytes, offsets[frame]),
                None => Err(self.missing()),
            };
            let sequence = frame as u64;
            if let Err(error) = read.and_then(|()| self.set.check_frame(self.member, sequence, bytes)) {
                self.set.rebuild(self.member, sequence, &error, bytes)?;
            }
            (frame, rest) = (frame + 1, behind);
        }
        Ok(())
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
        self.set.is_remote()
    }
}
