//! The Pagehaul engine.

pub mod codec;
pub mod error;
pub mod format;
pub mod limits;
pub mod terms;
