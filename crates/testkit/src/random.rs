//! Random numbers that can be replayed: the seed is printed, and `PAGEHAUL_TEST_SEED` sets it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A small generator (SplitMix64); good enough to choose places, not secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded from `PAGEHAUL_TEST_SEED`, or from the clock; prints the seed under the name of `what`.
    pub fn new(what: &str) -> Self {
        let named = std::env::var("PAGEHAUL_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = named.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
        eprintln!("{what}: PAGEHAUL_TEST_SEED={seed}");
        Random(seed)
    }

    /// The same numbers every time.
    pub fn fixed(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// So many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next_u64().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }
}
