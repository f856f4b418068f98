//! The catalogs as their own files have them, without a session.
//!
//! | file | answers |
//! |---|---|
//! | `heap_page` | which tuples are on a page, and which version of a row counts |
//! | `catalog_rows` | what a tuple of `pg_class`, `pg_attribute` or `pg_type` says |
//! | `named_files` | are the files there that a database's `pg_class` names |

pub(super) mod catalog_rows;
pub(super) mod heap_page;
pub mod named_files;
