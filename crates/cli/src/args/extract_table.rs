//! `pagehaul extract-table` as typed, and what it means.

use std::path::PathBuf;

use clap::Args;
use pagehaul_engine::drill::{ExtractRequest, TableName};
use pagehaul_engine::error::Result;

use super::prove::ScratchArgs;
use super::shared::SetArgs;

/// Flags of `extract-table`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExtractTableArgs {
    /// Which backup.
    #[command(flatten)]
    pub(crate) from: SetArgs,

    /// Which table; parts with dots or capitals stand in double quotes where PostgreSQL wants them so
    #[arg(long, value_name = "DATABASE.SCHEMA.TABLE", help_heading = "From")]
    pub(crate) table: String,

    /// File to write, which does not exist yet, or - for standard output
    #[arg(long, value_name = "FILE", help_heading = "Whereto")]
    pub(crate) output: PathBuf,

    /// Where it is done.
    #[command(flatten)]
    pub(crate) scratch: ScratchArgs,

    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl ExtractTableArgs {
    /// What was typed, as the engine takes it.
    ///
    /// # Errors
    /// `Usage`, with a hint that names what is valid.
    pub(crate) fn request(&self) -> Result<ExtractRequest> {
        Ok(ExtractRequest {
            drill: self.scratch.drill(&self.from, self.from.label()?)?,
            table: self.table.parse::<TableName>()?,
            output: (self.output.as_os_str() != "-").then(|| self.output.clone()),
        })
    }
}
