//! The history for other programs: CSV with a header, one row a run, and JSON.

use pagehaul_engine::error::{Error, ErrorKind, Result};
use rusqlite::types::Value;

use super::columns;
use super::row::HistoryRow;

/// The rows as CSV with a header: the columns of the file's table `run`, in their order; empty where there is no value.
///
/// Times are UTC, durations seconds, sizes bytes; the stages' waits are one field of JSON.
///
/// # Errors
/// `Usage` if a time of a row is not one.
pub fn to_csv(rows: &[HistoryRow]) -> Result<String> {
    let failed = |cause: csv::Error| Error::new(ErrorKind::Bug, "write the history as CSV", cause);
    let mut writer = csv::Writer::from_writer(Vec::new());
    // The names are the same whatever the row: a history without rows has its header, too.
    let empty = HistoryRow { started_at: "1970-01-01T00:00:00Z".to_owned(), ..HistoryRow::default() };
    writer.write_record(columns::of(&empty)?.iter().map(|(name, _)| name)).map_err(failed)?;
    for row in rows {
        let fields = columns::of(row)?.into_iter().map(|(_, value)| field(value));
        writer.write_record(fields).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|cause| Error::new(ErrorKind::Bug, "write the history as CSV", cause))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn field(value: Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text,
        // There are no blobs.
        Value::Null | Value::Blob(_) => String::new(),
    }
}

/// The rows as one JSON array, readable, with the keys of [`HistoryRow`].
///
/// # Errors
/// `Bug` if a row does not serialize.
pub fn to_json(rows: &[HistoryRow]) -> Result<String> {
    serde_json::to_string_pretty(rows).map_err(|cause| Error::new(ErrorKind::Bug, "write the history as JSON", cause))
}
