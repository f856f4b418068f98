//! The set that an incremental or differential backup is compared with: which one, whether it may be, and its leases.

use super::protected::protect_priors;
use super::report::BackupRequest;
use super::repositories;
use crate::catalog::encryption_mark::refuse_clear_of;
use crate::catalog::reader_lease::{ReaderLease, hold};
use crate::catalog::{OpenSet, Repository, SetState, list_sets, open_set};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::limits::PRIOR_COUNT_MAX;
use crate::source::postgres::server_facts::ServerFacts;
use crate::source::postgres::wal_summary::WalStretch;
use crate::terms::{BackupKind, BackupLabel, Lsn, TimelineHistory, TimelineId};

/// Where the backup that looks for a prior begins.
pub(super) struct Here<'a> {
    pub(super) facts: &'a ServerFacts,
    pub(super) timeline: TimelineId,
    /// Where that timeline comes from, if it could be found out.
    pub(super) history: &'a Result<TimelineHistory>,
    /// Where the backup starts, or a position before that.
    pub(super) start_lsn: Lsn,
}

/// A prior set that is held, and opened.
pub(super) struct Prior<'a> {
    pub(super) set: OpenSet,
    /// The WAL from its start to the start of this backup.
    pub(super) wal: Vec<WalStretch>,
    _leases: ReaderLease<'a>,
}

/// What kind of backup it will be.
pub(super) struct Choice<'a> {
    pub(super) kind: BackupKind,
    pub(super) prior: Option<Prior<'a>>,
    pub(super) notes: Vec<String>,
}

/// Refuses a primary that is behind a set of its own timeline: it was set back without a timeline of its own, and nothing
/// would tell its sets and its WAL from those of the history that it left. `wal_end` asks where its WAL ends now.
///
/// # Errors
/// `Conflict`, naming the set; those of the storage and of `wal_end`.
pub(super) fn refuse_set_back(
    repository: &Repository,
    request: &BackupRequest,
    facts: &ServerFacts,
    timeline: TimelineId,
    wal_end: impl FnOnce() -> Result<Lsn>,
) -> Result<()> {
    if facts.is_standby() {
        // It may be behind its primary's sets.
        return Ok(());
    }
    let system_identifier = facts.system_identifier.to_string();
    let sets = list_sets(repository, &request.source)?;
    // Asked after the listing, as another backup may have ended since this one began.
    let now = wal_end()?;
    for set in sets {
        let SetState::Complete(manifest) = set.state else { continue };
        let postgres = &manifest.postgres;
        if postgres.system_identifier == system_identifier && postgres.timeline == timeline && postgres.stop_lsn > now {
            let action = format!("back up {}", request.source);
            let cause = format!(
                "set {} ends at {} on timeline {timeline}, and the server is at {now}: it was set back on its timeline",
                manifest.label, postgres.stop_lsn
            );
            return Err(Error::new(ErrorKind::Conflict, action, cause).hint(
                "give this history a name of its own (pagehaul backup OTHERNAME), so that its sets and WAL are not mixed up \
                 with those that it left; a restore with --type gives the server a timeline of its own",
            ));
        }
    }
    Ok(())
}

/// Finds the prior that `request.kind` asks for; without one a full backup is made, and a note says so loudly.
///
/// # Errors
/// `Repository` if there is no prior and `request.no_full` is set; `Damage` if the prior's stripes cannot be used; those
/// of the storage.
pub(super) fn choose<'a>(repository: &'a Repository, request: &BackupRequest, here: &Here<'_>) -> Result<Choice<'a>> {
    let mut choice = Choice { kind: BackupKind::Full, prior: None, notes: Vec::new() };
    if request.kind == BackupKind::Full {
        return Ok(choice);
    }
    for listing in list_sets(repository, &request.source)?.into_iter().rev() {
        let manifest = match listing.state {
            SetState::Complete(manifest) => manifest,
            SetState::Damaged(error) => {
                choice.notes.push(format!("set {} is not used as the prior: {}", listing.label, error.message()));
                continue;
            }
            SetState::Expiring(_) => {
                choice.notes.push(format!("set {} is not used as the prior: it has expired", listing.label));
                continue;
            }
            SetState::Running | SetState::Incomplete => continue,
        };
        if request.kind == BackupKind::Differential && manifest.kind != BackupKind::Full {
            continue;
        }
        let found = wal_between(&manifest, here).and_then(|wal| {
            may_be_prior(&manifest, here)?;
            Ok(wal)
        });
        let wal = match found {
            Ok(wal) => wal,
            Err(reason) => {
                choice.notes.push(format!("set {} is not used as the prior: {reason}", manifest.label));
                continue;
            }
        };
        refuse_clear_of(&manifest, repository.keys())?;
        match hold_and_open(repository, request, &manifest) {
            Ok((set, leases)) => {
                protect_priors(repository, request, &set.chain().collect::<Vec<_>>())?;
                choice.kind = request.kind;
                choice.prior = Some(Prior { set, wal, _leases: leases });
                return Ok(choice);
            }
            // It is being removed by retention: the next older one may do.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                choice.notes.push(format!("set {} is not used as the prior: {}", manifest.label, error.message()));
            }
            Err(error) => return Err(error),
        }
    }
    no_prior(request, choice)
}

fn no_prior<'a>(request: &BackupRequest, mut choice: Choice<'a>) -> Result<Choice<'a>> {
    let wanted = if request.kind == BackupKind::Differential { "no full set" } else { "no set" };
    if request.no_full {
        let action = format!("make a backup of kind {} of {}", request.kind, request.source);
        let cause = match choice.notes.last() {
            Some(note) => format!("{wanted} can be its prior: {note}"),
            None => format!("{wanted} of it is in the repository"),
        };
        return Err(Error::new(ErrorKind::Repository, action, cause)
            .hint("make a full backup first (--type full), or leave --no-full out"));
    }
    choice.notes.push(format!(
        "A FULL backup is made instead of the {} one that was asked for: {wanted} of {} can be its prior",
        request.kind, request.source
    ));
    Ok(choice)
}

fn may_be_prior(manifest: &Manifest, here: &Here<'_>) -> std::result::Result<(), String> {
    let postgres = &manifest.postgres;
    if postgres.system_identifier != here.facts.system_identifier.to_string() {
        return Err(format!("it is of another cluster (system identifier {})", postgres.system_identifier));
    }
    if postgres.version_num / 10_000 != here.facts.major() || postgres.block_size_bytes != here.facts.block_size_bytes {
        return Err("it is of another major version of PostgreSQL, or of other pages".to_owned());
    }
    if manifest.prior.len() >= PRIOR_COUNT_MAX {
        return Err(format!("its chain has {} sets already", manifest.prior.len() + 1));
    }
    Ok(())
}

/// The WAL from the set's start to here, timeline by timeline; or why the set is not in our past.
fn wal_between(manifest: &Manifest, here: &Here<'_>) -> std::result::Result<Vec<WalStretch>, String> {
    let postgres = &manifest.postgres;
    if postgres.timeline == here.timeline {
        if postgres.stop_lsn > here.start_lsn {
            let (end, start) = (postgres.stop_lsn, here.start_lsn);
            // A standby begins where it would replay from, which moves with its primary's checkpoints.
            return Err(match here.facts.is_standby() {
                true => format!("it ends at {end}, and the standby's last restart point is at {start}"),
                false => format!("it ends at {end}, and the server is at {start} now: it was set back since"),
            });
        }
        return Ok(vec![WalStretch { timeline: here.timeline, start: postgres.start_lsn, end: here.start_lsn }]);
    }
    let ancestors = &here.history.as_ref().map_err(Error::message)?.branches;
    let Some(from) = ancestors.iter().position(|ancestor| ancestor.timeline == postgres.timeline) else {
        return Err(format!("timeline {} does not come from timeline {}", here.timeline, postgres.timeline));
    };
    let left = &ancestors[from];
    if postgres.stop_lsn > left.end_lsn {
        return Err(format!(
            "it ends at {}, and timeline {} was left at {}",
            postgres.stop_lsn, left.timeline, left.end_lsn
        ));
    }
    let mut stretches = Vec::new();
    let mut start = postgres.start_lsn;
    for ancestor in &ancestors[from..] {
        stretches.push(WalStretch { timeline: ancestor.timeline, start, end: ancestor.end_lsn });
        start = ancestor.end_lsn;
    }
    stretches.push(WalStretch { timeline: here.timeline, start, end: here.start_lsn });
    Ok(stretches)
}

/// Holds the whole chain, then opens it. What is wrong with it must be known before bytes are left out.
fn hold_and_open<'a>(
    repository: &'a Repository,
    request: &BackupRequest,
    manifest: &Manifest,
) -> Result<(OpenSet, ReaderLease<'a>)> {
    let refuse = |error: &Error| {
        let action = format!("back up on top of set {}", manifest.label);
        Error::new(error.kind(), action, error.message())
            .hint("bring back what is missing (--stripe-from names moved stripes), or start anew with --type full")
    };
    let labels: Vec<BackupLabel> = std::iter::once(&manifest.label).chain(&manifest.prior).cloned().collect();
    repositories::check_have_prior(repository, manifest)?;
    let leases = hold(repository, &request.source, &labels)?;
    let set =
        open_set(repository, &request.source, &manifest.label, &request.stripe_from).map_err(|error| refuse(&error))?;
    match set.problems.iter().find(|problem| !problem.harmless) {
        Some(problem) => Err(refuse(&problem.error)),
        None => Ok((set, leases)),
    }
}

#[cfg(test)]
impl<'a> Prior<'a> {
    /// A prior without a server.
    pub(super) fn for_tests(repository: &'a Repository, set: OpenSet) -> Self {
        let leases = hold(repository, &set.manifest.source, &[]).expect("nothing to hold");
        Prior { set, wal: Vec::new(), _leases: leases }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::TimelineBranch;

    fn wal(prior: (u32, u64, u64), here: (u32, u64), ancestors: &[(u32, u64)]) -> std::result::Result<usize, String> {
        let mut manifest = crate::format::manifest::tests::sample();
        manifest.postgres.timeline = TimelineId(prior.0);
        (manifest.postgres.start_lsn, manifest.postgres.stop_lsn) = (Lsn(prior.1), Lsn(prior.2));
        let branches = ancestors
            .iter()
            .map(|(timeline, at)| TimelineBranch { timeline: TimelineId(*timeline), end_lsn: Lsn(*at) })
            .collect();
        let facts = ServerFacts::for_tests();
        let (timeline, start_lsn) = (TimelineId(here.0), Lsn(here.1));
        let history = Ok(TimelineHistory { timeline, branches });
        let here = Here { facts: &facts, timeline, history: &history, start_lsn };
        let stretches = wal_between(&manifest, &here)?;
        assert_eq!((stretches[0].start, stretches[stretches.len() - 1].end), (Lsn(prior.1), here.start_lsn));
        assert!(stretches.windows(2).all(|pair| pair[0].end == pair[1].start));
        Ok(stretches.len())
    }

    #[test]
    fn a_prior_lies_on_the_path_that_leads_here() {
        assert_eq!(wal((1, 10, 20), (1, 20), &[]), Ok(1));
        assert!(wal((1, 10, 20), (1, 19), &[]).unwrap_err().contains("set back"));
        assert_eq!(wal((1, 10, 20), (3, 90), &[(1, 30), (2, 50)]), Ok(3));
        assert_eq!(wal((2, 35, 40), (3, 90), &[(1, 30), (2, 50)]), Ok(2));
        assert!(wal((1, 25, 35), (3, 90), &[(1, 30), (2, 50)]).unwrap_err().contains("was left at"));
        assert!(wal((2, 35, 40), (3, 90), &[(1, 30)]).unwrap_err().contains("does not come from"));
        assert!(wal((4, 35, 40), (3, 90), &[(1, 30), (2, 50)]).is_err());
    }
}
