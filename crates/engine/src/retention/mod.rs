//! Verb: which sets and which WAL may go, and their removal in an order that no crash and no other host can turn
//! into a loss.
//!
//! ```text
//! load (what is there) -> plan (pure: what goes, and why) -> expire (tombstones, leases, needs, removal, WAL)
//! ```

mod expire;
pub mod facts;
mod judge;
mod load;
mod load_wal;
mod plan;
mod policy;
mod report;
mod rules;
mod shelf;
mod timelines;
mod wal_plan;

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod tests;

pub use expire::{ExpireRequest, Expired, expire};
pub use facts::RetentionInventory;
pub use plan::{Decisions, Fate, SetDecision, WalDecision, plan};
pub use policy::{KeepWal, RetentionPolicy};
pub use report::{ExpireReport, Outcome, SetReport, WalReport};
