//! jsonb values taken apart.

use super::leaves::{Class, Leaf};
use super::{AS_IT_IS, DEPTH_MAX, Documents, MIXED, ROOT, SHAPES_MAX, Shape, TAKEN, column_of, kind, value};
use crate::postgres::{form, jsonb};

/// In a signature, behind kind and word.
const TYPES_AT: usize = 5;

/// How much there was of everything before a value.
struct Mark {
    shapes: usize,
    types: usize,
    key_codes: usize,
    keys: usize,
    key_text: usize,
    leaves: [usize; Class::COUNT],
}

/// Where a container is, and under which key.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    end: usize,
    column: usize,
    depth: u32,
}

/// A container's word and what follows from it.
struct Head {
    kind: u8,
    count: usize,
    /// Where the entries of values start, and where the bytes of the first value.
    table_at: usize,
    values_at: usize,
    data_at: usize,
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|field| u32::from_le_bytes(*field))
}

/// The next multiple of four, if the bytes up to it are zero.
#[inline]
fn aligned(document: &[u8], at: usize, end: usize) -> Option<usize> {
    let start = at.next_multiple_of(4);
    (start <= end && document[at..start].iter().all(|byte| *byte == 0)).then_some(start)
}

/// The type of a value as shapes have it.
#[inline]
fn shape_type(entry: u32) -> u8 {
    let entry_type = jsonb::type_of(entry);
    if entry_type == jsonb::entry::TRUE { value::BOOL } else { entry_type }
}

impl Documents {
    /// Takes all values in; false if less than half of them can be taken apart.
    pub(in crate::values) fn take(&mut self, heads: &[u32], text: &[u8]) -> bool {
        self.clear();
        let mut start = 0;
        for head in heads {
            let length = form::payload_length(*head);
            let document = &text[start..start + length];
            let mark = self.mark();
            let root = Place { at: 0, end: length, column: ROOT, depth: 0 };
            if *head == super::make::head_of(length) && self.take_container(document, start, root).is_some() {
                self.states.push(TAKEN);
            } else {
                self.forget(&mark);
                self.states.push(AS_IT_IS);
                self.heads.push(*head);
                self.text.extend_from_slice(document);
            }
            start += length;
        }
        self.heads.len() * 2 <= heads.len()
    }

    fn mark(&self) -> Mark {
        Mark {
            shapes: self.shapes.len(),
            types: self.types.len(),
            key_codes: self.key_codes.len(),
            keys: self.known_keys.len(),
            key_text: self.key_text.len(),
            leaves: self.leaves.each_ref().map(Vec::len),
        }
    }

    fn forget(&mut self, mark: &Mark) {
        self.shapes.truncate(mark.shapes);
        self.known_shapes.truncate(mark.shapes);
        self.types.truncate(mark.types);
        self.columns.truncate(mark.types);
        self.key_codes.truncate(mark.key_codes);
        self.known_keys.truncate(mark.keys);
        self.key_text.truncate(mark.key_text);
        self.leaves.iter_mut().zip(mark.leaves).for_each(|(leaves, count)| leaves.truncate(count));
    }

    #[inline]
    fn push(&mut self, class: Class, column: usize, value: usize, length: usize) {
        let leaf = Leaf { value: value as u32, column: column as u16, length: length as u16 };
        self.leaves[class as usize].push(leaf);
    }

    /// `document_at` is where the document starts in the column's text. None: it is not as the server writes it.
    fn take_container(&mut self, document: &[u8], document_at: usize, place: Place) -> Option<()> {
        let head = self.read_head(document, place)?;
        let shape = self.shape_of(document, &head)?;
        let code = if shape.1 { 0 } else { shape.0 + 1 };
        self.push(Class::Shape, place.column, code, 0);
        let shape = self.shapes[shape.0];
        if head.kind >= kind::SAME {
            self.push(Class::Count, place.column, head.count, 0);
        }
        let first_number = (head.values_at - head.table_at) / 4;
        let mut start = head.data_at;
        // Ends count from the keys' beginning.
        let base = head.table_at + 4 * (first_number + head.count);
        for number in 0..head.count {
            let entry = u32_at(document, head.values_at + 4 * number)?;
            let end = base + jsonb::end_of(first_number + number, entry, start - base)?;
            if end > place.end {
                return None;
            }
            let has_key = head.kind == kind::OBJECT;
            let column = if has_key { self.columns[shape.first as usize + number].into() } else { place.column };
            match jsonb::type_of(entry) {
                jsonb::entry::STRING => {
                    self.push(Class::String, column, document_at + start, u16::try_from(end - start).ok()?.into());
                }
                jsonb::entry::NUMERIC => {
                    let at = aligned(document, start, end)?;
                    if u32_at(document, at)? as usize != (end - at) << 2 || end - at < 4 {
                        return None;
                    }
                    let length = u16::try_from(end - at - 4).ok()?;
                    self.push(Class::Numeric, column, document_at + at + 4, length.into());
                }
                jsonb::entry::CONTAINER => {
                    let at = aligned(document, start, end)?;
                    let inner = Place { at, end, column, depth: place.depth + 1 };
                    self.take_container(document, document_at, inner)?;
                }
                _ if end != start => return None,
                jsonb::entry::NULL => {}
                boolean => self.push(Class::Bool, column, usize::from(boolean == jsonb::entry::TRUE), 0),
            }
            start = end;
        }
        (start == place.end).then_some(())
    }

    /// Reads the beginning of a container, up to its values' bytes; its signature is what tells its shape from others.
    fn read_head(&mut self, document: &[u8], place: Place) -> Option<Head> {
        let word = u32_at(document, place.at)?;
        let count = (word & jsonb::COUNT_MASK) as usize;
        let kind = match word & !jsonb::COUNT_MASK {
            jsonb::OBJECT => kind::OBJECT,
            jsonb::ARRAY => kind::ARRAY,
            jsonb::SCALAR if count == 1 && place.depth == 0 => kind::SCALAR,
            _ => return None,
        };
        let key_count = if kind == kind::OBJECT { count } else { 0 };
        let table_at = place.at + 4;
        let base = table_at + 4 * (key_count + count);
        if base > place.end || place.depth > DEPTH_MAX {
            return None;
        }
        let mut head = Head { kind, count, table_at, values_at: table_at + 4 * key_count, data_at: base };
        let mut end = 0;
        for (number, entry) in document[table_at..head.values_at].as_chunks::<4>().0.iter().enumerate() {
            let entry = u32::from_le_bytes(*entry);
            if jsonb::type_of(entry) != jsonb::entry::STRING {
                return None;
            }
            end = jsonb::end_of(number, entry, end)?;
        }
        head.data_at = base + end;
        if head.data_at > place.end {
            return None;
        }
        let entries = document[head.values_at..base].as_chunks::<4>().0;
        self.signature.clear();
        self.signature.push(kind);
        self.signature.extend_from_slice(&word.to_le_bytes());
        let mut most = 0;
        self.signature.extend(entries.iter().map(|entry| {
            let one = shape_type(u32::from_le_bytes(*entry));
            most = most.max(one);
            one
        }));
        if most >= value::END {
            return None;
        }
        let types = &self.signature[TYPES_AT..];
        if kind == kind::ARRAY && types.windows(2).all(|two| two[0] == two[1]) {
            head.kind = kind::SAME + types.first().copied().unwrap_or(jsonb::entry::STRING);
            self.signature.clear();
            self.signature.push(head.kind);
        } else {
            self.signature.extend_from_slice(&document[table_at..head.values_at]);
            self.signature.extend_from_slice(&document[base..head.data_at]);
        }
        Some(head)
    }

    /// The number of the shape with the signature at hand, and whether it is a new one.
    #[inline]
    fn shape_of(&mut self, document: &[u8], head: &Head) -> Option<(usize, bool)> {
        let (number, is_new) = self.known_shapes.number_of(&self.signature)?;
        if is_new {
            if number == SHAPES_MAX {
                return None;
            }
            self.add_shape(document, head)?;
        }
        Some((number, is_new))
    }

    fn add_shape(&mut self, document: &[u8], head: &Head) -> Option<()> {
        let first = self.types.len() as u32;
        let is_same = head.kind >= kind::SAME;
        let count = if is_same { 0 } else { head.count };
        self.shapes.push(Shape { kind: head.kind, count: count as u32, first, template: (0, 0) });
        if !is_same {
            self.types.extend_from_slice(&self.signature[TYPES_AT..][..count]);
        }
        self.columns.resize(self.types.len(), MIXED as u16);
        let (entries, mut keys) = (&document[head.table_at..head.values_at], &document[..head.data_at]);
        keys = &keys[head.values_at + 4 * head.count..];
        let mut start = 0;
        for (number, entry) in entries.as_chunks::<4>().0.iter().enumerate() {
            let end = jsonb::end_of(number, u32::from_le_bytes(*entry), start)?;
            let key = &keys[start..end];
            start = end;
            if key.contains(&0) {
                return None;
            }
            let (key_number, is_new) = self.known_keys.number_of(key)?;
            self.key_codes.push(if is_new { 0 } else { key_number as u32 + 1 });
            if is_new {
                self.key_text.extend_from_slice(key);
                self.key_text.push(0);
            }
            self.columns[first as usize + number] = column_of(key_number) as u16;
        }
        Some(())
    }
}
