//! Verb: the WAL archive. [`push`] stores what the server hands over, [`get`] gives it back at recovery, [`list`] says
//! what is there and what is missing. [`receive`] streams it from a server while it is written.
//!
//! No locks: an object appears whole or not at all, is never rewritten, and whoever stores WAL looks before and after
//! whether somebody else stored it too.

mod bundle_writer;
mod cluster;
mod content;
mod get;
pub mod helper;
mod list;
mod piece;
mod push;
mod push_outcome;
mod receive;
mod stored;

pub use cluster::cluster_of_data_directory;
pub use get::{GetOutcome, GetReport, GetRequest, get, is_in_gap};
pub use list::{ClusterListing, NamedRange, RestorePointListing, TimelineListing, WalListing, list};
pub use piece::{Piece, put_piece};
pub use push::{PushRequest, push};
pub use push_outcome::{HowPushed, PushReport, Pushed, PushedFile};
pub use receive::{ReceiveReport, ReceiveRequest, receive};
