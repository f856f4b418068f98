//! One codec on pieces of a sample, timed: what the pipeline's encoders and decoders would do with them.

use pagehaul_engine::codec::{CodecId, CodecSpec, Decoder, Encoder, new_decoder, new_encoder};
use pagehaul_engine::error::Result;
use pagehaul_engine::format::frame::FRAME_HEADER_BYTES;

use crate::sample::Piece;
use crate::threads::thread_cpu_s;

/// What one codec did to one piece.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) raw_bytes: f64,
    pub(crate) stored_bytes: f64,
    pub(crate) encode_s: f64,
    pub(crate) decode_s: f64,
}

impl Cost {
    pub(crate) fn add(&mut self, other: &Cost) {
        self.raw_bytes += other.raw_bytes;
        self.stored_bytes += other.stored_bytes;
        self.encode_s += other.encode_s;
        self.decode_s += other.decode_s;
    }

    pub(crate) fn times(&self, factor: f64) -> Cost {
        Cost {
            raw_bytes: factor * self.raw_bytes,
            stored_bytes: factor * self.stored_bytes,
            encode_s: factor * self.encode_s,
            decode_s: factor * self.decode_s,
        }
    }

    pub(crate) fn spent_s(&self) -> f64 {
        self.encode_s + self.decode_s
    }
}

/// One codec with its scratch memory.
pub(crate) struct Coder {
    encoder: Box<dyn Encoder>,
    decoder: Box<dyn Decoder>,
    /// Nothing is encoded: frames are stored as they are.
    pub(crate) is_none: bool,
    /// It wants to know what the content is.
    is_page: bool,
    frame_size_bytes: u32,
    stored: Vec<u8>,
    back: Vec<u8>,
}

impl Coder {
    pub(crate) fn new(spec: CodecSpec, frame_size_bytes: u32) -> Result<Self> {
        let size = frame_size_bytes as usize;
        Ok(Coder {
            encoder: new_encoder(spec, size)?,
            decoder: new_decoder(spec.codec())?,
            is_none: spec.codec() == CodecId::None,
            is_page: spec.codec() == CodecId::Page,
            frame_size_bytes,
            stored: Vec::new(),
            back: vec![0; size],
        })
    }

    pub(crate) fn warm_up(&mut self, piece: &Piece) -> Result<()> {
        const WARM_UP_BYTES: usize = 64 * 1024;
        let bytes = &piece.bytes[..piece.bytes.len().min(WARM_UP_BYTES)];
        self.stored.resize(piece.bytes.len(), 0);
        if bytes.len() > 1
            && let Some(length) = self.encoder.encode(bytes, &mut self.stored[..bytes.len() - 1])?
        {
            self.decoder.decode(&self.stored[..length], &mut self.back[..bytes.len()])?;
        }
        Ok(())
    }

    /// Encodes the frames of a piece as the pipeline does, then decodes them; the two are timed apart.
    pub(crate) fn cost_of(&mut self, piece: &Piece) -> Result<Cost> {
        let frames: Vec<_> = piece.frames(self.frame_size_bytes);
        self.stored.resize(self.stored.len().max(piece.bytes.len()), 0);
        // The pipeline finds these as it goes; their cost is none that could be measured.
        let parts: Vec<_> =
            frames.iter().map(|frame| if self.is_page { piece.parts_of(frame) } else { Vec::new() }).collect();
        let mut lengths = Vec::with_capacity(frames.len());
        let (mut end, mut stored_bytes) = (0, 0);
        let started = thread_cpu_s();
        for (frame, parts) in frames.iter().zip(&parts) {
            let content = &piece.bytes[frame.clone()];
            if is_zero(content) {
                lengths.push(None);
                continue;
            }
            let length = match self.is_none {
                true => None,
                false => self.encoder.encode_parts(content, parts, &mut self.stored[end..end + content.len() - 1])?,
            };
            stored_bytes += length.unwrap_or(content.len()) + FRAME_HEADER_BYTES;
            end += length.unwrap_or(0);
            lengths.push(length);
        }
        let encoded = thread_cpu_s();
        let mut start = 0;
        for (frame, length) in frames.iter().zip(lengths) {
            if let Some(length) = length {
                self.decoder.decode(&self.stored[start..start + length], &mut self.back[..frame.len()])?;
                start += length;
            }
        }
        let decoded = thread_cpu_s();
        Ok(Cost {
            raw_bytes: piece.bytes.len() as f64,
            stored_bytes: stored_bytes as f64,
            encode_s: encoded - started,
            decode_s: decoded - encoded,
        })
    }
}

/// Whether all bytes are zero; stops at the first block that is not.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(1024).all(|block| block.iter().fold(0, |seen, byte| seen | byte) == 0)
}
