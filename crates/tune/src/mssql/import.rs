//! Results of a script that was run by hand.

use std::path::Path;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::questions::{FACTS, Line};
use pagehaul_engine::source::mssql::server_facts::ServerFacts;

use super::recommend::Ending;
use super::report::{Made, machine, place, report};
use super::transcript;
use crate::figures::TuneReport;
use crate::history::{History, Origin};
use crate::objective::Objective;

/// Results are never larger.
const SIZE_BYTES_MAX: u64 = 256 << 20;

/// What is imported, and how it is judged.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// Name of the source, for the history.
    pub source: String,
    /// The database.
    pub database: String,
    /// What is best.
    pub objective: Objective,
    /// Where runs are kept.
    pub history: std::path::PathBuf,
    /// The command line, for the report.
    pub command: String,
}

/// The text of a results file, in UTF-8 or in UTF-16 as sqlcmd -u writes it.
///
/// # Errors
/// `Usage` for a file that is not there or is no text.
pub fn read_results(path: &Path) -> Result<String> {
    let bad = |cause: String| Error::new(ErrorKind::Usage, format!("read the results in {}", path.display()), cause);
    let size = std::fs::metadata(path).map_err(|cause| bad(cause.to_string()))?.len();
    if size > SIZE_BYTES_MAX {
        return Err(bad(format!("it has {size} bytes, and results have {SIZE_BYTES_MAX} at most")));
    }
    let bytes = std::fs::read(path).map_err(|cause| bad(cause.to_string()))?;
    if let Some(wide) = bytes.strip_prefix(&[0xff, 0xfe]) {
        let units: Vec<u16> = wide.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        return String::from_utf16(&units).map_err(|cause| bad(cause.to_string()));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("it is neither UTF-8 nor UTF-16".to_owned()))?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// Reads `text`, keeps its trials, and answers.
///
/// # Errors
/// `Usage` if there are no facts or trials in it; `Repository` if the history cannot be written.
pub fn import(text: &str, request: &ImportRequest) -> Result<TuneReport> {
    let action = "import results";
    let database = &request.database;
    let has_facts = text.lines().filter_map(Line::parse).any(|line| line.moment == FACTS && line.name == "server");
    if !has_facts {
        return Err(Error::new(ErrorKind::Usage, action, "they do not begin with facts about the server")
            .hint("run the whole script, with its first batches, and give all that it printed"));
    }
    let facts = ServerFacts::read(text.lines(), database)?;
    let trials = transcript::trials(text.lines(), facts.cpu_count);
    if trials.is_empty() {
        return Err(Error::new(ErrorKind::Usage, action, "there are no trials in them"));
    }
    let history = History::open(&request.history)?;
    let key = format!("mssql import of {} trials from {}", trials.len(), facts.server);
    let (session, _lock) = history.begin_alone(&key, &serde_json::json!({ "command": request.command }).to_string())?;
    let origin = Origin {
        source: request.source.clone(),
        pgdata: place(&facts),
        system_identifier: 0,
        machine: machine(&facts),
    };
    for trial in &trials {
        history.save_trial(&session, trial, &origin)?;
    }
    history.finish(&session)?;
    let started_at = trials.iter().find_map(|trial| trial.backup.as_ref()).map(|run| run.started_at.clone());
    let runs = trials.iter().flat_map(|trial| [&trial.backup, &trial.restore]).flatten();
    let elapsed_s = runs.map(|run| run.wall_s).sum();
    Ok(report(Made {
        facts: &facts,
        objective: &request.objective,
        point_count: crate::rows::table(&trials, &request.objective, facts.cpu_count).len(),
        trials,
        backup_to: &[],
        ending: Ending::All,
        notes: vec!["the trials were run by hand; the time is that of backups and restores alone".to_owned()],
        started_at: started_at.unwrap_or_default(),
        elapsed_s,
        command: request.command.clone(),
    }))
}
