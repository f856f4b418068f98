//! `pagehaul tune`: finds the best settings for this data on this hardware, for backup and restore, by measuring.
//!
//! ```text
//! sample ----> ratio and speed of every codec x level x frame on real pages   \
//! devices ---> read, write and restore sides alone                             > facts -> model -> predictions
//! trials  ---> real backups and restores of the best candidates, in turns -----/            |
//!    ^                                                                                      v
//!    +---------------------------- next candidates <------------------------------------ search
//! ```
//!
//! `figures` holds what is measured and said; `space`, `model`, `search` and `objective` are pure; `sample`, `device`,
//! `trial` and `contestants` measure; `history` keeps every run; `report` draws the page.

pub mod codec_bench;
pub mod codec_table;
mod coder;
pub mod device;
pub mod figures;
pub mod model;
pub mod sample;
pub mod source_files;
pub mod space;
pub mod stratum;
mod threads;
pub mod what_if;
