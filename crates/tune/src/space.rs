//! The space of settings: one point of it, the lists it is made of, and the walk over all of it.

use std::fmt;

use pagehaul_engine::codec::{CodecSpec, DeflateEngine, new_encoder};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::limits::{FRAME_SIZE_BYTES_MIN, STAGE_THREADS_MAX, STRIPE_COUNT_MAX, TRANSFER_SIZE_BYTES_MAX};
use pagehaul_engine::pipeline::PipelineSettings;
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
}

impl fmt::Display for Settings {
    /// Short enough for a table's row: `zstd:1 r2 e2 s4 b18 1MiB / r2 d2 w2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} r{} e{} s{} b{} {} / r{} d{} w{}",
            self.compression,
            self.readers,
            self.encoders,
            self.stripes,
            self.buffer_count,
            size_text(self.transfer_size_bytes),
            self.stripe_readers,
            self.decoders,
            self.file_writers
        )
    }
}

/// A whole number of KiB as flags take it: `1MiB`, `256KiB`.
pub fn size_text(bytes: u32) -> String {
    match bytes >> 10 {
        kib if kib >= 1024 && kib % 1024 == 0 => format!("{}MiB", kib / 1024),
        kib => format!("{kib}KiB"),
    }
}

/// What is searched: every list's values, combined with every other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Codecs and levels.
    pub compressions: Vec<CodecSpec>,
    /// Reader threads.
    pub readers: Vec<u16>,
    /// Encoder threads.
    pub encoders: Vec<u16>,
    /// Stripes.
    pub stripes: Vec<u16>,
    /// Transfer buffers; empty stands for what the threads of a point need, and for twice that.
    pub buffer_counts: Vec<u32>,
    /// Bytes of a transfer buffer; empty stands for the codec's default.
    pub transfer_sizes: Vec<u32>,
    /// Stripe reader threads of the restore.
    pub stripe_readers: Vec<u16>,
    /// Decoder threads of the restore.
    pub decoders: Vec<u16>,
    /// File writer threads of the restore.
    pub file_writers: Vec<u16>,
}

/// The default codecs: each is the fastest of its size somewhere between a bare copy and what a night allows.
const COMPRESSIONS: [&str; 16] = [
    "none",
    "lz4:1",
    "zstd:-5",
    "zstd:-1",
    "zstd:1",
    "zstd:2",
    "zstd:3",
    "zstd:5",
    "zstd:7",
    "zstd:9",
    "zstd:12",
    "deflate:1",
    "page:1",
    "page:2",
    "page:3",
    "auto",
];

impl Space {
    /// What is worth trying on a machine of `cores`, with stripes in `directory_count` directories.
    pub fn of_machine(cores: u16, directory_count: usize) -> Self {
        let directories = directory_count.clamp(1, usize::from(STRIPE_COUNT_MAX)) as u16;
        let threads =
            |counts: &[u16]| sorted(counts.iter().map(|count| (*count).clamp(1, STAGE_THREADS_MAX)).collect());
        let transfer_sizes = vec![256 << 10, 1 << 20, 4 << 20];
        Space {
            compressions: COMPRESSIONS.iter().filter_map(|text| text.parse().ok()).collect(),
            readers: threads(&[1, cores.min(8), (2 * cores).min(8)]),
            encoders: threads(&[cores.div_ceil(2), cores]),
            stripes: sorted([1, 2, 4].iter().map(|times| (directories * times).min(STRIPE_COUNT_MAX)).collect()),
            buffer_counts: Vec::new(),
            transfer_sizes,
            stripe_readers: threads(&[1, cores.min(4), (2 * cores).min(8)]),
            decoders: threads(&[cores]),
            file_writers: threads(&[1, cores, 2 * cores]),
        }
    }

    /// Every point of fixed levels, in the order of the lists, the codec's changing slowest.
    ///
    /// `auto` is none of them: what it does depends on the run, so nothing can be said of it beforehand.
    pub fn points(&self) -> Vec<Settings> {
        let mut points = Vec::new();
        for compression in self.compressions.iter().filter(|compression| !compression.is_auto()) {
            for (readers, encoders, stripes) in triples(&self.readers, &self.encoders, &self.stripes) {
                let usual = [compression.default_frame_size_bytes()];
                let sizes = if self.transfer_sizes.is_empty() { &usual[..] } else { &self.transfer_sizes };
                for transfer_size_bytes in sizes {
                    for buffer_count in self.buffer_counts_for(readers, encoders, stripes) {
                        let part = Settings {
                            compression: *compression,
                            readers,
                            encoders,
                            stripes,
                            buffer_count,
                            transfer_size_bytes: *transfer_size_bytes,
                            stripe_readers: 0,
                            decoders: 0,
                            file_writers: 0,
                        };
                        points.extend(self.restores_of(&part));
                    }
                }
            }
        }
        points
    }

    /// Every restore of one backup.
    fn restores_of(&self, backup: &Settings) -> impl Iterator<Item = Settings> {
        triples(&self.stripe_readers, &self.decoders, &self.file_writers)
            .map(|(stripe_readers, decoders, file_writers)| Settings {
                stripe_readers,
                decoders,
                file_writers,
                ..backup.clone()
            })
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn buffer_counts_for(&self, readers: u16, encoders: u16, stripes: u16) -> Vec<u32> {
        if self.buffer_counts.is_empty() {
            let usual = PipelineSettings::default_buffer_count(readers, encoders, stripes);
            vec![usual, 2 * usual]
        } else {
            self.buffer_counts.clone()
        }
    }

    /// The adaptive level with everything else as the product does it; None if it is not in the space.
    pub fn adaptive(&self, defaults: &Settings) -> Option<Settings> {
        let compression = self.compressions.iter().copied().find(|compression| compression.is_auto())?;
        let transfer_size_bytes = compression.default_transfer_size_bytes(compression.default_frame_size_bytes());
        Some(Settings { compression, transfer_size_bytes, ..defaults.clone() })
    }

    /// What the product does when nobody tells it anything.
    pub fn defaults(cores: u16, directory_count: usize) -> Settings {
        let compression = CodecSpec::default();
        let (readers, encoders, stripes) = (cores.clamp(1, 8), cores, directory_count.max(1) as u16);
        Settings {
            compression,
            readers,
            encoders,
            stripes,
            buffer_count: PipelineSettings::default_buffer_count(readers, encoders, stripes),
            transfer_size_bytes: compression.default_frame_size_bytes(),
            stripe_readers: cores.min(4),
            decoders: cores,
            file_writers: (2 * cores).min(16),
        }
    }
}

fn triples(first: &[u16], second: &[u16], third: &[u16]) -> impl Iterator<Item = (u16, u16, u16)> {
    let all: Vec<_> =
        first.iter().flat_map(|a| second.iter().flat_map(move |b| third.iter().map(move |c| (*a, *b, *c)))).collect();
    all.into_iter()
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

/// The numbers that `text`, the value of `flag`, means: a list `1,2,6`, or a range `1-8`, which doubles: 1, 2, 4, 8.
///
/// # Errors
/// `Usage` for what is neither, or is not within `least` to `most`.
pub fn parse_counts(flag: &str, text: &str, least: u64, most: u64) -> Result<Vec<u64>> {
    let bad = |cause: &str| {
        Error::new(ErrorKind::Usage, format!("use {text:?} for {flag}"), cause)
            .hint(format!("give a list such as 1,2,6 or a range such as 1-8 (1, 2, 4, 8), each {least} to {most}"))
    };
    let mut values = Vec::new();
    for part in text.split(',') {
        let number = |word: &str| word.trim().parse::<u64>().map_err(|_| bad("not a list or range of numbers"));
        match part.split_once('-') {
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if from > to || from == 0 {
                    return Err(bad("the range is empty"));
                }
                let doubling = std::iter::successors(Some(from), |value| value.checked_mul(2));
                values.extend(doubling.take_while(|value| *value < to).chain([to]));
            }
            None => values.push(number(part)?),
        }
    }
    if values.iter().any(|value| !(least..=most).contains(value)) {
        return Err(bad("out of range"));
    }
    Ok(sorted(values))
}

/// As [`parse_counts`], for threads.
///
/// # Errors
/// As there.
pub fn parse_threads(flag: &str, text: &str) -> Result<Vec<u16>> {
    let most = if flag == "--stripes" { STRIPE_COUNT_MAX } else { STAGE_THREADS_MAX };
    Ok(parse_counts(flag, text, 1, most.into())?.into_iter().map(|count| count as u16).collect())
}

/// The codecs that `text` means: a list of `zstd:3`, ranges of levels `zstd:1-9`, and names alone for all their levels.
///
/// # Errors
/// `Usage`, with all codecs and levels.
pub fn parse_compressions(text: &str) -> Result<Vec<CodecSpec>> {
    let mut codecs: Vec<CodecSpec> = Vec::new();
    for part in text.split(',').map(str::trim) {
        codecs.extend(compressions_of(part)?);
    }
    let mut seen = std::collections::HashSet::new();
    codecs.retain(|codec| seen.insert(*codec));
    Ok(codecs)
}

/// The same codecs, each of deflate that names no engine once for each of `engines`, a list such as `isal,qat`.
///
/// # Errors
/// `Usage` for what is no engine; `Configuration`, with what to do about it, for one that cannot work here.
pub fn with_deflate_engines(codecs: Vec<CodecSpec>, engines: Option<&str>) -> Result<Vec<CodecSpec>> {
    let engines = engines.map_or(Ok(vec![DeflateEngine::Auto]), |text| {
        text.split(',').map(|engine| engine.trim().parse()).collect::<Result<Vec<DeflateEngine>>>()
    })?;
    let mut all = Vec::new();
    for codec in codecs {
        let each = if codec.engine() == DeflateEngine::Auto { &engines[..] } else { &[codec.engine()] };
        all.extend(each.iter().map(|engine| codec.with_engine(*engine)));
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|codec| seen.insert(*codec));
    // Found out now, and not by the trial that would have been its first.
    for codec in all.iter().filter(|codec| codec.engine() != DeflateEngine::Auto) {
        drop(new_encoder(*codec, FRAME_SIZE_BYTES_MIN as usize)?);
    }
    Ok(all)
}

fn compressions_of(part: &str) -> Result<Vec<CodecSpec>> {
    // An engine behind the range holds for all of it. A leading dash is a sign, one inside is a range.
    let (range, engine) =
        part.split_once('@').map_or((part, String::new()), |(range, name)| (range, format!("@{name}")));
    let range = range.split_once(':').and_then(|(name, levels)| {
        let dash = levels.get(1..)?.find('-')? + 1;
        Some((name, levels[..dash].parse::<i32>().ok()?, levels[dash + 1..].parse::<i32>().ok()?))
    });
    let Some((name, from, to)) = range else { return part.parse().map(|codec| vec![codec]) };
    if from > to {
        return Err(Error::new(ErrorKind::Usage, format!("use {part:?} for --compression"), "the range is empty")
            .hint("write the smaller level first, such as zstd:1-9"));
    }
    (from..=to).filter(|level| *level != 0).map(|level| format!("{name}:{level}{engine}").parse()).collect()
}

/// Sizes of transfer buffers must be whole frames of 64 KiB.
///
/// # Errors
/// `Usage`, with the valid range.
pub fn check_transfer_sizes(sizes: &[u64]) -> Result<Vec<u32>> {
    let valid = |size: &u64| {
        (u64::from(FRAME_SIZE_BYTES_MIN)..=u64::from(TRANSFER_SIZE_BYTES_MAX)).contains(size)
            && size.is_multiple_of(u64::from(FRAME_SIZE_BYTES_MIN))
    };
    match sizes.iter().find(|size| !valid(size)) {
        Some(bad) => Err(Error::new(ErrorKind::Usage, format!("use {bad} for --transfer-size"), "out of range")
            .hint("a transfer buffer has 64KiB to 64MiB, in steps of 64KiB")),
        None => Ok(sorted(sizes.iter().map(|size| *size as u32).collect())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(parse_counts("--readers", "1-8", 1, 256).unwrap(), [1, 2, 4, 8]);
        assert_eq!(parse_counts("--readers", "1-6,3", 1, 256).unwrap(), [1, 2, 3, 4, 6]);
        assert_eq!(parse_counts("--readers", "4,2,4", 1, 256).unwrap(), [2, 4]);
        for bad in ["", "a", "8-1", "0", "0-4", "1-300", "1--2", "1,,2", "18446744073709551615-1"] {
            let error = parse_counts("--readers", bad, 1, 256).unwrap_err();
            assert!(error.message().contains("--readers"), "{bad}: {error}");
        }
        let texts = |text: &str| parse_compressions(text).unwrap().iter().map(CodecSpec::to_string).collect::<Vec<_>>();
        assert_eq!(texts("none,lz4,zstd:1-3,zstd:2"), ["none", "lz4:1", "zstd:1", "zstd:2", "zstd:3"]);
        assert_eq!(texts("zstd:-2-1,zstd:-5"), ["zstd:-2", "zstd:-1", "zstd:1", "zstd:-5"]);
        assert_eq!(
            texts("xpress:1-2,deflate:1-2@libdeflate"),
            ["xpress:1", "xpress:2", "deflate:1@libdeflate", "deflate:2@libdeflate"]
        );
        for bad in ["zstd:9-1", "gzip", "zstd:1-99", "", "zstd:1-3@isal", "deflate:1-3@zlib"] {
            assert_eq!(parse_compressions(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
        assert!(check_transfer_sizes(&[1 << 20, 65536]).is_ok() && check_transfer_sizes(&[100_000]).is_err());
    }

    #[test]
    fn each_engine_is_a_row() {
        let codecs = || parse_compressions("lz4,deflate:1,deflate:2@libdeflate").unwrap();
        let texts =
            |engines| with_deflate_engines(codecs(), engines).map(|all| all.iter().map(CodecSpec::to_string).collect());
        let as_typed: Vec<String> = texts(None).unwrap();
        assert_eq!(as_typed, ["lz4:1", "deflate:1", "deflate:2@libdeflate"]);
        let rows: Vec<String> = texts(Some("auto, libdeflate")).unwrap();
        assert_eq!(rows, ["lz4:1", "deflate:1", "deflate:1@libdeflate", "deflate:2@libdeflate"]);
        assert_eq!(texts(Some("zlib")).map(|all: Vec<String>| all.len()).unwrap_err().kind(), ErrorKind::Usage);
        // QATzip is hardly installed where this runs; where it is, it is a row.
        match texts(Some("qat")) {
            Ok(rows) => assert!(rows.contains(&"deflate:1@qat".to_owned()), "{rows:?}"),
            Err(error) => assert!(error.hint_text().unwrap().contains("--deflate-engine auto"), "{error}"),
        }
    }

    #[test]
    fn the_walk_visits_every_combination_once() {
        let space = Space::of_machine(4, 2);
        let points = space.points();
        let distinct: std::collections::HashSet<_> = points.iter().collect();
        assert_eq!(distinct.len(), points.len());
        let lists = [space.readers.len(), space.encoders.len(), space.stripes.len(), space.transfer_sizes.len(), 2];
        let restores = space.stripe_readers.len() * space.decoders.len() * space.file_writers.len();
        assert_eq!(points.len(), (space.compressions.len() - 1) * lists.iter().product::<usize>() * restores);
    }

    #[test]
    fn a_point_keeps_its_text_in_json() {
        let point = Space::defaults(2, 1);
        let json = serde_json::to_string(&point).unwrap();
        assert!(json.contains("\"compression\":\"page:2\""), "{json}");
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), point);
        assert_eq!(point.to_string(), "page:2 r2 e2 s1 b12 1MiB / r2 d2 w4");
    }
}
