//! How rows of bytes of one length are cut into columns: constant bytes, and numbers of 1, 2, 4 or 8 bytes.
//!
//! The structs behind are not known here; what a column would cost is estimated from a sample of rows.

use crate::entropy::{BIT, entropy, weight};

/// Rows that are looked at: runs of neighbours, so that differences tell something.
const SAMPLE_RUNS: usize = 4;
const RUN_ROWS: usize = 16;
const SAMPLE_ROWS: usize = SAMPLE_RUNS * RUN_ROWS;
/// What a column's own head takes.
const COLUMN_COST: u64 = 24 * BIT;
/// What a byte costs that is left to the text, about.
const TEXT_BYTE_COST: u64 = 4 * BIT;
/// In place of a width: what follows is left to the text.
const STOP: u8 = 255;
/// In such long rows that would keep more than this share (of 8) of their bits there is text, which is better left together.
const TEXT_LENGTH_MIN: usize = 24;
const TEXT_SHARE: u64 = 4;

/// Plans rows; keeps its memory.
#[derive(Debug, Default)]
pub(super) struct Planner {
    /// Where rows differ from the first one.
    differs: Vec<u8>,
    /// Rows of the sample, one after the other.
    sample: Vec<u8>,
    /// Of each place: the least cost from there to the row's end, and the width of the column that begins there.
    costs: Vec<u64>,
    choices: Vec<u8>,
    /// The plan: widths in order, 0 for a constant byte.
    pub(super) widths: Vec<u8>,
}

impl Planner {
    /// Plans the rows of `length` bytes that start at `rows` in `data`; false if they are better left as text.
    pub(super) fn plan(&mut self, data: &[u8], rows: &[u32], length: usize) -> bool {
        self.find_costs(data, rows, length, None);
        let is_text = length >= TEXT_LENGTH_MIN && self.costs[0] > (rows.len() * length) as u64 * TEXT_SHARE * BIT;
        !is_text && self.choose(length) > 0
    }

    /// Plans the first bytes, at most `length`, of rows that go on behind; how many are in the plan.
    pub(super) fn plan_prefix(&mut self, data: &[u8], rows: &[u32], length: usize) -> usize {
        self.find_costs(data, rows, length, Some(rows.len() as u64 * TEXT_BYTE_COST));
        self.choose(length)
    }

    /// Follows the choices from the start; how many bytes they are about.
    fn choose(&mut self, length: usize) -> usize {
        self.widths.clear();
        let mut at = 0;
        while at < length && self.choices[at] != STOP {
            self.widths.push(self.choices[at]);
            at += usize::from(self.choices[at]).max(1);
        }
        at
    }

    /// Finds the best choice for each place; `byte_cost` is that of a byte of all rows that is left to the text, if it may be.
    fn find_costs(&mut self, data: &[u8], rows: &[u32], length: usize, byte_cost: Option<u64>) {
        self.find_differences(data, rows, length);
        self.take_sample(data, rows, length);
        let sampled = (self.sample.len() / length) as u64;
        self.costs.clear();
        self.costs.resize(length + 1, 0);
        self.choices.clear();
        self.choices.resize(length, 0);
        for at in (0..length).rev() {
            if self.differs[at] == 0 {
                self.costs[at] = self.costs[at + 1];
                continue;
            }
            let mut best = (u64::MAX, 1);
            for width in [1, 2, 4, 8] {
                if at + width > length {
                    break;
                }
                let cost = self.column_cost(at, width, length) * rows.len() as u64 / sampled + COLUMN_COST;
                best = best.min((cost + self.costs[at + width], width));
            }
            if let Some(byte_cost) = byte_cost {
                best = best.min(((length - at) as u64 * byte_cost, STOP.into()));
            }
            self.costs[at] = best.0;
            self.choices[at] = best.1 as u8;
        }
    }

    fn find_differences(&mut self, data: &[u8], rows: &[u32], length: usize) {
        let first = &data[rows[0] as usize..][..length];
        self.differs.clear();
        self.differs.resize(length, 0);
        for row in rows {
            let row = &data[*row as usize..][..length];
            for ((differs, byte), of_first) in self.differs.iter_mut().zip(row).zip(first) {
                *differs |= byte ^ of_first;
            }
        }
    }

    fn take_sample(&mut self, data: &[u8], rows: &[u32], length: usize) {
        self.sample.clear();
        let mut push = |rows: &[u32]| {
            rows.iter().for_each(|row| self.sample.extend_from_slice(&data[*row as usize..][..length]));
        };
        if rows.len() <= SAMPLE_ROWS {
            return push(rows);
        }
        for run in 0..SAMPLE_RUNS {
            let start = (rows.len() - RUN_ROWS) * run / (SAMPLE_RUNS - 1);
            push(&rows[start..start + RUN_ROWS]);
        }
    }

    /// What the sample's values of `width` bytes at `at` of each row cost: as numbers of a range, as differences, or by how
    /// often each occurs, whatever is least.
    fn column_cost(&self, at: usize, width: usize, length: usize) -> u64 {
        let mut counts = [0_u32; 64];
        let (mut least, mut most, mut of_differences) = (u64::MAX, 0, 0);
        let (mut last, mut count) = (0, 0);
        let shift = 64 - 8 * width as u32;
        for row in self.sample.chunks_exact(length) {
            let mut bytes = [0; 8];
            bytes[..width].copy_from_slice(&row[at..at + width]);
            let value = u64::from_le_bytes(bytes);
            least = least.min(value);
            most = most.max(value);
            if count > 0 {
                let difference = ((value.wrapping_sub(last) << shift) as i64 >> shift).unsigned_abs();
                of_differences += (u64::from(u64::BITS - difference.leading_zeros()) + 1) * BIT;
            }
            counts[(value.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize] += 1;
            (last, count) = (value, count + 1);
        }
        let of_range = u64::from(u64::BITS - (most - least).leading_zeros()) * BIT * count;
        let distinct = counts.iter().filter(|count| **count > 0).count() as u64;
        let mut cost = of_range.min(of_differences);
        // With many different values the sample says too little of how often each occurs.
        if distinct * 3 <= count || width == 1 {
            cost = cost.min(entropy(&counts, count as u32).0.max(weight(1)));
        }
        cost
    }
}
