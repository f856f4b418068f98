//! What a synthetic full will be, decided before anything is read: codec, counts and sizes, places of stripes. Pure.

use super::super::plan::{self as backup_plan, StripeDirectories};
use super::super::report::BackupRequest;
use super::report::SynthesizeRequest;
use crate::catalog::page_sums::ChainSums;
use crate::catalog::{OpenSet, Repository};
use crate::error::Result;
use crate::format::manifest::Manifest;
use crate::limits::MIB;
use crate::pipeline::ceiling::{Ceiling, CeilingFacts};
use crate::pipeline::{
    ChainSource, CodecSpec, DeflateEngine, Observer, PipelineSettings, decoder_state_bytes, encoder_state_bytes,
};

/// Decoded frames that are kept, at least; and at most, and in bytes.
const CACHED_FRAMES_MIN: usize = 16;
const CACHED_FRAMES_MAX: usize = 64;
const CACHED_BYTES_MAX: u64 = 64 * MIB;

/// How it will be made.
pub(in crate::backup) struct Plan {
    pub(in crate::backup) settings: PipelineSettings,
    /// What is encoded is encoded so.
    pub(in crate::backup) codec: CodecSpec,
    /// Whether frames go on as they are stored where they can.
    pub(in crate::backup) takes_stored: bool,
    /// How many decoded frames are kept.
    pub(in crate::backup) cached_frames: usize,
    request: BackupRequest,
}

impl Plan {
    /// Every count and size, from the request or by default, on a machine of `cores`.
    ///
    /// # Errors
    /// `Usage` if one is out of range.
    pub(super) fn make(request: &SynthesizeRequest, chain: &OpenSet, cores: u16) -> Result<Self> {
        // The set that holds most of the bytes: with its frame size most frames can go on as they are stored.
        let largest = chain.chain().max_by_key(|set| set.stored_bytes).unwrap_or(&chain.manifest);
        let codec = request.compression.unwrap_or_else(|| codec_of(largest));
        let takes_stored = request.compression.is_none();
        let frame_size = if takes_stored { Some(largest.frame_size_bytes) } else { None };
        let like_backup = BackupRequest {
            stripe_to: request.stripe_to.clone(),
            stripes: request.stripes,
            parity: request.parity,
            parity_to: request.parity_to.clone(),
            compression: codec,
            readers: request.readers,
            encoders: request.encoders,
            buffer_count: request.buffer_count,
            transfer_size_bytes: request.transfer_size_bytes,
            frame_size_bytes: request.frame_size_bytes.or(frame_size),
            max_rate_bytes_per_s: request.max_rate_bytes_per_s,
            ..BackupRequest::new(chain.manifest.source.clone(), request.repo.as_str())
        };
        let settings = backup_plan::settings(&like_backup, cores)?;
        let cached_frames = cached_frames(chain.priors.len() + 1, settings.readers, chain.frame_sizes_bytes().1);
        Ok(Plan { settings, codec, takes_stored, cached_frames, request: like_backup })
    }

    /// The directory of each stripe; what should be said of them is a note.
    pub(super) fn stripe_directories(&self, chain: &OpenSet, observer: &dyn Observer) -> StripeDirectories {
        let content_bytes = Some(chain.table.content_bytes());
        backup_plan::stripe_directories(&self.request, &self.settings, content_bytes, observer)
    }

    /// The memory ceiling.
    pub(super) fn ceiling(&self, repository: &Repository, chain: &OpenSet, sums: &ChainSums) -> Ceiling {
        let facts = CeilingFacts {
            file_count: chain.table.entries().len() as u64,
            path_bytes: chain.table.path_bytes(),
            content_bytes: chain.table.content_bytes(),
            codec_state_bytes: encoder_state_bytes(self.codec, self.settings.frame_size_bytes),
            object_writer_bytes: backup_plan::object_writer_bytes(
                &self.request,
                &self.settings,
                chain.table.content_bytes(),
            ),
            sums_writer_bytes: backup_plan::sums_writer_bytes(&self.request, &self.settings),
            ..CeilingFacts::default()
        };
        let ceiling = Ceiling::of_backup(&self.settings, &facts);
        let ceiling = backup_plan::with_objects(ceiling, &self.settings, &self.request, facts.content_bytes);
        let mut ceiling = backup_plan::with_digests(ceiling, repository, &self.settings, facts.content_bytes);
        // An index entry, and where the frame starts.
        let indexes = 16 * chain.frame_count() + sums.memory_bytes();
        ceiling.add_parity(chain.parity_memory_bytes());
        ceiling.add_digests(chain.digests_bytes());
        ceiling.add_decryption(self.settings.readers, chain.decryption_bytes());
        ceiling.add("the chain's file list and indexes".to_owned(), chain.table.memory_bytes() + indexes);
        let readers = self.settings.readers;
        let frame_size = chain.frame_sizes_bytes().1;
        ceiling.add(
            format!("{} decoded frames of the chain, and those in the hands of {readers} readers", self.cached_frames),
            ChainSource::memory_bytes(self.cached_frames, frame_size, readers),
        );
        let each = decoder_state_bytes(chain.may_hold_page_frames()) + ChainSums::CURSOR_BYTES;
        ceiling.add(format!("{readers} decoders x {} KiB state", each / 1024), u64::from(readers) * each);
        ceiling
    }
}

/// Files of a chain take turns over a few frames of each of its sets.
fn cached_frames(set_count: usize, readers: u16, frame_size_bytes: u32) -> usize {
    let room = (CACHED_BYTES_MAX / u64::from(frame_size_bytes.max(1))) as usize;
    let wanted = 2 * set_count + 4 * usize::from(readers);
    wanted.clamp(CACHED_FRAMES_MIN, CACHED_FRAMES_MAX).min(room.max(CACHED_FRAMES_MIN))
}

/// What a set's writer was asked for, by this machine's engine; the default if this program does not know it.
fn codec_of(set: &Manifest) -> CodecSpec {
    set.compression.parse::<CodecSpec>().unwrap_or_default().with_engine(DeflateEngine::Auto)
}

#[cfg(test)]
impl Plan {
    /// A plan with settings of the caller's.
    pub(in crate::backup) fn for_tests(settings: PipelineSettings, codec: CodecSpec, takes_stored: bool) -> Self {
        Plan {
            settings,
            codec,
            takes_stored,
            cached_frames: 2,
            request: BackupRequest::new("main".parse().expect("a name"), ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_grows_with_the_chain_and_stays_bounded() {
        assert_eq!(cached_frames(2, 2, 1 << 20), 16);
        assert_eq!(cached_frames(12, 2, 1 << 20), 32);
        assert_eq!(cached_frames(500, 8, 1 << 20), 64);
        assert_eq!(cached_frames(500, 8, 4 << 20), 16);
    }
}
