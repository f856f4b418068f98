//! A row as the columns of table `run`, and back. The same columns, in the same order, are those of the CSV file.

use jiff::{SignedDuration, Timestamp};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use rusqlite::Row;
use rusqlite::types::{FromSql, Type, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::row::{HistoryRow, RunSettings};
use crate::figures::{MachineFacts, RunFigures};

/// Name and value of every column of `row`, its id first.
///
/// # Errors
/// `Usage` if a time is not one.
pub(super) fn of(row: &HistoryRow) -> Result<Vec<(String, Value)>> {
    let settings = &row.settings;
    let machine = &row.machine;
    let mut columns: Vec<(&str, Value)> = vec![
        ("id", row.id.into()),
        ("session", row.session.into()),
        ("started_at", time_text(time(&row.started_at)?).into()),
        ("role", row.role.clone().into()),
        ("source", row.source.clone().into()),
        ("pgdata", row.pgdata.clone().into()),
        ("system_identifier", row.system_identifier.to_string().into()),
        ("contestant", row.contestant.clone().into()),
        ("setting", row.setting.clone().into()),
        ("repetition", row.repetition.into()),
        ("label", row.label.clone().into()),
        ("source_bytes", bytes(row.source_bytes)),
        ("stored_bytes", bytes(row.stored_bytes)),
        ("compression", settings.compression.clone().into()),
        ("readers", settings.readers.into()),
        ("encoders", settings.encoders.into()),
        ("stripes", settings.stripes.into()),
        ("buffer_count", settings.buffer_count.into()),
        ("transfer_size_bytes", settings.transfer_size_bytes.into()),
        ("stripe_readers", settings.stripe_readers.into()),
        ("decoders", settings.decoders.into()),
        ("file_writers", settings.file_writers.into()),
    ];
    let rest: Vec<(&str, Value)> = vec![
        ("bytes_equal", row.bytes_equal.into()),
        ("host", machine.host.clone().into()),
        ("processor", machine.processor.clone().into()),
        ("cores", machine.cores.into()),
        ("memory_bytes", bytes(machine.memory_bytes)),
        ("system", machine.system.clone().into()),
        ("pagehaul", machine.pagehaul.clone().into()),
        ("server", machine.server.clone().into()),
        ("failed", row.failed.clone().into()),
    ];
    let mut all: Vec<(String, Value)> = columns.drain(..).map(|(name, value)| (name.to_owned(), value)).collect();
    all.extend(of_run("backup", row.backup.as_ref())?);
    all.extend(of_run("restore", row.restore.as_ref())?);
    all.extend(rest.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Ok(all)
}

/// The columns of one way; all of them NULL if it was not run.
fn of_run(way: &str, run: Option<&RunFigures>) -> Result<Vec<(String, Value)>> {
    let (start, end) = match run {
        Some(run) if !run.started_at.is_empty() => {
            let start = time(&run.started_at)?;
            let elapsed = SignedDuration::try_from_secs_f64(run.wall_s).unwrap_or_default();
            (Some(time_text(start)), start.checked_add(elapsed).ok().map(time_text))
        }
        _ => (None, None),
    };
    let columns: [(&str, Value); 9] = [
        ("started_at", start.into()),
        ("ended_at", end.into()),
        ("wall_s", run.map(|run| run.wall_s).into()),
        ("cpu_s", run.map(|run| run.cpu_s).into()),
        ("server_cpu_s", run.map(|run| run.server_cpu_s).into()),
        ("rss_bytes_max", run.map_or(Value::Null, |run| bytes(run.rss_bytes_max))),
        ("stages", run.map(|run| json_text(&run.stages)).transpose()?.into()),
        ("limit", run.map(|run| run.limit.clone()).into()),
        ("cache", run.map(|run| json_text(&run.cache)).transpose()?.map(|word| word.replace('"', "")).into()),
    ];
    Ok(columns.into_iter().map(|(name, value)| (format!("{way}_{name}"), value)).collect())
}

/// The row back from its columns.
pub(super) fn row(row: &Row<'_>) -> rusqlite::Result<HistoryRow> {
    Ok(HistoryRow {
        id: row.get("id")?,
        session: row.get("session")?,
        started_at: row.get("started_at")?,
        role: row.get("role")?,
        source: row.get("source")?,
        pgdata: row.get("pgdata")?,
        system_identifier: parsed(row, "system_identifier", |text: &str| text.parse::<u64>())?,
        contestant: row.get("contestant")?,
        setting: row.get("setting")?,
        settings: RunSettings {
            compression: row.get("compression")?,
            readers: row.get("readers")?,
            encoders: row.get("encoders")?,
            stripes: row.get("stripes")?,
            buffer_count: row.get("buffer_count")?,
            transfer_size_bytes: row.get("transfer_size_bytes")?,
            stripe_readers: row.get("stripe_readers")?,
            decoders: row.get("decoders")?,
            file_writers: row.get("file_writers")?,
        },
        repetition: row.get("repetition")?,
        label: row.get("label")?,
        source_bytes: unsigned(row, "source_bytes")?,
        stored_bytes: unsigned(row, "stored_bytes")?,
        backup: run(row, "backup")?,
        restore: run(row, "restore")?,
        bytes_equal: row.get("bytes_equal")?,
        machine: MachineFacts {
            host: row.get("host")?,
            processor: row.get("processor")?,
            cores: row.get("cores")?,
            memory_bytes: unsigned(row, "memory_bytes")?,
            system: row.get("system")?,
            pagehaul: row.get("pagehaul")?,
            server: row.get("server")?,
        },
        failed: row.get("failed")?,
    })
}

fn run(row: &Row<'_>, way: &str) -> rusqlite::Result<Option<RunFigures>> {
    let Some(wall_s) = column::<Option<f64>>(row, way, "wall_s")? else { return Ok(None) };
    Ok(Some(RunFigures {
        started_at: column::<Option<String>>(row, way, "started_at")?.unwrap_or_default(),
        wall_s,
        cpu_s: column::<Option<f64>>(row, way, "cpu_s")?.unwrap_or_default(),
        server_cpu_s: column::<Option<f64>>(row, way, "server_cpu_s")?.unwrap_or_default(),
        rss_bytes_max: unsigned(row, &format!("{way}_rss_bytes_max"))?,
        stages: parsed(row, &format!("{way}_stages"), from_json)?,
        limit: column(row, way, "limit")?,
        cache: parsed(row, &format!("{way}_cache"), |word: &str| from_json(&format!("\"{word}\"")))?,
    }))
}

fn column<T: FromSql>(row: &Row<'_>, way: &str, name: &str) -> rusqlite::Result<T> {
    row.get(format!("{way}_{name}").as_str())
}

/// A text column through `parse`; what does not parse is reported with the column's name.
fn parsed<T, E: std::error::Error + Send + Sync + 'static>(
    row: &Row<'_>,
    name: &str,
    parse: impl Fn(&str) -> std::result::Result<T, E>,
) -> rusqlite::Result<T> {
    let text: String = row.get(name)?;
    let index = row.as_ref().column_index(name)?;
    parse(&text).map_err(|cause| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(cause)))
}

fn from_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}

fn json_text<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|cause| Error::new(ErrorKind::Bug, "write figures as JSON", cause))
}

fn unsigned(row: &Row<'_>, name: &str) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(name)?).unwrap_or(0))
}

/// SQLite's integers have a sign; no number of bytes comes near 2^63.
fn bytes(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn time(text: &str) -> Result<Timestamp> {
    text.parse().map_err(|cause| {
        Error::new(ErrorKind::Usage, format!("keep {text:?} as a time"), cause)
            .hint("times look like 2026-11-21T20:15:30Z")
    })
}

/// UTC with microseconds, always as long as any other: the order of the texts is that of the times.
pub(super) fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
