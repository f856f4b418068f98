//! Names of the objects of a WAL archive, and what they say.
//!
//! ```text
//! <source>/wal/<cluster>/<timeline>.history.phw                     cluster: its system identifier, 16 digits
//! <source>/wal/<cluster>/<timeline>/<log id>/<segment>-<count>.phw   segment: the last 8 digits of the first one's name
//! <source>/wal/<cluster>/<timeline>/<log id>/<name>.phw              a partial segment, or a backup's label
//! <source>/wal/<cluster>/<timeline>/<log id>/<segment>.<offset>.php  a piece of a segment
//! ```

use crate::format::wal_bundle::MEMBER_COUNT_MAX;
use crate::terms::{SourceName, TimelineId, WalSegmentName};

const BUNDLE_END: &str = ".phw";
const PIECE_END: &str = ".php";
const HISTORY_END: &str = ".history";
const PARTIAL_END: &str = ".partial";
const LABEL_END: &str = ".backup";

/// `<source>/wal`
pub fn wal_root(source: &SourceName) -> String {
    format!("{source}/wal")
}

/// `<source>/wal/<cluster>`: all WAL of one cluster.
pub fn wal_prefix(source: &SourceName, system_identifier: u64) -> String {
    format!("{source}/wal/{system_identifier:016x}")
}

/// The prefix of all segments of one timeline.
pub fn timeline_prefix(source: &SourceName, system_identifier: u64, timeline: TimelineId) -> String {
    format!("{}/{:08X}", wal_prefix(source, system_identifier), timeline.0)
}

/// The prefix of all that has one timeline and log id.
pub fn log_prefix(source: &SourceName, system_identifier: u64, timeline: TimelineId, log_id: u32) -> String {
    format!("{}/{log_id:08X}", timeline_prefix(source, system_identifier, timeline))
}

/// The prefix of what belongs to one segment.
pub fn prefix_of_segment(source: &SourceName, system_identifier: u64, segment: &WalSegmentName) -> String {
    log_prefix(source, system_identifier, segment.timeline(), segment.log_id())
}

/// The bundle of `count` segments from `first` on.
pub fn bundle_name(source: &SourceName, system_identifier: u64, first: &WalSegmentName, count: u32) -> String {
    let prefix = prefix_of_segment(source, system_identifier, first);
    format!("{prefix}/{:08X}-{count:04}{BUNDLE_END}", first.index_in_log())
}

/// A piece of `segment` that begins at `offset` in it.
pub fn piece_name(source: &SourceName, system_identifier: u64, segment: &WalSegmentName, offset: u32) -> String {
    let prefix = prefix_of_segment(source, system_identifier, segment);
    format!("{prefix}/{:08X}.{offset:08X}{PIECE_END}", segment.index_in_log())
}

/// The object of any other file of the archive.
pub fn file_name(source: &SourceName, system_identifier: u64, file: &WalFileName) -> String {
    match file {
        WalFileName::History(timeline) => {
            format!("{}/{:08X}{HISTORY_END}{BUNDLE_END}", wal_prefix(source, system_identifier), timeline.0)
        }
        WalFileName::Segment(segment) => bundle_name(source, system_identifier, segment, 1),
        WalFileName::Partial(segment) | WalFileName::Label(segment, _) => {
            format!("{}/{file}{BUNDLE_END}", prefix_of_segment(source, system_identifier, segment))
        }
    }
}

/// The name of a file as the server asks for it or hands it over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WalFileName {
    /// A whole segment.
    Segment(WalSegmentName),
    /// The history of a timeline.
    History(TimelineId),
    /// A segment that ends early: `NAME.partial`.
    Partial(WalSegmentName),
    /// The label of a base backup that began in a segment, at this offset: `NAME.XXXXXXXX.backup`.
    Label(WalSegmentName, u32),
}

impl WalFileName {
    /// What kind of file has this name; None if no file of an archive has.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(timeline) = name.strip_suffix(HISTORY_END) {
            return upper_hex(timeline).map(TimelineId).map(WalFileName::History);
        }
        let (segment, rest) = name.split_at_checked(24)?;
        let segment: WalSegmentName = segment.parse().ok()?;
        match rest {
            "" => Some(WalFileName::Segment(segment)),
            PARTIAL_END => Some(WalFileName::Partial(segment)),
            _ => {
                let offset = upper_hex(rest.strip_prefix('.')?.strip_suffix(LABEL_END)?)?;
                Some(WalFileName::Label(segment, offset))
            }
        }
    }
}

impl std::fmt::Display for WalFileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WalFileName::Segment(segment) => write!(f, "{segment}"),
            WalFileName::History(timeline) => write!(f, "{:08X}{HISTORY_END}", timeline.0),
            WalFileName::Partial(segment) => write!(f, "{segment}{PARTIAL_END}"),
            WalFileName::Label(segment, offset) => write!(f, "{segment}.{offset:08X}{LABEL_END}"),
        }
    }
}

/// What the name of an object below a log id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectName {
    /// Segments, from this place in the log id on.
    Bundle {
        /// Place of the first one.
        first_index: u32,
        /// How many.
        count: u32,
    },
    /// A piece of the segment at this place.
    Piece {
        /// Place of the segment.
        index: u32,
        /// Where the piece begins in it.
        offset: u32,
    },
    /// Another file.
    File(WalFileName),
}

impl ObjectName {
    /// Reads the last part of an object's name; None for one that is none of ours, such as an unfinished write.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(stem) = name.strip_suffix(PIECE_END) {
            let (index, offset) = stem.split_once('.')?;
            return Some(ObjectName::Piece { index: upper_hex(index)?, offset: upper_hex(offset)? });
        }
        let stem = name.strip_suffix(BUNDLE_END)?;
        if let Some((first, count)) = stem.split_once('-') {
            let count = (count.len() == 4).then(|| count.parse::<u32>().ok())??;
            let first_index = upper_hex(first)?;
            let in_bounds = (1..=MEMBER_COUNT_MAX as u32).contains(&count) && first_index.checked_add(count).is_some();
            return in_bounds.then_some(ObjectName::Bundle { first_index, count });
        }
        WalFileName::parse(stem).filter(|file| !matches!(file, WalFileName::Segment(_))).map(ObjectName::File)
    }
}

/// The number of eight hexadecimal digits in upper case, as timelines and log ids are named.
pub fn upper_hex(text: &str) -> Option<u32> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
    (text.len() == 8 && text.bytes().all(is_digit)).then(|| u32::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> WalSegmentName {
        "0000000200000016000000B3".parse().unwrap()
    }

    #[test]
    fn names_are_those_of_the_document() {
        let source: SourceName = "main".parse().unwrap();
        let name = |file| file_name(&source, 0x6512_3456_789A_BCDE, &file);
        assert_eq!(
            name(WalFileName::Segment(segment())),
            "main/wal/65123456789abcde/00000002/00000016/000000B3-0001.phw"
        );
        assert_eq!(
            name(WalFileName::Partial(segment())),
            "main/wal/65123456789abcde/00000002/00000016/0000000200000016000000B3.partial.phw"
        );
        assert_eq!(
            name(WalFileName::Label(segment(), 0x28)),
            "main/wal/65123456789abcde/00000002/00000016/0000000200000016000000B3.00000028.backup.phw"
        );
        assert_eq!(name(WalFileName::History(TimelineId(2))), "main/wal/65123456789abcde/00000002.history.phw");
        assert_eq!(
            piece_name(&source, 1, &segment(), 0x40_0000),
            "main/wal/0000000000000001/00000002/00000016/000000B3.00400000.php"
        );
    }

    #[test]
    fn file_names_round_trip() {
        for text in [
            "0000000200000016000000B3",
            "0000000200000016000000B3.partial",
            "0000000200000016000000B3.00000028.backup",
            "0000000A.history",
        ] {
            assert_eq!(WalFileName::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            "x",
            "0000000200000016000000b3",
            "0000000a.history",
            "RECOVERYXLOG",
            "0000000200000016000000B3.backup",
            "0000000200000016000000B3.tmp",
            "../x.history",
        ] {
            assert_eq!(WalFileName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn object_names_are_read_and_others_left_alone() {
        assert_eq!(ObjectName::parse("000000B3-0004.phw"), Some(ObjectName::Bundle { first_index: 0xB3, count: 4 }));
        assert_eq!(
            ObjectName::parse("000000B3.00400000.php"),
            Some(ObjectName::Piece { index: 0xB3, offset: 0x40_0000 })
        );
        let partial = "0000000200000016000000B3.partial.phw";
        assert_eq!(ObjectName::parse(partial), Some(ObjectName::File(WalFileName::Partial(segment()))));
        for other in [
            ".000000B3-0004.phw.7-0.new",
            "000000B3-0000.phw",
            "000000B3-9999.phw",
            "000000B3-4.phw",
            "FFFFFFFF-0001.phw",
            "000000b3-0004.phw",
            "0000000200000016000000B3.phw",
            "manifest.json",
        ] {
            assert_eq!(ObjectName::parse(other), None, "{other}");
        }
    }
}
