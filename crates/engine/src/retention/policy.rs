//! The rules by which sets are kept.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

/// From where on archived WAL is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepWal {
    /// From the oldest set on that is kept for whatever reason.
    All,
    /// From the oldest set on that is kept by count, window or minimum. Older sets, kept by period or pin, have the WAL
    /// inside them, which takes them to their own end and no further.
    #[default]
    Window,
    /// From the newest set on.
    Sets,
}

/// Which sets are kept: each that one of the rules wants, and each that one of those needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RetentionPolicy {
    /// So many full sets, the newest, each with the sets that are built on it.
    pub keep_full: Option<u32>,
    /// Every moment of so long before now stays recoverable.
    #[serde(skip)]
    pub keep_window: Option<SignedDuration>,
    /// The newest set of each of so many days that have one, in UTC.
    pub keep_daily: u32,
    /// The same of ISO weeks.
    pub keep_weekly: u32,
    /// The same of months.
    pub keep_monthly: u32,
    /// The same of years.
    pub keep_yearly: u32,
    /// Never fewer restorable full sets than this, whatever the other rules say; at least 1.
    pub min_sets: u32,
    /// From where on WAL is kept.
    pub keep_wal: KeepWal,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        RetentionPolicy {
            keep_full: None,
            keep_window: None,
            keep_daily: 0,
            keep_weekly: 0,
            keep_monthly: 0,
            keep_yearly: 0,
            min_sets: 1,
            keep_wal: KeepWal::default(),
        }
    }
}

impl RetentionPolicy {
    /// Whether there is any rule: without one nothing may ever go.
    pub fn has_rule(&self) -> bool {
        self.keep_full.is_some()
            || self.keep_window.is_some()
            || [self.keep_daily, self.keep_weekly, self.keep_monthly, self.keep_yearly].iter().any(|count| *count > 0)
    }

    /// Refuses rules that would keep nothing, or that say nothing.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, cause: &str, hint: &str| {
            Err(Error::new(ErrorKind::Usage, format!("use {what}"), cause).hint(hint))
        };
        if !self.has_rule() {
            return refuse(
                "the retention rules",
                "there are none",
                "say what to keep, such as --keep-full 4, --keep-window 14d or --keep-daily 7; nothing goes without a rule",
            );
        }
        if self.min_sets == 0 {
            return refuse(
                "--min-sets 0",
                "out of range",
                "one restorable set always stays: --min-sets may be 1 or more",
            );
        }
        if self.keep_full == Some(0) {
            return refuse("--keep-full 0", "out of range", "--keep-full may be 1 or more");
        }
        if self.keep_window.is_some_and(|window| window <= SignedDuration::ZERO) {
            return refuse("--keep-window", "it is not longer than nothing", "--keep-window may be 12h, 14d, 8w");
        }
        if self.keep_window.is_some() && self.keep_wal == KeepWal::Sets {
            return refuse(
                "--keep-wal sets with --keep-window",
                "moments between two backups need the WAL between them",
                "leave out one of them",
            );
        }
        Ok(())
    }

    /// Where the window begins, for an expire at `at`.
    pub(super) fn window_start(&self, at: Timestamp) -> Option<Timestamp> {
        // A window longer than time itself begins when time does.
        self.keep_window.map(|window| at.checked_sub(window).unwrap_or(Timestamp::MIN))
    }
}
