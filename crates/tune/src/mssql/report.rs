//! The document of a run, in the form that all tuning has.

use pagehaul_engine::source::mssql::server_facts::ServerFacts;

use super::recommend::{Ending, recommend};
use crate::figures::{Facts, MachineFacts, SourceFacts, Trial, TuneReport};
use crate::objective::Objective;
use crate::rows;

/// What a document is made of.
pub(super) struct Made<'a> {
    pub(super) facts: &'a ServerFacts,
    pub(super) objective: &'a Objective,
    pub(super) trials: Vec<Trial>,
    pub(super) backup_to: &'a [String],
    pub(super) ending: Ending,
    pub(super) point_count: usize,
    pub(super) notes: Vec<String>,
    pub(super) started_at: String,
    pub(super) elapsed_s: f64,
    pub(super) command: String,
}

/// The server, as a document and the history have it.
pub(super) fn machine(facts: &ServerFacts) -> MachineFacts {
    MachineFacts {
        host: facts.server.clone(),
        processor: String::new(),
        cores: facts.cpu_count,
        memory_bytes: facts.memory_bytes,
        system: if facts.dialect.is_windows { "Windows".to_owned() } else { "Linux".to_owned() },
        pagehaul: env!("CARGO_PKG_VERSION").to_owned(),
        server: format!("{} ({}, {})", facts.dialect.version, facts.product_version, facts.edition_name),
    }
}

/// How the database is called where data directories stand.
pub(super) fn place(facts: &ServerFacts) -> String {
    format!("[{}]", facts.database)
}

/// The document.
pub(super) fn report(made: Made<'_>) -> TuneReport {
    let facts = made.facts;
    let rows = rows::table(&made.trials, made.objective, facts.cpu_count);
    let recommendation = recommend(
        &rows,
        made.objective,
        facts.cpu_count,
        &facts.database,
        made.backup_to,
        made.ending,
        made.point_count,
    );
    TuneReport {
        started_at: made.started_at,
        elapsed_s: made.elapsed_s,
        command: made.command,
        facts: Facts {
            machine: machine(facts),
            source: SourceFacts {
                pgdata: place(facts),
                system_identifier: 0,
                source_bytes: facts.data_bytes,
                file_count: facts.files.len() as u64,
            },
            ..Facts::default()
        },
        trials: made.trials,
        rows,
        recommendation,
        notes: made.notes,
        ..TuneReport::default()
    }
}
