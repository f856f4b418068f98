//! PostgreSQL's pages, versions 13 to 18, of any size it can be built with.
//!
//! [`PageTaker`] takes pages apart into streams, [`PageMaker`] makes the same pages of them. A page that is not as it should
//! be is stored as it is. Layouts: src/include/storage/bufpage.h and itemid.h.

mod bounds;
mod column;
mod columns;
mod discover;
mod full;
mod gin;
mod grid;
mod heap;
mod hole;
mod index;
mod items;
pub(crate) mod jsonb;
mod measure;
pub(crate) mod numeric;
mod page;
mod presence;
mod remains;
mod spgist;
mod streams;
pub(crate) mod wire;

pub(crate) use column::Column;
pub(crate) use columns::{Columns, shares_keys};
pub(crate) use discover::Discovery;
pub(crate) use grid::form;
pub(crate) use page::{PageMaker, PageSource, PageTaker, kind_of_page, kind_of_pages, steps};
pub(crate) use streams::{ByteStream, PageStreams};
pub(crate) use wire::{SHORT_BYTES, append};
