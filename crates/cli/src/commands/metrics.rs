//! `pagehaul metrics`: what `info` knows as figures for Prometheus, on standard output, in a file, or over HTTP.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::proof::ProofResult;
use pagehaul_engine::io::replace_durable;
use pagehaul_engine::pipeline::Observer;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Response, Server};

use super::info::{self, SetInfo, SourceInfo};
use super::info_wal::WalInfo;
use crate::args::MetricsArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;

/// How often the server looks whether a signal asked it to stop.
const PATIENCE: Duration = Duration::from_millis(250);
/// The content type of OpenMetrics text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Figure = Family<Labels, Gauge<f64, AtomicU64>>;

/// Prints, writes or serves the figures.
pub(crate) fn run(args: &MetricsArgs, console: &Console) -> Result<ExitCode> {
    if let Some(address) = args.listen {
        serve(args, address, console)?;
    } else if let Some(file) = &args.textfile {
        write(file, &collect(args)?)?;
    } else {
        output::data(&collect(args)?)?;
    }
    Ok(ExitCode::Done)
}

fn write(file: &Path, text: &str) -> Result<()> {
    let fail = |cause: std::io::Error| Error::new(ErrorKind::Target, format!("write {}", file.display()), cause);
    let is_new = !file.exists();
    replace_durable(file, text.as_bytes()).map_err(|cause| fail(cause.into()))?;
    if is_new {
        // The collector is another user.
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).map_err(fail)?;
    }
    Ok(())
}

fn serve(args: &MetricsArgs, address: SocketAddr, console: &Console) -> Result<()> {
    // Whoever starts it wants to know now that the repository does not read.
    collect(args)?;
    let server =
        Server::http(address).map_err(|cause| Error::new(ErrorKind::Usage, format!("listen at {address}"), cause))?;
    console.note(&format!("figures at http://{}/metrics", server.server_addr()));
    while !console.interrupted() {
        let asked = server
            .recv_timeout(PATIENCE)
            .map_err(|cause| Error::new(ErrorKind::Bug, format!("answer at {address}"), cause))?;
        let Some(question) = asked else { continue };
        let (text, code) = answer(args, question.method(), question.url());
        let mut response = Response::from_string(text).with_status_code(code);
        if let (200, Ok(kind)) = (code, Header::from_bytes("Content-Type", CONTENT_TYPE)) {
            response.add_header(kind);
        }
        // Who asked and left is not waited for.
        question.respond(response).ok();
    }
    Ok(())
}

fn answer(args: &MetricsArgs, method: &Method, url: &str) -> (String, u16) {
    match (method, url.split('?').next()) {
        (Method::Get, Some("/metrics")) => match collect(args) {
            Ok(text) => (text, 200),
            // A scrape that fails is what alarms go by.
            Err(error) => (format!("{error}\n"), 503),
        },
        (Method::Get, _) => ("figures are at /metrics\n".to_owned(), 404),
        _ => ("only GET is answered\n".to_owned(), 405),
    }
}

fn collect(args: &MetricsArgs) -> Result<String> {
    let repository = Repository::open(&args.repo)?;
    let sources = info::load(&repository, args.source.as_deref())?;
    let figures = Figures::default();
    sources.iter().for_each(|source| figures.add(source));
    figures.now.get_or_create(&Vec::new()).set(seconds(Timestamp::now()));
    figures.text()
}

/// All that is told, by its name without the prefix.
#[derive(Default)]
struct Figures {
    sets: Figure,
    stored: Figure,
    last_finished: Figure,
    last_source: Figure,
    last_stored: Figure,
    last_bad_pages: Figure,
    last_lost_files: Figure,
    last_proof: Figure,
    last_recovery: Figure,
    wal_readable: Figure,
    wal_point: Figure,
    wal_gap: Figure,
    window_begin: Figure,
    window_end: Figure,
    now: Figure,
}

impl Figures {
    fn add(&self, info: &SourceInfo) {
        let labels = |more: &[(&'static str, &str)]| labels(&info.source, more);
        for set in &info.sets {
            let labels = labels(&[("kind", &set.kind), ("state", set.state)]);
            self.sets.get_or_create(&labels).inc();
        }
        let stored: u64 = info.sets.iter().filter_map(|set| set.stored_bytes).sum();
        self.stored.get_or_create(&labels(&[])).set(stored as f64);
        for kind in ["full", "differential", "incremental"] {
            let finished = newest(info, |set| set.kind == kind).and_then(|set| moment(set.finished_at.as_deref()));
            set_if_known(&self.last_finished, &labels(&[("kind", kind)]), finished);
        }
        if let Some(last) = newest(info, |_| true) {
            let figure = |value: Option<u64>| value.map(|value| value as f64);
            set_if_known(&self.last_source, &labels(&[]), figure(last.source_bytes));
            set_if_known(&self.last_stored, &labels(&[]), figure(last.stored_bytes));
            set_if_known(&self.last_bad_pages, &labels(&[]), figure(last.bad_page_count));
            set_if_known(&self.last_lost_files, &labels(&[]), figure(last.lost_file_count));
        }
        self.add_proofs(info);
        self.wal_readable.get_or_create(&labels(&[])).set(if info.wal_error.is_none() { 1.0 } else { 0.0 });
        for wal in &info.wal {
            self.add_wal(&info.source, wal);
        }
    }

    fn add_proofs(&self, info: &SourceInfo) {
        let labels = |more: &[(&'static str, &str)]| labels(&info.source, more);
        let mut proofs: Vec<_> = info.sets.iter().filter_map(|set| set.proof.as_ref()).collect();
        proofs.sort_by(|one, other| one.proved_at.cmp(&other.proved_at));
        for proof in proofs {
            let is_proven = proof.result == ProofResult::Proven;
            let result = labels(&[("result", if is_proven { "proven" } else { "broken" })]);
            set_if_known(&self.last_proof, &result, moment(Some(&proof.proved_at)));
            if is_proven {
                self.last_recovery.get_or_create(&labels(&[])).set(proof.recovery_s);
            }
        }
    }

    fn add_wal(&self, source: &str, wal: &WalInfo) {
        let cluster = ("cluster", wal.system_identifier.as_str());
        let point = wal.newest_point.as_ref().and_then(|point| moment(point.time.as_deref()));
        set_if_known(&self.wal_point, &labels(source, &[cluster]), point);
        for timeline in &wal.timelines {
            let number = timeline.timeline.to_string();
            let labels = labels(source, &[cluster, ("timeline", &number)]);
            let missing: u64 = timeline.gaps.iter().map(|gap| gap.segment_count).sum();
            self.wal_gap.get_or_create(&labels).set(missing as f64);
            if let Some(window) = timeline.windows.last() {
                set_if_known(&self.window_begin, &labels, moment(window.begin_time.as_deref()));
                set_if_known(&self.window_end, &labels, moment(window.last_commit_time.as_deref()));
            }
        }
    }

    fn text(&self) -> Result<String> {
        let mut registry = Registry::with_prefix("pagehaul");
        let all = [
            ("sets", "Sets in the repository", &self.sets),
            ("stored_bytes", "Bytes of all sets", &self.stored),
            (
                "last_set_timestamp_seconds",
                "When the newest complete set of each kind was finished",
                &self.last_finished,
            ),
            ("last_set_source_bytes", "Bytes that the newest complete set restores", &self.last_source),
            ("last_set_stored_bytes", "Bytes that the newest complete set takes", &self.last_stored),
            ("last_set_bad_pages", "Pages of the source that were damaged then", &self.last_bad_pages),
            ("last_set_lost_files", "Files of the source that had been lost then", &self.last_lost_files),
            ("last_proof_timestamp_seconds", "When a set was last tried out, by what came of it", &self.last_proof),
            (
                "last_proof_recovery_seconds",
                "Measured recovery time of the last set that was proven",
                &self.last_recovery,
            ),
            ("wal_readable", "Whether the archived WAL could be looked at", &self.wal_readable),
            ("wal_newest_point_timestamp_seconds", "The newest moment that can be reached", &self.wal_point),
            ("wal_gap_segments", "Segments that are missing between others", &self.wal_gap),
            ("window_begin_timestamp_seconds", "First moment of the newest recovery window", &self.window_begin),
            ("window_end_timestamp_seconds", "Last commit of the newest recovery window", &self.window_end),
            ("collected_timestamp_seconds", "When these figures were collected", &self.now),
        ];
        for (name, help, figure) in all {
            registry.register(name, help, Figure::clone(figure));
        }
        let mut text = String::new();
        encode(&mut text, &registry).map_err(|cause| Error::new(ErrorKind::Bug, "write the figures", cause))?;
        Ok(text)
    }
}

fn labels(source: &str, more: &[(&'static str, &str)]) -> Labels {
    let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
    std::iter::once(("source", source.to_owned())).chain(more).collect()
}

/// The newest complete set of which `is_meant` holds; sets are listed oldest first.
fn newest(info: &SourceInfo, is_meant: impl Fn(&SetInfo) -> bool) -> Option<&SetInfo> {
    info.sets.iter().rev().find(|set| set.state == "complete" && is_meant(set))
}

fn set_if_known(figure: &Figure, labels: &Labels, value: Option<f64>) {
    if let Some(value) = value {
        figure.get_or_create(labels).set(value);
    }
}

fn moment(text: Option<&str>) -> Option<f64> {
    text?.parse().ok().map(seconds)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}
