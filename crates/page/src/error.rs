//! Why bytes could not be decoded.

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Nothing is wrong with the bytes: there was no memory for a zstd context.
pub(crate) const NO_MEMORY: Damaged = Damaged("there is no memory for a zstd decoder");

/// What a decoder gives.
pub(crate) type Decoded<T> = Result<T, Damaged>;
