//! Verb: archive WAL and fetch it.

pub mod helper;
