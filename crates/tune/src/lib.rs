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
pub mod compare;
pub mod contestants;
pub mod device;
pub mod figures;
pub mod gather;
pub mod guard;
pub mod history;
pub mod model;
pub mod mssql;
pub mod objective;
pub mod plan;
pub mod recommend;
pub mod report;
pub mod rounds;
pub mod rows;
pub mod sample;
pub mod scratch;
pub mod search;
pub mod session;
pub mod source_files;
pub mod space;
pub mod stratum;
mod threads;
pub mod trial;
pub mod what_if;
