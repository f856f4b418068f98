//! Behaviour of the engine against a real PostgreSQL that each test starts itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod round_trip;
