//! Verb: a restore.

mod report;

pub use report::{ArchiveMode, RecoveryTarget, RestoreReport, RestoreRequest, RestoreStages, SpaceNeed, TargetAction};
