//! TEMPORARY until the WAL base is merged.
use super::recovery_plan::{RecoveryPlan, Wanted};
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::SourceName;
pub(super) fn plan(_: Wanted<'_>, _: &Repository, _: &SourceName) -> Result<(RecoveryPlan, u64)> {
    Err(Error::new(ErrorKind::Bug, "plan", "later"))
}
