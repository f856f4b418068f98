//! Verb: a full backup.

mod report;

pub use report::{BackupOutcome, BackupPlan, BackupReport, BackupRequest, BackupStages, StripeReport};
