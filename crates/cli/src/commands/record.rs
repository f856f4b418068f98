//! Keeps the figures of plain backups and restores in the history, so that drift shows. It never fails the run: the
//! backup is already complete, and says so, whatever becomes of its figures.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pagehaul_engine::backup::BackupReport;
use pagehaul_engine::error::Result;
use pagehaul_engine::restore::RestoreReport;
use pagehaul_engine::terms::{BackupKind, BackupLabel};
use pagehaul_tune::gather::machine_facts;
use pagehaul_tune::history::{History, HistoryRow, Origin, drift};

use crate::progress::Console;

/// How many earlier backups are looked at for drift.
const EARLIER_MAX: u32 = 20;

/// Where figures are kept, and what the last run was about.
pub(crate) struct Record {
    /// None keeps none.
    path: Option<PathBuf>,
    /// The label of the set that was written or read.
    label: RefCell<Option<String>>,
}

impl Record {
    /// The file that `--history` names, or the usual one; NUL is none.
    pub(crate) fn new(named: Option<&Path>) -> Self {
        let path = match named {
            Some(path) if path.as_os_str().eq_ignore_ascii_case("NUL") => None,
            Some(path) => Some(path.to_owned()),
            // Without a home directory there is no usual place.
            None => History::default_path().ok(),
        };
        Record { path, label: RefCell::new(None) }
    }

    /// The label of the set that was written or read, if the run came so far.
    pub(crate) fn label(&self) -> Option<String> {
        self.label.borrow().clone()
    }

    /// The file.
    ///
    /// # Errors
    /// `Configuration` if none is kept.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        match &self.path {
            Some(path) => Ok(path.clone()),
            None => History::default_path(),
        }
    }

    /// Tells the hooks which set the run is about; its figures are not kept.
    pub(super) fn set(&self, label: &BackupLabel) {
        self.label.replace(Some(label.to_string()));
    }

    /// Keeps a backup; says of a full one if it was slower or larger than those before.
    pub(super) fn backup(&self, report: &BackupReport, pgdata: Option<&Path>, console: &Console) {
        self.set(&report.label);
        self.keep(console, |history| {
            history.add(&HistoryRow::from_backup(
                report,
                &origin(&report.source.to_string(), pgdata),
                Timestamp::now(),
            ))?;
            if report.kind != BackupKind::Full {
                return Ok(());
            }
            let rows = history.full_backups(&report.source.to_string(), EARLIER_MAX)?;
            for change in drift(&rows).iter().filter(|drift| drift.is_notable()) {
                console.tell(&format!("drift: {change}"));
            }
            Ok(())
        });
    }

    /// Keeps a restore.
    pub(super) fn restore(&self, report: &RestoreReport, console: &Console) {
        self.set(&report.label);
        self.keep(console, |history| {
            let origin = origin(&report.source.to_string(), None);
            history.add(&HistoryRow::from_restore(report, &origin, Timestamp::now())).map(drop)
        });
    }

    fn keep(&self, console: &Console, add: impl FnOnce(&History) -> Result<()>) {
        let Some(path) = &self.path else { return };
        if let Err(error) = History::open(path).and_then(|history| add(&history)) {
            console.warn(&format!("note: this run is not in the history: {}\n", error.message()));
        }
    }
}

fn origin(source: &str, pgdata: Option<&Path>) -> Origin {
    Origin {
        source: source.to_owned(),
        pgdata: pgdata.map(|path| path.display().to_string()).unwrap_or_default(),
        system_identifier: 0,
        machine: machine_facts(""),
    }
}
