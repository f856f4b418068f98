//! XPRESS, the codec of SQL Server's compressed backups: LZ77 + Huffman of the open specification MS-XCA.
//!
//! A block holds at most 64 KiB. It begins with the code lengths of 512 symbols, 4 bits each; then come codes in
//! 16-bit units with some bytes between them. Symbols below 256 are literals; the others are matches: the low 4 bits
//! are the length less 3 (15: the length follows in bytes), the high 4 bits the number of bits of the distance that
//! follow below its highest bit. Symbol 256 is also the end of a block.
//!
//! Level 1 takes each match where it finds it, level 2 unless the next place has a better one. One core of a 2-core AMD
//! EPYC machine that others used too, 62 MB of PostgreSQL 15 relations, in MB/s of raw bytes a CPU second:
//!
//! | | ratio | encode | decode |
//! |---|---|---|---|
//! | level 1 | 3.168 | 235 | 820 |
//! | level 2 | 3.318 | 212 | 830 |
//! | libwim 1.13.6, level 1 | 3.160 | 279 | 832 |
//! | libwim 1.13.6, level 20 | 3.211 | 161 | 862 |
//!
//! Four places for a hash gain half a percent more at two thirds of the speed. zstd:1 and ISA-L's DEFLATE are both faster
//! and smaller: this codec is for what has to be compatible.
//!
//! The functions for one block are public because a chunk of a `.bak` file is such a block and nothing else.

mod bits;
mod decode_table;
mod decoder;
mod encoder;
mod frame;
mod huffman;
mod matches;

pub use decoder::{DecodeState, decode_block};
pub use encoder::{EncodeState, encode_block};
pub(super) use frame::{XpressDecoder, XpressEncoder};

/// The most raw bytes of one block.
pub const BLOCK_SIZE_BYTES_MAX: usize = 64 << 10;

/// The symbol behind the last one of a block; before it, it is a match of 3 bytes at distance 1.
const END_OF_BLOCK: usize = 256;

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod tests;
