//! Columns that tell of another one: which column before a column is its reference.

use multiversion::multiversion;

use crate::entropy::Reader;
use crate::error::{Damaged, Decoded};
use crate::postgres::{Column, Columns};

/// How many columns before are looked at for one that tells of this one.
const COLUMNS_BEFORE_MAX: usize = 4;
/// How many values are compared for that.
const SAMPLE_COUNT: usize = 64;

/// The column before column `number`, of the same length, whose values are nearest; its distance goes to `out`, 0 for
/// none.
pub(super) fn pick<'c, T: Copy + Eq + Into<u64>>(
    columns: &'c Columns,
    number: usize,
    values_of: impl Fn(&'c Column) -> &'c Vec<T>,
    out: &mut Vec<u8>,
) -> Option<&'c [T]> {
    let attribute = columns.attributes[number];
    let values = values_of(&columns.columns[number]);
    let mut best: Option<(u32, usize)> = None;
    // A constant needs none.
    let is_constant = values.iter().all(|value| *value == values[0]);
    let first = if is_constant { number } else { number.saturating_sub(COLUMNS_BEFORE_MAX) };
    for before in (first..number).rev() {
        let other = columns.attributes[before];
        let candidate = values_of(&columns.columns[before]);
        if (other.value_type, other.length) != (attribute.value_type, attribute.length)
            || candidate.len() != values.len()
        {
            continue;
        }
        let cost = bits_apart(values, candidate);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, before));
        }
    }
    let Some((_, before)) = best else {
        out.push(0);
        return None;
    };
    out.push((number - before) as u8);
    Some(values_of(&columns.columns[before]))
}

/// How many bits the differences of a sample take.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn bits_apart<T: Copy + Into<u64>>(values: &[T], others: &[T]) -> u32 {
    let step = values.len().div_ceil(SAMPLE_COUNT);
    let bits = |(value, other): (&T, &T)| {
        let distance = (*value).into().wrapping_sub((*other).into()) as i64;
        64 - distance.unsigned_abs().leading_zeros()
    };
    values.iter().zip(others).step_by(step).map(bits).sum()
}

/// The column before that [`pick`] told.
pub(super) fn picked<'c, T>(
    before: &'c [Column],
    input: &mut Reader<'_>,
    values_of: impl Fn(&'c Column) -> &'c Vec<T>,
) -> Decoded<Option<&'c [T]>> {
    match input.u8()? {
        0 => Ok(None),
        distance => {
            let place = before.len().checked_sub(usize::from(distance));
            let column = place.and_then(|place| before.get(place));
            let column = column.ok_or(Damaged("a column refers to one that is not there"))?;
            Ok(Some(values_of(column)))
        }
    }
}
