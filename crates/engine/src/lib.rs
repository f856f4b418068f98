//! The Pagehaul engine.

pub mod codec;
pub mod error;
pub mod source;
pub mod terms;
