//! What a run of `tune` would do, told before it does anything: commands, space, memory, time. Reads the list of files
//! and nothing else.

use pagehaul_engine::error::Result;
use pagehaul_engine::io;
use pagehaul_engine::pipeline::machine_cores;
use serde::Serialize;

use crate::figures::SourceFacts;
use crate::guard::FREE_BYTES_MIN;
use crate::model::ceiling_bytes;
use crate::recommend::commands;
use crate::scratch::local_directory;
use crate::session::TuneRequest;
use crate::source_files::SourceFiles;
use crate::space::{Settings, Space};

/// The plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Files that would be read.
    pub file_count: u64,
    /// Their bytes.
    pub source_bytes: u64,
    /// Combinations to choose from.
    pub point_count: u64,
    /// Every command, in order; what runs inside this process is in parentheses.
    pub commands: Vec<String>,
    /// For each place what it needs and has.
    pub space: Vec<String>,
    /// The largest memory ceiling of a run.
    pub memory_bytes_max: u64,
    /// How long, in words.
    pub time: String,
    /// The budget.
    pub budget_s: Option<f64>,
}

/// Speed that a guess of a grid's time takes for backup and restore, where nothing is measured yet.
const GUESSED_BYTES_PER_S: f64 = 300e6;

/// Looks at the source's list of files and at free space.
///
/// # Errors
/// `Source` if the files cannot be listed, `Usage` for targets that cannot be used.
pub fn plan(request: &TuneRequest) -> Result<Plan> {
    let source = SourceFiles::list(&request.targets.pgdata)?.facts();
    let points = request.space.points();
    let memory = points.iter().map(|point| ceiling_bytes(point, &source)).max().unwrap_or_default();
    Ok(Plan {
        file_count: source.file_count,
        source_bytes: source.source_bytes,
        point_count: points.len() as u64,
        commands: all_commands(request, &points),
        space: space(request, &source)?,
        memory_bytes_max: memory.max(request.sample_size_bytes),
        time: time(request, &source, points.len()),
        budget_s: request.budget.map(|budget| budget.as_secs_f64()),
    })
}

fn all_commands(request: &TuneRequest, points: &[Settings]) -> Vec<String> {
    let targets = &request.targets;
    let defaults = Space::defaults(machine_cores(), targets.stripe_to.len());
    let mut list = vec![
        format!(
            "(reads a sample of {:.0} MB and times {} codecs on it)",
            request.sample_size_bytes as f64 / 1e6,
            request.space.compressions.len()
        ),
        "(reads up to 1 GB of the files, and writes and reads as much at every target, to time the devices)".to_owned(),
        format!("pagehaul backup --pgdata {} --repo NUL --compression none", targets.pgdata.display()),
    ];
    list.push(
        "(where they take less than 10 s together: the next two commands once more before, not counted)".to_owned(),
    );
    list.extend(commands(&defaults, targets));
    if request.runs_grid {
        list.extend(points.iter().filter(|point| **point != defaults).flat_map(|point| commands(point, targets)));
    } else {
        list.push(format!(
            "(the same two commands for the points of {} that the model finds best, while they get better)",
            points.len()
        ));
    }
    list.extend(request.contestants.iter().flat_map(crate::contestants::Contestant::commands));
    if request.repeat > 1 {
        list.push(format!("(the best of them again, in turns, until each has run {} times)", request.repeat));
    }
    list.extend(
        request
            .parities
            .iter()
            .map(|count| format!("(the best of them with --parity {count}, to show what that costs)")),
    );
    list
}

fn space(request: &TuneRequest, source: &SourceFacts) -> Result<Vec<String>> {
    let targets = &request.targets;
    let mut lines = Vec::new();
    let parity = request.parities.iter().copied().max().map_or(0, u64::from);
    let fewest = request.space.stripes.iter().copied().min().map_or(1, u64::from);
    for (what, target, bytes) in [
        ("one backup", &targets.repo, source.source_bytes + source.source_bytes * parity / fewest),
        ("one restored copy", &targets.restore_to, source.source_bytes),
    ] {
        let directory = local_directory(target)?;
        let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(&directory);
        let free = io::free_bytes(existing).map_or("unknown".to_owned(), |free| format!("{:.0} MB", free as f64 / 1e6));
        lines.push(format!(
            "{what}: at most {:.0} MB at {}, of which {free} are free; {:.0} MB must stay free",
            bytes as f64 / 1e6,
            directory.display(),
            FREE_BYTES_MIN as f64 / 1e6
        ));
    }
    Ok(lines)
}

fn time(request: &TuneRequest, source: &SourceFacts, points: usize) -> String {
    match request.budget {
        Some(budget) => format!("at most about {:.0} s", budget.as_secs_f64()),
        None => {
            let runs = points as f64 * f64::from(request.repeat);
            let hours = runs * 2.0 * source.source_bytes as f64 / GUESSED_BYTES_PER_S / 3600.0;
            format!("{runs} backups and restores; {hours:.1} h if they move 300 MB/s")
        }
    }
}
