//! `pagehaul head`.

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::catalog::signed_head::{FoundHead, HeadChange, changes_since_head, sign_all, trusted_head};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::terms::{BackupLabel, SourceName};
use serde::Serialize;

use crate::args::{HeadOfArgs, HeadSignArgs, HeadVerb};
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::count;
use crate::output::table::block;
use crate::progress::Console;

/// The keys of `head show --json`.
#[derive(Serialize)]
struct HeadInfo<'a> {
    source: &'a SourceName,
    counter: u64,
    sha256: &'a str,
    signed_at: &'a str,
    signer: &'a str,
    /// True if it is signed by a given signer; null if none was given.
    trusted: Option<bool>,
    set_count: usize,
    /// Sets that are there and not in the head.
    unsigned: &'a [BackupLabel],
    /// Sets whose manifests are others than the head says.
    changed: &'a [BackupLabel],
    /// Sets of the head that are not there.
    missing: &'a [BackupLabel],
}

/// The keys of `head sign --json`.
#[derive(Serialize)]
struct Signed<'a> {
    source: &'a SourceName,
    /// Of the new head; null if none was written.
    counter: Option<u64>,
    added: &'a [BackupLabel],
    changed: &'a [BackupLabel],
    removed: &'a [BackupLabel],
}

/// Runs a verb about signed heads.
pub(crate) fn run(verb: &HeadVerb, console: &Console) -> Result<ExitCode> {
    match verb {
        HeadVerb::Show(args) => show(&args.which),
        HeadVerb::Sign(args) => sign(args, console),
    }
}

fn open(which: &HeadOfArgs) -> Result<(Repository, SourceName)> {
    let repository = Repository::open(&which.repo)?;
    let source = which.source.as_deref().map(str::parse).transpose()?;
    let source = repository.source_or_only(source.as_ref())?;
    Ok((repository, source))
}

fn show(which: &HeadOfArgs) -> Result<ExitCode> {
    let (repository, source) = open(which)?;
    // Says why, if it is not to be trusted.
    trusted_head(&repository, &source)?;
    let trusted = repository.keys().asks_for_signatures().then_some(true);
    let (found, change) = changes_since_head(&repository, &source)?;
    let found = found.ok_or_else(|| {
        Error::new(ErrorKind::Repository, format!("show the head of {source}"), "nothing of it is signed").hint(
            "`pagehaul head sign --sign-key FILE --confirm` signs what is there; backups with --sign-key go on from it",
        )
    })?;
    if which.json {
        output::json(&info(&source, &found, trusted, &change))?;
    } else {
        output::data(&text(&source, &found, trusted, &change))?;
    }
    let is_whole = change == HeadChange::default();
    Ok(if is_whole { ExitCode::Done } else { ExitCode::Failed(ErrorKind::Damage) })
}

fn info<'a>(
    source: &'a SourceName,
    found: &'a FoundHead,
    trusted: Option<bool>,
    change: &'a HeadChange,
) -> HeadInfo<'a> {
    HeadInfo {
        source,
        counter: found.head.counter,
        sha256: &found.sha256,
        signed_at: &found.head.signed_at,
        signer: &found.head.signer,
        trusted,
        set_count: found.head.sets.len(),
        unsigned: &change.added,
        changed: &change.changed,
        missing: &change.removed,
    }
}

fn text(source: &SourceName, found: &FoundHead, trusted: Option<bool>, change: &HeadChange) -> String {
    let head = &found.head;
    let signer = match trusted {
        Some(_) => format!("{}, who is a given signer", head.signer),
        None => format!("{}; not checked: give --signer", head.signer),
    };
    let labels = |labels: &[BackupLabel]| labels.iter().map(BackupLabel::as_str).collect::<Vec<_>>().join("\n");
    block(&[
        ("head", format!("{} of {source}, with {}", head.counter, count(head.sets.len() as u64, "backup"))),
        ("SHA-256", found.sha256.clone()),
        ("signed", head.signed_at.clone()),
        ("by", signer),
        ("NOT SIGNED", labels(&change.added)),
        ("CHANGED", labels(&change.changed)),
        ("MISSING", labels(&change.removed)),
    ])
}

fn sign(args: &HeadSignArgs, console: &Console) -> Result<ExitCode> {
    let (repository, source) = open(&args.which)?;
    if !repository.keys().signs() {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("sign the backups of {source}"),
            "there is no key to sign with",
        )
        .hint("give --sign-key FILE"));
    }
    let change = sign_all(&repository, &source, args.confirm)?;
    for (what, labels) in [("added", &change.added), ("changed", &change.changed), ("removed", &change.removed)] {
        labels.iter().for_each(|label| console.tell(&format!("{what}: {label}")));
    }
    console.tell(&match change.counter {
        Some(counter) => format!("head {counter} of {source} is signed"),
        None if change == HeadChange::default() => format!("nothing to sign: the head of {source} lists what is there"),
        None => "nothing was signed: look at the list above, then give --confirm".to_owned(),
    });
    if args.which.json {
        let HeadChange { added, changed, removed, counter } = &change;
        output::json(&Signed { source: &source, counter: *counter, added, changed, removed })?;
    }
    Ok(ExitCode::Done)
}
