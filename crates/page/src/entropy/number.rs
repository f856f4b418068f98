//! What the number coders need of `u32` and `u64`, so that they are written once.

/// An unsigned integer that the number coders take; differences wrap around.
pub(super) trait Number:
    Copy + Default + Eq + Ord + std::ops::BitOr<Output = Self> + std::ops::BitXor<Output = Self>
{
    /// How many bits it has.
    const BITS: u32;
    fn from_u64(wide: u64) -> Self;
    fn to_u64(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Read as a signed number: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
    fn zigzag(self) -> Self;
    fn unzigzag(self) -> Self;
    /// Its top bit turned, so that signed order becomes unsigned order.
    fn turned(self) -> Self;
    /// Read as a signed number.
    fn signed(self) -> i64;
    fn shifted_right(self, bits: u32) -> Self;
    /// Read as a signed number, which it stays.
    fn shifted_signed(self, bits: u32) -> Self;
}

macro_rules! number {
    ($unsigned:ty, $signed:ty) => {
        impl Number for $unsigned {
            const BITS: u32 = <$unsigned>::BITS;
            #[inline(always)]
            fn from_u64(wide: u64) -> Self {
                wide as $unsigned
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn zigzag(self) -> Self {
                (self << 1) ^ ((self as $signed) >> (Self::BITS - 1)) as $unsigned
            }
            #[inline(always)]
            fn unzigzag(self) -> Self {
                (self >> 1) ^ (self & 1).wrapping_neg()
            }
            #[inline(always)]
            fn turned(self) -> Self {
                self ^ (1 << (Self::BITS - 1))
            }
            #[inline(always)]
            fn signed(self) -> i64 {
                i64::from(self as $signed)
            }
            #[inline(always)]
            fn shifted_right(self, bits: u32) -> Self {
                self >> bits
            }
            #[inline(always)]
            fn shifted_signed(self, bits: u32) -> Self {
                ((self as $signed) >> bits) as $unsigned
            }
        }
    };
}

number!(u32, i32);
number!(u64, i64);
