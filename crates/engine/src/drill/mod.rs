//! A set tried out: restored into a scratch directory and started there in a sandbox.
//!
//! [`prove`] does it to know whether a set is worth anything and how long a recovery takes; [`extract_table`] to take
//! one table out of it. The restore itself is handed in, because no verb knows another one.

mod checks;
mod extract;
mod prove;
mod scratch;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use extract::{ExtractReport, ExtractRequest, TableName, extract_table};
pub use prove::{ProveReport, ProveRequest, prove};

use crate::catalog::{Repository, newest_set, read_manifest};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::pipeline::{Observer, pause};
use crate::source::postgres::control_file::read_control_file;
use crate::source::postgres::pg_install::PgInstall;
use crate::source::postgres::sandbox::{Sandbox, ServerState};
use crate::terms::{BackupLabel, SourceName};
use scratch::Scratch;

/// How often a starting server is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The superuser of sets that do not say who theirs is.
const DEFAULT_SUPERUSER: &str = "postgres";

/// Where a trial wants a set restored to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScratchTarget {
    /// A directory that does not exist yet.
    pub directory: PathBuf,
    /// Places of the tablespaces, as (old, new).
    pub tablespace_map: Vec<(PathBuf, PathBuf)>,
    /// Owner of the files, if it is not this process's user.
    pub owner: Option<String>,
}

/// What the caller's restore did.
#[derive(Clone, Debug, PartialEq)]
pub struct ScratchRestore {
    /// Bytes of all files.
    pub restored_bytes: u64,
    /// Wall time.
    pub elapsed_s: f64,
    /// How far the server replays, in words.
    pub recovery_target: String,
    /// Whether that is a point at which it stops, and not the end of the WAL there is.
    pub stops_at_point: bool,
    /// Whether replay has to fetch WAL over the network.
    pub needs_network: bool,
}

/// Restores the set to the target.
pub type Restorer<'a> = &'a mut dyn FnMut(&BackupLabel, &ScratchTarget) -> Result<ScratchRestore>;

/// What every trial is asked for.
#[derive(Clone, Debug)]
pub struct DrillRequest {
    /// Repository directory.
    pub repo: String,
    /// Whose backup; None if the repository has only one source.
    pub source: Option<SourceName>,
    /// Which set; None is the newest complete one.
    pub label: Option<BackupLabel>,
    /// Where scratch directories are made.
    pub scratch_dir: PathBuf,
    /// Directory of the server's programs; None finds them.
    pub pg_bin: Option<PathBuf>,
    /// A superuser of the cluster; None takes the one that the set names.
    pub superuser: Option<String>,
}

/// A set that is about to be tried out.
pub(crate) struct Drill {
    repository: Repository,
    manifest: Manifest,
    install: PgInstall,
    superuser: String,
    scratch: Scratch,
    notes: Vec<String>,
}

/// A set that was restored and started.
pub(crate) struct Started {
    sandbox: Sandbox,
    restore: ScratchRestore,
    replay_s: f64,
}

/// Why a set could not be restored and started.
pub(crate) enum DrillFailure {
    /// The set is at fault: the step, and what happened.
    Broken { step: &'static str, cause: String, restore: Option<ScratchRestore>, replay_s: f64 },
    /// Something else is.
    Failed(Error),
}

impl From<Error> for DrillFailure {
    fn from(error: Error) -> Self {
        DrillFailure::Failed(error)
    }
}

impl Drill {
    /// Finds the set and the server's programs, and makes the scratch directory.
    ///
    /// # Errors
    /// `Repository`, `Damage`, `Configuration` if there is no PostgreSQL of the set's major version here, `Target`.
    pub(crate) fn prepare(request: &DrillRequest) -> Result<Self> {
        let repository = Repository::open(&request.repo)?;
        let source = repository.source_or_only(request.source.as_ref())?;
        let label = match &request.label {
            Some(label) => label.clone(),
            None => newest_set(&repository, &source)?,
        };
        let manifest = read_manifest(&repository, &source, &label)?;
        let install = find_install(request.pg_bin.as_deref(), manifest.postgres.version_num / 10_000)?;
        let named = request.superuser.clone().or_else(|| manifest.postgres.bootstrap_role.clone());
        let mut notes = Vec::new();
        let scratch = Scratch::make(&request.scratch_dir, &mut notes)?;
        let superuser = named.unwrap_or_else(|| DEFAULT_SUPERUSER.to_owned());
        Ok(Drill { repository, manifest, install, superuser, scratch, notes })
    }

    /// Restores the set, starts it with `further` settings and waits until it takes connections for writing.
    pub(crate) fn start(
        &mut self,
        restorer: Restorer<'_>,
        further: &[(&str, &str)],
        observer: &dyn Observer,
    ) -> std::result::Result<Started, DrillFailure> {
        let target = self.scratch.target(&self.manifest)?;
        let restore = match restorer(&self.manifest.label, &target) {
            Ok(restore) => restore,
            Err(error) if error.kind() == ErrorKind::Damage => {
                let cause = error.message();
                return Err(DrillFailure::Broken { step: "restore", cause, restore: None, replay_s: 0.0 });
            }
            Err(error) => return Err(error.into()),
        };
        observer.phase("start the restored server in its sandbox and replay WAL");
        let started = Instant::now();
        let network = restore.needs_network;
        let private = self.scratch.private();
        let mut sandbox = Sandbox::new(&self.install, &target.directory, &private, &self.superuser, network)?;
        if !sandbox.is_without_network() {
            let why = if network { "WAL comes over it" } else { "the kernel does not let us take it away" };
            self.notes.push(format!("the server had a network, though no port: {why}"));
        }
        let (libraries, left_out) = sandbox.preload_libraries();
        if !left_out.is_empty() {
            self.notes.push(format!("libraries that were not loaded: {}", left_out.join(", ")));
        }
        let (_, control_file) = read_control_file(&target.directory)?;
        sandbox.launch(&control_file, &libraries, further)?;
        loop {
            match sandbox.state()? {
                ServerState::Ready => break,
                ServerState::Starting => pause(POLL_INTERVAL),
                ServerState::Ended(status) => {
                    let cause = format!("the server ended ({status}); end of its log:\n{}", sandbox.log_tail());
                    return Err(start_failure(&sandbox.log(), cause, restore, started.elapsed().as_secs_f64()));
                }
            }
            if observer.interrupted() {
                return Err(interrupted().into());
            }
        }
        Ok(Started { sandbox, restore, replay_s: started.elapsed().as_secs_f64() })
    }
}

/// A server that got as far as the cluster's state speaks for or against the set; one that did not, about this machine.
fn start_failure(log: &str, cause: String, restore: ScratchRestore, replay_s: f64) -> DrillFailure {
    // The first words of recovery (src/backend/access/transam/xlogrecovery.c), and what comes when the files it begins
    // with do not read.
    const ABOUT_THE_SET: [&str; 7] = [
        "database system was ",
        "PANIC:",
        "starting backup recovery",
        "checkpoint record",
        "pg_control",
        "backup_label",
        "control file",
    ];
    if ABOUT_THE_SET.iter().any(|words| log.contains(words)) {
        return DrillFailure::Broken { step: "start and replay", cause, restore: Some(restore), replay_s };
    }
    let error = Error::new(ErrorKind::Configuration, "start the restored server", cause);
    DrillFailure::Failed(error.hint("this says nothing about the backup: mend what the log names and try again"))
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "finish the trial", "a signal asked to stop")
        .hint("the scratch directory is removed; nothing was recorded")
}

/// The programs of version `major`: those in `explicit`, or else where PostgreSQL usually is.
fn find_install(explicit: Option<&Path>, major: u32) -> Result<PgInstall> {
    let Some(bin) = explicit else {
        return PgInstall::find_major(major).map_err(|error| error.more_hint("--pg-bin names that directory"));
    };
    let install = PgInstall::at(bin)?;
    if install.major() == major {
        return Ok(install);
    }
    let cause = format!("they are of version {}, and the backup is of version {major}", install.major());
    Err(Error::new(ErrorKind::Configuration, format!("use the programs in {}", bin.display()), cause)
        .hint("give --pg-bin the programs of the same major version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_never_looked_at_the_cluster_does_not_speak_against_it() {
        let restore = || ScratchRestore {
            restored_bytes: 1,
            elapsed_s: 1.0,
            recovery_target: String::new(),
            stops_at_point: false,
            needs_network: false,
        };
        let of = |log: &str| matches!(start_failure(log, String::new(), restore(), 1.0), DrillFailure::Broken { .. });
        assert!(of(
            "LOG:  database system was interrupted; last known up\nPANIC:  could not locate a valid checkpoint"
        ));
        assert!(of("FATAL:  WAL ends before end of online backup\nLOG:  database system was shut down"));
        assert!(!of("FATAL:  could not create shared memory segment: No space left on device"));
        assert!(!of("FATAL:  could not access file \"x\": No such file or directory"));
    }
}
