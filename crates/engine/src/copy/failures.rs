//! What could not be copied while all the rest was.

use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// Errors that are kept beside the first one.
const ATTACHED_MAX: usize = 8;

/// The first error, with a few later ones attached.
#[derive(Default)]
pub(super) struct Failures {
    first: Mutex<Option<Error>>,
}

impl Failures {
    /// Adds one.
    pub(super) fn note(&self, error: Error) {
        match &mut *self.first.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(first) if first.attached().len() < ATTACHED_MAX => first.attach(error),
            Some(_) => {}
            first @ None => *first = Some(error),
        }
    }

    /// The first one, if there is any.
    pub(super) fn into_first(self) -> Option<Error> {
        self.first.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
