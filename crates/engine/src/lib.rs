//! The Pagehaul engine.

pub mod backup;
pub mod catalog;
pub mod check;
pub mod codec;
pub mod copy;
pub mod drill;
pub mod encryption;
pub mod error;
pub mod format;
pub mod io;
pub mod kept;
pub mod limits;
pub mod pipeline;
pub mod protect;
pub mod repair;
pub mod restore;
pub mod retention;
pub mod secrets;
pub mod source;
pub mod storage;
pub mod terms;
pub mod verify;
pub mod wal;
