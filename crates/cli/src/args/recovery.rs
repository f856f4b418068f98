//! How far a restored server replays, as typed.

use clap::{Args, ValueEnum};
use jiff::tz::TimeZone;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::restore::{RecoveryTarget, RestoreRequest, TargetAction};

/// Flags that say where recovery ends.
#[derive(Args, Clone, Debug)]
pub(crate) struct PointArgs {
    /// How far the server replays when it is started [default: the WAL inside the backup, which needs no archive]
    #[arg(long = "type", value_name = "TYPE", value_enum, help_heading = "Recovery")]
    pub(crate) target_type: Option<TypedTarget>,

    /// Where to stop: a time, LSN, transaction id or restore point. A time without offset or zone is this machine's
    #[arg(long, value_name = "POINT", help_heading = "Recovery", allow_hyphen_values = true)]
    pub(crate) target: Option<String>,

    /// Along which timeline: latest is the newest in the archive, current the backup's own; N is decimal, 0x1F and
    /// 0000001F (eight digits, as in names of WAL files) are hexadecimal
    #[arg(long, value_name = "latest|current|N", default_value = "latest", help_heading = "Recovery")]
    pub(crate) target_timeline: String,

    /// Stop just before the transaction, record or moment that --target names, and not just after it
    #[arg(long, help_heading = "Recovery")]
    pub(crate) exclusive: bool,
}

/// Flags of `restore` that say where recovery ends, and what follows.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecoveryArgs {
    /// Where.
    #[command(flatten)]
    pub(crate) point: PointArgs,

    /// What the server does there: stay read-only until told to go on (tables that a transaction
    /// cut off there had locked, as by DROP TABLE, answer only after that), open for writing on a new timeline, or stop
    #[arg(long, value_name = "ACTION", value_enum, default_value = "promote", help_heading = "Recovery")]
    pub(crate) target_action: TypedAction,
}

/// Values of `--type`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TypedTarget {
    /// Up to a time, by the commit times in WAL
    Time,
    /// Up to a position in WAL
    Lsn,
    /// Up to the end of a transaction
    Xid,
    /// Up to a restore point (pg_create_restore_point)
    Name,
    /// Until the backup is consistent, and no further
    Immediate,
    /// All archived WAL
    Latest,
    /// A standby that replays the archive for ever
    Standby,
}

/// Values of `--target-action`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TypedAction {
    Pause,
    Promote,
    Shutdown,
}

impl RecoveryArgs {
    /// Puts it into the request.
    ///
    /// # Errors
    /// `Usage`, with examples of what is valid.
    pub(crate) fn apply(&self, request: &mut RestoreRequest) -> Result<()> {
        self.point.apply(request)?;
        request.target_action = match self.target_action {
            TypedAction::Pause => TargetAction::Pause,
            TypedAction::Promote => TargetAction::Promote,
            TypedAction::Shutdown => TargetAction::Shutdown,
        };
        Ok(())
    }
}

impl PointArgs {
    /// Puts it into the request.
    ///
    /// # Errors
    /// `Usage`, with examples of what is valid.
    pub(crate) fn apply(&self, request: &mut RestoreRequest) -> Result<()> {
        request.target = self.target()?;
        request.target_timeline = self.target_timeline.parse()?;
        request.exclude_target = self.exclusive;
        Ok(())
    }

    /// The target.
    ///
    /// # Errors
    /// `Usage`, with examples of what is valid.
    pub(crate) fn target(&self) -> Result<RecoveryTarget> {
        let kind = self.target_type.and_then(|kind| kind.to_possible_value());
        match (kind, &self.target) {
            (None, None) => Ok(RecoveryTarget::SetEnd),
            (None, Some(point)) => {
                Err(Error::new(ErrorKind::Usage, format!("use --target {point:?}"), "--type does not say what it is")
                    .hint("add --type time, lsn, xid or name"))
            }
            (Some(kind), point) => RecoveryTarget::parse(kind.get_name(), point.as_deref(), &TimeZone::system()),
        }
    }
}
