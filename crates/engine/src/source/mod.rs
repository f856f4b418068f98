//! Where backed-up bytes come from: one folder per kind of database.
//!
//! A source knows its database and nothing of stripes, frames or threads; the pipeline reads the files it names.

pub mod keepalive;
pub mod mssql;
pub mod postgres;
mod server_trust;
