//! The space of settings: one point of it, the lists it is made of, and the walk over all of it.

use std::fmt;

use pagehaul_engine::codec::CodecSpec;
use pagehaul_engine::limits::FRAME_SIZE_BYTES_MIN;
use serde::{Deserialize, Serialize};

/// One combination of settings, for a backup and the restore of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    /// Codec and level.
    #[serde(with = "as_text")]
    pub compression: CodecSpec,
    /// Reader threads.
    pub readers: u16,
    /// Encoder threads.
    pub encoders: u16,
    /// Stripes; each has its writer.
    pub stripes: u16,
    /// Transfer buffers of the backup.
    pub buffer_count: u32,
    /// Bytes of one transfer buffer, of backup and restore.
    pub transfer_size_bytes: u32,
    /// Stripe reader threads of the restore.
    pub stripe_readers: u16,
    /// Decoder threads of the restore.
    pub decoders: u16,
    /// File writer threads of the restore.
    pub file_writers: u16,
}

impl Settings {
    /// Raw bytes of a full frame: the codec's default, as far as a transfer buffer holds it.
    pub fn frame_size_bytes(&self) -> u32 {
        self.compression.default_frame_size_bytes().min(self.transfer_size_bytes).max(FRAME_SIZE_BYTES_MIN)
    }

    /// The settings of the backup alone: two points with the same write the same stripes.
    pub fn backup_part(&self) -> Settings {
        Settings { stripe_readers: 0, decoders: 0, file_writers: 0, ..self.clone() }
    }
}

impl fmt::Display for Settings {
    /// Short enough for a table's row: `zstd:1 r2 e2 s4 b18 1MiB / r2 d2 w2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transfer = match self.transfer_size_bytes >> 10 {
            kib if kib >= 1024 && kib % 1024 == 0 => format!("{}MiB", kib / 1024),
            kib => format!("{kib}KiB"),
        };
        write!(
            f,
            "{} r{} e{} s{} b{} {transfer} / r{} d{} w{}",
            self.compression,
            self.readers,
            self.encoders,
            self.stripes,
            self.buffer_count,
            self.stripe_readers,
            self.decoders,
            self.file_writers
        )
    }
}

/// A codec and its level as people write it.
mod as_text {
    use pagehaul_engine::codec::CodecSpec;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(codec: &CodecSpec, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(codec)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CodecSpec, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|_| D::Error::custom("not a codec and level"))
    }
}
