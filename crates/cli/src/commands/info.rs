//! `pagehaul info`: the sets of a repository, as a table, in detail, or as JSON.

mod details;
mod head;
mod proof;
mod protection;

use std::collections::BTreeMap;

use jiff::Timestamp;
use pagehaul_engine::catalog::protection::WalProtection;
use pagehaul_engine::catalog::repository::set_prefix;
use pagehaul_engine::catalog::{Repository, SetListing, SetState, list_sets};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::manifest::{Manifest, StripeRecord, SynthesizedFrom, Tablespace};
use pagehaul_engine::format::proof::ProofResult;
use pagehaul_engine::kept::kept_counts;
use pagehaul_engine::storage::LockMode;
use pagehaul_engine::terms::{Lsn, SourceName, TimelineId};
use serde::Serialize;

use details::details;
use head::HeadInfo;
use proof::{ProofInfo, add_proofs, id_of, proof_text};
use protection::{add_protections, protection_text, wal_text};

use super::info_wal::{self, WalInfo};
use super::version_text;
use crate::args::InfoArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, count, ratio};
use crate::output::table::{Align, table};

/// One source; the keys of `info --json`.
#[derive(Debug, Default, Serialize)]
pub(super) struct SourceInfo {
    pub(super) source: String,
    pub(super) sets: Vec<SetInfo>,
    pub(super) wal: Vec<WalInfo>,
    pub(super) wal_error: Option<String>,
    /// What protects the WAL; null if there is none, or the store does not say.
    wal_protection: Option<WalProtection>,
    /// The newest signed list of the sets; null if there is none, or it does not read.
    head: Option<HeadInfo>,
    head_error: Option<String>,
}

/// One set; what only a finished one has is null until then.
#[derive(Debug, Default, Serialize)]
pub(super) struct SetInfo {
    label: String,
    pub(super) kind: String,
    /// The sets that it needs, nearest first.
    prior: Vec<String>,
    /// The chain that it was made of, if it was not made of a server's files.
    synthesized_from: Option<SynthesizedFrom>,
    /// Bytes of all sets of its chain; null if one of them is missing.
    chain_stored_bytes: Option<u64>,
    pub(super) state: &'static str,
    started_at: Option<String>,
    pub(super) finished_at: Option<String>,
    pub(super) source_bytes: Option<u64>,
    pub(super) stored_bytes: Option<u64>,
    ratio: Option<f64>,
    compression: Option<String>,
    /// What keeps others from changing content: `encryption`, `signature`, or only `checksums`, which anybody can make.
    bound_by: Option<&'static str>,
    /// Id of the data key; null if the set is not encrypted.
    key_id: Option<String>,
    /// True if names and paths are not shown, for want of a key.
    locked: bool,
    file_count: Option<u64>,
    stripes: Vec<StripeInfo>,
    parity_stripes: Vec<StripeInfo>,
    postgres_version_num: Option<u32>,
    system_identifier: Option<String>,
    timeline: Option<TimelineId>,
    start_lsn: Option<Lsn>,
    stop_lsn: Option<Lsn>,
    wal_segment_count: Option<u64>,
    data_checksums: Option<bool>,
    pub(super) bad_page_count: Option<u64>,
    pub(super) lost_file_count: Option<u64>,
    description: Option<String>,
    pinned: bool,
    pin_reason: Option<String>,
    /// Until when nobody can delete it, in UTC; null if nothing protects it, or the store does not say.
    protected_until: Option<String>,
    /// Who may end that before its time: some, or nobody.
    protection_mode: Option<LockMode>,
    data_directory: Option<String>,
    tablespaces: Vec<Tablespace>,
    databases: Option<Vec<String>>,
    pub(super) proof: Option<ProofInfo>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct StripeInfo {
    path: String,
    bytes: u64,
}

/// Lists what the repository has.
pub(crate) fn run(args: &InfoArgs) -> Result<ExitCode> {
    run_each(&[args])
}

/// Lists what the repositories of several sources have, each repository once.
pub(crate) fn run_each(each: &[&InfoArgs]) -> Result<ExitCode> {
    let mut listed: Vec<(String, Vec<SourceInfo>)> = Vec::new();
    let mut kept = Vec::new();
    for args in each {
        let repository = Repository::open(&args.repo)?;
        let home = repository.storage().describe();
        if listed.iter().all(|(known, _)| *known != home) {
            // Several runs are those of a settings file, and nobody named a source.
            let wanted = if each.len() == 1 { args.source.as_deref() } else { None };
            kept.push(if wanted.is_none() { kept_counts(&repository)? } else { Vec::new() });
            let mut sources = load(&repository, wanted)?;
            add_protections(&repository, &mut sources)?;
            listed.push((home, sources));
        }
    }
    let Some(args) = each.first() else { return Ok(ExitCode::Done) };
    if let Some(wanted) = &args.set {
        let mut sources: Vec<SourceInfo> = listed.into_iter().flat_map(|(_, sources)| sources).collect();
        keep_one_set(&mut sources, wanted)?;
        if args.json {
            output::json(&sources)?;
        } else {
            output::data(&sources.iter().flat_map(|source| &source.sets).map(details).collect::<String>())?;
        }
    } else if args.json {
        output::json(&listed.iter().flat_map(|(_, sources)| sources).collect::<Vec<_>>())?;
    } else {
        let both = listed.iter().zip(&kept);
        let overviews: Vec<String> = both.map(|((home, sources), kept)| overview(sources, kept, home)).collect();
        output::data(&overviews.join("\n"))?;
    }
    Ok(ExitCode::Done)
}

/// The sources of a repository, or the one that is `wanted`.
///
/// # Errors
/// `Repository` if that one is not there; those of the storage.
pub(super) fn load(repository: &Repository, wanted: Option<&str>) -> Result<Vec<SourceInfo>> {
    let mut names = repository.sources()?;
    if let Some(wanted) = wanted {
        let wanted: SourceName = wanted.parse()?;
        if !names.contains(&wanted) {
            let known: Vec<_> = names.iter().map(SourceName::as_str).collect();
            let hint = if known.is_empty() {
                "the repository has no backup yet".to_owned()
            } else {
                format!("the repository has: {}", known.join(", "))
            };
            let action = format!("list the backups of {wanted} in {}", repository.storage().describe());
            return Err(Error::new(ErrorKind::Repository, action, "there are none").hint(hint));
        }
        names = vec![wanted];
    }
    let home = repository.storage().describe();
    let load_one = |source: SourceName| {
        let sets = list_sets(repository, &source)?;
        let ids: Vec<Option<String>> = sets.iter().map(id_of).collect();
        let mut sets: Vec<SetInfo> = sets.iter().map(|set| describe(set, &home)).collect();
        add_chains(&mut sets);
        add_proofs(repository, &source, &mut sets, ids)?;
        // A damaged object of the archive must not hide the sets.
        let (wal, wal_error) = match info_wal::load(repository, &source, Timestamp::now()) {
            Ok(wal) => (wal, None),
            Err(error) => (Vec::new(), Some(error.message())),
        };
        let (head, head_error) = head::load(repository, &source);
        Ok(SourceInfo { source: source.to_string(), sets, wal, wal_error, wal_protection: None, head, head_error })
    };
    names.into_iter().map(load_one).collect()
}

/// Sums what each chain takes, and marks the sets whose priors are not there.
fn add_chains(sets: &mut [SetInfo]) {
    let stored: BTreeMap<String, u64> =
        sets.iter().filter_map(|set| Some((set.label.clone(), set.stored_bytes?))).collect();
    for set in sets.iter_mut().filter(|set| set.state == "complete") {
        let lost = set.prior.iter().find(|prior| !stored.contains_key(*prior));
        set.error = lost.map(|prior| format!("it needs set {prior}, which is not there"));
        if set.error.is_some() {
            set.state = "broken";
        } else {
            let priors: u64 = set.prior.iter().filter_map(|prior| stored.get(prior)).sum();
            set.chain_stored_bytes = set.stored_bytes.map(|own| own + priors);
        }
    }
}

/// Leaves only the set that `--set` names.
fn keep_one_set(sources: &mut Vec<SourceInfo>, wanted: &str) -> Result<()> {
    if wanted == "latest" && sources.len() > 1 {
        let names: Vec<_> = sources.iter().map(|source| source.source.as_str()).collect();
        return Err(Error::new(ErrorKind::Usage, "choose a source", "the repository has several")
            .hint(format!("name one of: {}", names.join(", "))));
    }
    for source in sources.iter_mut() {
        let newest = source.sets.iter().rev().find(|set| set.state == "complete").map(|set| set.label.clone());
        let label = if wanted == "latest" { newest.unwrap_or_default() } else { wanted.to_owned() };
        source.sets.retain(|set| set.label == label);
    }
    sources.retain(|source| !source.sets.is_empty());
    if sources.is_empty() {
        return Err(Error::new(ErrorKind::Repository, format!("find set {wanted}"), "there is none of that label")
            .hint("`pagehaul info` without --set lists the labels"));
    }
    Ok(())
}

fn describe(set: &SetListing, home: &str) -> SetInfo {
    let label = set.label.to_string();
    let kind = match label.chars().last() {
        Some('D') => "differential",
        Some('I') => "incremental",
        _ => "full",
    };
    let bare = |state| SetInfo { label: label.clone(), kind: kind.to_owned(), state, ..SetInfo::default() };
    let mut described = match &set.state {
        SetState::Complete(manifest) => complete(manifest, home),
        SetState::Expiring(Some(manifest)) => SetInfo { state: "expiring", ..complete(manifest, home) },
        SetState::Expiring(None) => bare("expiring"),
        SetState::Running => bare("running"),
        SetState::Incomplete => bare("incomplete"),
        SetState::Damaged(error) => SetInfo { error: Some(error.message()), ..bare("damaged") },
    };
    described.pinned = set.pin.is_some();
    described.pin_reason = set.pin.as_ref().and_then(|pin| pin.reason.clone());
    described
}

fn complete(manifest: &Manifest, home: &str) -> SetInfo {
    let prefix = set_prefix(&manifest.source, &manifest.label);
    let stripe = |stripe: &StripeRecord| StripeInfo {
        path: format!("{}/{prefix}/{}", stripe.directory.as_deref().unwrap_or(home), stripe.name),
        bytes: stripe.size_bytes,
    };
    let (stripes, parity_stripes) = (manifest.stripes.iter().map(stripe), manifest.parity_stripes().iter().map(stripe));
    let postgres = &manifest.postgres;
    let ratio = manifest.source_bytes as f64 / manifest.stored_bytes as f64;
    SetInfo {
        label: manifest.label.to_string(),
        kind: manifest.kind.to_string(),
        prior: manifest.prior.iter().map(ToString::to_string).collect(),
        synthesized_from: manifest.synthesized_from.clone(),
        chain_stored_bytes: None,
        state: "complete",
        started_at: Some(manifest.started_at.clone()),
        finished_at: Some(manifest.finished_at.clone()),
        source_bytes: Some(manifest.source_bytes),
        stored_bytes: Some(manifest.stored_bytes),
        ratio: Some(ratio).filter(|ratio| ratio.is_finite()),
        compression: Some(manifest.compression.clone()),
        bound_by: Some(match (&manifest.encryption, &manifest.frame_digests) {
            (Some(_), _) => "encryption",
            (None, Some(_)) => "signature",
            (None, None) => "checksums",
        }),
        key_id: manifest.encryption.as_ref().map(|encryption| encryption.key_id.clone()),
        locked: manifest.is_locked(),
        file_count: Some(manifest.file_count),
        stripes: stripes.collect(),
        parity_stripes: parity_stripes.collect(),
        postgres_version_num: Some(postgres.version_num),
        system_identifier: Some(postgres.system_identifier.clone()),
        timeline: Some(postgres.timeline),
        start_lsn: Some(postgres.start_lsn),
        stop_lsn: Some(postgres.stop_lsn),
        wal_segment_count: Some(postgres.wal_segments.len() as u64),
        data_checksums: Some(postgres.data_checksums),
        bad_page_count: Some(manifest.bad_page_count),
        lost_file_count: Some(manifest.lost_file_count),
        description: manifest.description.clone(),
        data_directory: Some(postgres.data_directory.clone()).filter(|_| !manifest.is_locked()),
        tablespaces: postgres.tablespaces.clone(),
        databases: postgres
            .databases
            .as_ref()
            .map(|databases| databases.iter().map(|database| database.name.clone()).collect()),
        ..SetInfo::default()
    }
}

const COLUMNS: [(&str, Align); 13] = [
    ("label", Align::Left),
    ("kind", Align::Left),
    ("state", Align::Left),
    ("finished (UTC)", Align::Left),
    ("source", Align::Right),
    ("stored", Align::Right),
    ("ratio", Align::Right),
    ("compression", Align::Left),
    ("stripes", Align::Right),
    ("PG", Align::Left),
    ("bad pages", Align::Right),
    ("WAL", Align::Left),
    ("proof", Align::Left),
];

/// All sources, one line a set, oldest first, and then who has files of another system's backups there.
fn overview(sources: &[SourceInfo], kept: &[(SourceName, usize)], home: &str) -> String {
    let mut text = String::new();
    if sources.is_empty() {
        text.push_str(&format!(
            "The repository {home} is ready and has no backup yet; `pagehaul backup --repo {home}` makes one.\n"
        ));
    }
    for source in sources {
        let complete = source.sets.iter().filter(|set| set.state == "complete");
        let stored: u64 = complete.clone().filter_map(|set| set.stored_bytes).sum();
        let backups = count(complete.count() as u64, "complete backup");
        text.push_str(&format!("{}: {backups}, {} stored\n", source.source, bytes(stored)));
        let rows: Vec<_> = source.sets.iter().map(row).collect();
        text.push_str(&table(&COLUMNS, &rows));
        text.extend(source.sets.iter().filter_map(remark));
        text.extend(source.head.iter().map(head::text));
        text.extend(source.head_error.iter().map(|error| format!("note: the signed list does not read: {error}\n")));
        text.push_str(&info_wal::text(&source.wal));
        text.extend(source.wal_protection.iter().map(wal_text));
        text.extend(
            source.wal_error.iter().map(|error| format!("note: which points can be reached is unknown: {error}\n")),
        );
    }
    text.extend(kept.iter().map(|(source, files)| {
        let files = count(*files as u64, "backup file");
        format!("{source}: {files} of SQL Server; `pagehaul bak extract --repo {home} --source {source}` lists them\n")
    }));
    text
}

fn row(set: &SetInfo) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        set.label.clone(),
        if set.synthesized_from.is_some() { "synthetic full".to_owned() } else { set.kind.clone() },
        if ["damaged", "broken"].contains(&set.state) { set.state.to_uppercase() } else { set.state.to_owned() },
        or_dash(set.finished_at.as_deref().map(short_time)),
        or_dash(set.source_bytes.map(bytes)),
        or_dash(set.stored_bytes.map(bytes)),
        or_dash(set.ratio.map(ratio)),
        or_dash(
            set.compression
                .as_ref()
                .map(|codec| if set.key_id.is_some() { format!("{codec}, encrypted") } else { codec.clone() }),
        ),
        match (set.stripes.len(), set.parity_stripes.len()) {
            (0, _) => "-".to_owned(),
            (stripes, 0) => stripes.to_string(),
            (stripes, parity) => format!("{stripes}+{parity}"),
        },
        or_dash(set.postgres_version_num.map(version_text)),
        or_dash(set.bad_page_count.map(|pages| pages.to_string())),
        or_dash(set.start_lsn.zip(set.stop_lsn).map(|(start, stop)| format!("{start}..{stop}"))),
        proof_text(set),
    ]
}

/// "2026-11-21T20:15:30.123Z" is "2026-11-21 20:15:30".
fn short_time(text: &str) -> String {
    text.chars().take(19).collect::<String>().replace('T', " ")
}

/// What to know of a set beyond its line.
fn remark(set: &SetInfo) -> Option<String> {
    let text = match set.state {
        "expiring" => "no rule keeps it: the next `pagehaul expire --confirm` removes it if nobody uses it".to_owned(),
        "damaged" => format!("{}; it cannot be restored", set.error.as_deref().unwrap_or("its manifest does not read")),
        "complete" if set.proof.as_ref().is_some_and(|proof| proof.result == ProofResult::Broken) => format!(
            "it was tried out and is broken: {}",
            set.proof.as_ref().and_then(|proof| proof.failure.as_deref()).unwrap_or_default()
        ),
        "incomplete" => "a backup died before its end; the next backup removes what it left".to_owned(),
        "broken" => format!("{}; it cannot be restored", set.error.as_deref().unwrap_or_default()),
        "complete" if set.lost_file_count.is_some_and(|files| files > 0) => {
            let files = count(set.lost_file_count.unwrap_or_default(), "file");
            format!("complete, but {files} of the source had been lost when it was made")
        }
        "complete" if set.bad_page_count.is_some_and(|pages| pages > 0) => {
            "complete, but pages of the source were damaged when it was made".to_owned()
        }
        _ if set.protected_until.is_some() && !set.pinned => format!("protected {}", protection_text(set)),
        _ if set.pinned => match &set.pin_reason {
            Some(reason) => format!("pinned: {reason}"),
            None => "pinned".to_owned(),
        },
        _ => return None,
    };
    Some(format!("note: {}: {text}\n", set.label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(label: &str, state: &'static str) -> SetInfo {
        SetInfo { label: label.to_owned(), kind: "full".to_owned(), state, ..SetInfo::default() }
    }

    #[test]
    fn sets_of_every_state_are_listed() {
        let whole = SetInfo {
            source_bytes: Some(3 << 30),
            stored_bytes: Some(1 << 30),
            ratio: Some(3.0),
            finished_at: Some("2026-11-21T20:15:30.5Z".to_owned()),
            ..bare("20261121-201530F", "complete")
        };
        let damaged = SetInfo { error: Some("unable to read it: x".to_owned()), ..bare("20261122-201530F", "damaged") };
        let sets = vec![whole, damaged, bare("20261123-201530F", "incomplete"), bare("20261124-201530F", "running")];
        let text = overview(&[SourceInfo { source: "main".to_owned(), sets, ..SourceInfo::default() }], &[], "/backup");
        assert!(text.starts_with("main: 1 complete backup, 1.00 GiB stored\nlabel "), "{text}");
        for part in ["2026-11-21 20:15:30", "3.00 GiB", "DAMAGED", "note: 20261122-201530F: unable to read it: x;"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(overview(&[], &[], "/backup").contains("no backup yet"));
        let kept = [("mssql".parse().unwrap(), 2)];
        assert!(overview(&[], &kept, "/backup").contains("mssql: 2 backup files of SQL Server"));
    }

    #[test]
    fn one_set_is_found_by_label_or_as_the_latest() {
        let sources = || {
            let sets = vec![bare("A", "complete"), bare("B", "complete"), bare("C", "running")];
            vec![SourceInfo { source: "main".to_owned(), sets, ..SourceInfo::default() }]
        };
        let found = |wanted: &str| {
            let mut sources = sources();
            keep_one_set(&mut sources, wanted).map(|()| sources[0].sets[0].label.clone())
        };
        assert_eq!(found("latest").unwrap(), "B");
        assert_eq!(found("C").unwrap(), "C");
        assert_eq!(found("D").unwrap_err().kind(), ErrorKind::Repository);
    }
}
