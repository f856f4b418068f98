//! `pagehaul prove`: tries backups out and keeps what came of it.

use std::path::PathBuf;

use pagehaul_engine::catalog::proofs::last_proofs;
use pagehaul_engine::catalog::{Repository, SetState, list_sets};
use pagehaul_engine::drill::{ProveReport, ScratchRestore, ScratchTarget, prove};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::proof::{CheckState, ProofResult};
use pagehaul_engine::restore::{RecoveryTarget, RestoreReport, choose_set, restore};
use pagehaul_engine::terms::BackupLabel;
use serde::Serialize;

use super::record::Record;
use crate::args::ProveArgs;
use crate::exit_code::ExitCode;
use crate::output::figures::{bytes, duration, rate_of};
use crate::output::table::{Align, block, table};
use crate::output::{self, red};
use crate::progress::Console;

/// The keys of `prove --json`.
#[derive(Serialize)]
struct Proofs {
    proofs: Vec<ProveReport>,
}

/// Proves one set, or all that never were.
pub(crate) fn run(args: &ProveArgs, record: &Record, console: &Console) -> Result<ExitCode> {
    console.set_throttled(args.scratch.bounds.max_rate.is_some());
    let labels = if args.all_unproven { unproven(args)? } else { vec![args.from.label()?] };
    if labels.is_empty() {
        console.tell("every complete backup has been tried out; `pagehaul info` shows what came of it");
    }
    let mut proofs = Vec::new();
    for label in labels {
        let report = prove_one(args, label, record, console)?;
        console.tell(&report_text(&report));
        if report.proof.result == ProofResult::Broken {
            console.warn(&broken_text(&report));
        }
        proofs.push(report);
    }
    let is_broken = proofs.iter().any(|report| report.proof.result == ProofResult::Broken);
    if args.json {
        output::json(&Proofs { proofs })?;
    }
    Ok(if is_broken { ExitCode::Failed(ErrorKind::Damage) } else { ExitCode::Done })
}

fn prove_one(args: &ProveArgs, label: Option<BackupLabel>, record: &Record, console: &Console) -> Result<ProveReport> {
    let label = match label {
        None if args.point.target()? != RecoveryTarget::SetEnd => Some(leading_set(args)?),
        label => label,
    };
    let mut restorer = |label: &BackupLabel, to: &ScratchTarget| {
        let report = restore(&args.restore(Some(label), to)?, console)?;
        record.restore(&report, console);
        Ok(scratch_restore(&report))
    };
    prove(&args.request(label)?, &mut restorer, console)
}

/// The set that leads to the recovery target.
fn leading_set(args: &ProveArgs) -> Result<BackupLabel> {
    let nowhere = ScratchTarget { directory: PathBuf::new(), tablespace_map: Vec::new(), owner: None };
    choose_set(&args.restore(None, &nowhere)?)
}

/// What a trial wants to know of its restore.
pub(super) fn scratch_restore(report: &RestoreReport) -> ScratchRestore {
    ScratchRestore {
        restored_bytes: report.restored_bytes,
        elapsed_s: report.elapsed_s,
        recovery_target: target_text(report),
        stops_at_point: matches!(report.target, "immediate" | "time" | "lsn" | "xid" | "name"),
        needs_network: false,
    }
}

/// How far the server replays, in a few words that stay with the proof.
fn target_text(report: &RestoreReport) -> String {
    let Some(recovery) = &report.recovery else { return "end of the set".to_owned() };
    let mut text = match (report.target, &recovery.target) {
        ("latest", _) => "all archived WAL".to_owned(),
        (kind, Some(point)) => format!("{kind} {point}{}", if recovery.inclusive { "" } else { ", excluded" }),
        (kind, None) => kind.to_owned(),
    };
    if let Some(timeline) = recovery.timeline {
        text.push_str(&format!(", along timeline {timeline}"));
    }
    text
}

/// The complete sets that have no proof, oldest first.
fn unproven(args: &ProveArgs) -> Result<Vec<Option<BackupLabel>>> {
    let repository = Repository::open(&args.from.repo)?;
    let source = repository.source_or_only(args.from.source()?.as_ref())?;
    let mut sets = Vec::new();
    for set in list_sets(&repository, &source)? {
        match set.state {
            SetState::Complete(manifest) => sets.push((set.label, manifest.set_id)),
            SetState::Damaged(error) => {
                return Err(Error::new(ErrorKind::Damage, format!("prove set {}", set.label), error.message())
                    .hint("name the sets to prove with --set"));
            }
            _ => {}
        }
    }
    let proofs = last_proofs(&repository, &source, &sets)?;
    Ok(sets.into_iter().zip(proofs).filter(|(_, proof)| proof.is_none()).map(|((label, _), _)| Some(label)).collect())
}

fn report_text(report: &ProveReport) -> String {
    let proof = &report.proof;
    let verdict = match proof.result {
        ProofResult::Proven => "proven",
        ProofResult::Broken => "BROKEN",
    };
    let restored = rate_of(proof.restored_bytes, proof.restore_s);
    let lines = [
        (
            "recovery",
            format!(
                "{}: {} to restore {} at {restored}, {} to start and replay",
                duration(report.recovery_s),
                duration(proof.restore_s),
                bytes(proof.restored_bytes),
                duration(proof.replay_s)
            ),
        ),
        ("target", proof.recovery_target.clone()),
        ("reached", proof.reached_lsn.clone().unwrap_or_default()),
        ("checks", duration(proof.checks_s)),
        ("kept as", report.object.clone()),
        ("notes", report.notes.join("\n")),
    ];
    let header = [("check", Align::Left), ("result", Align::Left), ("evidence", Align::Left)];
    let rows: Vec<_> = proof
        .checks
        .iter()
        .map(|check| {
            let state = match check.state {
                CheckState::Passed => "passed",
                CheckState::Failed => "FAILED",
                CheckState::Skipped => "skipped",
            };
            let first_line = check.detail.lines().next().unwrap_or_default().to_owned();
            vec![check.name.clone(), state.to_owned(), first_line]
        })
        .collect();
    let checks = if rows.is_empty() { String::new() } else { table(&header, &rows) };
    format!("backup {} of {}: {verdict}\n{}{checks}", proof.label, proof.source, block(&lines))
}

fn broken_text(report: &ProveReport) -> String {
    let proof = &report.proof;
    format!(
        "{} backup {} of {} is not good for a recovery: {}\nnext: make a new backup now; `pagehaul prove --all-unproven` \
         finds out which older ones are good\n",
        red("BROKEN:"),
        proof.label,
        proof.source,
        proof.failure.as_deref().unwrap_or("a check failed")
    )
}
