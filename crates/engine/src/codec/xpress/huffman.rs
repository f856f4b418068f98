//! Code lengths for one block: a Huffman code, shortened to 15 bits where it is longer.

use super::decode_table::{CODE_LEN_MAX, LENGTHS_SIZE_BYTES, SYMBOL_COUNT};

/// How often each symbol of a block occurs.
pub(super) type Counts = [u32; SYMBOL_COUNT];

/// Depths a code can have before it is shortened: a block has 2^16 symbols and one, so the counts that grow deepest,
/// the Fibonacci numbers, end before this depth.
const DEPTH_MAX: usize = 31;

/// Memory for making codes.
pub(super) struct CodeMaker {
    /// The symbols in use from the rarest, as `count << 9 | symbol`.
    sorted: [u32; SYMBOL_COUNT],
    /// The inner nodes of the tree in the order they were made, which is from the lightest.
    weights: [u32; SYMBOL_COUNT],
    /// Of each inner node the inner node above it; then its depth.
    above: [u16; SYMBOL_COUNT],
}

/// The code of one block.
pub(super) struct Code {
    /// By symbol: the code in the low bits; 0 for symbols that do not occur.
    pub(super) codes: [u16; SYMBOL_COUNT],
    /// By symbol: bits of the code, 0 to 15.
    pub(super) lengths: [u8; SYMBOL_COUNT],
}

impl Code {
    pub(super) fn new() -> Self {
        Code { codes: [0; SYMBOL_COUNT], lengths: [0; SYMBOL_COUNT] }
    }

    /// Writes the lengths as a block begins with them.
    pub(super) fn write_lengths(&self, stored: &mut [u8; LENGTHS_SIZE_BYTES]) {
        for (byte, pair) in stored.iter_mut().zip(self.lengths.chunks_exact(2)) {
            *byte = pair[0] | pair[1] << 4;
        }
    }

    /// Bits of all symbols together.
    pub(super) fn cost_bits(&self, counts: &Counts) -> usize {
        let costs = counts.iter().zip(&self.lengths);
        costs.map(|(&count, &length)| count * u32::from(length)).sum::<u32>() as usize
    }

    /// Codes from lengths: shorter ones first, equally long ones in the order of their symbols.
    fn assign(&mut self, of_len: &[u32; CODE_LEN_MAX + 1]) {
        let mut next = [0u32; CODE_LEN_MAX + 1];
        for len in 2..=CODE_LEN_MAX {
            next[len] = (next[len - 1] + of_len[len - 1]) << 1;
        }
        for (code, &len) in self.codes.iter_mut().zip(&self.lengths) {
            let place = &mut next[usize::from(len)];
            *code = if len == 0 { 0 } else { *place as u16 };
            *place += 1;
        }
    }
}

impl CodeMaker {
    pub(super) fn new() -> Self {
        CodeMaker { sorted: [0; SYMBOL_COUNT], weights: [0; SYMBOL_COUNT], above: [0; SYMBOL_COUNT] }
    }

    /// A code for at least two symbols that occur, `counts` at most 2^16 + 1 together.
    pub(super) fn make(&mut self, counts: &Counts, code: &mut Code) {
        let mut used = 0;
        for (symbol, &count) in counts.iter().enumerate() {
            self.sorted[used % SYMBOL_COUNT] = count << 9 | symbol as u32;
            used += usize::from(count > 0);
        }
        self.sorted[..used].sort_unstable();
        let mut of_len = self.depths(used);
        shorten(&mut of_len);
        let mut of_len_codes = [0; CODE_LEN_MAX + 1];
        of_len_codes.copy_from_slice(&of_len[..=CODE_LEN_MAX]);
        code.lengths.fill(0);
        let mut rarest = self.sorted[..used].iter();
        for len in (1..=CODE_LEN_MAX).rev() {
            for &key in rarest.by_ref().take(of_len_codes[len] as usize) {
                code.lengths[key as usize % SYMBOL_COUNT] = len as u8;
            }
        }
        code.assign(&of_len_codes);
    }

    /// How many leaves of the Huffman tree of the first `used` sorted symbols have each depth.
    fn depths(&mut self, used: usize) -> [u32; DEPTH_MAX + 1] {
        let inner_count = used - 1;
        let (mut leaf, mut inner) = (0, 0);
        for made in 0..inner_count {
            let mut weight = 0;
            for _ in 0..2 {
                let leaf_weight = if leaf < used { self.sorted[leaf] >> 9 } else { u32::MAX };
                if inner < made && self.weights[inner] < leaf_weight {
                    weight += self.weights[inner];
                    self.above[inner] = made as u16;
                    inner += 1;
                } else {
                    weight += leaf_weight;
                    leaf += 1;
                }
            }
            self.weights[made] = weight;
        }
        // From the root down: a depth has two nodes for each inner one above it; those that are not inner are leaves.
        let mut inner_of_depth = [0u32; DEPTH_MAX + 1];
        self.above[inner_count - 1] = 0;
        inner_of_depth[0] = 1;
        for node in (0..inner_count - 1).rev() {
            let depth = self.above[usize::from(self.above[node])] + 1;
            self.above[node] = depth;
            inner_of_depth[usize::from(depth).min(DEPTH_MAX)] += 1;
        }
        let mut leaves = [0; DEPTH_MAX + 1];
        for depth in 1..=DEPTH_MAX {
            leaves[depth] = 2 * inner_of_depth[depth - 1] - inner_of_depth[depth];
        }
        leaves
    }
}

/// Makes all leaves deeper than 15 as deep as 15, and pays for that with leaves from above: each that moves down one
/// step takes one of depth 15 for its neighbour.
fn shorten(of_len: &mut [u32; DEPTH_MAX + 1]) {
    let deeper: u32 = of_len[CODE_LEN_MAX + 1..].iter().sum();
    if deeper == 0 {
        return;
    }
    of_len[CODE_LEN_MAX] += deeper;
    let room = 1u32 << CODE_LEN_MAX;
    let taken: u32 = (1..=CODE_LEN_MAX).map(|len| of_len[len] << (CODE_LEN_MAX - len)).sum();
    let mut len = CODE_LEN_MAX - 1;
    for _ in room..taken {
        while of_len[len] == 0 {
            len -= 1;
        }
        of_len[len] -= 1;
        of_len[len + 1] += 2;
        of_len[CODE_LEN_MAX] -= 1;
        len = (len + 1).min(CODE_LEN_MAX - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::xpress::decode_table::DecodeTable;

    fn code_of(counts: &Counts) -> Code {
        let mut code = Code::new();
        CodeMaker::new().make(counts, &mut code);
        code
    }

    /// That the lengths are a complete code of exactly the symbols that occur, rarer ones not shorter.
    fn check(counts: &Counts) -> Code {
        let code = code_of(counts);
        let mut lengths = [0; LENGTHS_SIZE_BYTES];
        code.write_lengths(&mut lengths);
        assert!(DecodeTable::new().fill(&lengths), "not a complete code");
        for symbol in 0..SYMBOL_COUNT {
            assert_eq!(code.lengths[symbol] > 0, counts[symbol] > 0, "symbol {symbol}");
            for other in 0..SYMBOL_COUNT {
                if counts[symbol] > counts[other] && counts[other] > 0 {
                    assert!(code.lengths[symbol] <= code.lengths[other], "{symbol} and {other}");
                }
            }
        }
        code
    }

    #[test]
    fn a_code_is_complete_and_favours_what_is_frequent() {
        let mut two = [0; SYMBOL_COUNT];
        (two[7], two[256]) = (60_000, 1);
        assert_eq!(check(&two).cost_bits(&two), 60_001);
        check(&[1; SYMBOL_COUNT]);
        check(&[128; SYMBOL_COUNT]);
        let mut uneven = [0; SYMBOL_COUNT];
        for (symbol, count) in uneven.iter_mut().enumerate() {
            *count = (symbol * symbol % 251) as u32;
        }
        check(&uneven);
    }

    #[test]
    fn the_deepest_trees_are_shortened_to_15_bits() {
        for used in 16..=22 {
            let mut counts = [0; SYMBOL_COUNT];
            let (mut small, mut large) = (1, 1);
            for count in &mut counts[100..100 + used] {
                *count = small;
                (small, large) = (large, small + large);
            }
            assert!(counts.iter().sum::<u32>() <= (1 << 16) + 1);
            let code = check(&counts);
            let longest = code.lengths.iter().max();
            assert_eq!(longest, Some(&15), "{used}");
        }
    }

    #[test]
    fn small_codes_cost_as_little_as_any_code_can() {
        // Against the sum of all merged weights, which is what a Huffman code costs.
        for seed in 1..200u32 {
            let mut counts = [0; SYMBOL_COUNT];
            let mut weights = Vec::new();
            for place in 0..20u32 {
                let count = (place * 7919 + seed * 104_729) % 97 + 1;
                counts[(place * 25) as usize] = count;
                weights.push(count);
            }
            let mut cost = 0;
            while weights.len() > 1 {
                weights.sort_unstable_by(|left, right| right.cmp(left));
                let merged = weights.pop().unwrap() + weights.pop().unwrap();
                cost += merged as usize;
                weights.push(merged);
            }
            assert_eq!(check(&counts).cost_bits(&counts), cost, "{seed}");
        }
    }
}
