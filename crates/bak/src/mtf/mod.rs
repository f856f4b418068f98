//! Microsoft Tape Format, as far as SQL Server uses it.
//!
//! A file is descriptor blocks, each followed by streams; a padding stream leads to the next block. SQL Server writes
//!
//! ```text
//! TAPE  filemark  SSET VOLB MSCI  MSDA... MSTL... MSLS  filemark  ESET ESET  filemark  (SSET ... for the next set)
//! ```
//!
//! MSCI and MSLS describe the database (stream MQCI), MSDA holds extents of pages (MQDA), MSTL pieces of log (MQTL).

mod block;
mod date;
mod parser;
mod stream;

pub use block::{BLOCK_HEADER_BYTES, Block, BlockKind, SetAttributes, SetStart, TapeHeader};
pub use date::MtfDate;
pub use parser::{MtfParser, MtfSink, Place, Sector, Want};
pub use stream::{MediaFamily, STREAM_HEADER_BYTES, StreamHeader, StreamKind};
