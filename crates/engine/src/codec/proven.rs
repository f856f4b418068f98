//! Encoders that decode again what they made, and compare: a fault of a library, of memory or of a CPU is found while the
//! content is still there, and not on the day of the restore.
//!
//! A frame that does not come back is not given out; the caller stores its content as it is. The page codec does the same by
//! itself, page by page.

use super::{Decoder, Encoder, Part};
use crate::error::{ErrorKind, Result};

/// Memory to decode into, and how often that did not give the content again.
pub(super) struct Prover {
    back: Vec<u8>,
    not_proven: u64,
}

impl Prover {
    pub(super) fn new(frame_size_bytes: usize) -> Self {
        Prover { back: vec![0; frame_size_bytes], not_proven: 0 }
    }

    /// What one holds.
    pub(super) fn state_size_bytes(frame_size_bytes: usize) -> u64 {
        frame_size_bytes as u64
    }

    pub(super) fn not_proven(&self) -> u64 {
        self.not_proven
    }

    /// `length`, if that many bytes of `stored` decode to `raw`; otherwise None, and it is counted.
    ///
    /// # Errors
    /// Those of `decoder` that do not speak of the frame.
    pub(super) fn proven(
        &mut self,
        decoder: &mut dyn Decoder,
        raw: &[u8],
        stored: &[u8],
        length: usize,
    ) -> Result<Option<usize>> {
        let back = &mut self.back[..raw.len()];
        let comes_back = match decoder.decode(&stored[..length], back) {
            Ok(()) => back == raw,
            Err(error) if error.kind() == ErrorKind::Damage => false,
            Err(error) => return Err(error),
        };
        self.not_proven += u64::from(!comes_back);
        Ok(comes_back.then_some(length))
    }
}

/// An encoder of a library, and the decoder that checks it.
pub(super) struct ProvenEncoder {
    encoder: Box<dyn Encoder>,
    decoder: Box<dyn Decoder>,
    prover: Prover,
}

impl ProvenEncoder {
    pub(super) fn new(encoder: Box<dyn Encoder>, decoder: Box<dyn Decoder>, frame_size_bytes: usize) -> Self {
        ProvenEncoder { encoder, decoder, prover: Prover::new(frame_size_bytes) }
    }
}

impl Encoder for ProvenEncoder {
    fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
        self.encode_parts(raw, &[], stored)
    }

    fn encode_parts(&mut self, raw: &[u8], parts: &[Part<'_>], stored: &mut [u8]) -> Result<Option<usize>> {
        match self.encoder.encode_parts(raw, parts, stored)? {
            Some(length) => self.prover.proven(self.decoder.as_mut(), raw, stored, length),
            None => Ok(None),
        }
    }

    fn not_proven(&self) -> u64 {
        self.prover.not_proven()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::conformance::sample_data::pages;
    use crate::codec::{CodecId, CodecSpec, new_decoder, new_encoder};

    /// Changes one bit of what another encoder gives, of every second frame.
    struct Spoiling {
        encoder: Box<dyn Encoder>,
        /// Where, in 64ths of the stored bytes.
        at: usize,
        frames: usize,
    }

    impl Encoder for Spoiling {
        fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
            let length = self.encoder.encode(raw, stored)?;
            self.frames += 1;
            if let Some(length) = length.filter(|_| self.frames.is_multiple_of(2)) {
                stored[length * self.at / 64] ^= 1;
            }
            Ok(length)
        }
    }

    #[test]
    fn f54_a_frame_that_does_not_come_back_is_not_given_out() {
        let raw = pages(1 << 16);
        let mut stored = vec![0; raw.len()];
        for codec in [CodecId::Lz4, CodecId::Deflate, CodecId::Zstd, CodecId::Xpress] {
            let mut refused = 0;
            for at in 0..64 {
                let encoder = new_encoder(CodecSpec::default_of(codec).without_decode_back(), raw.len()).unwrap();
                let spoiling = Box::new(Spoiling { encoder, at, frames: 0 });
                let mut encoder = ProvenEncoder::new(spoiling, new_decoder(codec).unwrap(), raw.len());
                for is_spoilt in [false, true, false] {
                    let before = encoder.not_proven();
                    let given = encoder.encode(&raw, &mut stored).unwrap();
                    // Few bits say nothing: where a match begins that is found elsewhere, too, or padding.
                    assert!(is_spoilt || given.is_some(), "{codec}");
                    assert_eq!(encoder.not_proven() - before, u64::from(given.is_none()), "{codec}");
                    match given {
                        Some(length) => {
                            let mut back = vec![0; raw.len()];
                            new_decoder(codec).unwrap().decode(&stored[..length], &mut back).unwrap();
                            assert!(back == raw, "{codec}, bit in part {at}");
                        }
                        None => refused += 1,
                    }
                }
            }
            assert!(refused > 48, "{codec}: {refused} of 64");
        }
    }

    #[test]
    fn f54_content_that_changes_while_it_is_encoded_is_not_given_out() {
        /// Encodes something else than what it was given, as memory that fails would.
        struct Changed(Box<dyn Encoder>);
        impl Encoder for Changed {
            fn encode(&mut self, raw: &[u8], stored: &mut [u8]) -> Result<Option<usize>> {
                let mut other = raw.to_vec();
                other[raw.len() / 3] ^= 0x10;
                self.0.encode(&other, stored)
            }
        }
        let raw = pages(1 << 16);
        let spec: CodecSpec = "zstd:1".parse().unwrap();
        let inner = Box::new(Changed(new_encoder(spec.without_decode_back(), raw.len()).unwrap()));
        let mut encoder = ProvenEncoder::new(inner, new_decoder(spec.codec()).unwrap(), raw.len());
        assert_eq!(encoder.encode(&raw, &mut vec![0; raw.len()]).unwrap(), None);
        assert_eq!(encoder.not_proven(), 1);
    }

    #[test]
    fn f54_every_codec_decodes_back_unless_it_is_told_not_to() {
        let raw = pages(1 << 16);
        for text in ["lz4:1", "lz4:9", "deflate:1", "zstd:1", "zstd:-3", "zstd:10", "xpress:1"] {
            let spec: CodecSpec = text.parse().unwrap();
            assert!(spec.decodes_back(), "{text}");
            let plain = spec.without_decode_back();
            let of = |spec| {
                let mut stored = vec![0; raw.len()];
                let length = new_encoder(spec, raw.len()).unwrap().encode(&raw, &mut stored).unwrap().unwrap();
                stored.truncate(length);
                stored
            };
            assert!(of(spec) == of(plain), "{text}: the bytes are the same");
            let more = crate::codec::encoder_state_size_bytes(spec, raw.len())
                - crate::codec::encoder_state_size_bytes(plain, raw.len());
            assert!(more >= raw.len() as u64, "{text}: the ceiling counts what is decoded into");
        }
        for text in ["none", "page:2"] {
            let spec: CodecSpec = text.parse().unwrap();
            assert_eq!(
                crate::codec::encoder_state_size_bytes(spec, raw.len()),
                crate::codec::encoder_state_size_bytes(spec.without_decode_back(), raw.len()),
                "{text}: nothing to choose"
            );
        }
    }
}
