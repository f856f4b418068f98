//! Why bytes could not be decoded.

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) &'static str);

/// What a decoder gives.
pub(crate) type Decoded<T> = Result<T, Damaged>;
