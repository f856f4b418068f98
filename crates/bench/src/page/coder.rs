//! Codecs by name: those of the engine's registry, and the page codec, which is told what the frame holds.

use pagehaul_engine::codec::{CodecSpec, Decoder, Encoder, new_decoder, new_encoder};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_page::{Level, PageDecoder, PageEncoder, Part};

/// What follows the name of a level of the page codec that lets frames go without decoding them again.
pub(crate) const UNPROVEN: &str = " without proof";
/// Behind the name of another codec: its frames are decoded again before they are let go, as those of the page codec are.
const PROVEN: &str = " with proof";

/// One thread's encoder and decoder.
pub(super) enum Coder {
    General { encoder: Box<dyn Encoder>, decoder: Box<dyn Decoder> },
    Page { encoder: Box<PageEncoder>, decoder: Box<PageDecoder>, is_proven: bool },
}

impl Coder {
    /// Of `page:1` to `page:5`, `page:1 without proof` and so on, or of whatever `--compression` of pagehaul takes, which decodes back only
    /// as `zstd:1 with proof` and the like.
    ///
    /// # Errors
    /// `Usage` for a name nobody knows; `Configuration` if there is no memory.
    pub(super) fn new(name: &str, frame_size: usize) -> Result<Self> {
        let failed = |cause| Error::new(ErrorKind::Configuration, format!("make an encoder of {name}"), cause);
        let (codec, is_proven) = name.strip_suffix(UNPROVEN).map_or((name, true), |codec| (codec, false));
        let level = match codec.split_once(':').unwrap_or((codec, "2")) {
            ("page", level) => level,
            _ => {
                let (codec, is_proven) = name.strip_suffix(PROVEN).map_or((name, false), |codec| (codec, true));
                let spec: CodecSpec = codec.parse()?;
                let spec = if is_proven { spec } else { spec.without_decode_back() };
                let (encoder, decoder) = (new_encoder(spec, frame_size)?, new_decoder(spec.codec())?);
                return Ok(Coder::General { encoder, decoder });
            }
        };
        let level =
            level.parse().ok().and_then(Level::new).ok_or_else(|| {
                Error::new(ErrorKind::Usage, format!("use {name}"), "the page codec has levels 1 to 5")
            })?;
        let encoder = Box::new(PageEncoder::new(level, frame_size).map_err(failed)?);
        Ok(Coder::Page { encoder, decoder: Box::new(PageDecoder::new().map_err(failed)?), is_proven })
    }

    /// The stored length; None if it does not get smaller than `stored` has room for.
    pub(super) fn encode(&mut self, raw: &[u8], parts: &[Part<'_>], stored: &mut [u8]) -> Result<Option<usize>> {
        match self {
            Coder::General { encoder, .. } => encoder.encode(raw, stored),
            Coder::Page { encoder, is_proven, .. } => {
                let length = match is_proven {
                    true => encoder.encode(raw, parts, stored),
                    false => encoder.encode_unproven(raw, parts, stored),
                };
                length.map_err(|cause| Error::new(ErrorKind::Bug, "encode a page frame", cause))
            }
        }
    }

    pub(super) fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        match self {
            Coder::General { decoder, .. } => decoder.decode(stored, raw),
            Coder::Page { decoder, .. } => {
                decoder.decode(stored, raw).map_err(|cause| Error::new(ErrorKind::Damage, "decode a page frame", cause))
            }
        }
    }
}
