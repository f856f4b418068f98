//! Behaviour of the engine against a real PostgreSQL that each test starts itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod delta;
mod drill;
mod expire;
mod golden;
mod incremental;
mod incremental_cases;
mod incremental_faults;
mod layouts;
mod moving_cluster;
mod page_damage;
mod remote;
mod round_trip;
mod selective;
mod slow_devices;
mod source_faults;
mod standby;
mod store_faults;
mod stored_damage;
mod target_rules;
mod wal_archive;
mod wal_facts;
mod wal_of_a_set;
mod wal_receive;
mod wal_receive_pieces;
