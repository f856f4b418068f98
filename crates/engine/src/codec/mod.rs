//! Codecs: one frame of bytes in, one frame of bytes out, with no state between frames.
//!
//! The pipeline makes one [`Encoder`] or [`Decoder`] per thread and calls it for every frame. All memory a codec
//! needs is made once, with the encoder or decoder, and its size is known before
//! ([`encoder_state_size_bytes`], [`decoder_state_size_bytes`]), so that the memory ceiling of a run holds.
//!
//! ```
//! use pagehaul_engine::codec::{CodecSpec, new_decoder, new_encoder};
//!
//! let spec: CodecSpec = "zstd:medium".parse()?;
//! let page = [7u8; 8192];
//! let mut stored = [0u8; 8191];
//! let stored_len = new_encoder(spec, page.len())?.encode(&page, &mut stored)?.expect("this page shrinks");
//! let mut back = [0u8; 8192];
//! new_decoder(spec.codec())?.decode(&stored[..stored_len], &mut back)?;
//! assert_eq!(page, back);
//! # Ok::<(), pagehaul_engine::error::Error>(())
//! ```

mod deflate;
mod isal;
pub mod ladder;
mod lz4;
mod none;
mod page;
mod proven;
mod qatzip;
mod spec;
mod state_memory;
pub mod xpress;
mod zstd;

#[cfg(test)]
mod conformance;

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

pub use deflate::{DeflateEngine, deflate_engine_at_work, new_deflate_decoder, new_deflate_encoder};
pub use pagehaul_page::{Part, RelationKind, RelationLayout};
use proven::{ProvenEncoder, Prover};
pub use spec::CodecSpec;

/// The largest frame an encoder can be made for: the C libraries count bytes in 32 bits, this leaves them room.
pub const FRAME_SIZE_BYTES_MAX: usize = 1 << 30;

/// How a frame is stored; the number is the codec id in the frame's header and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CodecId {
    /// The bytes as they are.
    None = 0,
    /// One LZ4 block, without LZ4's frame format around it.
    Lz4 = 1,
    /// One raw DEFLATE stream (RFC 1951), without a zlib or gzip header.
    Deflate = 2,
    /// One zstd frame (RFC 8878) with its content size, without checksum or dictionary.
    Zstd = 3,
    /// Blocks of SQL Server's XPRESS (MS-XCA, LZ77 + Huffman), each behind its length.
    Xpress = 4,
    /// One frame of the page codec: pages of a database taken apart.
    Page = 5,
}

impl CodecId {
    /// All codecs this version reads and writes, by id.
    pub const ALL: [CodecId; 6] =
        [CodecId::None, CodecId::Lz4, CodecId::Deflate, CodecId::Zstd, CodecId::Xpress, CodecId::Page];

    /// The codec of a frame header's id.
    ///
    /// # Errors
    /// `Damage` for an id this version does not know.
    pub fn from_u8(id: u8) -> Result<Self> {
        CodecId::ALL.into_iter().find(|codec| *codec as u8 == id).ok_or_else(|| {
            let cause = format!("codec id {id} is not known to this version");
            Error::new(ErrorKind::Damage, "decode a frame", cause)
                .hint("either the frame is damaged or a newer version wrote it; the newer version can read it")
        })
    }

    /// The name in settings, manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            CodecId::None => "none",
            CodecId::Lz4 => "lz4",
            CodecId::Deflate => "deflate",
            CodecId::Zstd => "zstd",
            CodecId::Xpress => "xpress",
            CodecId::Page => "page",
        }
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Makes frames smaller; one per thread, kept for the whole run.
pub trait Encoder: Send {
    /// The stored length, or `None` when the result does not fit into `stored`: the caller then stores the frame raw.
    ///
    /// The bytes of `stored` beyond the stored length, and all of them after `None`, are undefined.
    /// The same input gives the same bytes again from the same library version.
    ///
    /// # Errors
    /// `Bug` if `raw` is larger than the frame size the encoder was made for, or if the library refuses its own state.
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>>;

    /// As [`Encoder::encode`], told what the content is: `parts` are in order and do not overlap. What they say may make
    /// the result smaller and never wrong; only the page codec listens.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    fn encode_parts(&mut self, raw: &[u8], parts: &[Part<'_>], stored: &mut [u8]) -> Result<Option<usize>> {
        let _ = parts;
        self.encode(raw, stored)
    }

    /// How many frames were not given out because they did not decode to their content.
    fn not_proven(&self) -> u64 {
        0
    }
}

/// Brings frames back; one per thread, kept for the whole run.
pub trait Decoder: Send {
    /// Fills `raw` exactly from all of `stored`.
    ///
    /// Nothing outside `raw` is written and no length found in `stored` is trusted. After an error the content of
    /// `raw` is undefined and the decoder can be used again.
    ///
    /// # Errors
    /// `Damage` for everything that is not exactly one frame of `raw.len()` bytes: invalid, cut short, with bytes
    /// after its end, shorter or longer than `raw`. What the codec's format cannot notice (a flipped literal, say) is
    /// not found here: that is what the frame's checksum is for.
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()>;
}

/// An encoder for frames of up to `frame_size_bytes`, which decodes each again and compares, unless the spec says not to.
///
/// # Errors
/// `Configuration` if the frame size is not within 1..=[`FRAME_SIZE_BYTES_MAX`], there is no memory for the state, or an
/// engine that was named is not installed or has no such level; `Usage` for `auto`, which needs somebody to choose the level of each frame ([`ladder::LadderEncoder`]).
pub fn new_encoder(spec: CodecSpec, frame_size_bytes: usize) -> Result<Box<dyn Encoder>> {
    check_frame_size(frame_size_bytes)?;
    if spec.is_auto() {
        return Err(Error::new(ErrorKind::Usage, "make an encoder of one level", "auto has several")
            .hint("name a codec and level, such as zstd:3"));
    }
    let encoder: Box<dyn Encoder> = match spec.codec() {
        CodecId::None => Box::new(none::NoneEncoder::new(frame_size_bytes)),
        CodecId::Lz4 => Box::new(lz4::Lz4Encoder::new(spec.level(), frame_size_bytes)),
        CodecId::Deflate => new_deflate_encoder(spec.engine(), spec.level(), frame_size_bytes)?,
        CodecId::Zstd => Box::new(zstd::ZstdEncoder::new(spec.level(), frame_size_bytes)?),
        CodecId::Xpress => Box::new(xpress::XpressEncoder::new(spec.level(), frame_size_bytes)),
        CodecId::Page => Box::new(page::PagesEncoder::new(spec.level(), frame_size_bytes)?),
    };
    if !spec.decodes_back() {
        return Ok(encoder);
    }
    Ok(match spec.codec() {
        // Nothing to prove, and what proves itself.
        CodecId::None | CodecId::Page => encoder,
        codec => Box::new(ProvenEncoder::new(encoder, new_decoder(codec)?, frame_size_bytes)),
    })
}

/// A decoder for frames of any size.
///
/// # Errors
/// `Configuration` if there is no memory for its state.
pub fn new_decoder(codec: CodecId) -> Result<Box<dyn Decoder>> {
    Ok(match codec {
        CodecId::None => Box::new(none::NoneDecoder),
        CodecId::Lz4 => Box::new(lz4::Lz4Decoder),
        CodecId::Deflate => new_deflate_decoder(DeflateEngine::Auto)?,
        CodecId::Zstd => Box::new(zstd::ZstdDecoder::new()?),
        CodecId::Xpress => Box::new(xpress::XpressDecoder::new()),
        CodecId::Page => Box::new(page::PagesDecoder::new()?),
    })
}

/// What one encoder of `spec` holds at most, in bytes, while it encodes frames of up to `frame_size_bytes`.
pub fn encoder_state_size_bytes(spec: CodecSpec, frame_size_bytes: usize) -> u64 {
    if spec.is_auto() {
        return ladder::encoder_state_size_bytes(frame_size_bytes, spec.decodes_back());
    }
    let own = match spec.codec() {
        CodecId::None => return 0,
        CodecId::Page => return page::encoder_state_size_bytes(spec.level(), frame_size_bytes),
        CodecId::Lz4 => lz4::encoder_state_size_bytes(spec.level()),
        CodecId::Deflate => deflate::encoder_state_size_bytes(spec, frame_size_bytes),
        CodecId::Zstd => zstd::encoder_state_size_bytes(spec.level(), frame_size_bytes),
        CodecId::Xpress => xpress::EncodeState::SIZE_BYTES as u64,
    };
    if !spec.decodes_back() {
        return own;
    }
    own + decoder_state_size_bytes(spec.codec()) + Prover::state_size_bytes(frame_size_bytes)
}

/// What one decoder of `codec` holds at most, in bytes, whatever the size of its frames.
pub fn decoder_state_size_bytes(codec: CodecId) -> u64 {
    match codec {
        CodecId::None | CodecId::Lz4 => 0,
        CodecId::Deflate => deflate::decoder_state_size_bytes(),
        CodecId::Zstd => zstd::decoder_state_size_bytes(),
        CodecId::Xpress => xpress::DecodeState::SIZE_BYTES as u64,
        CodecId::Page => page::decoder_state_size_bytes(),
    }
}

/// Refuses frame sizes no encoder can be made for.
fn check_frame_size(frame_size_bytes: usize) -> Result<()> {
    if (1..=FRAME_SIZE_BYTES_MAX).contains(&frame_size_bytes) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Configuration,
        format!("make an encoder for frames of {frame_size_bytes} bytes"),
        format!("a frame has 1 to {FRAME_SIZE_BYTES_MAX} bytes"),
    ))
}

/// Refuses a frame that is larger than the encoder's state was made for: the memory ceiling would not hold.
fn check_raw_len(codec: CodecId, raw: &[u8], frame_size_bytes: usize) -> Result<()> {
    if raw.len() <= frame_size_bytes {
        return Ok(());
    }
    let cause = format!("the frame has {} bytes, the encoder was made for {frame_size_bytes}", raw.len());
    Err(Error::new(ErrorKind::Bug, format!("encode a {codec} frame"), cause))
}

/// The error of every decoder: these stored bytes are not one valid frame of that length.
fn damaged_frame(codec: CodecId, cause: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Damage, format!("decode a {codec} frame"), cause)
}

/// The error of a frame that ends too early or too late, in stored or in raw bytes.
fn wrong_length(codec: CodecId, stored_left: usize, raw_len: usize, raw_expected: usize) -> Error {
    damaged_frame(
        codec,
        format!("{raw_len} of {raw_expected} bytes came out, {stored_left} stored bytes were left over"),
    )
}

/// The error for a state that could not be allocated.
fn no_memory(what: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("make {what}"), "not enough memory for its state")
        .hint("use fewer encoders or decoders, or a lower level")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codec_ids_keep_their_numbers() {
        for codec in CodecId::ALL {
            assert_eq!(CodecId::from_u8(codec as u8).unwrap(), codec);
        }
        assert_eq!(CodecId::ALL.map(|codec| codec as u8), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn unknown_codec_ids_are_damage() {
        let message = |id| {
            let error = CodecId::from_u8(id).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damage);
            error.message()
        };
        assert!(message(6).ends_with("codec id 6 is not known to this version"));
        assert!(message(255).ends_with("codec id 255 is not known to this version"));
    }

    #[test]
    fn frame_sizes_are_bounded() {
        for size in [0, FRAME_SIZE_BYTES_MAX + 1] {
            let error = new_encoder(CodecSpec::default(), size).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Configuration);
        }
    }
}
