//! What came of trying a set out, as `pagehaul info` shows it.

use jiff::Timestamp;
use pagehaul_engine::catalog::proofs::last_proofs;
use pagehaul_engine::catalog::{Repository, SetListing, SetState};
use pagehaul_engine::error::Result;
use pagehaul_engine::format::proof::ProofResult;
use pagehaul_engine::terms::{BackupLabel, SourceName};
use serde::Serialize;

use super::{SetInfo, short_time};
use crate::output::figures::duration;

/// What came of trying the set out last.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct ProofInfo {
    pub(in crate::commands) result: ProofResult,
    pub(in crate::commands) proved_at: String,
    pub(in crate::commands) recovery_s: f64,
    pub(super) restore_s: f64,
    pub(super) replay_s: f64,
    pub(super) checks_s: f64,
    pub(super) recovery_target: String,
    pub(super) failure: Option<String>,
}

/// The id of a complete set.
pub(super) fn id_of(set: &SetListing) -> Option<String> {
    match &set.state {
        SetState::Complete(manifest) => Some(manifest.set_id.clone()),
        _ => None,
    }
}

/// Adds to each complete set what came of trying it out.
pub(super) fn add_proofs(
    repository: &Repository,
    source: &SourceName,
    sets: &mut [SetInfo],
    ids: Vec<Option<String>>,
) -> Result<()> {
    let complete = sets.iter_mut().zip(ids).filter_map(|(set, id)| Some((id?, set)));
    let (ids, complete): (Vec<_>, Vec<_>) = complete.unzip();
    let labels = complete.iter().map(|set| set.label.parse()).collect::<Result<Vec<BackupLabel>>>()?;
    let proofs = last_proofs(repository, source, &labels.into_iter().zip(ids).collect::<Vec<_>>())?;
    for (set, proof) in complete.into_iter().zip(proofs) {
        set.proof = proof.map(|proof| ProofInfo {
            recovery_s: proof.recovery_s(),
            result: proof.result,
            proved_at: proof.proved_at,
            restore_s: proof.restore_s,
            replay_s: proof.replay_s,
            checks_s: proof.checks_s,
            recovery_target: proof.recovery_target,
            failure: proof.failure,
        });
    }
    Ok(())
}

/// "proven 3 days ago, 12.1 s", or what else is known.
pub(super) fn proof_text(set: &SetInfo) -> String {
    let Some(proof) = &set.proof else {
        return if set.state == "complete" { "unproven".to_owned() } else { "-".to_owned() };
    };
    let age = age_text(&proof.proved_at, Timestamp::now());
    match proof.result {
        ProofResult::Proven => format!("proven {age}, recovery {}", duration(proof.recovery_s)),
        ProofResult::Broken => format!("BROKEN {age}"),
    }
}

/// How long ago that was, in the largest unit that fits.
fn age_text(time: &str, now: Timestamp) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return "at an unknown time".to_owned() };
    let seconds = now.duration_since(time).as_secs().max(0) as u64;
    match seconds {
        0..120 => "just now".to_owned(),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// The same, with the times one by one.
pub(super) fn proof_details(set: &SetInfo) -> String {
    let text = proof_text(set);
    match &set.proof {
        Some(proof) => format!(
            "{text}\n{} to restore, {} to replay ({}), {} to check; {} UTC{}",
            duration(proof.restore_s),
            duration(proof.replay_s),
            proof.recovery_target,
            duration(proof.checks_s),
            short_time(&proof.proved_at),
            proof.failure.as_ref().map_or_else(String::new, |failure| format!("\n{failure}")),
        ),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_down() {
        let now: Timestamp = "2026-11-22T12:00:00Z".parse().unwrap();
        for (time, text) in [
            ("2026-11-22T11:59:00Z", "just now"),
            ("2026-11-22T12:30:00Z", "just now"),
            ("2026-11-22T11:00:01Z", "59 min ago"),
            ("2026-11-21T12:00:00Z", "24 h ago"),
            ("2026-11-01T12:00:00Z", "21 days ago"),
            ("yesterday", "at an unknown time"),
        ] {
            assert_eq!(age_text(time, now), text);
        }
    }
}
