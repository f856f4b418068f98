//! What a repository holds: its sources, their sets, and one set opened for reading.
//!
//! ```text
//! pagehaul-repository.json                    once, marks the directory as a repository
//! <source>/sets/<label>/in-progress           lease of the running backup; gone after the commit
//! <source>/sets/<label>/plan.json             where the stripes go; gone after the commit
//! <source>/sets/<label>/stripe-0000.phs ...   or in the directories of --stripe-to
//! <source>/sets/<label>/owner.json            there, beside them: whose they are
//! <source>/sets/<label>/parity-0000.phs ...   parity of the stripes, or in the directories of --parity-to
//! <source>/sets/<label>/stripe-0000-r1.phs    a stripe that was repaired, and so on
//! <source>/sets/<label>/pages-0000.sums ...   checksums of the pages in the stripe of that number
//! <source>/sets/<label>/frames.sums          digests of all frames, if the set is signed
//! <source>/sets/<label>/reader-<16 hex>       leases of those who read it now
//! <source>/sets/<label>/recovery-...json      marks of recoveries that replay from it
//! <source>/sets/<label>/files.table
//! <source>/sets/<label>/manifest.json         written last: the commit
//! <source>/sets/<label>/pin.json              never expires
//! <source>/sets/<label>/expired.json          on its way out: not offered, and removed when nobody reads it
//! <source>/proofs/<label>-<n>.json             what came of trying the set out
//! <source>/identity-0001.json                 which cluster writes under that name
//! <source>/encrypted.json                     from then on nothing is written without encryption
//! <source>/heads/<counter>.json               signed lists of the sets, each with the digest of the one before
//! <source>/wal/...                            the WAL archive, see wal_names.rs
//! ```

mod bound_stripe;
pub mod encryption_mark;
pub mod healed_stripe;
pub mod identity;
pub mod inventory;
pub mod key_rotation;
mod known_heads;
mod manifest_lock;
pub mod new_set;
pub mod open_parity;
pub mod open_set;
pub mod page_sums;
mod parity_rows;
pub mod parity_set;
pub mod pin;
pub mod place_owner;
pub mod proofs;
pub mod protection;
pub mod reader_lease;
mod rebuilder;
pub mod recoverable;
pub mod recovery_mark;
pub mod repository;
pub mod second_copies;
pub mod signed_head;
mod stripe_index;
pub mod stripe_places;
pub mod timeline_path;
mod timeline_wal;
pub mod tombstone;
pub mod wal_bundle;
pub mod wal_facts;
pub mod wal_inventory;
pub mod wal_names;
pub mod wal_pieces;
pub mod windows;

pub use bound_stripe::{StripeDigests, digests_memory_bytes, frame_digests};
pub use healed_stripe::{Flaws, HealedStripe};
pub use inventory::{SetListing, SetState, list_sets, newest_complete, newest_complete_of, newest_set};
pub use manifest_lock::{check_key, check_unlocked, keys_of};
pub use open_parity::open_parity_set;
pub use open_set::{OpenSet, OpenStripe, SetProblem, open_set, read_file_table, read_manifest, read_priors};
pub use parity_set::{ParitySet, RebuiltFrame};
pub use recoverable::{SegmentFacts, TimedWindow, timed_windows};
pub use repository::Repository;
pub use stripe_places::{FoundStripe, find_stripe};
pub use timeline_path::{SegmentRange, TimelinePath};
pub use wal_facts::{ArchiveFacts, set_points};
pub use windows::{ArchivedWal, RecoveryWindow, SetPoint, recovery_windows};
