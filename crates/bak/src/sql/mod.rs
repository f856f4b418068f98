//! What SQL Server says of a backup in its own records.

mod config;
mod ids;

pub use config::{Configuration, DatabaseFile, FileGroup};
pub use ids::{Guid, SqlLsn};
