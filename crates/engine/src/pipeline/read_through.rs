//! Objects that are read from end to end, for what their readers find out on the way.

use std::sync::{Mutex, PoisonError};

use super::Observer;
use super::control::Progress;
use super::copy_run::{CopyRun, CopySettings, Transfer, TransferCheck, TransferTo, Transfers};
use crate::error::{Error, Result};
use crate::storage::ObjectReader;

/// Reads `objects`, several at the same time; the bytes go nowhere. `stopped` is the error if a signal asks to stop.
///
/// # Errors
/// The first of a reader; `stopped`.
pub fn read_through(
    objects: Vec<Box<dyn ObjectReader>>,
    settings: CopySettings,
    observer: &dyn Observer,
    stopped: fn() -> Error,
) -> Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    let progress = Progress::default();
    progress.set_total(objects.iter().map(|object| object.size_bytes()).sum());
    let list = ReadThrough(objects.into_iter().map(|object| Mutex::new(Some(object))).collect());
    CopyRun::new(settings, &progress, observer, stopped).run(&list)
}

struct ReadThrough(Vec<Mutex<Option<Box<dyn ObjectReader>>>>);

impl Transfers for ReadThrough {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn begin(&self, number: usize) -> Result<Option<Transfer>> {
        let object = self.0[number].lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(object.map(|from| Transfer { from, to: TransferTo::Nowhere, check: Box::new(Unchecked) }))
    }

    fn done(&self, _number: usize, _is_new: bool, _size_bytes: u64) -> Result<()> {
        Ok(())
    }

    fn failed(&self, _number: usize, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Of bytes that their reader checks.
pub struct Unchecked;

impl TransferCheck for Unchecked {
    fn take(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
