//! The page codec as one of the engine's: its own crate, with our errors.

use pagehaul_page::{Level, PageDecoder, PageEncoder, Part};

use super::{CodecId, Decoder, Encoder, check_raw_len, damaged_frame, no_memory};
use crate::error::{Error, ErrorKind, Result};

/// The level of a spec's number; [`super::CodecSpec`] has no others than there are.
fn level(number: i32) -> Level {
    u8::try_from(number).ok().and_then(Level::new).unwrap_or_default()
}

/// What content of which the page codec knows nothing is encoded with in place of level `number`: zstd's level for text. What level 1 leaves
/// to LZ4 is little beside pages, and all there is here.
pub(super) fn zstd_level(number: i32) -> i32 {
    level(number).zstd_level().unwrap_or(1)
}

/// What an encoder of `level` holds at most.
pub(super) fn encoder_state_size_bytes(number: i32, frame_size_bytes: usize) -> u64 {
    pagehaul_page::encoder_state_size_bytes(level(number), frame_size_bytes)
}

/// What a decoder holds at most.
pub(super) fn decoder_state_size_bytes() -> u64 {
    pagehaul_page::decoder_state_size_bytes()
}

/// Takes pages apart.
pub(super) struct PagesEncoder {
    encoder: PageEncoder,
    frame_size_bytes: usize,
}

impl PagesEncoder {
    pub(super) fn new(number: i32, frame_size_bytes: usize) -> Result<Self> {
        let encoder = PageEncoder::new(level(number), frame_size_bytes).map_err(|error| match error {
            pagehaul_page::Error::NoMemory => no_memory("a page encoder"),
            other => Error::new(ErrorKind::Configuration, "make a page encoder", other),
        })?;
        Ok(PagesEncoder { encoder, frame_size_bytes })
    }

    /// Encodes at level `number` from the next frame on.
    pub(super) fn set_level(&mut self, number: i32) {
        self.encoder.set_level(level(number));
    }
}

impl Encoder for PagesEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        self.encode_parts(raw, &[], stored)
    }

    fn encode_parts(&mut self, raw: &[u8], parts: &[Part<'_>], stored: &mut [u8]) -> Result<Option<usize>> {
        check_raw_len(CodecId::Page, raw, self.frame_size_bytes)?;
        let encoded = self.encoder.encode(raw, parts, stored);
        encoded.map_err(|error| Error::new(ErrorKind::Bug, "encode a page frame", error))
    }

    fn not_proven(&self) -> u64 {
        self.encoder.not_proven()
    }
}

/// Puts pages together again.
pub(super) struct PagesDecoder(PageDecoder);

impl PagesDecoder {
    pub(super) fn new() -> Result<Self> {
        PageDecoder::new().map(PagesDecoder).map_err(|_| no_memory("a page decoder"))
    }
}

impl Decoder for PagesDecoder {
    fn decode(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        self.0.decode(stored, raw).map_err(|error| match error {
            // Its state may be made by the first frame that needs it.
            pagehaul_page::Error::NoMemory => no_memory("a page decoder"),
            other => damaged_frame(CodecId::Page, other),
        })
    }
}

#[cfg(test)]
mod tests {
    use pagehaul_page::RelationLayout;

    use super::*;
    use crate::codec::conformance::sample_data::pages;
    use crate::codec::{CodecSpec, new_decoder, new_encoder};

    #[test]
    fn parts_change_no_byte_of_the_content_whatever_they_say() {
        let raw = pages(6 * 8192 + 100);
        let (layout, other) = (RelationLayout::other(8192), RelationLayout::default());
        let part = |start, length, layout| Part { start, length, first_page: 7, layout };
        let lists = [
            vec![],
            vec![part(0, raw.len(), &layout)],
            vec![part(0, 8192, &layout), part(8192, 8192, &other), part(3 * 8192, 2 * 8192, &layout)],
            vec![part(100, 8192, &layout), part(6 * 8192, 100, &layout)],
        ];
        let (mut stored, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
        for spec in CodecSpec::all_of(CodecId::Page) {
            let mut encoder = new_encoder(spec, raw.len()).unwrap();
            let mut decoder = new_decoder(CodecId::Page).unwrap();
            for parts in &lists {
                let length = encoder.encode_parts(&raw, parts, &mut stored).unwrap().unwrap();
                decoder.decode(&stored[..length], &mut back).unwrap();
                assert!(back == raw, "{spec}, {parts:?}");
            }
        }
    }

    #[test]
    fn other_codecs_take_parts_and_ignore_them() {
        let (raw, layout) = (pages(8192), RelationLayout::other(8192));
        let parts = [Part { start: 0, length: 8192, first_page: 0, layout: &layout }];
        for spec in CodecId::ALL.into_iter().filter(|codec| *codec != CodecId::Page).map(CodecSpec::default_of) {
            let (mut with, mut without) = (vec![0; raw.len()], vec![0; raw.len()]);
            let mut encoder = new_encoder(spec, raw.len()).unwrap();
            let length = encoder.encode_parts(&raw, &parts, &mut with).unwrap().unwrap();
            assert_eq!(encoder.encode(&raw, &mut without).unwrap().unwrap(), length, "{spec}");
            assert!(with[..length] == without[..length], "{spec}");
        }
    }

    #[test]
    fn every_level_of_a_spec_is_one_of_the_codec() {
        for spec in CodecSpec::all_of(CodecId::Page) {
            assert_eq!(i32::from(level(spec.level()).number()), spec.level());
        }
        assert_eq!(CodecSpec::all_of(CodecId::Page).last().map(CodecSpec::level), Some(Level::MAX.number().into()));
        assert_eq!(CodecSpec::default_of(CodecId::Page).level(), i32::from(Level::DEFAULT.number()));
    }
}
