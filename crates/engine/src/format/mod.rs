//! The bytes at rest, and nothing else: no I/O, no threads. FORMAT.md is the document; this is its code.
//!
//! A set is stripes (`stripe.rs`: header, frames, trailer; `frame.rs`), checksums of their pages (`page_sums.rs`), a
//! file table (`file_table.rs`) and a manifest (`manifest.rs`) whose existence is the commit and which names the others (`object_digest.rs`); stripes of parity
//! (`parity.rs`, `row_code.rs`) give back frames that are lost; WAL is in bundles (`wal_bundle.rs`, `member_facts.rs`), which may be signed (`bundle_seal.rs`); `proof.rs`
//! says what came of trying a set out. Every number is little-endian; every structure carries a
//! checksum; every length is bounded before anything is allocated for it.

pub mod bundle_seal;
pub mod checksum;
pub mod encrypted;
pub mod file_table;
pub mod file_table_stream;
pub mod frame;
pub mod head;
pub mod identity;
pub mod kept_file;
pub mod manifest;
pub mod manifest_private;
pub mod object_digest;
pub mod page_sums;
pub mod parity;
pub mod proof;
pub mod row_code;
pub mod stripe;
pub mod wal_bundle;

mod member_facts;
mod sealed_json;
mod wire;

/// What to do about a document that does not read.
pub(crate) const DOCUMENT_HINT: &str = "either it is damaged: put it back from another copy of the repository; or whatever \
    answers there, a proxy for one, is not the store; or a newer version wrote it";

#[cfg(test)]
mod file_table_tests;
#[cfg(test)]
mod wal_bundle_tests;

/// The version that this build writes; a reader refuses any other.
pub const FORMAT_VERSION: u16 = 1;
