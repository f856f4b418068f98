//! Stands in for verbs that the engine does not have yet.

use pagehaul_engine::backup::report::{BackupOutcome, BackupRequest};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::Observer;
use pagehaul_engine::restore::report::{RestoreReport, RestoreRequest};

pub(crate) fn backup(_: &BackupRequest, _: &dyn Observer) -> Result<BackupOutcome> {
    Err(Error::new(ErrorKind::Usage, "back up", "not yet").hint("wait"))
}

pub(crate) fn restore(_: &RestoreRequest, _: &dyn Observer) -> Result<RestoreReport> {
    Err(Error::new(ErrorKind::Usage, "restore", "not yet").hint("wait"))
}
