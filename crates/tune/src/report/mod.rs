//! The report: one HTML page that opens from a disk, loads nothing from anywhere, and shows a whole [`TuneReport`].
//!
//! Everything is inside the page: the figures as JSON, the drawing library, our script and style from `assets/`. A
//! content security policy lets only these very scripts run and no request leave. What users named (paths, hosts,
//! errors) is data in the JSON and becomes text nodes; none of it is ever markup.

mod page;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::figures::TuneReport;

/// The report as one page of HTML, about 0.6 MB, UTF-8.
///
/// # Errors
/// `Bug` if the report does not serialize.
pub fn html(report: &TuneReport) -> Result<String> {
    let data = page_data(report)
        .map_err(|cause| Error::new(ErrorKind::Bug, "write the figures of the report as JSON", cause))?;
    Ok(page::page(&data))
}

/// The document of `tune --json`, as a browser can read it without losing anything.
fn page_data(report: &TuneReport) -> serde_json::Result<String> {
    let mut document = serde_json::to_value(report)?;
    // A browser's numbers hold integers up to 2^53 only; the system identifier has 63 bits that count.
    if let Some(identifier) = document.pointer_mut("/facts/source/system_identifier") {
        *identifier = Value::String(report.facts.source.system_identifier.to_string());
    }
    serde_json::to_string(&document)
}
