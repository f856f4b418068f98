//! Proving a set: restored, started, checked, and the outcome kept beside it.

use std::borrow::Cow;
use std::time::Instant;

use serde::Serialize;

use super::checks::{RunningChecks, failed, page_checksums};
use super::{Drill, DrillFailure, DrillRequest, Restorer, ScratchRestore, Started};
use crate::catalog::proofs::put_proof;
use crate::catalog::read_manifest;
use crate::error::Result;
use crate::format::FORMAT_VERSION;
use crate::format::proof::{CheckState, Proof, ProofCheck, ProofResult};
use crate::pipeline::Observer;
use crate::terms::Lsn;

/// What a proof is asked for.
#[derive(Clone, Debug)]
pub struct ProveRequest {
    /// Which set, where, with what.
    pub drill: DrillRequest,
    /// Queries that must each give a row that is not NULL and not false.
    pub queries: Vec<String>,
    /// The database that they run in.
    pub query_database: String,
}

/// What came of it; the keys of `prove --json`.
#[derive(Clone, Debug, Serialize)]
pub struct ProveReport {
    /// The proof as it was kept.
    #[serde(flatten)]
    pub proof: Proof,
    /// From nothing to an open database: restore and replay.
    pub recovery_s: f64,
    /// Wall time of everything.
    pub elapsed_s: f64,
    /// The object that holds the proof.
    pub object: String,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

/// What the steps found.
#[derive(Default)]
struct Findings {
    restore: Option<ScratchRestore>,
    replay_s: f64,
    checks_s: f64,
    reached: Option<Lsn>,
    checks: Vec<ProofCheck>,
    failure: Option<String>,
}

/// Tries a set out and keeps the outcome in the repository; a broken set is an outcome, not an error.
///
/// # Errors
/// Those that say nothing about the set: no programs, no room, an interrupt; nothing is kept then.
pub fn prove(request: &ProveRequest, restorer: Restorer<'_>, observer: &dyn Observer) -> Result<ProveReport> {
    let started = Instant::now();
    let mut drill = Drill::prepare(&request.drill)?;
    let mut findings = Findings::default();
    match drill.start(restorer, &[], observer) {
        Ok(running) => check(request, &drill, running, &mut findings, observer)?,
        Err(DrillFailure::Failed(error)) => return Err(error),
        Err(DrillFailure::Broken { step, cause, restore, replay_s }) => {
            findings.failure = Some(format!("{step}: {cause}"));
            findings.restore = restore;
            findings.replay_s = replay_s;
        }
    }
    let proof = findings.into_proof(&drill);
    let Drill { repository, scratch, mut notes, .. } = drill;
    // The outcome is kept before anything else can go wrong.
    let is_encrypted = read_manifest(&repository, &proof.source, &proof.label)?.encryption.is_some();
    let kept = if is_encrypted { Cow::Owned(proof.without_details()) } else { Cow::Borrowed(&proof) };
    let object = put_proof(&repository, &kept)?;
    if let Err(error) = scratch.remove() {
        notes.push(error.message());
    }
    let (recovery_s, elapsed_s) = (proof.recovery_s(), started.elapsed().as_secs_f64());
    Ok(ProveReport { proof, recovery_s, elapsed_s, object, notes })
}

fn check(
    request: &ProveRequest,
    drill: &Drill,
    running: Started,
    findings: &mut Findings,
    observer: &dyn Observer,
) -> Result<()> {
    let Started { mut sandbox, restore, replay_s } = running;
    let checking = Instant::now();
    let stops_at_point = restore.stops_at_point;
    findings.restore = Some(restore);
    findings.replay_s = replay_s;
    observer.phase("check the server and its databases");
    let checks = RunningChecks {
        sandbox: &sandbox,
        manifest: &drill.manifest,
        stops_at_point,
        queries: &request.queries,
        query_database: &request.query_database,
        observer,
    };
    let (checks, reached) = checks.run()?;
    findings.checks = checks;
    findings.reached = reached;
    observer.phase("stop the server and check its pages");
    match sandbox.stop() {
        Ok(()) => findings.checks.push(page_checksums(&sandbox, &drill.manifest)?),
        Err(error) => findings.checks.push(failed("the server stops cleanly", error.message())),
    }
    findings.checks_s = checking.elapsed().as_secs_f64();
    Ok(())
}

impl Findings {
    fn into_proof(self, drill: &Drill) -> Proof {
        let first = self.checks.iter().find(|check| check.state == CheckState::Failed);
        let failure = self.failure.or_else(|| first.map(|check| format!("check: {}: {}", check.name, check.detail)));
        let manifest = &drill.manifest;
        Proof {
            format_version: FORMAT_VERSION,
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            label: manifest.label.clone(),
            set_id: manifest.set_id.clone(),
            source: manifest.source.clone(),
            result: if failure.is_none() { ProofResult::Proven } else { ProofResult::Broken },
            proved_at: jiff::Timestamp::now().to_string(),
            recovery_target: self.restore.as_ref().map_or_else(String::new, |restore| restore.recovery_target.clone()),
            reached_lsn: self.reached.map(|lsn| lsn.to_string()),
            restored_bytes: self.restore.as_ref().map_or(0, |restore| restore.restored_bytes),
            restore_s: to_microseconds(self.restore.as_ref().map_or(0.0, |restore| restore.elapsed_s)),
            replay_s: to_microseconds(self.replay_s),
            checks_s: to_microseconds(self.checks_s),
            checks: self.checks,
            failure,
        }
    }
}

/// More digits say nothing, and fewer come back from text as they were.
fn to_microseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}
