//! `pagehaul wal`: push, get, list, adopt.

mod helper;
mod list;

use std::io::IsTerminal;

use pagehaul_engine::catalog::recovery_mark::RecoveryMark;
use pagehaul_engine::catalog::wal_names::WalFileName;
use pagehaul_engine::catalog::{Repository, identity};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::wal::{
    GetOutcome, GetRequest, HowPushed, PushReport, cluster_of_data_directory, get, is_in_gap, push,
};
use serde::Serialize;

use crate::args::{WalAdoptArgs, WalGetArgs, WalPushArgs, WalRecoveredArgs, WalVerb};
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::bytes;
use crate::progress::Console;

/// Runs one of them.
pub(crate) fn run(verb: &WalVerb, console: &Console) -> Result<ExitCode> {
    match verb {
        WalVerb::Push(args) => run_push(args, console),
        WalVerb::Get(args) => run_get(args, console),
        WalVerb::Receive(args) => super::wal_receive::run(args, console),
        WalVerb::List(args) => list::run(args),
        WalVerb::Adopt(args) => run_adopt(args, console),
        WalVerb::Recovered(args) => run_recovered(args),
        WalVerb::Serve => helper::serve(console),
    }
}

/// One file; the keys of `wal push --json`.
#[derive(Debug, Serialize)]
struct PushedInfo {
    name: String,
    path: String,
    outcome: &'static str,
    object: Option<String>,
    raw_bytes: Option<u64>,
    stored_bytes: Option<u64>,
    error: Option<String>,
}

fn run_push(args: &WalPushArgs, console: &Console) -> Result<ExitCode> {
    let request = args.request()?;
    // The helper says nothing of how it was done.
    let heard = if args.shared.json { None } else { helper::push(&args.helper, &args.shared.repo, &request)? };
    if let Some(outcome) = heard {
        if outcome.is_ok() && std::io::stderr().is_terminal() {
            console.tell("stored, or was there with the same bytes");
        }
        return outcome.map(|()| ExitCode::Done);
    }
    // Never makes one: where a disk is not mounted, the server's WAL would go beside the archive for months.
    let repository = Repository::open(&args.shared.repo)?;
    let report = push(&repository, &request, console)?;
    if args.shared.json {
        output::json(&serde_json::json!({"source": args.source, "files": pushed(&report)}))?;
    }
    // The server writes what is said here into its log, once a segment.
    if std::io::stderr().is_terminal() {
        console.tell(&pushed_text(&report));
    }
    let mut failed = report.files.into_iter().filter_map(|file| file.outcome.err());
    let Some(mut first) = failed.next() else { return Ok(ExitCode::Done) };
    failed.for_each(|later| first.attach(later));
    // The document has the error already.
    Ok(output::error(&first, false, ExitCode::Failed(first.kind())))
}

fn pushed(report: &PushReport) -> Vec<PushedInfo> {
    let files = report.files.iter().map(|file| {
        let done = file.outcome.as_ref().ok();
        PushedInfo {
            name: file.name.clone(),
            path: file.path.display().to_string(),
            outcome: match done.map(|pushed| pushed.how) {
                Some(HowPushed::Stored) => "stored",
                Some(HowPushed::WasThere) => "was_there",
                None => "failed",
            },
            object: done.map(|pushed| pushed.object.clone()),
            raw_bytes: done.map(|pushed| pushed.raw_bytes),
            stored_bytes: done.map(|pushed| pushed.stored_bytes),
            error: file.outcome.as_ref().err().map(Error::message),
        }
    });
    files.collect()
}

fn pushed_text(report: &PushReport) -> String {
    let done = report.files.iter().filter_map(|file| Some((file, file.outcome.as_ref().ok()?)));
    let line = done.map(|(file, pushed)| match pushed.how {
        HowPushed::Stored => {
            format!("{} stored, {} as {}\n", file.name, bytes(pushed.raw_bytes), bytes(pushed.stored_bytes))
        }
        HowPushed::WasThere => format!("{} was there, with the same bytes\n", file.name),
    });
    line.collect()
}

fn run_get(args: &WalGetArgs, console: &Console) -> Result<ExitCode> {
    let request = args.request()?;
    if args.only_histories && !matches!(WalFileName::parse(&args.name), Some(WalFileName::History(_)) | None) {
        return Ok(ExitCode::NotThere);
    }
    let is_alone = args.shared.json || args.only_histories;
    let heard = if is_alone { None } else { helper::get(&args.helper, &args.shared.repo, &request)? };
    if let Some(outcome) = heard {
        let is_there = outcome?;
        if !is_there {
            refuse_gap(args, &request)?;
        }
        if std::io::stderr().is_terminal() {
            console.tell(&format!("{} {}", args.name, if is_there { "delivered" } else { "is not in the archive" }));
        }
        return Ok(if is_there { ExitCode::Done } else { ExitCode::NotThere });
    }
    let repository = Repository::open(&args.shared.repo)?;
    let outcome = get(&repository, &request)?;
    if outcome == GetOutcome::NotThere {
        refuse_gap(args, &request)?;
    }
    let code = match &outcome {
        GetOutcome::Delivered(_) => ExitCode::Done,
        GetOutcome::NotThere => ExitCode::NotThere,
    };
    if args.shared.json {
        let document = match &outcome {
            GetOutcome::Delivered(report) => serde_json::json!({
                "name": args.name, "outcome": "delivered", "objects": report.objects, "bytes": report.size_bytes,
                "content_bytes": report.content_bytes,
            }),
            GetOutcome::NotThere => serde_json::json!({"name": args.name, "outcome": "not_there"}),
        };
        output::json(&document)?;
    }
    if std::io::stderr().is_terminal() {
        console.tell(&match &outcome {
            GetOutcome::Delivered(report) => format!("{} delivered, {}", args.name, bytes(report.size_bytes)),
            GetOutcome::NotThere => format!("{} is not in the archive", args.name),
        });
    }
    Ok(code)
}

/// The server would take a segment that is not there for the end of all WAL.
fn refuse_gap(args: &WalGetArgs, request: &GetRequest) -> Result<()> {
    if !args.fail_in_gap || !is_in_gap(&Repository::open(&args.shared.repo)?, request)? {
        return Ok(());
    }
    let cause = "it is not in the archive, and later WAL of its timeline is";
    Err(Error::new(ErrorKind::Repository, format!("get {}", args.name), cause)
        .hint("it has expired or was lost while recovery ran: restore a newer set, or to a point before it"))
}

/// Takes the mark away that kept expire from the WAL of a recovery.
fn run_recovered(args: &WalRecoveredArgs) -> Result<ExitCode> {
    let Some(mark) = RecoveryMark::parse(&args.mark) else {
        return Err(Error::new(ErrorKind::Usage, format!("use {:?}", args.mark), "it is not the mark of a recovery")
            .hint("`pagehaul restore` writes the command into recovery_end_command"));
    };
    mark.remove(&Repository::open(&args.shared.repo)?, &args.source.parse()?, &args.set.parse()?)?;
    Ok(ExitCode::Done)
}

fn run_adopt(args: &WalAdoptArgs, console: &Console) -> Result<ExitCode> {
    let source = args.source.parse()?;
    let cluster = cluster_of_data_directory(&args.pgdata)?;
    let repository = Repository::open_or_create(&args.shared.repo)?;
    let before = identity::newest(&repository, &source)?.map(|(_, found)| found.system_identifier);
    let number = identity::adopt(&repository, &source, &cluster)?;
    let system_identifier = cluster.system_identifier.to_string();
    if args.shared.json {
        output::json(&serde_json::json!({
            "source": args.source, "system_identifier": system_identifier, "before": before, "identity": number,
        }))?;
    }
    let now = format!("cluster {system_identifier} backs up and archives as {source}");
    console.tell(&match before {
        Some(before) if before != system_identifier => format!("{now} from now on; before it was {before}"),
        _ => now,
    });
    Ok(ExitCode::Done)
}
