//! Streams of whole numbers: which form a stream takes, and its encoding.

use multiversion::multiversion;

use super::Effort;
use super::cost::{BIT, log2};
use super::divisors::{common_divisor, map};
use super::estimate::{Plan, Sample, hash, plan_of_few};
use super::number::Number;
use super::reader::put_varint;
use super::shapes::ShapeCoder;

pub(super) const CONSTANT: u8 = 0;
pub(super) const PROGRESSION: u8 = 1;
pub(super) const RUNS: u8 = 2;
pub(super) const DICTIONARY: u8 = 3;
/// A mode with this bit is the general form; the other bits say which.
pub(super) const GENERAL: u8 = 0x80;
/// Bits of the general form: which difference is stored, how it became unsigned, whether it was divided, its shape.
pub(super) const SOURCE: u8 = 0x03;
/// Of the source: differences to the value before, whose sums the values are.
pub(super) const SUMS: u8 = 0x01;
pub(super) const ZIGZAG: u8 = 0x04;
pub(super) const DIVIDED: u8 = 0x08;
pub(super) const SHAPE: u8 = 0x70;
pub(super) const SPLIT: u8 = 0x00;
/// And 0x20 and 0x30, by how many bits after the first are in the token.
pub(super) const TOKENS: u8 = 0x10;
pub(super) const PLANES: u8 = 0x40;

/// Slots that find the entries of a dictionary: four times as many as there can be, so that most are found at once.
const SLOTS: usize = 1024;

/// What the general form stores of each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Source {
    Value = 0,
    Delta = 1,
    Reference = 2,
    ReferenceDelta = 3,
}

#[derive(Default)]
struct Scratch<N> {
    differences: Vec<N>,
    sample: Sample<N>,
    heads: Vec<N>,
    lengths: Vec<N>,
}

/// Encodes streams of whole numbers, each alone.
pub(crate) struct NumberCoder {
    core: Core,
    narrow: Scratch<u32>,
    wide: Scratch<u64>,
}

struct Core {
    effort: Effort,
    shapes: ShapeCoder,
    indices: Vec<u8>,
    trial: Vec<u8>,
}

impl NumberCoder {
    pub(crate) fn set_effort(&mut self, effort: Effort) {
        self.core.effort = effort;
        self.core.shapes.set_effort(effort);
    }

    pub(crate) fn new(effort: Effort) -> Self {
        let core = Core { effort, shapes: ShapeCoder::new(effort), indices: Vec::new(), trial: Vec::new() };
        NumberCoder { core, narrow: Scratch::default(), wide: Scratch::default() }
    }

    /// Appends the stream of `values` to `out`. `reference`: an array of the same length that the decoder will have;
    /// of another length it is not used.
    pub(crate) fn encode_u32(&mut self, values: &[u32], reference: Option<&[u32]>, out: &mut Vec<u8>) {
        put_varint(values.len() as u64, out);
        self.core.encode(&mut self.narrow, values, reference, out);
    }

    /// As [`NumberCoder::encode_u32`].
    pub(crate) fn encode_u64(&mut self, values: &[u64], reference: Option<&[u64]>, out: &mut Vec<u8>) {
        put_varint(values.len() as u64, out);
        self.core.encode(&mut self.wide, values, reference, out);
    }
}

impl Core {
    fn encode<N: Number>(
        &mut self,
        scratch: &mut Scratch<N>,
        values: &[N],
        reference: Option<&[N]>,
        out: &mut Vec<u8>,
    ) {
        if values.is_empty() || simple(values, out) {
            return;
        }
        let reference = reference.filter(|reference| reference.len() == values.len());
        if values.len() < sampled_from(self.effort) {
            let plan = if self.effort == Effort::Fast { Plan::VALUES } else { plan_of_few(values) };
            return self.general(scratch, plan, values, None, out);
        }
        scratch.sample.take(self.effort, values, reference);
        let sampled = scratch.sample.len();
        if self.effort == Effort::Small {
            self.smallest(scratch, values, reference, out);
            return;
        }
        // Long runs are few numbers, whatever they are.
        if scratch.sample.changes() * 8 <= sampled && self.runs(scratch, values, out) {
            return;
        }
        let plan = scratch.sample.plan();
        // Numbers of few bits have no use for a dictionary.
        if self.effort != Effort::Fast
            && plan.cost > 3 * BIT * sampled as u64
            && let Some((cost, entries)) = scratch.sample.dictionary(values.len())
        {
            let all = |cost: u64| cost / sampled as u64 * values.len() as u64;
            // Being in order spares an entry what telling its place among them would take, but for one bit and a half.
            let spared = log2(entries as u32).saturating_sub(3 * BIT / 2);
            let entries_cost = entries as u64 * ((plan.cost / sampled as u64).saturating_sub(spared) + BIT / 2);
            // Half of the values' own time is spent on finding their entries: an eighth is to be gained by it.
            let worth = all(plan.cost) - all(plan.cost) / 8;
            if all(cost) + entries_cost < worth && self.dictionary(scratch, values, out) {
                return;
            }
        }
        self.general(scratch, plan, values, reference, out);
    }

    fn smallest<N: Number>(
        &mut self,
        scratch: &mut Scratch<N>,
        values: &[N],
        reference: Option<&[N]>,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let plan = scratch.sample.plan();
        let few_changes = scratch.sample.changes() * 2 <= scratch.sample.len();
        let few_values = scratch.sample.dictionary(values.len()).is_some();
        self.general(scratch, plan, values, reference, out);
        let mut trial = std::mem::take(&mut self.trial);
        for runs in [true, false] {
            trial.clear();
            let tried = match runs {
                true => few_changes && self.runs(scratch, values, &mut trial),
                false => few_values && self.dictionary(scratch, values, &mut trial),
            };
            if tried && trial.len() < out.len() - start {
                out.truncate(start);
                out.extend_from_slice(&trial);
            }
        }
        self.trial = trial;
    }

    /// A stream within a stream.
    fn nested<N: Number>(&mut self, scratch: &mut Scratch<N>, values: &[N], out: &mut Vec<u8>) {
        if values.is_empty() || simple(values, out) {
            return;
        }
        scratch.sample.take(self.effort, values, None);
        let plan = scratch.sample.plan();
        self.general(scratch, plan, values, None, out);
    }

    /// Whether there were few enough runs.
    fn runs<N: Number>(&mut self, scratch: &mut Scratch<N>, values: &[N], out: &mut Vec<u8>) -> bool {
        let mut heads = std::mem::take(&mut scratch.heads);
        let mut lengths = std::mem::take(&mut scratch.lengths);
        heads.clear();
        lengths.clear();
        let mut rest = values;
        while let Some(head) = rest.first() {
            let length = run_length(rest, *head);
            heads.push(*head);
            lengths.push(N::from_u64(length as u64 - 1));
            rest = &rest[length..];
        }
        let few = heads.len() <= values.len() / 2;
        if few {
            out.push(RUNS);
            put_varint(heads.len() as u64, out);
            self.nested(scratch, &heads, out);
            self.nested(scratch, &lengths, out);
        }
        scratch.heads = heads;
        scratch.lengths = lengths;
        few
    }

    /// Whether there were few enough distinct values.
    fn dictionary<N: Number>(&mut self, scratch: &mut Scratch<N>, values: &[N], out: &mut Vec<u8>) -> bool {
        let mut entries = std::mem::take(&mut scratch.heads);
        let mut indices = std::mem::take(&mut self.indices);
        let found = index(values, &mut entries, &mut indices);
        if found {
            let mut order: [u8; 256] = std::array::from_fn(|at| at as u8);
            let order = &mut order[..entries.len()];
            order.sort_unstable_by_key(|at| entries[usize::from(*at)].turned());
            let mut rank = [0_u8; 256];
            for (at, entry) in (0..=255).zip(&*order) {
                rank[usize::from(*entry)] = at;
            }
            indices.iter_mut().for_each(|index| *index = rank[usize::from(*index)]);
            entries.sort_unstable_by_key(|entry| entry.turned());
            out.extend_from_slice(&[DICTIONARY, (entries.len() - 1) as u8]);
            self.nested(scratch, &entries, out);
            self.shapes.bytes(&indices, out);
        }
        scratch.heads = entries;
        self.indices = indices;
        found
    }

    fn general<N: Number>(
        &mut self,
        scratch: &mut Scratch<N>,
        plan: Plan,
        values: &[N],
        reference: Option<&[N]>,
        out: &mut Vec<u8>,
    ) {
        let numbers = &mut scratch.differences;
        let Unsigned { least, divisor, max } = unsigned(plan, values, reference, numbers);
        let mode_at = out.len();
        out.push(
            GENERAL | plan.source as u8 | if plan.zigzag { ZIGZAG } else { 0 } | if divisor > 1 { DIVIDED } else { 0 },
        );
        match (plan.source, reference) {
            (Source::Delta, _) => put_varint(values[0].to_u64(), out),
            (Source::ReferenceDelta, Some(reference)) => {
                put_varint(values[0].sub(reference[0]).zigzag().to_u64(), out);
            }
            _ => {}
        }
        if !plan.zigzag {
            put_varint(least.zigzag().to_u64(), out);
        }
        if divisor > 1 {
            put_varint(divisor, out);
        }
        let shape = self.shapes.encode(numbers, max, out);
        out[mode_at] |= shape;
    }
}

/// Of fewer numbers than this no sample is taken: in tables of few rows that takes longer than all else, and spares a hundredth of their
/// bytes (bench/runs/2026-11-30-page-faster).
fn sampled_from(effort: Effort) -> usize {
    match effort {
        Effort::Fast => 1024,
        Effort::Default => 128,
        Effort::Thorough | Effort::Small => 0,
    }
}

/// How many of the first values are `head`; the first one is.
#[inline]
fn run_length<N: Number>(values: &[N], head: N) -> usize {
    if values.get(1).is_none_or(|second| *second != head) {
        return 1;
    }
    // Eight at a time, until some differ.
    let is_same = |eight: &&[N; 8]| eight.iter().fold(N::default(), |all, value| all | (*value ^ head)) == N::default();
    let same = 8 * values.as_chunks::<8>().0.iter().take_while(is_same).count();
    same + values[same..].iter().take_while(|value| **value == head).count()
}

/// Whether `values`, which are not empty, were a constant or a progression, and written.
fn simple<N: Number>(values: &[N], out: &mut Vec<u8>) -> bool {
    let step = values.get(1).map_or(N::default(), |second| second.sub(values[0]));
    // Blocks are looked at as a whole, which is many at a time, and the first one that does not fit ends it.
    let mut last = values[0];
    for block in values[1..].chunks(64) {
        let mut other = block[0].sub(last).sub(step);
        for pair in block.windows(2) {
            other = other | pair[1].sub(pair[0]).sub(step);
        }
        if other != N::default() {
            return false;
        }
        last = block[block.len() - 1];
    }
    out.push(if step == N::default() { CONSTANT } else { PROGRESSION });
    put_varint(values[0].to_u64(), out);
    if step != N::default() {
        put_varint(step.zigzag().to_u64(), out);
    }
    true
}

/// The distinct values in the order of their first places, and each value's place among them; false if above 256.
fn index<N: Number>(values: &[N], entries: &mut Vec<N>, indices: &mut Vec<u8>) -> bool {
    let mut slots = [(N::default(), 0_u16); SLOTS];
    entries.clear();
    indices.clear();
    indices.reserve(values.len());
    for value in values {
        let mut slot = hash(*value) as usize % SLOTS;
        let index = loop {
            let (entry, number) = slots[slot];
            if number != 0 && entry == *value {
                break number - 1;
            }
            if number == 0 {
                if entries.len() == 256 {
                    return false;
                }
                entries.push(*value);
                slots[slot] = (*value, entries.len() as u16);
                break entries.len() as u16 - 1;
            }
            slot = (slot + 1) % SLOTS;
        };
        indices.push(index as u8);
    }
    true
}

/// How differences became unsigned numbers.
struct Unsigned<N> {
    /// What they are counted from, unless the sign is in the lowest bit.
    least: N,
    divisor: u64,
    /// None of them has a bit that this has not room for.
    max: u64,
}

/// Puts what `plan` stores of each value into `numbers`, unsigned.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn unsigned<N: Number>(plan: Plan, values: &[N], reference: Option<&[N]>, numbers: &mut Vec<N>) -> Unsigned<N> {
    let (least, most) = differences(plan.source, values, reference, numbers);
    // The sample's least need not be the stream's.
    let divisor = common_divisor(numbers, plan.divisor, plan.zigzag, least);
    map(numbers, plan.zigzag, divisor, least);
    let max = if plan.zigzag {
        numbers.iter().fold(N::default(), |all, number| all | *number).to_u64()
    } else {
        most.sub(least).to_u64() / divisor
    };
    Unsigned { least, divisor, max }
}

/// What `source` stores of each value, and the least and the most of it, read as signed.
#[inline(always)]
fn differences<N: Number>(source: Source, values: &[N], reference: Option<&[N]>, into: &mut Vec<N>) -> (N, N) {
    into.clear();
    let reference = reference.unwrap_or(&[]);
    match source {
        Source::Value => into.extend_from_slice(values),
        Source::Delta => into.extend(values[1..].iter().zip(values).map(|(value, last)| value.sub(*last))),
        Source::Reference => into.extend(values.iter().zip(reference).map(|(value, other)| value.sub(*other))),
        Source::ReferenceDelta => into.extend(
            values[1..]
                .iter()
                .zip(values)
                .zip(reference[1..].iter().zip(reference))
                .map(|((value, last), (other, last_other))| value.sub(*other).sub(last.sub(*last_other))),
        ),
    }
    let first = into.first().copied().unwrap_or_default().turned();
    let (mut least, mut most) = (first, first);
    for value in &*into {
        least = least.min(value.turned());
        most = most.max(value.turned());
    }
    (least.turned(), most.turned())
}
