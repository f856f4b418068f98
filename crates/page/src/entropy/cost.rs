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

/// What `total` symbols of these counts cost with no table.
pub(crate) fn entropy(counts: &[u32], total: u32) -> u64 {
    // Most symbols of most streams do not occur.
    let (eights, rest) = counts.as_chunks::<8>();
    let there = eights.iter().filter(|eight| eight.iter().fold(0, |all, count| all | count) != 0);
    let sum: u64 = there.flatten().chain(rest).map(|count| weight(*count)).sum();
    weight(total).saturating_sub(sum)
}

/// How often each byte occurs, by four tables so that a run of one byte does not wait for itself.
pub(super) fn histogram(values: &[u8]) -> [u32; 256] {
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
        assert_eq!(entropy(&[4, 4, 4, 4], 16), 32 * BIT);
    }

    #[test]
    fn a_histogram_counts_every_byte() {
        let values: Vec<u8> = (0..1003_u32).map(|at| (at * at) as u8).collect();
        let counts = histogram(&values);
        for (value, count) in counts.iter().enumerate() {
            assert_eq!(*count as usize, values.iter().filter(|byte| usize::from(**byte) == value).count());
        }
    }
}
