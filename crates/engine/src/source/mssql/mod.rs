//! SQL Server 2012 to 2025, driven from here: its own BACKUP and RESTORE, over a connection of TDS.
//!
//! | file | answers |
//! |---|---|
//! | `address` | which server, as whom, encrypted how |
//! | `wire`, `transport`, `login` | packets, TCP and TLS, the way in |
//! | `token`, `value`, `server_message` | what the server sends |
//! | `client` | one session: batches, messages as they come, attention |
//! | `edition` | what a server of a version and edition can do |
//! | `quote`, `device`, `statement` | BACKUP and RESTORE as data, their rules, their text |
//! | `buffers` | how much memory a backup's buffers take |
//! | `questions`, `server_facts`, `said` | what is asked besides, and what the answers mean |
//!
//! Built to the published protocol (MS-TDS) and tried with a scripted server and other programs' clients; it has not
//! been run against a server.
//!
//! No threads and no waiting but for the server.

pub mod address;
pub mod buffers;
pub mod client;
pub mod device;
pub mod edition;
mod login;
pub mod questions;
pub mod quote;
pub mod said;
pub mod server_facts;
pub mod server_message;
pub mod snapshot;
pub mod statement;
mod token;
mod transport;
pub mod value;
mod wire;
