//! Behaviour of the engine against a real PostgreSQL that each test starts itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod clocks;
mod copy;
mod copy_wal;
mod delta;
mod drill;
mod expire;
mod golden;
mod incremental;
mod incremental_cases;
mod incremental_faults;
mod kept;
mod layouts;
mod lost_files;
mod moving_cluster;
mod mssql;
mod overlaps;
mod page_codec;
mod page_damage;
mod parity;
mod relation_layouts;
mod remote;
mod remote_incremental;
mod round_trip;
mod selective;
mod slow_devices;
mod source_faults;
mod standby;
mod standby_ends;
mod store_faults;
mod stored_damage;
mod synthetic;
mod synthetic_faults;
mod target_rules;
mod tls;
mod wal_archive;
mod wal_codecs;
mod wal_facts;
mod wal_faults;
mod wal_get_pieces;
mod wal_of_a_set;
mod wal_receive;
mod wal_receive_history;
mod wal_receive_pieces;
mod wal_receive_remote_write;
