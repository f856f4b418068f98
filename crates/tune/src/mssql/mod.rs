//! Tuning of SQL Server's own BACKUP and RESTORE: which algorithm, how many files, which buffers.
//!
//! ```text
//! facts ---> points ---> script: every batch of every trial, as text ---> run over TDS, or by hand in sqlcmd
//!                                                                              |
//!                     rows, recommendation, report <--- trials <--- transcript: what the server said
//! ```
//!
//! `point` and `space` are the settings, `script` makes the batches, `transcript` reads what came of them, `walk` chooses
//! what is next: all pure. `session` runs. What is run is what the script shows: there is one text for both.
//!
//! The server is told COPY_ONLY always, so that no trial is ever the base of somebody's differential.

pub mod import;
pub mod point;
pub mod recommend;
mod report;
pub mod run;
pub mod script;
pub mod session;
pub mod space;
pub mod transcript;
pub mod walk;

/// The name of its rows.
pub const CONTESTANT: &str = "SQL Server";
