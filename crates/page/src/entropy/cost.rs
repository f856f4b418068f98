//! What values would cost: entropies in whole numbers, the same on every machine.

/// One bit, in the unit of all costs here.
pub(crate) const BIT: u64 = 256;

/// 256 * log2(1 + at / 256), rounded down, by repeated squaring.
const FRACTIONS: [u8; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut mantissa = (256 + at as u64) << 22;
        let mut fraction = 0_u32;
        let mut bit = 0;
        while bit < 8 {
            mantissa = (mantissa * mantissa) >> 30;
            fraction <<= 1;
            if mantissa >= 1 << 31 {
                mantissa >>= 1;
                fraction |= 1;
            }
            bit += 1;
        }
        table[at] = fraction as u8;
        at += 1;
    }
    table
};

/// 256 * log2(`count`), a little low; 0 for 0.
#[inline]
pub(super) const fn log2(count: u32) -> u64 {
    if count == 0 {
        return 0;
    }
    let whole = count.ilog2();
    let mantissa = if whole >= 8 { count >> (whole - 8) } else { count << (8 - whole) };
    whole as u64 * BIT + FRACTIONS[(mantissa & 0xff) as usize] as u64
}

/// [`weight`] of the counts that samples have, and small streams.
static WEIGHTS: [u32; 1024] = {
    let mut table = [0; 1024];
    let mut count = 0;
    while count < table.len() {
        table[count] = (count as u64 * log2(count as u32)) as u32;
        count += 1;
    }
    table
};

/// `count * log2(count)`.
#[inline]
pub(crate) fn weight(count: u32) -> u64 {
    match WEIGHTS.get(count as usize) {
        Some(weight) => u64::from(*weight),
        None => u64::from(count) * log2(count),
    }
}

/// What `total` symbols of these counts cost with no table, and how many different ones they are.
#[inline]
pub(crate) fn entropy(counts: &[u32], total: u32) -> (u64, u64) {
    // Most symbols of most streams do not occur.
    let (eights, rest) = counts.as_chunks::<8>();
    let there = eights.iter().filter(|eight| eight.iter().fold(0, |all, count| all | count) != 0);
    let (mut sum, mut symbols) = (0, 0);
    for count in there.flatten().chain(rest) {
        sum += weight(*count);
        symbols += u64::from(*count > 0);
    }
    (weight(total).saturating_sub(sum), symbols)
}

/// How often each byte occurs.
pub(super) struct Histogram {
    pub(super) counts: [u32; 256],
    symbols: [u8; 256],
    symbol_count: usize,
}

/// Up to this many bytes one table counts them: more of them take longer to clear and to add up.
const ONE_TABLE_MAX: usize = 512;

impl Histogram {
    pub(super) fn of(values: &[u8]) -> Self {
        let counts = match values.iter().fold(0, |most, value| *value.max(&most)) {
            0..=1 => counts_of_bits(values),
            _ if values.len() <= ONE_TABLE_MAX => counts_of_few(values),
            _ => counts_of_many(values),
        };
        let mut histogram = Histogram { counts, symbols: [0; 256], symbol_count: 0 };
        for (first, eight) in (0_u8..=255).step_by(8).zip(counts.as_chunks::<8>().0) {
            if eight.iter().fold(0, |all, count| all | count) == 0 {
                continue;
            }
            for (symbol, count) in (first..=255).zip(eight) {
                // Written in any case: no branch to be guessed. Before the last symbol there are not more than fit.
                histogram.symbols[histogram.symbol_count & 0xff] = symbol;
                histogram.symbol_count += usize::from(*count > 0);
            }
        }
        histogram
    }

    /// The bytes that occur, in order.
    pub(super) fn symbols(&self) -> &[u8] {
        &self.symbols[..self.symbol_count]
    }

    /// The counts of [`Histogram::symbols`].
    pub(super) fn there(&self) -> impl Iterator<Item = u32> {
        self.symbols().iter().map(|symbol| self.counts[usize::from(*symbol)])
    }

    /// What all of the bytes, which are `total`, cost with no table.
    pub(super) fn entropy(&self, total: u32) -> u64 {
        weight(total).saturating_sub(self.there().map(weight).sum())
    }
}

/// Of zeros and ones, as columns of booleans have them: many at a time.
fn counts_of_bits(values: &[u8]) -> [u32; 256] {
    let mut counts = [0; 256];
    // A sum of 128 fits a byte.
    let ones: u32 = values.chunks(128).map(|block| u32::from(block.iter().sum::<u8>())).sum();
    (counts[0], counts[1]) = (values.len() as u32 - ones, ones);
    counts
}

fn counts_of_few(values: &[u8]) -> [u32; 256] {
    let mut counts = [0; 256];
    for value in values {
        counts[usize::from(*value)] += 1;
    }
    counts
}

/// By four tables, so that a run of one byte does not wait for itself.
fn counts_of_many(values: &[u8]) -> [u32; 256] {
    let mut tables = [[0_u32; 256]; 4];
    let (words, rest) = values.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        tables[0][(word & 0xff) as usize] += 1;
        tables[1][(word >> 8 & 0xff) as usize] += 1;
        tables[2][(word >> 16 & 0xff) as usize] += 1;
        tables[3][(word >> 24 & 0xff) as usize] += 1;
        tables[0][(word >> 32 & 0xff) as usize] += 1;
        tables[1][(word >> 40 & 0xff) as usize] += 1;
        tables[2][(word >> 48 & 0xff) as usize] += 1;
        tables[3][(word >> 56) as usize] += 1;
    }
    let [mut counts, second, third, fourth] = tables;
    for (at, count) in counts.iter_mut().enumerate() {
        *count += second[at] + third[at] + fourth[at];
    }
    for value in rest {
        counts[usize::from(*value)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_right_to_a_hundredth() {
        for count in (1..100_000).step_by(7) {
            let exact = f64::from(count).log2() * 256.0;
            assert!((log2(count) as f64 - exact).abs() < 3.0, "log2 of {count}");
        }
        assert_eq!(entropy(&[4, 4, 0, 4, 4], 16), (32 * BIT, 4));
    }

    #[test]
    fn a_histogram_counts_every_byte() {
        let values: Vec<u8> = (0..1003_u32).map(|at| (at * at) as u8).collect();
        let bits: Vec<u8> = values.iter().map(|value| value % 5 % 2).collect();
        for values in [&values[..], &values[..300], &[], &bits, &[1; 400], &[0; 129]] {
            let histogram = Histogram::of(values);
            for (value, count) in histogram.counts.iter().enumerate() {
                assert_eq!(*count as usize, values.iter().filter(|byte| usize::from(**byte) == value).count());
            }
            assert_eq!(histogram.there().sum::<u32>() as usize, values.len());
            assert!(histogram.symbols().is_sorted() && histogram.there().all(|count| count > 0));
        }
    }
}
