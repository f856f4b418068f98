//! The end of a backup on the server, as soon as all files have been read: beside what there is still to encode and write.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::lost_files::{LostFiles, Search};
use super::run::session_gone;
use crate::error::Result;
use crate::pipeline::{Observer, beside};
use crate::source::postgres::catalog_files::catalog_moment;
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::control_file::{ControlFile, read_control_file};
use crate::source::postgres::session::{BackupSession, StopResult};

/// What it takes to end a backup from another thread.
pub(super) struct ServerEnd<'a> {
    settings: ConnectSettings,
    system_identifier: u64,
    data_directory: &'a Path,
    observer: &'a dyn Observer,
    /// Taken by the one call that there is.
    search: Mutex<Option<Search<'a>>>,
    ended: Mutex<Option<Ended>>,
}

/// What the end gave.
pub(super) struct Ended {
    pub(super) control_bytes: Vec<u8>,
    pub(super) control_file: ControlFile,
    pub(super) stop: StopResult,
    pub(super) lost: (LostFiles, Vec<String>),
}

impl<'a> ServerEnd<'a> {
    /// Of a backup of `data_directory`; `search` is of the same server.
    pub(super) fn new(
        settings: ConnectSettings,
        system_identifier: u64,
        data_directory: &'a Path,
        search: Search<'a>,
    ) -> Self {
        let (observer, search) = (search.observer, Mutex::new(Some(search)));
        ServerEnd { settings, system_identifier, data_directory, observer, search, ended: Mutex::default() }
    }

    /// Reads pg_control and ends backup mode. While the server changes to another segment of WAL, its catalogs are asked for files
    /// that should be there and are not.
    ///
    /// # Errors
    /// `Source` if the server or pg_control does not give what is needed; `Interrupted`.
    pub(super) fn run(&self, session: &Mutex<Option<BackupSession>>) -> Result<()> {
        self.observer.phase("end the backup on the server, ask the catalogs for lost files");
        let (control_bytes, control_file) = read_control_file(self.data_directory)?;
        let mut session = taken(session).ok_or_else(session_gone)?;
        let search = taken(&self.search).ok_or_else(session_gone)?;
        let mut first = Some(session.databases()?);
        let mut databases = || match first.take() {
            Some(databases) => Ok(databases),
            // The session has ended by then.
            None => catalog_moment(&self.settings, self.system_identifier).map(|now| now.databases),
        };
        let (stop, lost) = beside(|| session.end(), || search.run(&mut databases))?;
        let ended = Ended { control_bytes, control_file, stop, lost };
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        Ok(())
    }

    /// What came of it.
    ///
    /// # Errors
    /// `Bug` if it has not run.
    pub(super) fn into_ended(self) -> Result<Ended> {
        self.ended.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or_else(session_gone)
    }
}

fn taken<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}
