//! Numbers that look random and come again with their seed.

use std::ops::RangeInclusive;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// 0 to `count` - 1.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Runs `test` with `count` seeds, one after the other, and prints the one it fails with. `PAGEHAUL_SEED` gives a single seed.
pub(crate) fn with_seeds(count: u64, mut test: impl FnMut(&mut Random)) {
    struct Print(u64);
    impl Drop for Print {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with PAGEHAUL_SEED={}", self.0);
            }
        }
    }
    let given = std::env::var("PAGEHAUL_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in given.map_or(0..count, |seed: u64| seed..seed + 1) {
        let _print = Print(seed);
        test(&mut Random::new(seed));
    }
}
