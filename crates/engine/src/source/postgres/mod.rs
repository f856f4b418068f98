//! PostgreSQL 13 to 18: the only place that knows data directories, pages, WAL files, pg_control and the backup API.
//!
//! In the order of a backup:
//!
//! | file | answers |
//! |---|---|
//! | `conninfo`, `passfile` | which server, as whom, with which password |
//! | `client`, `socket`, `login`, `server_error` | one session, and what the server refuses |
//! | `tls_settings`, `tls` | how it is encrypted, and which server is believed |
//! | `session`, `server_facts` | may a backup begin; begin, hold, end it |
//! | `replication`, `base_backup`, `tar` | the replication protocol: WAL as it is written, whole clusters |
//! | `manifest_upload`, `incremental_file`, `server_life` | of a cluster only what has changed |
//! | `data_directory`, `path_class` | which files a backup holds, and which of them have pages |
//! | `catalog_files`, `catalog_pages`, `relation_map` | which files there should be |
//! | `relation_layouts` | which kind of pages, and of tuples, each file holds |
//! | `page` | is this page what it should be |
//! | `control_file` | pg_control, read last |
//! | `wal` | is this the WAL segment it should be, and which ones does a backup need |
//! | `wal_header`, `wal_records`, `wal_xact` | whose segment is this, and what do its records say |
//! | `timeline_history` | where does a timeline come from |
//! | `wal_summary` | which blocks a stretch of WAL has changed |
//! | `archiving` | does the server archive, and a marker to prove it |
//! | `backup_manifest`, `server_manifest` | PostgreSQL's own list of a backup: written for pg_verifybackup, read |
//! | `scratch_server`, `pg_install`, `os_owner` | a private server for demo and tests |
//! | `sandbox` | a server on content that nobody has vouched for |
//!
//! No threads and no waiting here: the pipeline reads the files that `scan` names and asks `PageJudge` about pages.

pub mod archiving;
pub mod backup_manifest;
pub mod base_backup;
pub mod catalog_files;
pub mod catalog_pages;
pub mod client;
pub mod conninfo;
pub mod control_file;
pub mod data_directory;
pub mod incremental_file;
mod login;
mod manifest_upload;
pub mod os_owner;
pub mod page;
mod passfile;
pub mod path_class;
pub mod pg_install;
pub mod relation_layouts;
pub mod relation_map;
pub mod replication;
pub mod sandbox;
pub mod scratch_server;
pub mod server_error;
pub mod server_facts;
pub mod server_life;
pub mod server_manifest;
pub mod session;
mod socket;
pub mod tar;
pub mod timeline_history;
mod tls;
pub mod tls_settings;
pub mod wal;
pub mod wal_header;
pub mod wal_records;
pub mod wal_summary;
mod wal_xact;

#[cfg(test)]
mod password_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod tar_tests;
