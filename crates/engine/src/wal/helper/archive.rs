//! The repository as the roles see it. It is opened for each piece of work, as a command that works alone would.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::get_role::{GetArchive, Got};
use super::push_role::PushArchive;
use super::{HelperSettings, Role};
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{CodecSpec, NoObserver};
use crate::terms::SourceName;
use crate::wal::{self, GetOutcome, GetRequest, PushRequest};

/// Where segments are pushed to.
pub(super) struct PushTarget {
    repo: String,
    request: PushRequest,
    /// It was there once: if it goes away, an unmounted disk say, a new one in its place would swallow WAL.
    was_there: AtomicBool,
}

impl PushTarget {
    /// What `settings` say; None if they are about something else.
    ///
    /// # Errors
    /// `Usage` if they name a codec that there is not.
    pub(super) fn of(settings: &HelperSettings) -> Result<Option<Self>> {
        let Role::Push { pgdata, compression, encoders, bundle_bytes_max } = &settings.role else { return Ok(None) };
        let compression: CodecSpec = compression.parse()?;
        let request = PushRequest {
            pgdata: pgdata.clone(),
            compression,
            encoders: *encoders,
            bundle_bytes_max: *bundle_bytes_max,
            ..PushRequest::new(settings.source.clone(), Vec::new())
        };
        Ok(Some(PushTarget { repo: settings.repo.clone(), request, was_there: AtomicBool::new(false) }))
    }
}

impl PushArchive for PushTarget {
    fn push(&self, files: &[PathBuf], encoders: u16) -> Result<Vec<Result<()>>> {
        let encoders = self.request.encoders.map_or(encoders, |most| most.min(encoders));
        let request = PushRequest { files: files.to_vec(), encoders: Some(encoders), ..self.request.clone() };
        let was_there = self.was_there.load(Relaxed);
        let repository =
            if was_there { Repository::open(&self.repo)? } else { Repository::open_or_create(&self.repo)? };
        self.was_there.store(true, Relaxed);
        let report = wal::push(&repository, &request, &NoObserver)?;
        if report.files.len() != files.len() {
            return Err(Error::new(ErrorKind::Bug, "archive files", "not every file has an outcome"));
        }
        Ok(report.files.into_iter().map(|file| file.outcome.map(drop)).collect())
    }
}

/// Where segments are fetched from.
pub(super) struct GetOrigin {
    repo: String,
    source: SourceName,
    system_identifier: Option<u64>,
    decoders_max: Option<u16>,
}

impl GetOrigin {
    /// What `settings` say; None if they are about something else.
    pub(super) fn of(settings: &HelperSettings) -> Option<Self> {
        let Role::Get { system_identifier, decoders } = settings.role else { return None };
        let (repo, source) = (settings.repo.clone(), settings.source.clone());
        Some(GetOrigin { repo, source, system_identifier, decoders_max: decoders })
    }
}

impl GetArchive for GetOrigin {
    fn get(&self, name: &str, to: &Path, decoders: u16) -> Result<Got> {
        let request = GetRequest {
            source: self.source.clone(),
            name: name.to_owned(),
            destination: to.to_owned(),
            system_identifier: self.system_identifier,
            decoders: Some(self.decoders_max.map_or(decoders, |most| most.min(decoders))),
        };
        Ok(match wal::get(&Repository::open(&self.repo)?, &request)? {
            GetOutcome::Delivered(report) if report.content_bytes < report.size_bytes => Got::Unfinished,
            GetOutcome::Delivered(_) => Got::Whole,
            GetOutcome::NotThere => Got::NotThere,
        })
    }
}
