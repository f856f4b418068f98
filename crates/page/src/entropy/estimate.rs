//! What a sample of numbers would cost in each form.

use multiversion::multiversion;

use super::Effort;
use super::cost::{BIT, entropy, log2};
use super::divisors::{common_divisor, map};
use super::number::Number;
use super::numbers::Source;
use super::tokens::{SMALL, TABLES, token};

/// Sampled values stand in blocks of this many neighbours.
const BLOCK: usize = 64;
/// How many tokens there are with one bit after the first in them.
const TOKENS: usize = TABLES[1].end;

/// Some blocks of a stream, with as many numbers of its reference.
#[derive(Default)]
pub(super) struct Sample<N> {
    values: Vec<N>,
    others: Vec<N>,
    /// Where blocks start; there is no difference to what stands before.
    starts: Vec<usize>,
    differences: Vec<N>,
    /// These as unsigned numbers.
    mapped: Vec<N>,
    /// The distinct values, and how often each occurs.
    distinct: Vec<N>,
    counts: Vec<u32>,
    /// Find them: twice as many as values, or more.
    slots: Vec<u16>,
}

/// How a difference becomes an unsigned number: less the smallest, or its sign turned into its lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) source: Source,
    pub(super) zigzag: bool,
    /// Divides all of the sample's numbers.
    pub(super) divisor: u64,
    /// Of the sample.
    pub(super) cost: u64,
}

impl Plan {
    /// Values as they are, less the smallest.
    pub(super) const VALUES: Plan = Plan { source: Source::Value, zigzag: false, divisor: 1, cost: u64::MAX };
}

impl<N: Number> Sample<N> {
    pub(super) fn take(&mut self, effort: Effort, values: &[N], reference: Option<&[N]>) {
        let blocks = match effort {
            Effort::Fast | Effort::Default => 2,
            Effort::Thorough => (values.len() / 1024).clamp(4, 8),
            Effort::Small => 16,
        };
        self.values.clear();
        self.others.clear();
        self.starts.clear();
        for place in places(values.len(), blocks) {
            self.starts.push(self.values.len());
            self.values.extend_from_slice(&values[place.clone()]);
            if let Some(reference) = reference {
                self.others.extend_from_slice(&reference[place]);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The cheapest way to the general form.
    pub(super) fn plan(&mut self) -> Plan {
        plan(self)
    }

    #[inline(always)]
    fn fill(&mut self, source: Source) {
        let differences = &mut self.differences;
        differences.clear();
        match source {
            Source::Value => differences.extend_from_slice(&self.values),
            Source::Reference => {
                differences.extend(self.values.iter().zip(&self.others).map(|(value, other)| value.sub(*other)));
            }
            Source::Delta | Source::ReferenceDelta => {
                for (block, start) in self.starts.iter().enumerate() {
                    let end = self.starts.get(block + 1).copied().unwrap_or(self.values.len());
                    let values = self.values[*start..end].windows(2);
                    if source == Source::Delta {
                        differences.extend(values.map(|pair| pair[1].sub(pair[0])));
                    } else {
                        let others = self.others[*start..end].windows(2);
                        differences.extend(
                            values.zip(others).map(|(pair, other)| pair[1].sub(other[1]).sub(pair[0].sub(other[0]))),
                        );
                    }
                }
            }
        }
    }

    /// How many values differ from the one before.
    pub(super) fn changes(&self) -> usize {
        self.values.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// What the sample costs as indices of a dictionary, and how many entries that has; nothing if these are too many, or will be
    /// among `all` values.
    pub(super) fn dictionary(&mut self, all: usize) -> Option<(u64, usize)> {
        let Sample { values, distinct, counts, slots, .. } = self;
        slots.clear();
        slots.resize((2 * values.len()).next_power_of_two(), 0);
        let mask = slots.len() - 1;
        distinct.clear();
        counts.clear();
        for value in &*values {
            let mut slot = hash(*value) as usize & mask;
            loop {
                match usize::from(slots[slot]).checked_sub(1) {
                    None if distinct.len() == 256 => return None,
                    None => {
                        distinct.push(*value);
                        counts.push(1);
                        slots[slot] = distinct.len() as u16;
                        break;
                    }
                    Some(index) if distinct[index] == *value => {
                        counts[index] += 1;
                        break;
                    }
                    Some(_) => slot = (slot + 1) & mask,
                }
            }
        }
        // Of 256 values as frequent as each other, three in five of a small sample are there once.
        let once = counts.iter().filter(|count| **count == 1).count();
        let is_open = all > 256 && once > values.len() * 3 / 4;
        (!is_open).then(|| (corrected(counts, values.len() as u32), distinct.len()))
    }
}

/// [`Sample::plan`]: what is compiled for more than one kind of CPU is a function without `self`.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn plan<N: Number>(sample: &mut Sample<N>) -> Plan {
    let mut best = Plan::VALUES;
    // Where a value takes this much or less, what differences could spare is not worth looking for.
    let little = 2 * BIT * sample.values.len() as u64;
    for source in [Source::Value, Source::Delta, Source::Reference, Source::ReferenceDelta] {
        let is_delta = matches!(source, Source::Delta | Source::ReferenceDelta);
        let has_reference = matches!(source, Source::Reference | Source::ReferenceDelta);
        if has_reference && sample.others.is_empty() || is_delta && best.cost < little {
            continue;
        }
        sample.fill(source);
        let first = sample.differences.first().map_or(N::default().turned(), |value| value.turned());
        let (mut least, mut most) = (first, first);
        for value in &sample.differences {
            least = least.min(value.turned());
            most = most.max(value.turned());
        }
        // Numbers that fit a byte are bytes, one way or the other.
        let are_narrow = most.sub(least).to_u64() >> 8 == 0;
        let least = least.turned();
        for zigzag in [false, true] {
            // With no number below zero there is nothing for the sign to tell.
            if zigzag && (least.signed() >= 0 || are_narrow) {
                continue;
            }
            let (divisor, cost) = mapped_cost(&sample.differences, zigzag, least, &mut sample.mapped);
            // Sums are the slower ones to decode: they must be worth it.
            let cost = if source == Source::Value { cost } else { cost + cost / 64 };
            if cost < best.cost {
                best = Plan { source, zigzag, divisor, cost };
            }
        }
    }
    best
}

/// Of few numbers, without a look at how often each occurs: the values, or the differences of neighbours where these have the smaller range.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
pub(super) fn plan_of_few<N: Number>(values: &[N]) -> Plan {
    let widened = |(least, most): (N, N), value: N| (least.min(value.turned()), most.max(value.turned()));
    let ends = (N::from_u64(u64::MAX), N::default());
    let of_values = values.iter().fold(ends, |ends, value| widened(ends, *value));
    let of_differences = values.array_windows().fold(ends, |ends, [before, value]| widened(ends, value.sub(*before)));
    let [of_values, of_differences] = [of_values, of_differences].map(|(least, most)| width(most.sub(least).to_u64()));
    let source = if of_differences < of_values { Source::Delta } else { Source::Value };
    Plan { source, ..Plan::VALUES }
}

/// How many bits numbers up to `most` take without codes: of those that fit a byte, two, four or eight go into one.
fn width(most: u64) -> u32 {
    let bits = u64::BITS - most.leading_zeros();
    if bits <= 8 { bits.next_power_of_two() } else { bits }
}

/// Where the blocks of a sample stand.
fn places(count: usize, blocks: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let blocks = if count <= blocks * BLOCK { 1 } else { blocks };
    let length = if blocks == 1 { count } else { BLOCK };
    (0..blocks).map(move |block| {
        let start = (count - length) * block / (blocks - 1).max(1);
        start..start + length
    })
}

#[inline(always)]
pub(super) fn hash<N: Number>(value: N) -> u64 {
    value.to_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
}

/// An entropy with what a sample too small for its symbols does not show (Miller and Madow).
fn corrected(counts: &[u32], total: u32) -> u64 {
    let (entropy, symbols) = entropy(counts, total);
    entropy + symbols.saturating_sub(1) * 3 * BIT / 4
}

/// What divides all of `differences`, once unsigned, and what they cost. `mapped` is scratch.
#[inline(always)]
fn mapped_cost<N: Number>(differences: &[N], zigzag: bool, least: N, mapped: &mut Vec<N>) -> (u64, u64) {
    let divisor = common_divisor(differences, 0, zigzag, least);
    mapped.clear();
    mapped.extend_from_slice(differences);
    map(mapped, zigzag, divisor, least);
    let all = mapped.iter().fold(N::default(), |all, value| all | *value).to_u64();
    let total = mapped.len() as u32;
    // Numbers that fit a byte are stored as bytes.
    if all >> 8 == 0 {
        let mut counts = [0_u32; 256];
        mapped.iter().for_each(|value| counts[(value.to_u64() & 0xff) as usize] += 1);
        return (divisor, corrected(&counts[..=all as usize & 0xff], total));
    }
    // By two tables, so that a token does not wait for the one before.
    let mut tables = [[0_u32; TOKENS]; 2];
    let mut extra_bits = 0;
    for (number, value) in mapped.iter().enumerate() {
        let (token, extra) = token::<1>(value.to_u64());
        tables[number % 2][usize::from(token)] += 1;
        extra_bits += u64::from(extra);
    }
    // No token is above that of a number with all of their bits.
    let end = usize::from(token::<1>(all).0) + 1;
    let [mut counts, others] = tables;
    counts[..end].iter_mut().zip(&others).for_each(|(count, other)| *count += other);
    (divisor, corrected(&counts[..end], total) + extra_bits * BIT)
}

/// How the general form's numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The high bits as bytes, this many low bits as they are.
    Split(u32),
    /// A token for the size and this many of the bits after the first, the rest as they are.
    Tokens(u32),
    /// All first bytes, all second bytes, and so on.
    Planes(u32),
}

/// The shape that suits `values`, of which the largest is `max`.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
pub(super) fn shape<N: Number>(effort: Effort, values: &[N], max: u64) -> Shape {
    let bits = 64 - max.leading_zeros();
    // Where nothing is coded a token takes a whole byte.
    if bits <= 8 || effort == Effort::Fast {
        return Shape::Split(bits.saturating_sub(8));
    }
    let is_thorough = effort >= Effort::Thorough;
    let blocks = if is_thorough { 6 } else { 2 };
    let low_bits = bits - 8;
    let (mut high, mut fine) = ([0_u32; 256], [0_u32; 256]);
    let (mut fine_extra, mut large) = (0_u64, 0_u64);
    let mut total = 0;
    for value in places(values.len(), blocks).flat_map(|place| &values[place]) {
        let value = value.to_u64();
        total += 1;
        high[(value >> low_bits) as usize & 0xff] += 1;
        let (symbol, extra) = token::<2>(value);
        fine[usize::from(symbol)] += 1;
        fine_extra += u64::from(extra);
        large += u64::from(value >= SMALL);
    }
    // A table takes about four bits for a symbol, and a sample's share of that is less.
    let scale = (values.len() as u64 / u64::from(total)).max(1);
    let cost = |counts: &[u32], extra: u64| {
        let (entropy, symbols) = entropy(counts, total);
        entropy + symbols.saturating_sub(1) * 3 * BIT / 4 + extra * BIT + symbols * 4 * BIT / scale
    };
    let mut best = (cost(&high, u64::from(low_bits) * u64::from(total)), Shape::Split(low_bits));
    // Bits of a fixed width are the faster ones, on both ways.
    let tokens = |cost: u64| cost + cost / 50;
    let end = usize::from(token::<2>(max).0) + 1;
    let (middle, middle_end) = folded(&fine, end);
    let mut candidates = [
        (tokens(cost(&middle[..middle_end], fine_extra + large)), Shape::Tokens(1)),
        (u64::MAX, Shape::Tokens(0)),
        (u64::MAX, Shape::Tokens(2)),
    ];
    if is_thorough {
        let (coarse, coarse_end) = folded(&middle, middle_end);
        candidates[1].0 = tokens(cost(&coarse[..coarse_end], fine_extra + 2 * large));
        candidates[2].0 = tokens(cost(&fine[..end], fine_extra));
    }
    for candidate in candidates {
        if candidate.0 < best.0 {
            best = candidate;
        }
    }
    if is_thorough && bits > 16 {
        let planes = planes_cost(values, blocks, bits.div_ceil(8));
        if planes + planes / 32 < best.0 {
            return Shape::Planes(bits.div_ceil(8));
        }
    }
    best.1
}

/// Counts of tokens with one bit less in each, of those below `end`; and where they end.
fn folded(counts: &[u32; 256], end: usize) -> ([u32; 256], usize) {
    const FIRST: usize = SMALL as usize;
    let mut folded = [0; 256];
    folded[..FIRST].copy_from_slice(&counts[..FIRST]);
    let large = counts[FIRST..end.max(FIRST).next_multiple_of(2)].as_chunks::<2>().0;
    for (place, pair) in folded[FIRST..].iter_mut().zip(large) {
        *place = pair[0] + pair[1];
    }
    (folded, FIRST + large.len())
}

fn planes_cost<N: Number>(values: &[N], blocks: usize, width: u32) -> u64 {
    let mut cost = 0;
    for plane in 0..width {
        let mut counts = [0_u32; 256];
        let mut total = 0;
        for value in places(values.len(), blocks).flat_map(|place| &values[place]) {
            counts[(value.to_u64() >> (8 * plane)) as usize & 0xff] += 1;
            total += 1;
        }
        // With all bytes there, a sample cannot show noise to be noise; it costs what it costs.
        let (entropy, symbols) = entropy(&counts, total);
        let noise = u64::from(total) * 8 * BIT;
        let corrected = entropy + symbols.saturating_sub(1) * 3 * BIT / 4;
        cost += if symbols * 2 > u64::from(total).min(256) { noise } else { corrected.min(noise) };
        cost += log2(symbols as u32) / 4;
    }
    cost
}
