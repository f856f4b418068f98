//! Columns of pages on which every tuple has the same columns of its layout and nothing else, as on most pages of most
//! relations.
//!
//! No tuple is asked whether it has a column: those of fixed length before the first one of variable length lie at the same
//! place in every tuple, and values of variable length are found and taken in one go.

use super::column::{Column, cells};
use super::columns::{Columns, shares_keys};
use super::grid::TupleSpan;
use super::items::Item;
use super::measure::within_page;
use super::wire::{OUTSIDE, align, is_padding};
use crate::error::Decoded;
use crate::layout::Attribute;
use crate::prefetch::Ahead;

/// Of the page at hand, kept and used again for every page.
#[derive(Debug, Default)]
pub(super) struct FullScratch {
    /// Of each column of the layout, whether the tuples have it.
    has: Vec<bool>,
    /// Where the next column of each tuple is; at the end, where its last one ends.
    pub(super) cursors: Vec<u32>,
    /// Where the values of a column behind the prefix are: while pages are taken apart on the page, of the column at hand;
    /// while they are made within their tuples, of all such columns.
    pub(super) rows: Vec<u16>,
    /// What is asked for while the page is worked on.
    pub(super) ahead: Ahead,
}

impl FullScratch {
    /// The tuples have all of the layout's columns.
    pub(super) fn set_all_columns(&mut self, column_count: usize) {
        self.has.clear();
        self.has.resize(column_count, true);
    }

    /// They have those that `tuple` has.
    pub(super) fn set_columns_of(&mut self, column_count: usize, tuple: &TupleSpan, bitmaps: &[u8]) {
        self.has.clear();
        self.has.extend((0..column_count).map(|column| tuple.has(column, bitmaps)));
    }
}

/// Those of a layout's columns that the tuples have.
fn present<'c>(
    attributes: &'c [Attribute],
    columns: &'c mut [Column],
    has: &'c [bool],
) -> impl Iterator<Item = (&'c Attribute, &'c mut Column)> {
    attributes.iter().zip(columns).zip(has).filter_map(|(column, has)| has.then_some(column))
}

impl Columns {
    /// Appends all values of `items`, whose columns start `header` bytes behind their places. False, and nothing is appended,
    /// if the layout does not fit one of them, or `ends` does not agree with where their columns end.
    pub(super) fn gather_full(
        &mut self,
        page: &[u8],
        items: &[Item],
        header: usize,
        scratch: &mut FullScratch,
        ends: impl Fn(&Item, u32) -> bool,
    ) -> bool {
        self.attempt(|columns| {
            columns.try_gather(page, items, header, scratch)
                && items.iter().zip(&scratch.cursors).all(|(item, cursor)| ends(item, *cursor))
        })
    }

    fn try_gather(&mut self, page: &[u8], items: &[Item], header: usize, scratch: &mut FullScratch) -> bool {
        let FullScratch { has, cursors, rows, ahead } = scratch;
        let shortest = items.iter().map(|item| item.length).min().unwrap_or(0) as usize;
        let (mut end, mut is_open) = (header, true);
        for (attribute, column) in present(&self.attributes, &mut self.columns, has) {
            ahead.step();
            if is_open && attribute.length > 0 {
                let at = align(end, usize::from(attribute.alignment));
                let is_padded = |item: &Item| is_padding(page, item.at as usize + end, item.at as usize + at);
                if at + attribute.length as usize > shortest || at != end && !items.iter().all(is_padded) {
                    return false;
                }
                column.gather_at(page, *attribute, items.iter().map(|item| item.at as usize + at));
                end = at + attribute.length as usize;
                continue;
            }
            if is_open {
                begin_cursors(cursors, items, end);
                is_open = false;
            }
            let tuples = cells(cursors).iter().zip(items).map(|(cell, item)| (cell, (item.at + item.length) as usize));
            if !column.gather(page, *attribute, tuples, shares_keys(self.are_keys, *attribute), rows) {
                return false;
            }
        }
        if is_open {
            begin_cursors(cursors, items, end);
        }
        true
    }

    /// Takes the heads of the next `count` tuples, and finds where in its tuple each value will be. Columns start `header`
    /// bytes behind a tuple's place; the scratch's cursors then tell where they end.
    pub(super) fn measure_full(&mut self, count: usize, header: usize, scratch: &mut FullScratch) -> Decoded<()> {
        let FullScratch { has, cursors, rows, .. } = scratch;
        let there = self.attributes.iter().zip(has.iter()).filter_map(|(attribute, has)| has.then_some(attribute));
        let prefix = there.clone().take_while(|attribute| attribute.length > 0);
        let (length, end) = prefix.fold((0, header), |(number, end), attribute| {
            (number + 1, align(end, usize::from(attribute.alignment)) + attribute.length as usize)
        });
        let (_, end) = within_page(0, end)?;
        cursors.clear();
        cursors.resize(count, end);
        let needed = (there.count() - length) * count;
        if rows.len() < needed {
            rows.resize(needed, 0);
        }
        if count == 0 {
            return Ok(());
        }
        let columns = present(&self.attributes, &mut self.columns, has).skip(length);
        for ((attribute, column), row) in columns.zip(rows.chunks_exact_mut(count)) {
            column.measure_all(*attribute, cursors, row)?;
        }
        Ok(())
    }

    /// Puts all values of `items`, which [`Columns::measure_full`] measured and which have their places now.
    pub(super) fn scatter_full(
        &mut self,
        page: &mut [u8],
        items: &[Item],
        header: usize,
        scratch: &mut FullScratch,
        text: &[u8],
    ) -> Decoded<()> {
        if items.is_empty() {
            return Ok(());
        }
        let FullScratch { has, rows, ahead, .. } = scratch;
        let mut rows = rows.chunks_exact(items.len());
        let (mut end, mut is_open) = (header, true);
        for (attribute, column) in present(&self.attributes, &mut self.columns, has) {
            ahead.step();
            is_open &= attribute.length > 0;
            if is_open {
                let at = align(end, usize::from(attribute.alignment));
                end = at + attribute.length as usize;
                let places = items.iter().map(|item| item.at as usize + at);
                column.scatter(page, *attribute, places, text, false)?;
                continue;
            }
            let row = rows.next().ok_or(OUTSIDE)?;
            let places = items.iter().zip(row).map(|(item, at)| item.at as usize + usize::from(*at));
            column.scatter(page, *attribute, places, text, shares_keys(self.are_keys, *attribute))?;
        }
        Ok(())
    }
}

fn begin_cursors(cursors: &mut Vec<u32>, items: &[Item], end: usize) {
    cursors.clear();
    cursors.extend(items.iter().map(|item| item.at + end as u32));
}
