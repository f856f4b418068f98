//! The checksums of pages that the sets of the chain have, as the data path asks for them.

use crate::catalog::page_sums::{ChainSums, FirstPage, SumsCursor};
use crate::error::{ErrorKind, Result};
use crate::pipeline::{KnownSums, SumsReader};
use crate::terms::{SetIndex, StripeIndex};

/// Those of all sets of the chain.
pub(super) struct SumsOfChain<'a>(pub(super) &'a ChainSums);

struct Cursor<'a> {
    sums: &'a ChainSums,
    cursor: SumsCursor<'a>,
}

impl KnownSums for SumsOfChain<'_> {
    fn reader(&self) -> Box<dyn SumsReader + '_> {
        Box::new(Cursor { sums: self.0, cursor: self.0.cursor() })
    }
}

impl SumsReader for Cursor<'_> {
    fn read(
        &mut self,
        set: SetIndex,
        stripe: StripeIndex,
        sequence: u64,
        pages: u64,
        sums: &mut Vec<u32>,
    ) -> Result<bool> {
        if !self.sums.covers(set, stripe, 0) {
            return Ok(false);
        }
        let place = FirstPage { set, stripe, frame: sequence, page_in_frame: 0 };
        match self.cursor.read(place, pages, &mut |sum| sums.push(sum)) {
            Ok(()) => Ok(true),
            // They can be made anew from the pages.
            Err(error) if error.kind() == ErrorKind::Damage => Ok(false),
            Err(error) => Err(error),
        }
    }
}
