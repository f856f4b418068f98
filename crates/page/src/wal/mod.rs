//! PostgreSQL's WAL, versions 13 to 18: pages of a segment taken apart into page headers, records and what they carry.
//!
//! [`WalTaker`] takes pages apart into [`WalStreams`], [`WalMaker`] makes the same pages of them. Records are cut out of the
//! stream that the pages carry together, the *body*. What begins before the frame, ends behind it or does not read as a
//! record is bytes of the body as they are. Layouts: src/include/access/xlog_internal.h and xlogrecord.h.

mod bodies;
mod image;
mod make;
mod pages;
mod plan;
mod record;
mod relations;
mod shapes;
mod streams;
mod take;
mod tuples;

pub(crate) use make::{WalMaker, WalSource};
pub(crate) use streams::{WalCoder, WalDecoder, WalStreams};
pub(crate) use take::WalTaker;
