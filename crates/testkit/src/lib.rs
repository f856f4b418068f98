//! Test tools: throwaway PostgreSQL clusters with data, oracles, stores that fail.
//!
//! Everything here panics on trouble: it is for tests, and a test that cannot be set up has failed.

#![allow(clippy::unwrap_used, reason = "test tools: what does not work fails the test")]

pub mod certificates;
pub mod cluster;
pub mod cluster_template;
pub mod damage;
pub mod faulty;
pub mod foreign_stores;
pub mod forwarder;
pub mod lying;
pub mod mssql;
pub mod observer;
pub mod program;
pub mod qatzip_stand_in;
pub mod random;
pub mod role_server;
pub mod s3_faults;
pub mod s3_server;
