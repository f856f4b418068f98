//! What divides all numbers of a stream, which are stored divided by it.

use super::number::Number;

/// What divides all of `numbers`, knowing that only divisors of `known` can, or nothing if it is 0; 1 if they are zeros then.
#[inline(always)]
pub(super) fn common_divisor<N: Number>(numbers: &[N], known: u64, zigzag: bool, least: N) -> u64 {
    let size = |number: &N| if zigzag { number.signed().unsigned_abs() } else { number.sub(least).to_u64() };
    let (mut divisor, mut left) = (known, numbers);
    while divisor != 1 {
        let multiples = Multiples::of(divisor);
        let Some(at) = left.iter().position(|number| !multiples.contain(size(number))) else { break };
        divisor = greatest_common_divisor(divisor, size(&left[at]));
        left = &left[at + 1..];
    }
    divisor.max(1)
}

/// Makes differences unsigned and divides them by what divides all of them.
#[inline(always)]
pub(super) fn map<N: Number>(numbers: &mut [N], zigzag: bool, divisor: u64, least: N) {
    let shift = divisor.trailing_zeros();
    let inverse = N::from_u64(inverse(divisor >> shift));
    match (zigzag, divisor) {
        (true, 1) => numbers.iter_mut().for_each(|number| *number = number.zigzag()),
        (true, _) => {
            numbers.iter_mut().for_each(|number| *number = number.mul(inverse).shifted_signed(shift).zigzag());
        }
        (false, 1) => numbers.iter_mut().for_each(|number| *number = number.sub(least)),
        (false, _) => {
            numbers.iter_mut().for_each(|number| *number = number.sub(least).mul(inverse).shifted_right(shift));
        }
    }
}

/// The multiples of a number: its inverse makes them, and nothing else, the small numbers again.
#[derive(Clone, Copy)]
struct Multiples {
    inverse: u64,
    shift: u32,
    most: u64,
}

impl Multiples {
    /// 0 has itself only.
    fn of(number: u64) -> Self {
        let Some(most) = u64::MAX.checked_div(number) else { return Multiples { inverse: 1, shift: 0, most: 0 } };
        let shift = number.trailing_zeros();
        Multiples { inverse: inverse(number >> shift), shift, most }
    }

    #[inline(always)]
    fn contain(self, number: u64) -> bool {
        number.wrapping_mul(self.inverse).rotate_right(self.shift) <= self.most
    }
}

/// What multiplied by the odd number gives 1: for its multiples this is the division.
fn inverse(odd: u64) -> u64 {
    // Right in the lowest three bits; every turn doubles them.
    let mut inverse = odd;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

/// Of 0 and a number it is that number. One division, then halves and differences: half the time of dividing to the end.
fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    let (one, other) = (one.min(other), one.max(other));
    let Some(other) = other.checked_rem(one).filter(|rest| *rest > 0) else {
        return if one == 0 { other } else { one };
    };
    let twos = (one | other).trailing_zeros();
    let (mut one, mut other) = (one >> one.trailing_zeros(), other >> other.trailing_zeros());
    while one != other {
        let difference = one.abs_diff(other);
        one = one.min(other);
        other = difference >> difference.trailing_zeros();
    }
    one << twos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_those_that_dividing_finds() {
        let by_dividing = |one: u64, other: u64| {
            let (mut one, mut other) = (one, other);
            while other != 0 {
                (one, other) = (other, one % other);
            }
            one
        };
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> (state >> 58)
        };
        for round in 0..2000 {
            let factor = (next() & 0xffff) + round % 2;
            let numbers: Vec<u64> = (0..round % 7).map(|_| factor.wrapping_mul(next() & 0xffff_ffff)).collect();
            let expected = numbers.iter().fold(0, |divisor, number| by_dividing(divisor, *number));
            let below_zero: Vec<u64> = numbers.iter().map(|number| number.wrapping_neg()).collect();
            assert_eq!(common_divisor(&numbers, 0, false, 0), expected.max(1), "{numbers:?}");
            assert_eq!(common_divisor(&below_zero, 0, true, 0), expected.max(1), "{numbers:?}");
            if expected > 0 {
                assert_eq!(common_divisor(&numbers, 6 * expected, false, 0), expected, "{numbers:?}");
            }
            for number in numbers.iter().chain([&0, &u64::MAX]) {
                let multiples = Multiples::of(expected);
                assert_eq!(multiples.contain(*number), number.checked_rem(expected).unwrap_or(*number) == 0);
            }
        }
    }
}
