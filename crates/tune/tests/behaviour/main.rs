//! Tuning of a real PostgreSQL: the whole way, interrupted, with full targets, failing tools and servers that restart.
//!
//! No test here judges a speed; what is asserted is what was run, compared, said and left behind.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod desk;
mod failures;
mod mssql;
mod search;
