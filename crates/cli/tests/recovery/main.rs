//! Recovery to a point with the real command and real servers: whatever point is asked for, the restored cluster holds
//! exactly what was committed up to there, or nothing is restored at all.
//!
//! `PAGEHAUL_TEST_TARGETS` sets how many targets of each type the random test tries (20), `PAGEHAUL_TEST_SEED` repeats
//! a run, `PAGEHAUL_TEST_RAW` names a CSV file for a line of each.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod archive_away;
mod archived;
mod check;
mod copied;
mod copies;
mod day;
mod encrypted;
mod ends;
mod expiring;
mod forged;
mod ledger;
mod metrics;
mod object_lock;
mod object_store;
mod parity;
mod prove;
mod refused;
mod settings;
mod signed;
mod signed_wal;
mod state;
mod streamed;
mod synthesized;
mod targets;
mod timelines;
