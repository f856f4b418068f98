//! What a repository holds: its sources, their sets, and one set opened for reading.
//!
//! ```text
//! pagehaul-repository.json                    once, marks the directory as a repository
//! <source>/sets/<label>/in-progress           lease of the running backup; gone after the commit
//! <source>/sets/<label>/plan.json             where the stripes go; gone after the commit
//! <source>/sets/<label>/stripe-0000.phs ...   or in the directories of --stripe-to
//! <source>/sets/<label>/pages-0000.sums ...   checksums of the pages in the stripe of that number
//! <source>/sets/<label>/reader-<16 hex>       leases of those who read it now
//! <source>/sets/<label>/files.table
//! <source>/sets/<label>/manifest.json         written last: the commit
//! <source>/identity-0001.json                 which cluster writes under that name
//! <source>/wal/...                            the WAL archive, see wal_names.rs
//! ```

pub mod identity;
pub mod inventory;
pub mod leases;
pub mod open_set;
pub mod page_sums;
pub mod repository;
mod stripe_index;
pub mod wal_bundle;
pub mod wal_inventory;
pub mod wal_names;

pub use inventory::{SetListing, SetState, list_sets, newest_complete, newest_complete_of, newest_set};
pub use open_set::{OpenSet, OpenStripe, SetProblem, open_set, read_file_table, read_manifest, read_priors};
pub use repository::Repository;
