//! What the codec is told of a relation: which kind of pages, and the columns of their tuples.
//!
//! It is a hint that pays in size. A wrong or missing layout costs ratio and never a byte of content.

/// The most columns a layout may have: PostgreSQL's own limit is 1600.
pub const ATTRIBUTES_MAX: usize = 1600;
/// The page sizes PostgreSQL can be built with.
pub const PAGE_SIZES_BYTES: [u32; 4] = [4096, 8192, 16384, 32768];

/// What the pages of a relation's fork hold; the number stands in frames and never changes its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RelationKind {
    /// Not pages at all, or nobody knows.
    #[default]
    NotPages = 0,
    /// Pages of a kind with no model of its own, or not known: header and hole are taken apart, the rest is text. Those that
    /// look like a table's or an index's are taken as such.
    Other = 1,
    /// Tables, TOAST tables and materialized views.
    Heap = 2,
    /// B-tree, hash and GiST indexes: index tuples, and 16 bytes of the access method's own at the end.
    Index = 3,
    /// Pages of WAL segments, one after the other, of which the last one may be cut; there are no columns.
    Wal = 4,
    /// GIN indexes: keys with lists of rows. Of its columns only one can be taken apart.
    Gin = 5,
    /// SP-GiST indexes: leaves of trees, rows with what is left of their values.
    SpGist = 6,
}

impl RelationKind {
    /// The kind of a frame's number.
    pub fn from_u8(number: u8) -> Option<Self> {
        use RelationKind::{Gin, Heap, Index, NotPages, Other, SpGist, Wal};
        [NotPages, Other, Heap, Index, Wal, Gin, SpGist].into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether its pages hold tuples of columns, for which there is a model.
    pub fn has_columns(self) -> bool {
        self == RelationKind::Heap || self.is_index()
    }

    /// Whether these tuples are an index's, which are in some order of their values.
    pub(crate) fn is_index(self) -> bool {
        matches!(self, RelationKind::Index | RelationKind::Gin | RelationKind::SpGist)
    }
}

/// What a column's bytes mean; the number stands in frames and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ValueType {
    /// Bytes of a fixed length with no meaning known.
    Opaque = 0,
    /// A signed or unsigned integer, date, timestamp, boolean or enum of 1, 2, 4 or 8 bytes.
    Integer = 1,
    /// An IEEE 754 number of 4 or 8 bytes.
    Float = 2,
    /// 16 bytes in big-endian order.
    Uuid = 3,
    /// Variable length: text, json, bytea, arrays, anything.
    Varlena = 4,
    /// Variable length: PostgreSQL's numeric.
    Numeric = 5,
    /// Two to four IEEE 754 numbers of 8 bytes: points, boxes and other shapes. Other parts of eight bytes do as well.
    Floats = 6,
    /// Variable length: PostgreSQL's jsonb.
    Jsonb = 7,
}

impl ValueType {
    /// The type of a frame's number.
    pub fn from_u8(number: u8) -> Option<Self> {
        use ValueType::{Float, Floats, Integer, Jsonb, Numeric, Opaque, Uuid, Varlena};
        [Opaque, Integer, Float, Uuid, Varlena, Numeric, Floats, Jsonb].into_iter().find(|kind| *kind as u8 == number)
    }

    /// What a column of PostgreSQL's type `type_oid` with `pg_attribute.attlen` of `length` holds. Give the base type's
    /// oid for domains.
    pub fn of_postgres(type_oid: u32, length: i16) -> Self {
        // Oids of src/include/catalog/pg_type.dat; they are fixed for ever.
        const FLOAT4: u32 = 700;
        const FLOAT8: u32 = 701;
        const NUMERIC: u32 = 1700;
        const UUID: u32 = 2950;
        const JSONB: u32 = 3802;
        /// point, lseg, box, line, circle; and interval, whose time is eight bytes, and whose days and months are as many: where
        /// numbers are no decimals, their bit patterns are coded as whole ones.
        const SHAPES: [u32; 6] = [600, 601, 603, 628, 718, 1186];
        match (type_oid, length) {
            (FLOAT4, 4) | (FLOAT8, 8) => ValueType::Float,
            (UUID, 16) => ValueType::Uuid,
            (_, 16 | 24 | 32) if SHAPES.contains(&type_oid) => ValueType::Floats,
            (NUMERIC, -1) => ValueType::Numeric,
            (JSONB, -1) => ValueType::Jsonb,
            (_, 1 | 2 | 4 | 8) => ValueType::Integer,
            (_, -1) => ValueType::Varlena,
            _ => ValueType::Opaque,
        }
    }
}

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attribute {
    /// What its bytes mean.
    pub value_type: ValueType,
    /// Bytes of a value (`pg_attribute.attlen`); -1 for variable length, -2 for C strings.
    pub length: i16,
    /// 1, 2, 4 or 8 (`pg_attribute.attalign` in bytes).
    pub alignment: u8,
}

impl Attribute {
    /// Whether its values say their own length.
    pub(crate) fn is_variable(&self) -> bool {
        matches!(self.value_type, ValueType::Varlena | ValueType::Numeric | ValueType::Jsonb)
    }

    /// Whether the codec can take tuples with such a column apart.
    pub fn is_supported(&self) -> bool {
        matches!(self.alignment, 1 | 2 | 4 | 8)
            && match self.value_type {
                ValueType::Integer => matches!(self.length, 1 | 2 | 4 | 8),
                ValueType::Float => matches!(self.length, 4 | 8),
                ValueType::Uuid => self.length == 16,
                ValueType::Floats => matches!(self.length, 16 | 24 | 32),
                ValueType::Opaque => self.length > 0,
                ValueType::Varlena | ValueType::Numeric | ValueType::Jsonb => self.length == -1,
            }
    }
}

/// The pages of one fork of one relation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RelationLayout {
    /// What its pages hold.
    pub kind: RelationKind,
    /// 4096, 8192, 16384 or 32768; 0 for [`RelationKind::NotPages`].
    pub page_size_bytes: u32,
    /// The columns in the order of their numbers, dropped ones too; empty if unknown, then the encoder looks for them. Of an
    /// index, those of its tuples.
    pub attributes: Vec<Attribute>,
}

impl RelationLayout {
    /// Pages of WAL.
    pub fn wal(page_size_bytes: u32) -> Self {
        RelationLayout { kind: RelationKind::Wal, page_size_bytes, attributes: Vec::new() }
    }

    /// Pages of which nothing more is known.
    pub fn other(page_size_bytes: u32) -> Self {
        RelationLayout { kind: RelationKind::Other, page_size_bytes, attributes: Vec::new() }
    }
}
