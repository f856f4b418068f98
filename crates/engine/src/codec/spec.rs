//! What a person types for compression, and what it means: a codec and its level.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{CodecId, DeflateEngine};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    FRAME_SIZE_BYTES_DEFAULT, FRAME_SIZE_BYTES_DEFAULT_WIDE, TRANSFER_SIZE_BYTES_AUTO, TRANSFER_SIZE_BYTES_DEFAULT,
};

/// LZ4 at its fastest up to LZ4HC's best.
const LZ4_LEVELS: RangeInclusive<i32> = 1..=12;
/// libdeflate's levels; the first three are ISA-L's too. On the data below ISA-L's level 1 encodes 650 MB/s at
/// ratio 2.754 where libdeflate's encodes 245 MB/s at 2.810; level 6 makes 93 MB/s at 2.904.
const DEFLATE_LEVELS: RangeInclusive<i32> = 1..=12;
/// zstd's levels; 0 is not one of them (zstd takes it for its default, we would rather not guess).
const ZSTD_LEVELS: RangeInclusive<i32> = -7..=22;

/// Greedy, and looking one place ahead: see [`super::xpress`].
const XPRESS_LEVELS: RangeInclusive<i32> = 1..=2;

/// The page codec's, from as fast as it goes to the smallest result.
const PAGE_LEVELS: RangeInclusive<i32> = 1..=5;
/// Its ends by name.
const PAGE_NAMED_LEVELS: [(&str, i32); 2] = [("fast", *PAGE_LEVELS.start()), ("max", *PAGE_LEVELS.end())];

/// zstd's levels by our names: the cheapest that still finds most, and two steps up that pay for their time.
///
/// Measured on one core of a 2-core AMD EPYC machine with zstd 1.5.7 and frames of 1 MiB, mean of two runs. The data:
/// 126 MB of PostgreSQL 15 relations, four fifths a table of numbers, timestamps, words and jsonb with random uuids,
/// one fifth its indexes. Encode MB/s, ratio:
///
/// | level | 1 | 3 | 4 | 5 | 7 | 9 | 10 | 11 | 13 |
/// |---|---|---|---|---|---|---|---|---|---|
/// | MB/s | 523 | 330 | 280 | 158 | 100 | 72 | 55 | 40 | 18 |
/// | ratio | 2.935 | 3.017 | 3.020 | 3.041 | 3.146 | 3.150 | 3.175 | 3.198 | 3.145 |
///
/// 4 and 5 cost up to half of 3's speed for less than 1 %. 9 gains next to nothing over 7 and takes twice its memory;
/// 10 takes no more than 9. 11 would trade speed for size much as 10 does, so 10 is a choice, not a cliff; 13 is one:
/// slower and larger. With frames of 128 KiB (ratio 2.907 at 1, 2.977 at 3, 2.899 at 5, 2.967 at 7, 3.012 at 9,
/// 3.031 at 10) level 9 is worth more, and 4 to 7 are all larger than 3. Synthetic data: measure your own.
const ZSTD_NAMED_LEVELS: [(&str, i32); 3] = [("low", 1), ("medium", 3), ("high", 10)];

/// All there is, for hints.
const VALID: &str = "valid are none, lz4 or lz4:LEVEL with 1 to 12 (default 1), deflate or deflate:LEVEL with 1 to 12 \
    (default 1; with @isal, @libdeflate or @qat behind it to name the engine), zstd or zstd:LEVEL with 1 to 22 or -1 to -7 (default 1), zstd:low, zstd:medium, zstd:high, xpress or \
    xpress:LEVEL with 1 or 2 (default 1; what SQL Server writes), page or page:LEVEL with 1 to 5 (default 2; knows \
    PostgreSQL's pages), page:fast, page:max, and auto";

/// The name of the level that moves during the run.
const AUTO: &str = "auto";

/// A codec and its level: `none | lz4[:L] | deflate[:L][@ENGINE] | zstd[:L] | zstd:low|medium|high | xpress[:L] | page[:L] |
/// page:fast|max | auto`.
///
/// The default is `page`, which of ten databases was faster to back up than zstd:1 by a fifth on the mean, and 2.5 times as small
/// (bench/runs/2026-11-29-page-default). The text form always carries the number, so a report of `zstd:medium` says which level
/// that was. `auto` is no level but the choice of one for every frame: see [`super::ladder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodecSpec {
    codec: CodecId,
    level: i32,
    is_auto: bool,
    engine: DeflateEngine,
    decodes_back: bool,
}

impl CodecSpec {
    /// The level moves during the run, on the ladder of [`super::ladder`].
    pub const AUTO: CodecSpec = CodecSpec { is_auto: true, ..CodecSpec::rung(CodecId::Zstd, 0) };

    /// What WAL that is archived is stored with where nobody says: whoever commits waits for it, and the page codec takes 2.4 times as
    /// long, for less than half of the bytes (bench/runs/2026-11-29-page-wal).
    pub const DEFAULT_OF_WAL: CodecSpec = CodecSpec::rung(CodecId::Zstd, 1);

    /// A level that nobody checks: for this module, and for the ladder's own table, whose test does.
    pub(super) const fn rung(codec: CodecId, level: i32) -> Self {
        CodecSpec { codec, level, is_auto: false, engine: DeflateEngine::Auto, decodes_back: true }
    }

    /// `codec` at `level`; the level of `none` is 0.
    ///
    /// # Errors
    /// `Usage` if the codec has no such level; the hint lists all there are.
    pub fn new(codec: CodecId, level: i32) -> Result<Self> {
        let known = match codec {
            CodecId::None => level == 0,
            CodecId::Lz4 => LZ4_LEVELS.contains(&level),
            CodecId::Deflate => DEFLATE_LEVELS.contains(&level),
            CodecId::Zstd => ZSTD_LEVELS.contains(&level) && level != 0,
            CodecId::Xpress => XPRESS_LEVELS.contains(&level),
            CodecId::Page => PAGE_LEVELS.contains(&level),
        };
        if known {
            Ok(CodecSpec::rung(codec, level))
        } else {
            Err(unusable(&format!("{codec}:{level}"), &format!("{codec} has no level {level}")))
        }
    }

    /// `codec` at its default level.
    pub fn default_of(codec: CodecId) -> Self {
        let level = match codec {
            CodecId::None => 0,
            CodecId::Page => 2,
            _ => 1,
        };
        CodecSpec::rung(codec, level)
    }

    /// Every level of `codec`, from the fastest to the smallest result.
    pub fn all_of(codec: CodecId) -> impl Iterator<Item = CodecSpec> {
        let levels = match codec {
            CodecId::None => 0..=0,
            CodecId::Lz4 => LZ4_LEVELS,
            CodecId::Deflate => DEFLATE_LEVELS,
            CodecId::Zstd => ZSTD_LEVELS,
            CodecId::Xpress => XPRESS_LEVELS,
            CodecId::Page => PAGE_LEVELS,
        };
        levels.filter_map(move |level| CodecSpec::new(codec, level).ok())
    }

    /// The codec; of `auto` zstd, which it is for most content without pages. See [`CodecSpec::wants_layouts`].
    pub fn codec(self) -> CodecId {
        self.codec
    }

    /// Whether the level moves during the run.
    pub fn is_auto(self) -> bool {
        self.is_auto
    }

    /// Whether frames become smaller if the encoder is told what their pages hold.
    pub fn wants_layouts(self) -> bool {
        self.is_auto || self.codec == CodecId::Page
    }

    /// The codec's name, or `auto`.
    pub fn name(self) -> &'static str {
        if self.is_auto { AUTO } else { self.codec.name() }
    }

    /// The frame size that gives this codec nearly all it could find in whole files.
    ///
    /// zstd's window is 512 KiB at level 1, 1 MiB at 2, and 2 MiB or more from 3 on (its table of default parameters
    /// for large inputs); a frame should hold two of them. The page
    /// codec gains little: of five databases (bench/page) three were up to 4 % smaller with 4 MiB at level 2, two up to 3 %
    /// larger, and decoding was 4 to 13 % slower; its memory goes with the frame. At 4 and 5 size is what is wanted. `auto` has mostly
    /// pages, and holds the memory of all its codecs at once.
    pub fn default_frame_size_bytes(self) -> u32 {
        let is_wide = match self.codec {
            CodecId::Zstd => self.level >= 3,
            CodecId::Page => self.level >= 4,
            CodecId::None | CodecId::Lz4 | CodecId::Deflate | CodecId::Xpress => false,
        };
        if is_wide { FRAME_SIZE_BYTES_DEFAULT_WIDE } else { FRAME_SIZE_BYTES_DEFAULT }
    }

    /// The transfer buffer that is right for frames of `frame_size_bytes` when nobody says otherwise: one frame, but no less
    /// than 1 MiB; of `auto` no less than 4 MiB, which the law of its level is made for.
    pub fn default_transfer_size_bytes(self, frame_size_bytes: u32) -> u32 {
        frame_size_bytes.max(if self.is_auto { TRANSFER_SIZE_BYTES_AUTO } else { TRANSFER_SIZE_BYTES_DEFAULT })
    }

    /// What is meant for content of which the page codec knows nothing, such as `.bak` files: in its place zstd, at the level
    /// that it has for text; all others as they are.
    pub fn without_pages(self) -> Self {
        match self.codec {
            CodecId::Page => CodecSpec::rung(CodecId::Zstd, super::page::zstd_level(self.level)),
            _ => self,
        }
    }

    /// The same by `engine`, if it is of deflate; nothing changes for other codecs.
    pub fn with_engine(self, engine: DeflateEngine) -> Self {
        let is_deflate = self.codec == CodecId::Deflate;
        CodecSpec { engine: if is_deflate { engine } else { self.engine }, ..self }
    }

    /// Which library does the work of deflate; `Auto` for other codecs.
    pub fn engine(self) -> DeflateEngine {
        self.engine
    }

    /// The same with the engine that this system takes where none is named.
    pub fn resolved(self) -> Self {
        match self.engine {
            // To choose, a library is loaded.
            DeflateEngine::Auto if self.codec == CodecId::Deflate => {
                self.with_engine(DeflateEngine::for_level(self.level))
            }
            _ => self,
        }
    }

    /// The same without decoding again what was encoded. The text form does not say so: the frames are the same. The page codec
    /// decodes back all the same.
    pub fn without_decode_back(self) -> Self {
        CodecSpec { decodes_back: false, ..self }
    }

    /// Whether each frame is decoded again and compared before it is given out.
    pub fn decodes_back(self) -> bool {
        self.decodes_back
    }

    /// The level in the codec's own numbers; 0 for `none` and `auto`.
    pub fn level(self) -> i32 {
        self.level
    }
}

impl Default for CodecSpec {
    fn default() -> Self {
        CodecSpec::default_of(CodecId::Page)
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_auto || self.codec == CodecId::None {
            f.write_str(self.name())
        } else if self.engine == DeflateEngine::Auto {
            write!(f, "{}:{}", self.codec, self.level)
        } else {
            write!(f, "{}:{}@{}", self.codec, self.level, self.engine)
        }
    }
}

impl FromStr for CodecSpec {
    type Err = Error;

    /// # Errors
    /// `Usage` for anything that is not of the form above; the hint lists all there is.
    fn from_str(text: &str) -> Result<Self> {
        if text == AUTO {
            return Ok(CodecSpec::AUTO);
        }
        if let Some((codec, engine)) = text.rsplit_once('@') {
            let spec: CodecSpec = codec.parse()?;
            let engine = engine.parse().ok().filter(|engine| *engine != DeflateEngine::Auto);
            return match engine {
                Some(engine) if spec.codec == CodecId::Deflate && !codec.contains('@') => Ok(spec.with_engine(engine)),
                _ => Err(unusable(text, "what is behind @ is no engine of that codec")),
            };
        }
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let codec = CodecId::ALL.into_iter().find(|codec| codec.name() == name);
        let codec = codec.ok_or_else(|| unusable(text, &format!("{name:?} is not a codec")))?;
        let Some(level) = level else { return Ok(CodecSpec::default_of(codec)) };
        let names: &[(&str, i32)] = match codec {
            CodecId::Zstd => &ZSTD_NAMED_LEVELS,
            CodecId::Page => &PAGE_NAMED_LEVELS,
            _ => &[],
        };
        let named = names.iter().find(|(name, _)| *name == level);
        let number = match named {
            Some((_, number)) => Some(*number),
            // Only numbers as Display writes them: no "+1", no "01".
            None => level.parse::<i32>().ok().filter(|number| number.to_string() == level),
        };
        // None has no level, not even the 0 it is kept with.
        let spec = number.filter(|_| codec != CodecId::None).and_then(|number| CodecSpec::new(codec, number).ok());
        spec.ok_or_else(|| unusable(text, &format!("{codec} has no level {level:?}")))
    }
}

/// The error of every bad setting.
fn unusable(text: &str, cause: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("use {text:?} as compression"), cause).hint(VALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_what_is_meant() {
        let cases = [
            ("none", CodecId::None, 0),
            ("lz4", CodecId::Lz4, 1),
            ("lz4:12", CodecId::Lz4, 12),
            ("deflate", CodecId::Deflate, 1),
            ("deflate:6", CodecId::Deflate, 6),
            ("zstd", CodecId::Zstd, 1),
            ("zstd:22", CodecId::Zstd, 22),
            ("zstd:-7", CodecId::Zstd, -7),
            ("zstd:low", CodecId::Zstd, ZSTD_NAMED_LEVELS[0].1),
            ("zstd:medium", CodecId::Zstd, ZSTD_NAMED_LEVELS[1].1),
            ("zstd:high", CodecId::Zstd, ZSTD_NAMED_LEVELS[2].1),
            ("xpress", CodecId::Xpress, 1),
            ("xpress:2", CodecId::Xpress, 2),
            ("page", CodecId::Page, 2),
            ("page:1", CodecId::Page, 1),
            ("page:fast", CodecId::Page, 1),
            ("page:max", CodecId::Page, 5),
            ("deflate@qat", CodecId::Deflate, 1),
            ("deflate:12@libdeflate", CodecId::Deflate, 12),
        ];
        for (text, codec, level) in cases {
            let spec: CodecSpec = text.parse().unwrap();
            assert_eq!((spec.codec(), spec.level()), (codec, level), "{text}");
        }
        assert_eq!(CodecSpec::default().to_string(), "page:2");
        assert_eq!(CodecSpec::DEFAULT_OF_WAL.to_string(), "zstd:1");
        let auto: CodecSpec = "auto".parse().unwrap();
        assert_eq!((auto, auto.name(), auto.level()), (CodecSpec::AUTO, "auto", 0));
    }

    #[test]
    fn what_is_no_pages_has_the_zstd_level_of_the_page_level() {
        let plain = |spec: CodecSpec| spec.without_pages().to_string();
        let of_page: Vec<String> = CodecSpec::all_of(CodecId::Page).map(plain).collect();
        assert_eq!(of_page, ["zstd:1", "zstd:1", "zstd:3", "zstd:6", "zstd:7"]);
        for text in ["none", "lz4:9", "deflate:2@isal", "zstd:5", "xpress:2", "auto"] {
            assert_eq!(plain(text.parse().unwrap()), text);
        }
    }

    #[test]
    fn every_spec_reads_back_what_it_writes() {
        for spec in CodecId::ALL.into_iter().flat_map(CodecSpec::all_of).chain([CodecSpec::AUTO]) {
            for engine in DeflateEngine::ALL {
                let spec = spec.with_engine(engine);
                assert_eq!(spec.to_string().parse::<CodecSpec>().unwrap(), spec);
                assert_eq!(spec.engine() == engine, engine == DeflateEngine::Auto || spec.codec() == CodecId::Deflate);
            }
        }
        assert_eq!("deflate:3@isal".parse::<CodecSpec>().unwrap().engine(), DeflateEngine::Isal);
        assert_eq!("deflate".parse::<CodecSpec>().unwrap().engine(), DeflateEngine::Auto);
    }

    #[test]
    fn everything_else_is_refused_with_all_choices() {
        let bad = "|zip|none:|none:0|none:1|lz4:0|lz4:13|lz4:-1|lz4:low|lz4:|deflate:0|deflate:13|zstd:0|zstd:-8|\
            zstd:23|zstd:+1|zstd:01|zstd:1:2|zstd:|zstd: 1|ZSTD|zstd:Low|zstd:99999999999|xpress:0|xpress:3|deflate@|deflate:1@auto|deflate:1@zlib|\
            zstd:1@isal|deflate@isal@isal|page:0|page:6|page:-1|page:low|page:|page:2@isal|zstd:fast|zstd:max|pages|auto:|auto:1|AUTO|lz4:auto";
        for text in bad.split('|') {
            let error = text.parse::<CodecSpec>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
            let hint = error.hint_text().unwrap();
            for part in [
                "none",
                "lz4:LEVEL with 1 to 12",
                "deflate:LEVEL with 1 to 12",
                "1 to 22 or -1 to -7",
                "zstd:low",
                "xpress:LEVEL with 1 or 2",
                "page:LEVEL with 1 to 5",
                "page:fast",
                "auto",
            ] {
                assert!(hint.contains(part), "{text}: {hint}");
            }
        }
    }
}
