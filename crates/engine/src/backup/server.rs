//! The server's side of a backup: which data directory, which session, and whether they belong together.

use std::path::{Path, PathBuf};

use super::begun::{Begun, Origin};
use super::prior::refuse_set_back;
use super::report::BackupRequest;
use super::source_files::read_root;
use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::io;
use crate::pipeline::{Observer, beside};
use crate::source::postgres::client::Connection;
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::control_file::{ControlFile, read_control_file};
use crate::source::postgres::os_owner::owner_of;
use crate::source::postgres::server_facts::gather_for_backup;
use crate::source::postgres::session::{BackupSession, WalHold, WalProtection};
use crate::storage::open_storage;

/// A server in backup mode.
pub(super) struct Server {
    pub(super) session: BackupSession,
    pub(super) pgdata: PathBuf,
    pub(super) control_file: ControlFile,
}

impl Server {
    /// Refuses a server that was set back on its timeline.
    ///
    /// # Errors
    /// `Conflict`, naming a set; those of the storage and of the session.
    pub(super) fn refuse_set_back(&mut self, repository: &Repository, request: &BackupRequest) -> Result<()> {
        let (facts, timeline) = (self.session.facts().clone(), self.session.timeline());
        refuse_set_back(repository, request, &facts, timeline, || self.session.current_insert_lsn())
    }

    /// What a run begins with.
    ///
    /// # Errors
    /// `Source` if the data directory cannot be opened.
    pub(super) fn into_begun(self) -> Result<Begun> {
        let Server { session, pgdata, control_file } = self;
        Ok(Begun {
            root: read_root(&pgdata)?,
            facts: session.facts().clone(),
            start_lsn: session.start_lsn(),
            timeline: session.timeline(),
            origin: Origin {
                owner: owner_of(&pgdata),
                data_directory: pgdata,
                segment_blocks: control_file.segment_blocks,
                wal_block_size_bytes: control_file.wal_block_size_bytes,
            },
            session: Some(session),
            relations: None,
        })
    }
}

/// Begins backup mode, and checks that the data directory is that server's.
///
/// # Errors
/// `Source`; the server is not left in backup mode.
pub(super) fn begin(request: &BackupRequest, observer: &dyn Observer) -> Result<Server> {
    if let Some(pgdata) = &request.pgdata {
        check_is_data_directory(pgdata)?;
    }
    let settings = connect_settings(request)?;
    let label = format!("pagehaul backup of {}", request.source);
    let mut connection = Connection::connect(&settings)?;
    let check = || gather_for_backup(&mut connection);
    let (facts, wal_hold) = beside(check, || Ok(WalHold::begin(&settings)))?;
    let session = BackupSession::begin(connection, facts, wal_hold, &label, request.fast_checkpoint)?;
    let pgdata = data_directory(request, session.facts().data_directory.as_deref())?;
    check_is_data_directory(&pgdata)?;
    let (_, control_file) = read_control_file(&pgdata)?;
    if control_file.system_identifier != session.facts().system_identifier {
        let cause = format!(
            "its system identifier is {}, that of the server is {}",
            control_file.system_identifier,
            session.facts().system_identifier
        );
        return Err(not_this_server(&pgdata, &cause));
    }
    if let WalProtection::None { reason } = session.wal_protection() {
        observer
            .note(&format!("WAL is not held by a slot ({reason}); if the server removes some of it the backup fails"));
    }
    for file in &session.facts().outside_config_files {
        observer.note(&format!("{} lies outside the data directory and is not in the set", file.display()));
    }
    Ok(Server { session, pgdata, control_file })
}

/// The data directory, without beginning a backup.
///
/// # Errors
/// `Source` if there is no server to ask and none was named.
pub(super) fn find_data_directory(request: &BackupRequest) -> Result<PathBuf> {
    let pgdata = match &request.pgdata {
        Some(pgdata) => pgdata.clone(),
        None => {
            let mut connection = Connection::connect(&connect_settings(request)?)?;
            let action = "ask the server for its data directory";
            PathBuf::from(connection.query_value("SHOW data_directory").map_err(|error| error.into_error(action))?)
        }
    };
    check_is_data_directory(&pgdata)?;
    Ok(pgdata)
}

/// Refuses to write a backup into what is backed up: it would hold itself, and the source would be written to.
///
/// # Errors
/// `Usage`, naming both directories.
pub(super) fn refuse_overlaps(request: &BackupRequest) -> Result<()> {
    if request.remote {
        return Ok(());
    }
    // What is wrong with it is told when the backup begins.
    let Ok(pgdata) = find_data_directory(request) else { return Ok(()) };
    let links = std::fs::read_dir(pgdata.join("pg_tblspc")).into_iter().flatten().flatten().map(|link| link.path());
    let tablespaces = links.filter_map(|link| link.canonicalize().ok());
    let sources: Vec<PathBuf> = std::iter::once(pgdata).chain(tablespaces).collect();
    for target in
        std::iter::once(&request.repo).chain(&request.more_repos).chain(&request.stripe_to).chain(&request.parity_to)
    {
        // Without the rates of a throttle.
        let place = PathBuf::from(open_storage(target)?.describe());
        if let Some(source) = sources.iter().find(|source| place.is_absolute() && io::lies_in(&place, source)) {
            let action = format!("store a backup in {}", place.display());
            let cause = format!("it lies in {}, which is backed up", source.display());
            return Err(Error::new(ErrorKind::Usage, action, cause)
                .hint("give --repo and --stripe-to directories outside the data directory and its tablespaces"));
        }
    }
    Ok(())
}

/// How the server is reached.
///
/// # Errors
/// Those of the connection string and of `postmaster.pid`.
pub(super) fn connect_settings(request: &BackupRequest) -> Result<ConnectSettings> {
    let conninfo = request.connection.as_deref().unwrap_or("");
    match &request.pgdata {
        Some(pgdata) => ConnectSettings::parse_for_data_directory(conninfo, pgdata),
        None => ConnectSettings::parse(conninfo),
    }
}

fn check_is_data_directory(pgdata: &Path) -> Result<()> {
    match std::fs::metadata(pgdata.join("PG_VERSION")) {
        Ok(_) => Ok(()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            let action = format!("use data directory {}", pgdata.display());
            Err(Error::new(
                ErrorKind::Source,
                action,
                "there is no PG_VERSION in it: it is not a PostgreSQL data directory",
            )
            .hint("give --pgdata the directory that `SHOW data_directory` names"))
        }
        Err(cause) => Err(Error::new(ErrorKind::Source, format!("open data directory {}", pgdata.display()), cause)
            .hint("run pagehaul as the operating system user that owns the data directory, usually postgres")),
    }
}

/// The directory the user named, if it is the server's own, or the one that the server names.
fn data_directory(request: &BackupRequest, of_server: Option<&Path>) -> Result<PathBuf> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match (&request.pgdata, of_server) {
        // A copy of the directory has the same system identifier, so the place must be the same too.
        (Some(named), Some(of_server)) if real(named) != real(of_server) => {
            Err(not_this_server(named, &format!("the server runs on {}", of_server.display())))
        }
        (Some(named), _) => Ok(real(named)),
        (None, Some(of_server)) => Ok(real(of_server)),
        (None, None) => {
            Err(Error::new(ErrorKind::Source, "find the data directory", "this role may not ask the server for it")
                .hint("give --pgdata, or GRANT pg_read_all_settings TO the role"))
        }
    }
}

fn not_this_server(pgdata: &Path, cause: &str) -> Error {
    let action = format!("use data directory {}", pgdata.display());
    Error::new(ErrorKind::Source, action, format!("it is not the one of the server that answers: {cause}"))
        .hint("give --connection the host and port of the server that runs on --pgdata")
}
