//! jsonb values as shapes, keys and leaves.
//!
//! The shape of a container is its kind, its keys and the types of its values. Each different shape and each different key
//! stands once in a frame; a container is the number of its shape. Leaves (strings, numbers, booleans) stand together by the
//! key under which they were found, whatever document and shape it was in: equal ones are near. Lengths and offsets of
//! entries follow from the leaves. jsonb has no zero bytes in strings, so that most need no length either.
//!
//! What is not exactly as the server writes it stands as it is.

mod interner;
mod leaves;
mod make;
mod sources;
mod take;

use std::ops::Range;

use super::{Decode, Text, ValueCoders, ValueDecoders};
use crate::entropy::Reader;
use crate::error::{Damaged, Decoded};
use crate::stream::held_bytes;

use interner::Interner;
use leaves::{Class, Leaf, LeafCoder};
use sources::Sources;

/// In place of a value: it stands as it is.
const AS_IT_IS: u8 = 1;
/// A value that was taken apart.
const TAKEN: u8 = 0;

/// Containers within containers; deeper values stand as they are. Each takes some of the stack.
const DEPTH_MAX: u32 = 24;
/// Different shapes of one column in one frame; values with further ones stand as they are.
const SHAPES_MAX: usize = 1 << 14;
/// Leaves stand by key up to so many keys.
const COLUMNS_MAX: usize = 4096;
/// Leaves of further keys, and of keys with few leaves.
const MIXED: usize = 0;
/// Leaves that have no key: documents themselves, and elements of documents that are arrays.
const ROOT: usize = 1;
/// The column of the first key.
const FIRST_KEY: usize = 2;

/// What a shape's number says of its kind; for an array whose elements are all of one type, [`kind::SAME`] + the type, and
/// its count is no part of the shape.
mod kind {
    pub(super) const OBJECT: u8 = 0;
    pub(super) const ARRAY: u8 = 1;
    pub(super) const SCALAR: u8 = 2;
    pub(super) const SAME: u8 = 8;
}

/// Types of values as shapes have them: both booleans are one.
mod value {
    use crate::postgres::jsonb::entry;

    pub(super) const BOOL: u8 = entry::FALSE;
    /// The first number that is no type.
    pub(super) const END: u8 = entry::CONTAINER + 1;
}

/// A shape: what it is, how many entries, and where their types are.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    kind: u8,
    /// Values; of an array whose elements are all of one type 0.
    count: u32,
    /// In the list of all entries.
    first: u32,
    /// Of an object: where its beginning is in [`Documents::templates`].
    template: (u32, u32),
}

/// The values of one column.
#[derive(Debug, Default)]
pub(super) struct Documents {
    states: Vec<u8>,
    /// Of values that stand as they are.
    heads: Vec<u32>,
    text: Vec<u8>,
    shapes: Vec<Shape>,
    /// Of each value of each shape: its type, and the column of its key.
    types: Vec<u8>,
    columns: Vec<u16>,
    /// For each key of each shape 0 if it is the first that has this key, or 1 + the number of the key.
    key_codes: Vec<u32>,
    // While values are taken apart.
    known_shapes: Interner,
    known_keys: Interner,
    key_text: Vec<u8>,
    signature: Vec<u8>,
    leaves: [Vec<Leaf>; Class::COUNT],
    coder: LeafCoder,
    // While they are put together.
    key_ends: Vec<u32>,
    templates: Vec<u8>,
    sources: Sources,
    shapes_seen: usize,
}

/// The column of the leaves under key `number`.
fn column_of(number: usize) -> usize {
    let column = FIRST_KEY + number;
    if column < COLUMNS_MAX { column } else { MIXED }
}

/// How many columns `keys` keys have.
fn column_count(keys: usize) -> usize {
    (FIRST_KEY + keys).min(COLUMNS_MAX)
}

impl Documents {
    fn clear(&mut self) {
        self.states.clear();
        self.heads.clear();
        self.text.clear();
        self.shapes.clear();
        self.types.clear();
        self.columns.clear();
        self.key_codes.clear();
        self.known_shapes.clear();
        self.known_keys.clear();
        self.key_text.clear();
        self.leaves.iter_mut().for_each(Vec::clear);
        self.key_ends.clear();
        self.templates.clear();
        self.sources.clear();
        self.shapes_seen = 0;
    }

    /// The memory it keeps.
    pub(super) fn held_bytes(&self) -> usize {
        let shapes = held_bytes(&self.shapes) + held_bytes(&self.types) + held_bytes(&self.columns);
        let keys = held_bytes(&self.key_codes) + held_bytes(&self.key_text) + held_bytes(&self.key_ends);
        let known = self.known_shapes.held_bytes() + self.known_keys.held_bytes() + held_bytes(&self.signature);
        let whole = held_bytes(&self.states) + held_bytes(&self.heads) + held_bytes(&self.text);
        let leaves = self.leaves.iter().map(held_bytes).sum::<usize>() + self.coder.held_bytes();
        shapes + keys + known + whole + leaves + held_bytes(&self.templates) + self.sources.held_bytes()
    }

    /// Appends what was taken of a column whose text is `source`.
    pub(super) fn encode(&mut self, source: &[u8], coders: &mut ValueCoders, text: &mut Text, out: &mut Vec<u8>) {
        coders.bytes.encode(&self.states, out);
        coders.numbers.encode_u32(&self.heads, None, out);
        text.store(&self.text, out);
        text.store(&self.key_text, out);
        self.coder.scratch.clear();
        self.coder.scratch.extend(self.shapes.iter().map(|shape| shape.kind));
        coders.bytes.encode(&self.coder.scratch, out);
        self.coder.numbers.clear();
        let counted = self.shapes.iter().filter(|shape| shape.kind < kind::SAME);
        self.coder.numbers.extend(counted.map(|shape| shape.count));
        coders.numbers.encode_u32(&self.coder.numbers, None, out);
        coders.bytes.encode(&self.types, out);
        coders.numbers.encode_u32(&self.key_codes, None, out);
        self.coder.encode(&self.leaves, column_count(self.known_keys.len()), source, coders, text, out);
    }
}

impl Decode for Documents {
    fn scratch(decoders: &mut ValueDecoders) -> &mut Self {
        &mut decoders.documents
    }

    fn decode_into(
        &mut self,
        decoders: &mut ValueDecoders,
        input: &mut Reader<'_>,
        text: &mut Text,
        heads: &mut Vec<u32>,
    ) -> Decoded<Range<usize>> {
        self.clear();
        decoders.decode_bytes(input, &mut self.states)?;
        decoders.decode_u32(input, None, &mut self.heads)?;
        let as_they_are = text.next(input)?;
        self.read_shapes(decoders, input, text)?;
        let columns = column_count(self.key_ends.len());
        self.sources.read(columns, decoders, input, text)?;
        self.make(as_they_are, decoders, text, heads)
    }
}

const BAD: Damaged = Damaged("a column of jsonb is not what it says");
