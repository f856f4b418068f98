//! An object on its way to the store: parts, several under way at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use opendal::{Buffer, Metadata, Writer};

use super::parts::{Part, PartMemory};
use super::runtime::wait;
use super::target::PARTS_MAX;
use super::{Store, is_there};
use crate::error::{Error, ErrorKind, Result};
use crate::io::AlignedBytes;
use crate::storage::{HEAD_BYTES, HeadedBytes, ObjectWriter, StagedObject, append_each};

/// Which attempt wrote an object: the answer to the question whose it is when the store's answer was lost.
/// Letters only: Azure takes no `-` in such names, and some proxies no `_`.
const MARK: &str = "pagehaulupload";
/// How often an object is looked for that a store is perhaps about to show.
const ASKED_EVERY: Duration = Duration::from_millis(500);

/// The uploads of this process that have begun and not ended.
static UPLOADS: AtomicU64 = AtomicU64::new(0);

/// An object that appears when it is committed.
pub(super) struct Upload {
    store: Arc<Store>,
    name: String,
    mark: String,
    /// None until something is sent.
    writer: Option<Writer>,
    memory: Arc<PartMemory>,
    /// Of all parts but the last: not every store takes unlike ones.
    part_size: u64,
    part: Option<Part>,
    part_count: u64,
    length: u64,
}

/// What became of a name that was to be new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Ours,
    Others,
}

impl Upload {
    /// Begins it, of perhaps `largest_bytes`; nothing is sent before a part is full or the object is committed.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn begin(store: &Arc<Store>, name: &str, largest_bytes: u64) -> Result<Self> {
        let mark = mark()?;
        let part_size = store.target.part_size(largest_bytes);
        let (store, name, memory) = (Arc::clone(store), name.to_owned(), Arc::default());
        UPLOADS.fetch_add(1, SeqCst);
        Ok(Upload { store, name, mark, writer: None, memory, part_size, part: None, part_count: 0, length: 0 })
    }

    /// What sends the parts. It is made with the first of them: by then whatever is written at the same time has begun.
    fn writer(&mut self) -> Result<Writer> {
        if let Some(writer) = self.writer.take() {
            return Ok(writer);
        }
        let (target, uploads) = (&self.store.target, UPLOADS.load(SeqCst));
        let options = self.store.write_options(&self.mark, target.parallel(uploads, self.part_size));
        let made = wait(self.store.sender(self.part_size).writer_options(&self.name, options))?;
        made.map_err(|answer| self.store.error("begin", &self.name, &answer))
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let part = self.part()?;
            bytes = part.copy(bytes)?;
            if part.is_full() {
                self.send()?;
            }
        }
        Ok(())
    }

    /// As `append`, of bytes that stay where they are.
    fn share(&mut self, mut bytes: Bytes) -> Result<()> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let part = self.part()?;
            part.share(&mut bytes);
            if part.is_full() {
                self.send()?;
            }
        }
        Ok(())
    }

    /// The part that is being made.
    fn part(&mut self) -> Result<&mut Part> {
        let part = match self.part.take() {
            Some(part) => part,
            None => {
                self.check_part_count()?;
                Part::new(&self.memory, self.part_size)
            }
        };
        Ok(self.part.insert(part))
    }

    fn check_part_count(&self) -> Result<()> {
        if self.part_count == PARTS_MAX {
            let cause = format!("it has {} bytes, and the store takes no more than {PARTS_MAX} parts", self.length);
            return Err(Error::new(ErrorKind::Configuration, format!("go on with {}", self.name), cause)
                .hint("use more stripes, or larger parts with the option part-size of the target"));
        }
        Ok(())
    }

    /// Gives the part to the store; comes back when fewer than the parallel ones are under way.
    fn send(&mut self) -> Result<()> {
        let Some(part) = self.part.take() else { return Ok(()) };
        let writer = self.writer()?;
        self.part_count += 1;
        let sent = wait(self.writer.insert(writer).write(Buffer::from(part.into_pieces())))?;
        sent.map_err(|answer| self.store.error("write", &self.name, &answer))
    }

    /// Gives the object its name, if nobody else has it.
    fn commit(&mut self) -> Result<Named> {
        self.send()?;
        // Some stores know the condition for whole objects and forget it for parts: they overwrite only who is seconds late.
        if self.part_count > 1 && self.store.stat(&self.name)?.is_some() {
            return Ok(Named::Others);
        }
        let mut writer = self.writer()?;
        match wait(writer.close())? {
            Ok(_) => Ok(Named::Ours),
            Err(answer) => {
                // The store may have done what it could not tell; what it has not done must not stay.
                let patience = if self.part_count > 1 { self.store.target.timeout } else { Duration::ZERO };
                let named = self.store.whose(&self.name, &self.mark, self.length, &answer, patience);
                if !matches!(named, Ok(Named::Ours)) {
                    wait(writer.abort())?.ok();
                }
                named
            }
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        UPLOADS.fetch_sub(1, SeqCst);
        if let Some(mut writer) = self.writer.take()
            && self.part_count > 0
        {
            // What cannot be taken back the store's rule for unfinished uploads removes.
            wait(writer.abort()).map(drop).ok();
        }
    }
}

impl ObjectWriter for Upload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        Upload::append(self, bytes)
    }

    fn append_from(&mut self, memory: &mut AlignedBytes, pieces: &[HeadedBytes]) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        let Some(kept) = self.part()?.keep(memory, pieces)? else { return append_each(self, memory, pieces) };
        let heads: Vec<u8> = pieces.iter().flat_map(|piece| piece.head).collect();
        let mut heads = Bytes::from(heads);
        for piece in pieces {
            self.share(heads.split_to(HEAD_BYTES))?;
            self.share(kept.slice(piece.bytes.clone()))?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        match Upload::commit(&mut self)? {
            Named::Ours => Ok(self.length),
            Named::Others => Err(self.store.taken(&self.name)),
        }
    }
}

impl StagedObject for Upload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        Upload::append(self, bytes)
    }

    fn commit(mut self: Box<Self>) -> Result<bool> {
        Ok(Upload::commit(&mut self)? == Named::Ours)
    }
}

/// The mark of the attempt that wrote an object.
pub(super) fn mark_of(object: &Metadata) -> Option<&str> {
    object.user_metadata()?.get(MARK)
}

/// A mark that no other attempt has.
pub(super) fn mark() -> Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|cause| Error::new(ErrorKind::Configuration, "ask for random bytes", cause))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Store {
    /// How an object is written that must be new, by the attempt of that mark.
    pub(super) fn write_options(&self, mark: &str, parallel: usize) -> opendal::options::WriteOptions {
        opendal::options::WriteOptions {
            if_not_exists: true,
            user_metadata: Some(HashMap::from([(MARK.to_owned(), mark.to_owned())])),
            concurrent: parallel,
            ..Default::default()
        }
    }

    /// Whose object of that name is there, after `answer` to the attempt of that mark.
    ///
    /// For `patience` it is waited for: joining the parts may take a store longer than its answer is waited for, and what asks again
    /// meanwhile is told that there is no such upload.
    ///
    /// # Errors
    /// The one of the attempt, if there is no such object or the store cannot tell.
    pub(super) fn whose(
        &self,
        name: &str,
        mark: &str,
        length: u64,
        answer: &opendal::Error,
        patience: Duration,
    ) -> Result<Named> {
        let is_refused = answer.kind() == opendal::ErrorKind::ConditionNotMatch;
        let asked_until = Instant::now() + patience;
        loop {
            let found = wait(is_there(&self.operator, name))?.map_err(|_| self.error("write", name, answer))?;
            match found.as_ref().map(|found| (mark_of(found), found.content_length())) {
                Some((Some(found_mark), found_length)) if found_mark == mark && found_length == length => {
                    return Ok(Named::Ours);
                }
                Some((Some(_), _)) => return Ok(Named::Others),
                Some((None, _)) if is_refused => return Ok(Named::Others),
                _ if Instant::now() >= asked_until => return Err(self.error("write", name, answer)),
                _ => wait(async { tokio::time::sleep(ASKED_EVERY).await })?,
            }
        }
    }
}

/// Puts a small object at once; true if it is ours. The first one of a process asks for the same name again, to see
/// whether the store refuses.
///
/// # Errors
/// Those of the store; `Configuration` if it overwrites what it was asked to create.
pub(super) fn put(store: &Store, name: &str, bytes: &[u8]) -> Result<bool> {
    put_marked(store, name, bytes, &mark()?)
}

/// The same, with a mark by which the caller knows the object again.
///
/// # Errors
/// As [`put`].
pub(super) fn put_marked(store: &Store, name: &str, bytes: &[u8], own: &str) -> Result<bool> {
    let is_ours = put_once(store, name, bytes, own)?;
    if is_ours && !store.refuses_seconds.load(SeqCst) {
        if put_once(store, name, bytes, &mark()?)? {
            let action = format!("create {name} in {}", store.describe());
            let cause = "the store overwrites objects that it was asked to create only if they are absent";
            return Err(Error::new(ErrorKind::Configuration, action, cause)
                .hint("two backups could destroy each other there: use a store that obeys If-None-Match"));
        }
        store.refuses_seconds.store(true, SeqCst);
    }
    Ok(is_ours)
}

fn put_once(store: &Store, name: &str, bytes: &[u8], mark: &str) -> Result<bool> {
    match wait(store.operator.write_options(name, bytes.to_vec(), store.write_options(mark, 1)))? {
        Ok(_) => Ok(true),
        Err(answer) => Ok(store.whose(name, mark, bytes.len() as u64, &answer, Duration::ZERO)? == Named::Ours),
    }
}
