//! Coders of the streams that pages are taken apart into: bytes, whole numbers, floating point numbers, text.
//!
//! Every stream is self-delimiting and carries its own count. FORMAT.md, "Entropy coded streams", has each mode's layout.
//! Coders and decoders own their scratch memory; once it has grown to a frame's streams, nothing is allocated any more.

mod axes;
mod bits;
mod bytes;
mod bytes_decode;
mod cost;
mod digits;
mod divisors;
mod estimate;
mod finder;
mod floats;
mod huffman;
mod huffman_decode;
mod lz4;
mod mixed;
mod number;
mod numbers;
mod numbers_decode;
mod pairs;
mod reader;
mod repeats;
mod shapes;
mod shapes_decode;
#[cfg(test)]
mod tests;
mod text;
mod tokens;
mod vectors;
mod zstd;

pub(crate) use axes::{FLOAT_BYTES, apart, together};
pub(crate) use bytes::ByteCoder;
pub(crate) use bytes_decode::ByteDecoder;
pub(crate) use cost::{BIT, entropy, weight};
pub(crate) use floats::{FloatCoder, FloatDecoder};
pub(crate) use mixed::{MixedCoder, MixedDecoder};
pub(crate) use numbers::NumberCoder;
pub(crate) use numbers_decode::NumberDecoder;
pub(crate) use reader::{Reader, put_varint};
pub(crate) use repeats::{is_dense_within, repeats_within};
pub(crate) use text::{TextCoder, TextDecoder, text_context_size_bytes};

/// How much is tried to make a stream small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effort {
    /// No codes, but whole bytes and fixed widths; less time in choosing.
    Fast,
    /// Codes where they spare a quarter; and where most of a stream of bytes was there before, that is found.
    #[default]
    Default,
    /// Larger samples, more shapes, and repeats where there are some.
    Thorough,
    /// Everything is tried.
    Small,
}

impl Effort {
    /// Whether jsonb is taken apart. A table of documents then takes an eighth fewer bytes, and a third more time on the way there
    /// and on the way back (bench/runs/2026-11-27-page-documents).
    pub(crate) fn takes_documents(self) -> bool {
        self >= Effort::Thorough
    }

    /// Whether what PostgreSQL has compressed is taken apart: an eighth fewer bytes, and where repeats are looked for long enough to find
    /// them among literals alone, too. At page:3 it would take two thirds more time (bench/runs/2026-11-30-page-pglz).
    pub(crate) fn takes_pglz(self) -> bool {
        self == Effort::Small
    }
}
