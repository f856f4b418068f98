//! The real command against a real PostgreSQL while everything around it fails: killed at system calls, failing
//! system calls, full disks, signals, limits; and the whole way from a backup to a running copy.
//!
//! `PAGEHAUL_TEST_KILLS` sets how many places each sweep tries (the default is small; `all` tries every one),
//! `PAGEHAUL_TEST_FROM` the first of all the places of a store's failures, `PAGEHAUL_TEST_FAULT` the one kind of them
//! that is tried; `PAGEHAUL_TEST_SEED` repeats a run. What cannot run on this machine says `SKIPPED:`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod bad_input;
mod bench;
mod copy;
mod deflate_engine;
mod done_means;
mod errno;
mod failing_store;
mod full_disk;
mod holders;
mod kill_backup;
mod kill_delta;
mod kill_expire;
mod kill_restore;
mod kill_synthesize;
mod limits;
mod network;
mod object_store;
mod pairs;
mod power_loss;
mod receive;
mod secrets;
mod several_repositories;
mod signals;
mod sources;
mod store_lies;
mod store_ways;
mod strace;
mod stuck_archive;
mod tune;
mod wal;
mod wal_helper;
mod wal_recovery;
