//! The page codec from outside: what comes back, what is refused, what it takes.
//!
//! Pages are made by the builders here, which follow the server's headers and not the codec.
#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod btree;
mod discover;
mod documents;
mod format;
mod frames;
mod geometries;
mod gin;
mod gist;
mod hash;
mod heap;
mod hostile;
mod memory;
mod no_memory;
mod pages;
mod pglz;
mod properties;
mod random;
mod real;
mod round_trips;
mod seeds;
mod segments;
mod spgist;
mod structure;
mod values;
mod wal;
