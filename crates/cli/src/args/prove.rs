//! `pagehaul prove` as typed, and what it means.

use std::path::PathBuf;

use clap::Args;
use pagehaul_engine::drill::{DrillRequest, ProveRequest, ScratchTarget};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::restore::{ArchiveMode, RecoveryTarget, RestoreRequest};
use pagehaul_engine::terms::BackupLabel;

use super::recovery::PointArgs;
use super::shared::{BoundArgs, DecodeArgs, SetArgs};

/// Flags of `prove`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProveArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Every complete backup that was never tried out, oldest first, instead of one
    #[arg(long, conflicts_with_all = ["set", "target_type"], help_heading = "From")]
    pub(crate) all_unproven: bool,

    /// How far.
    #[command(flatten)]
    pub(crate) point: PointArgs,

    /// Where it is done.
    #[command(flatten)]
    pub(crate) scratch: ScratchArgs,

    /// Query that must give a row which is neither NULL nor false, such as 'SELECT count(*) > 0 FROM orders'; may be
    /// given several times
    #[arg(long, value_name = "SQL", help_heading = "Checks")]
    pub(crate) query: Vec<String>,

    /// Database that the queries run in
    #[arg(long, value_name = "NAME", default_value = "postgres", help_heading = "Checks")]
    pub(crate) query_database: String,

    /// Print the outcome as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Where a backup is restored to scratch, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScratchArgs {
    /// Directory to make the scratch copy in; it is removed at the end
    #[arg(long, value_name = "DIR", default_value = "/var/tmp", help_heading = "Where")]
    pub(crate) scratch_dir: PathBuf,

    /// Directory of PostgreSQL's programs of the backup's major version [default: found in PATH and
    /// /usr/lib/postgresql]
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub(crate) pg_bin: Option<PathBuf>,

    /// A superuser of the cluster, for backups that do not name theirs [default: the one that initdb made]
    #[arg(long, value_name = "ROLE", help_heading = "Where")]
    pub(crate) superuser: Option<String>,

    /// Threads.
    #[command(flatten)]
    pub(crate) decode: DecodeArgs,

    /// Bounds.
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,
}

impl ScratchArgs {
    /// What the trial is asked for; `label` is the set, None the newest.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn drill(&self, from: &SetArgs, label: Option<BackupLabel>) -> Result<DrillRequest> {
        Ok(DrillRequest {
            repo: from.repo.clone(),
            source: from.source()?,
            label,
            scratch_dir: self.scratch_dir.clone(),
            pg_bin: self.pg_bin.clone(),
            superuser: self.superuser.clone(),
        })
    }

    /// The restore that the trial makes.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn restore(
        &self,
        from: &SetArgs,
        label: Option<&BackupLabel>,
        to: &ScratchTarget,
    ) -> Result<RestoreRequest> {
        Ok(RestoreRequest {
            source: from.source()?,
            stripe_from: from.stripe_from.clone(),
            label: label.cloned(),
            tablespace_map: to.tablespace_map.clone(),
            archive_mode: ArchiveMode::Off,
            owner: to.owner.clone(),
            readers: self.decode.readers,
            decoders: self.decode.decoders,
            max_memory_bytes: self.bounds.max_memory_bytes()?,
            max_rate_bytes_per_s: self.bounds.max_rate_bytes_per_s()?,
            ..RestoreRequest::new(from.repo.clone(), &to.directory)
        })
    }
}

impl ProveArgs {
    /// The restore that the trial makes: of this set, or, where none is named, of the one that the target needs.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn restore(&self, label: Option<&BackupLabel>, to: &ScratchTarget) -> Result<RestoreRequest> {
        let mut request = self.scratch.restore(&self.from, label, to)?;
        self.point.apply(&mut request)?;
        if request.target == RecoveryTarget::Standby {
            return Err(Error::new(ErrorKind::Usage, "use --type standby", "a standby's recovery never ends")
                .hint("--type latest replays all archived WAL"));
        }
        request.wal_get_program = std::env::current_exe().ok();
        Ok(request)
    }

    /// What was typed, as the engine takes it; `label` is the set, None the newest.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self, label: Option<BackupLabel>) -> Result<ProveRequest> {
        Ok(ProveRequest {
            drill: self.scratch.drill(&self.from, label)?,
            queries: self.query.clone(),
            query_database: self.query_database.clone(),
        })
    }
}
