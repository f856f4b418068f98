//! Behaviour of the engine against a real PostgreSQL that each test starts itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod round_trip;
mod source_faults;
mod stored_damage;
mod target_rules;
