//! Tokens: a byte that tells a number's size, and for small numbers the number.

/// Numbers below this are their own token.
pub(super) const SMALL: u64 = 16;

/// The token of `value` and how many of its low bits it leaves to be told. `FINE` bits after the first one are in it.
#[inline(always)]
pub(super) fn token<const FINE: u32>(value: u64) -> (u8, u32) {
    // Below `SMALL` the bits are not used; the number stays in range without a branch.
    let bits = 64 - (value | SMALL).leading_zeros();
    let extra = bits - 1 - FINE;
    let fine = (value >> extra) as u32 & ((1 << FINE) - 1);
    let large = (SMALL as u32 + ((bits - 5) << FINE) + fine) as u8;
    if value < SMALL { (value as u8, 0) } else { (large, extra) }
}

/// For each token the number that its low bits are added to, and how many they are.
pub(super) struct TokenTable {
    pub(super) bases: [u64; 256],
    pub(super) extras: [u8; 256],
    /// Tokens from this one on stand for nothing.
    pub(super) end: usize,
}

const fn table(fine: u32) -> TokenTable {
    let mut table = TokenTable { bases: [0; 256], extras: [0; 256], end: 16 + (60 << fine) };
    let mut at = 0;
    while at < table.end {
        if at < 16 {
            table.bases[at] = at as u64;
        } else {
            let bits = 5 + ((at - 16) >> fine) as u32;
            let extra = bits - 1 - fine;
            let top = (1 << fine) | ((at - 16) as u64 & ((1 << fine) - 1));
            table.bases[at] = top << extra;
            table.extras[at] = extra as u8;
        }
        at += 1;
    }
    table
}

/// By how many bits after the first one are in the token.
pub(super) static TABLES: [TokenTable; 3] = [table(0), table(1), table(2)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_tables_agree() {
        let around =
            (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) | (1 << bit >> 1), (1 << bit) + 1]);
        for value in around.chain([u64::MAX]) {
            for (fine, (token, extra)) in
                [token::<0>(value), token::<1>(value), token::<2>(value)].into_iter().enumerate()
            {
                let low = if extra == 0 { 0 } else { value & (u64::MAX >> (64 - extra)) };
                let table = &TABLES[fine];
                assert!(usize::from(token) < table.end);
                assert_eq!(u32::from(table.extras[usize::from(token)]), extra);
                assert_eq!(table.bases[usize::from(token)] + low, value);
            }
        }
    }
}
