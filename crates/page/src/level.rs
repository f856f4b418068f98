//! How hard the encoder tries.

use std::fmt;

/// 1, as fast as it goes, to 5, the smallest result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Level(u8);

impl Level {
    /// The fastest.
    pub const FAST: Level = Level(1);
    /// What `page` alone means.
    pub const DEFAULT: Level = Level(2);
    /// The smallest result.
    pub const MAX: Level = Level(5);

    /// The level of a number; None if there is none.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number <= Level::MAX.0 { Some(Level(number)) } else { None }
    }

    /// 1 to 5.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The level at which a frame of WAL is encoded: the fastest is not for it. With their text by LZ4 two of four loads were larger
    /// than zstd's level 1 makes the segments; they took 12 to 23 % less time than level 2 for up to twice its bytes
    /// (bench/runs/2026-11-29-page-wal).
    pub(crate) const fn of_wal(self) -> Self {
        if self.0 < Level::DEFAULT.0 { Level::DEFAULT } else { self }
    }

    /// zstd's level for text and for whatever is not understood; none where LZ4 packs it, which is faster on both ways than
    /// zstd's -3 (bench/runs/2026-11-29-page-fast), and that was the fastest of its levels here.
    ///
    /// At level 2 zstd's 1, less choosing, and jsonb as it is (`Effort`) take an eighth less time than level 3, proof included, for 7 %
    /// more bytes (bench/runs/2026-11-27-page-default, -page-documents).
    ///
    /// 7 is the end: on real text and JSON (bench/page) pages taken apart are then smaller than zstd's level 19 makes them as
    /// they are, at more than twenty times its speed; 8 gains 0.2 % for a twelfth of that speed, 9 to 11 gain 1 % at most for up to half of
    /// it, and 19 would gain 5 to 8 % for nine tenths.
    pub const fn zstd_level(self) -> Option<i32> {
        [None, Some(1), Some(3), Some(6), Some(7)][self.0 as usize - 1]
    }
}

impl Default for Level {
    fn default() -> Self {
        Level::DEFAULT
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
