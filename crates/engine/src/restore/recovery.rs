//! What a restore prepares for the recovery that follows it: the set, and the settings.

use std::path::{Path, PathBuf};

use super::archive_records::system_identifier_of;
use super::end_of_set::{EndOfSet, check_action};
use super::recovery_plan::{RecoveryPlan, Wanted};
use super::recovery_settings::{RecoverySettings, as_the_server_runs_it, end_command, restore_command};
use super::recovery_target::{RecoveryTarget, TargetAction, TargetTimeline};
use super::report::{RecoveryReport, RestoreRequest};
use crate::catalog::recovery_mark::RecoveryMark;
use crate::catalog::{Repository, newest_set, read_manifest};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::pipeline::Observer;
use crate::source::postgres::os_owner::run_shell_as;
use crate::terms::{BackupLabel, SourceName};

/// Which set is restored, and what the server is told.
pub(super) struct Recovery {
    pub(super) label: BackupLabel,
    /// None: the server replays the set's own WAL to its end, as after a crash.
    pub(super) settings: Option<RecoverySettings>,
    /// Tells expire that the set and the WAL behind it are wanted until recovery has ended.
    mark: Option<RecoveryMark>,
    pub(super) stops_in: Option<String>,
    pub(super) notes: Vec<String>,
}

/// Chooses the set, and checks that the recovery target can be reached from it.
///
/// # Errors
/// `Usage` for settings that do not go together; `Repository` if there is no such set, or the target cannot be reached;
/// those of the store.
pub(super) fn prepare(request: &RestoreRequest, repository: &Repository, source: &SourceName) -> Result<Recovery> {
    check_request(request)?;
    if request.target.needs_archive() {
        return prepare_from_archive(request, repository, source);
    }
    let label = match &request.label {
        Some(label) => label.clone(),
        None => newest_set(repository, source)?,
    };
    let settings = match request.target {
        RecoveryTarget::Immediate => Some(immediate_settings(request, repository, source, &label)?),
        _ => None,
    };
    Ok(Recovery { label, settings, mark: None, stops_in: None, notes: Vec::new() })
}

/// The WAL lies in the set, and no other is wanted; but a server that is promoted takes a timeline of which no history is
/// archived, and must see those that are.
fn immediate_settings(
    request: &RestoreRequest,
    repository: &Repository,
    source: &SourceName,
    label: &BackupLabel,
) -> Result<RecoverySettings> {
    let system_identifier = system_identifier_of(repository, source, label)?;
    let (program, repo) = (own_program(request)?, repository.storage().describe());
    let key_flags = key_flags(repository, source, label)?;
    Ok(RecoverySettings {
        target: request.target.clone(),
        action: request.target_action,
        is_inclusive: true,
        timeline: TargetTimeline::Current,
        restore_command: restore_command(&program, &repo, source, system_identifier, &request.target, &key_flags)?,
        end_command: String::new(),
        stops_before_gap: false,
    })
}

/// What `wal get` needs to read the archive. WAL that follows an encrypted set must be encrypted: anything else was put
/// there by somebody who has no key.
fn key_flags(repository: &Repository, source: &SourceName, label: &BackupLabel) -> Result<Vec<String>> {
    let mut flags = repository.keys().sources().reading_flags();
    if read_manifest(repository, source, label)?.encryption.is_some() {
        flags.push("--require-encryption".to_owned());
    }
    Ok(flags)
}

fn prepare_from_archive(request: &RestoreRequest, repository: &Repository, source: &SourceName) -> Result<Recovery> {
    let wanted = Wanted {
        target: &request.target,
        timeline: request.target_timeline,
        is_inclusive: !request.exclude_target,
        label: request.label.as_ref(),
    };
    let (plan, system_identifier): (RecoveryPlan, u64) = super::archive_records::plan(wanted, repository, source)?;
    let program = own_program(request)?;
    let repo = repository.storage().describe();
    // A standby replays for ever.
    let mark = match request.target {
        RecoveryTarget::Standby => None,
        _ => Some(RecoveryMark::new(jiff::Timestamp::now())?),
    };
    let end_command = mark.as_ref().map(|mark| end_command(&program, &repo, source, &plan.label, mark)).transpose()?;
    let key_flags = key_flags(repository, source, &plan.label)?;
    let settings = RecoverySettings {
        target: request.target.clone(),
        action: request.target_action,
        is_inclusive: !request.exclude_target,
        timeline: plan.timeline,
        restore_command: restore_command(&program, &repo, source, system_identifier, &request.target, &key_flags)?,
        end_command: end_command.unwrap_or_default(),
        stops_before_gap: plan.stops_before_gap,
    };
    Ok(Recovery {
        label: plan.label,
        settings: Some(settings),
        mark,
        stops_in: plan.stops_in.map(|name| name.to_string()),
        notes: plan.notes,
    })
}

/// What cannot be meant is refused, because the server would pass over it in silence.
fn check_request(request: &RestoreRequest) -> Result<()> {
    let RestoreRequest { target, target_timeline, target_action, exclude_target, .. } = request;
    let refuse = |what: &str, cause: &str, hint: &str| Err(Error::new(ErrorKind::Usage, what, cause).hint(hint));
    if *exclude_target && !target.may_exclude() {
        let cause = format!("type {} stops at no transaction that could be left out", target.kind());
        return refuse("use --exclusive", &cause, "it goes with --type time, lsn and xid");
    }
    let has_stop = target.value().is_some() || *target == RecoveryTarget::Immediate;
    if *target_action != TargetAction::Promote && !has_stop {
        let cause = format!("type {} has no point at which the server could do it", target.kind());
        return refuse("use --target-action", &cause, "it goes with --type immediate, time, lsn, xid and name");
    }
    if *target_timeline != TargetTimeline::Latest && !target.needs_archive() {
        let cause = "recovery that ends with the set stays on the set's timeline";
        return refuse("use --target-timeline", cause, "it goes with --type latest, time, lsn, xid, name and standby");
    }
    Ok(())
}

/// The program that the restored server is to call.
fn own_program(request: &RestoreRequest) -> Result<PathBuf> {
    match &request.wal_get_program {
        Some(program) => Ok(program.clone()),
        None => std::env::current_exe()
            .map_err(|cause| Error::new(ErrorKind::Configuration, "find the path of this program", cause)),
    }
}

/// The mark of a recovery, which is taken away again if the restore fails.
pub(super) struct Marked<'a> {
    repository: &'a Repository,
    source: &'a SourceName,
    label: &'a BackupLabel,
    mark: Option<&'a RecoveryMark>,
}

impl Marked<'_> {
    /// The server's recovery takes it away.
    pub(super) fn keep(mut self) {
        self.mark = None;
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            // One that stays counts for some days and no longer.
            mark.remove(self.repository, self.source, self.label).ok();
        }
    }
}

/// A file that no archive has.
const NO_SUCH_FILE: &str = "FFFFFFFF.history";

impl Recovery {
    /// Leaves the mark of this recovery in its set, where there is to be one and the repository can be written.
    pub(super) fn mark<'a>(
        &'a self,
        repository: &'a Repository,
        source: &'a SourceName,
        target_directory: &Path,
        observer: &dyn Observer,
    ) -> Marked<'a> {
        let mut marked = Marked { repository, source, label: &self.label, mark: self.mark.as_ref() };
        let put =
            |mark: &RecoveryMark| mark.put(repository, source, &self.label, &target_directory.display().to_string());
        if let Some(Err(error)) = marked.mark.map(put) {
            observer.note(&format!(
                "{}: stop `pagehaul expire` until recovery has ended, because it cannot be told",
                error.message()
            ));
            marked.mark = None;
        }
        marked
    }

    /// Whether the server can do what it is told to: at the end of this set, and with its restore command.
    ///
    /// # Errors
    /// `Usage` and `Configuration` if it cannot.
    pub(super) fn check(&self, request: &RestoreRequest, manifest: &Manifest, owner: Option<(u32, u32)>) -> Result<()> {
        self.check_set(manifest)?;
        self.try_command(request, owner)
    }

    fn check_set(&self, manifest: &Manifest) -> Result<()> {
        match &self.settings {
            Some(settings) if settings.target == RecoveryTarget::Immediate => {
                check_action(&manifest.postgres, settings.action)
            }
            _ => Ok(()),
        }
    }

    /// Where the server stops if it stops at the end of the set, whose files are in `directory`.
    ///
    /// # Errors
    /// `Target` if a segment does not read there.
    pub(super) fn end_of_set(&self, manifest: &Manifest, directory: &Path) -> Result<EndOfSet> {
        match &self.settings {
            Some(settings) if settings.target == RecoveryTarget::Immediate => {
                EndOfSet::find(&manifest.postgres, &directory.join("pg_wal"))
            }
            _ => Ok(EndOfSet::LastOfItsWal),
        }
    }

    /// Runs the restore command as the server will, for a file that is surely not in the archive: it must find that out.
    ///
    /// # Errors
    /// `Configuration` if it cannot: recovery would stop at its first file.
    fn try_command(&self, request: &RestoreRequest, owner: Option<(u32, u32)>) -> Result<()> {
        let Some(settings) = &self.settings else { return Ok(()) };
        // Without a named program this one may be any that uses the engine.
        let Some(program) = &request.wal_get_program else { return Ok(()) };
        let command = as_the_server_runs_it(&settings.restore_command, NO_SUCH_FILE, "/nonexistent/file");
        let cause = match run_shell_as(owner, &command) {
            Ok(output) if output.status.code() == Some(1) => return Ok(()),
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr);
                format!("{}: {}", output.status, words.lines().next().unwrap_or("it says nothing"))
            }
            Err(cause) => cause.to_string(),
        };
        Err(Error::new(ErrorKind::Configuration, "fetch WAL as the restored server will", cause).hint(format!(
            "the user who runs the server must be able to run {} and to read {}; nothing was written",
            program.display(),
            request.repo
        )))
    }

    /// For the report; none without recovery settings.
    pub(super) fn report(&self) -> Option<RecoveryReport> {
        let settings = self.settings.as_ref()?;
        let assumed_time_zone = match &settings.target {
            RecoveryTarget::Time(time) => time.assumed_zone.clone(),
            _ => None,
        };
        Some(RecoveryReport {
            target: settings.target.value(),
            assumed_time_zone,
            inclusive: settings.is_inclusive,
            timeline: match settings.timeline {
                TargetTimeline::Number(timeline) => Some(timeline),
                TargetTimeline::Latest | TargetTimeline::Current => None,
            },
            action: settings.action,
            stops_in: self.stops_in.clone(),
            restore_command: Some(settings.restore_command.clone()),
        })
    }
}
