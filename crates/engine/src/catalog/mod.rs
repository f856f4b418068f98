//! What a repository holds: its sources, their sets, and one set opened for reading.
//!
//! ```text
//! pagehaul-repository.json                    once, marks the directory as a repository
//! <source>/sets/<label>/in-progress           lease of the running backup; gone after the commit
//! <source>/sets/<label>/plan.json             where the stripes go; gone after the commit
//! <source>/sets/<label>/stripe-0000.phs ...   or in the directories of --stripe-to
//! <source>/sets/<label>/files.table
//! <source>/sets/<label>/manifest.json         written last: the commit
//! <source>/sets/<label>/pin.json              never expires
//! <source>/sets/<label>/reader-<16 hex>       lease of somebody who reads the set
//! <source>/sets/<label>/expired.json          on its way out: not offered, and removed when nobody reads it
//! ```

pub mod inventory;
pub mod open_set;
pub mod pin;
pub mod reader_lease;
pub mod repository;
mod stripe_index;
pub mod tombstone;

pub use inventory::{SetListing, SetState, list_sets, newest_complete, newest_set};
pub use open_set::{OpenSet, OpenStripe, SetProblem, open_set, read_manifest};
pub use repository::Repository;
