//! SQL Server's backup files (`.bak`) without a server: read, verified, ordered and unpacked.
//!
//! ```text
//! file --> source: pieces of the MTF stream --> mtf: blocks and streams --> verify, inspect, unpack
//!          plain, or chunks (container)                                     sql: what the server says
//!          decoded by several threads                                       page: pages and their use
//! ```

pub mod bytes;
pub mod chain;
pub mod checksum;
pub mod container;
pub mod damage;
pub mod facts;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod inspect;
pub mod ledger;
pub mod media;
pub mod mtf;
pub mod page;
pub mod piece;
pub mod source;
pub mod sql;
pub mod unpack;
pub mod verify;
pub mod walk;
mod wire;

pub use wire::Parsed;
