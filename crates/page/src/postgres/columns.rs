//! The columns of one layout: values in streams by column, out of pages and back into them.

use super::column::{Column, Mark, cells};
use super::grid::{Grid, RowParts, TupleSpan};
use super::items::Item;
use super::presence::Share;
use crate::error::Decoded;
use crate::layout::{Attribute, ValueType};
use crate::stream::held_bytes;

/// The columns of one layout in one frame.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) columns: Vec<Column>,
    /// Index keys come in order: text shares its beginning with the key before.
    pub(crate) are_keys: bool,
    /// What they held at the start of the page at hand.
    marks: Vec<Mark>,
}

impl Columns {
    /// Starts a frame with another layout; memory is kept.
    pub(crate) fn begin(&mut self, attributes: &[Attribute], are_keys: bool) {
        self.attributes.clear();
        self.attributes.extend_from_slice(attributes);
        self.are_keys = are_keys;
        if self.columns.len() < attributes.len() {
            self.columns.resize_with(attributes.len(), Column::default);
        }
        self.columns.iter_mut().for_each(Column::clear);
    }

    /// The memory they keep.
    pub(crate) fn held_bytes(&self) -> usize {
        held_bytes(&self.marks) + held_bytes(&self.columns) + self.columns.iter().map(Column::held_bytes).sum::<usize>()
    }

    /// Takes a page apart by `gather`, unless that says that it did not fit: then nothing is appended.
    pub(super) fn attempt(&mut self, gather: impl FnOnce(&mut Self) -> bool) -> bool {
        self.marks.clear();
        self.marks.extend(self.columns.iter_mut().zip(&self.attributes).map(|(column, of)| column.mark(*of)));
        let fits = gather(self);
        if !fits {
            for ((column, attribute), mark) in self.columns.iter_mut().zip(&self.attributes).zip(&self.marks) {
                column.back_to(*mark, *attribute);
            }
        }
        fits
    }

    /// Appends all values of the grid's tuples, of which those become raw that the layout does not fit, or for which `ends`
    /// does not agree with where their columns end. Bitmaps lie in the page.
    pub(super) fn gather(&mut self, page: &[u8], grid: &mut Grid, ends: impl Fn(&TupleSpan, u32) -> bool) {
        grid.begin(self.attributes.len(), page);
        let fits = self.attempt(|columns| {
            columns.try_gather_some(page, grid)
                && grid.tuples.iter().zip(&grid.cursors).all(|(tuple, cursor)| tuple.is_raw || ends(tuple, *cursor))
        });
        if fits {
            return;
        }
        grid.find(page, &self.attributes, ends);
        for (number, (attribute, column)) in self.attributes.iter().zip(&mut self.columns).enumerate() {
            let row = grid.row(number);
            if attribute.length > 0 {
                column.gather_at(page, *attribute, row.iter().map(|at| usize::from(*at)));
            } else {
                column.gather_variable_at(page, row, shares_keys(self.are_keys, *attribute));
            }
        }
    }

    /// As [`Columns::gather`], of tuples of which none becomes raw that is not yet; false if one would.
    fn try_gather_some(&mut self, page: &[u8], grid: &mut Grid) -> bool {
        let mut prefix = grid.prefix();
        grid.cursors.clear();
        grid.cursors.extend(grid.tuples.iter().map(|tuple| tuple.data_at));
        for (number, (attribute, column)) in self.attributes.iter().zip(&mut self.columns).enumerate() {
            grid.full.ahead.step();
            if prefix.advance(*attribute) {
                let tuples = &grid.tuples[grid.presence.all.clone()];
                if !prefix.is_padded(page, tuples) {
                    return false;
                }
                column.gather_at(page, *attribute, tuples.iter().map(|tuple| tuple.data_at as usize + prefix.at));
                continue;
            }
            grid.leave(&mut prefix);
            let Grid { tuples, cursors, presence, full, .. } = &mut *grid;
            let cells = cells(cursors);
            let are_keys = shares_keys(self.are_keys, *attribute);
            let fits = match presence.share(number) {
                Share::All(all) => {
                    let all =
                        cells[all.clone()].iter().zip(&tuples[all]).map(|(cell, tuple)| (cell, tuple.end as usize));
                    column.gather(page, *attribute, all, are_keys, &mut full.rows)
                }
                Share::Some(members) => {
                    let some = members.map(|member| (&cells[member], tuples[member].end as usize));
                    column.gather(page, *attribute, some, are_keys, &mut full.rows)
                }
            };
            if !fits {
                return false;
            }
        }
        grid.leave(&mut prefix);
        true
    }

    /// The values of the grid's tuples are measured: `cursors`, which start at the tuples' data, are moved behind the last
    /// column, and its rows tell where within the tuple each value will be.
    pub(super) fn measure(&mut self, grid: &mut Grid, bitmaps: &[u8]) -> Decoded<()> {
        grid.begin(self.attributes.len(), bitmaps);
        let mut prefix = grid.open_prefix();
        for (number, (attribute, column)) in self.attributes.iter().zip(&mut self.columns).enumerate() {
            if prefix.advance(*attribute) {
                grid.add_same_place(prefix.at);
                continue;
            }
            grid.leave(&mut prefix);
            let RowParts { cursors, share, row, .. } = grid.add_row(number);
            match share {
                Share::All(all) => column.measure_all(*attribute, &mut cursors[all], row)?,
                Share::Some(members) => {
                    let cells = cells(cursors);
                    column.measure(*attribute, members.map(|member| &cells[member]), row)?;
                }
            }
        }
        grid.leave(&mut prefix);
        Ok(())
    }

    /// Puts all values into `page`, each at its tuple's place of `items` + its own of the grid.
    pub(super) fn scatter(&mut self, page: &mut [u8], grid: &mut Grid, items: &[Item], text: &[u8]) -> Decoded<()> {
        for (number, (attribute, column)) in self.attributes.iter().zip(&mut self.columns).enumerate() {
            grid.full.ahead.step();
            let row = grid.row(number).iter().map(|at| usize::from(*at));
            let are_keys = shares_keys(self.are_keys, *attribute);
            match grid.presence.share(number) {
                Share::All(all) => {
                    let all = row.zip(&items[all]).map(|(at, item)| at + item.at as usize);
                    column.scatter(page, *attribute, all, text, are_keys)?;
                }
                Share::Some(members) => {
                    let some = row.zip(members).map(|(at, member)| at + items[member].at as usize);
                    column.scatter(page, *attribute, some, text, are_keys)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether values are stored as what they do not share with the one before. Numbers have better ways.
pub(crate) fn shares_keys(are_keys: bool, attribute: Attribute) -> bool {
    are_keys && attribute.value_type == ValueType::Varlena
}
