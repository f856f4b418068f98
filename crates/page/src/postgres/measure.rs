//! Where values lie in their tuples, of many tuples at a time.

use multiversion::multiversion;

use super::grid::{EXTERNAL_BYTES, form};
use super::wire::OUTSIDE;
use crate::error::Decoded;

/// Place and end of a value of variable length, looked for from `cursor` on, which is within a page. Without a branch: forms come in
/// any order, and many are measured at a time.
#[inline(always)]
pub(super) fn measured(head: u32, cursor: u32, alignment: u32) -> (u32, u32) {
    let (form, length) = (head & 3, head >> 2);
    let is_long = form == form::LONG || form == form::COMPRESSED;
    let at = if is_long { aligned(cursor, alignment) } else { cursor };
    let header = if is_long { 4 } else { 1 };
    (at, at + if form == form::EXTERNAL { EXTERNAL_BYTES as u32 } else { header + length })
}

/// Finds where the next value of each cursor is, and moves the cursor behind it. All ends in one number, which is above 16 bits if one
/// of them is: they are not within a page then, nor is what was found.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
pub(super) fn measure_fixed(length: u32, alignment: u32, cursors: &mut [u32], row: &mut [u16]) -> u32 {
    let mut ends = 0;
    for (cursor, place) in cursors.iter_mut().zip(row) {
        let at = aligned(*cursor, alignment);
        *place = at as u16;
        *cursor = at + length;
        ends |= *cursor;
    }
    ends
}

/// As [`measure_fixed`], of values with these heads.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
pub(super) fn measure_variable(heads: &[u32], alignment: u32, cursors: &mut [u32], row: &mut [u16]) -> u32 {
    let mut ends = 0;
    for ((cursor, place), head) in cursors.iter_mut().zip(row).zip(heads) {
        let (at, next) = measured(*head, *cursor, alignment);
        *place = at as u16;
        *cursor = next;
        ends |= next;
    }
    ends
}

/// The two as a grid has them; no tuple is larger than a page, and no page than 32 KiB.
#[inline]
pub(super) fn within_page(at: usize, next: usize) -> Decoded<(u16, u32)> {
    if next > usize::from(u16::MAX) { Err(OUTSIDE) } else { Ok((at as u16, next as u32)) }
}

/// As [`super::wire::align`], of places on a page.
#[inline(always)]
fn aligned(at: u32, alignment: u32) -> u32 {
    (at + alignment - 1) & !(alignment - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(count: u32) -> Vec<u32> {
        let forms = [form::SHORT, form::LONG, form::EXTERNAL, form::COMPRESSED];
        (0..count).map(|at| (at * at % 97) << 2 | forms[at as usize * 7 / 3 % 4]).collect()
    }

    #[test]
    fn many_values_are_measured_as_each_alone() {
        for count in [0, 1, 7, 8, 9, 31, 200] {
            let heads = heads(count);
            for alignment in [1, 2, 4, 8] {
                let starts: Vec<u32> = (0..count).map(|at| 24 + at * 13).collect();
                let (mut cursors, mut row) = (starts.clone(), vec![0; starts.len()]);
                assert!(measure_variable(&heads, alignment, &mut cursors, &mut row) <= u32::from(u16::MAX));
                for (at, start) in starts.iter().enumerate() {
                    assert_eq!((u32::from(row[at]), cursors[at]), measured(heads[at], *start, alignment));
                }
                cursors.clone_from(&starts);
                measure_fixed(12, alignment, &mut cursors, &mut row);
                for (at, start) in starts.iter().enumerate() {
                    let place = start.next_multiple_of(alignment);
                    assert_eq!((u32::from(row[at]), cursors[at]), (place, place + 12));
                }
            }
        }
    }

    #[test]
    fn one_value_beyond_its_page_is_seen_among_others() {
        for place in 0..40 {
            for (head, start) in
                [(0xFFFF << 2 | form::SHORT, 24), (0x3FFF_FFFF << 2 | form::LONG, 24), (6 << 2 | form::SHORT, 65_530)]
            {
                let (mut heads, mut cursors, mut row) = (heads(40), vec![24; 40], [0; 40]);
                (heads[place], cursors[place]) = (head, start);
                assert!(measure_variable(&heads, 4, &mut cursors, &mut row) > u32::from(u16::MAX));
            }
            let (mut cursors, mut row) = (vec![24; 40], [0; 40]);
            cursors[place] = 65_530;
            assert!(measure_fixed(8, 8, &mut cursors, &mut row) > u32::from(u16::MAX));
        }
    }
}
