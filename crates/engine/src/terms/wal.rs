//! The words of WAL: segments and their names, times as PostgreSQL counts them, what a segment's records say.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::{Lsn, TimelineId};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of WAL with one log id, the middle eight digits of a segment's name.
const LOG_ID_BYTES: u64 = 0x1_0000_0000;
/// Microseconds from 1970 to 2000, where PostgreSQL's clock begins.
const EPOCH_MICROSECONDS: i64 = 946_684_800 * 1_000_000;
/// Longest name of a restore point: MAXFNAMELEN of the server, without the zero at its end.
pub const RESTORE_POINT_NAME_BYTES_MAX: usize = 63;

/// Which segment of a timeline: its LSN divided by the segment size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct SegmentNumber(pub u64);

/// The 24-digit name of a WAL segment file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WalSegmentName(String);

impl WalSegmentName {
    /// The segment of `timeline` that holds the byte at `lsn`, for segments of `segment_size_bytes`.
    pub fn containing(timeline: TimelineId, lsn: Lsn, segment_size_bytes: u64) -> Self {
        Self::new(timeline, SegmentNumber(lsn.0 / segment_size_bytes), segment_size_bytes)
    }

    /// The segment of `timeline` with this number, for segments of `segment_size_bytes`.
    pub fn new(timeline: TimelineId, number: SegmentNumber, segment_size_bytes: u64) -> Self {
        let per_id = LOG_ID_BYTES / segment_size_bytes;
        WalSegmentName(format!("{:08X}{:08X}{:08X}", timeline.0, number.0 / per_id, number.0 % per_id))
    }

    /// The segment with this place in its log id.
    pub fn from_parts(timeline: TimelineId, log_id: u32, index_in_log: u32) -> Self {
        WalSegmentName(format!("{:08X}{log_id:08X}{index_in_log:08X}", timeline.0))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The timeline it belongs to: its first eight digits.
    pub fn timeline(&self) -> TimelineId {
        TimelineId(self.digits(0))
    }

    /// Its middle eight digits.
    pub fn log_id(&self) -> u32 {
        self.digits(8)
    }

    /// Its last eight digits.
    pub fn index_in_log(&self) -> u32 {
        self.digits(16)
    }

    /// Its number on its timeline; None if there is no such segment of that size.
    pub fn number(&self, segment_size_bytes: u64) -> Option<SegmentNumber> {
        let per_id = LOG_ID_BYTES.checked_div(segment_size_bytes)?;
        let index = u64::from(self.index_in_log());
        (index < per_id).then(|| SegmentNumber(u64::from(self.log_id()) * per_id + index))
    }

    /// The LSN of its first byte; None if there is no such segment of that size.
    pub fn start_lsn(&self, segment_size_bytes: u64) -> Option<Lsn> {
        self.number(segment_size_bytes)?.0.checked_mul(segment_size_bytes).map(Lsn)
    }

    fn digits(&self, from: usize) -> u32 {
        // The constructors let nothing else in.
        u32::from_str_radix(&self.0[from..from + 8], 16).unwrap_or_default()
    }
}

impl fmt::Display for WalSegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WalSegmentName {
    type Err = Error;

    /// Accepts 24 hexadecimal digits in upper case, as the server writes them.
    fn from_str(text: &str) -> Result<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
        if text.len() == 24 && text.bytes().all(is_digit) {
            Ok(WalSegmentName(text.to_owned()))
        } else {
            Err(Error::new(ErrorKind::Usage, format!("use {text:?} as the name of a WAL segment"), "not of that form")
                .hint("a segment's name has 24 hexadecimal digits, such as 0000000100000016000000B3"))
        }
    }
}

impl Serialize for WalSegmentName {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A time in WAL, as PostgreSQL stores it: microseconds since 2000-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WalTime(pub i64);

impl WalTime {
    /// The time as everybody counts it; None beyond the year 9999.
    pub fn to_timestamp(self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_microsecond(self.0.checked_add(EPOCH_MICROSECONDS)?).ok()
    }

    /// The time that PostgreSQL would store for `at`.
    pub fn from_timestamp(at: jiff::Timestamp) -> Self {
        WalTime(at.as_microsecond() - EPOCH_MICROSECONDS)
    }
}

impl fmt::Display for WalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_timestamp() {
            Some(at) => write!(f, "{at}"),
            None => write!(f, "{} microseconds after 2000", self.0),
        }
    }
}

impl Serialize for WalTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A named mark that somebody put into WAL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestorePoint {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// The end of its record: who replays up to here has reached it.
    pub lsn: Lsn,
    /// When it was made, by the server's clock.
    pub at: WalTime,
}

/// What the records that begin in a segment, or in a piece of one, say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WalFacts {
    /// Whether the records could be followed to the end; if not, WAL ends here, or it is damaged.
    pub whole: bool,
    /// Whether the last record ends the segment early: what follows it is zeros.
    pub ends_with_switch: bool,
    /// The end of the last record that ends in it; 0/0 if none does.
    pub end_lsn: Lsn,
    /// Earliest and latest time of a commit or abort.
    pub ended_at: Option<(WalTime, WalTime)>,
    /// Smallest and largest id of a transaction that was committed or aborted, in the server's order (modulo 2^32).
    pub ended_xids: Option<(u32, u32)>,
    /// The first restore points.
    pub restore_points: Vec<RestorePoint>,
    /// Whether there are more restore points than are listed.
    pub restore_points_cut: bool,
}

impl WalFacts {
    /// Notes that transaction `xid` ended at `at`.
    pub fn note_end(&mut self, xid: u32, at: WalTime) {
        let (earliest, latest) = self.ended_at.unwrap_or((at, at));
        self.ended_at = Some((earliest.min(at), latest.max(at)));
        if xid != 0 {
            self.note_xid(xid);
        }
    }

    /// Adds what the records behind these ones say.
    pub fn append(&mut self, later: &WalFacts) {
        self.whole &= later.whole;
        self.ends_with_switch |= later.ends_with_switch;
        self.end_lsn = self.end_lsn.max(later.end_lsn);
        if let Some((earliest, latest)) = later.ended_at {
            let (own_earliest, own_latest) = self.ended_at.unwrap_or((earliest, latest));
            self.ended_at = Some((earliest.min(own_earliest), latest.max(own_latest)));
        }
        if let Some((smallest, largest)) = later.ended_xids {
            self.note_xid(smallest);
            self.note_xid(largest);
        }
        for point in &later.restore_points {
            if !self.restore_points.contains(point) {
                self.restore_points.push(point.clone());
            }
        }
        self.restore_points_cut |= later.restore_points_cut;
    }

    fn note_xid(&mut self, xid: u32) {
        let (smallest, largest) = self.ended_xids.unwrap_or((xid, xid));
        self.ended_xids = Some((
            if xid_precedes(xid, smallest) { xid } else { smallest },
            if xid_precedes(largest, xid) { xid } else { largest },
        ));
    }
}

/// TransactionIdPrecedes: ids go round.
fn xid_precedes(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

/// Where a timeline comes from: a parsed timeline history file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineHistory {
    /// The timeline.
    pub timeline: TimelineId,
    /// The timelines before it, oldest first; none for the first timeline alone.
    pub branches: Vec<TimelineBranch>,
}

impl TimelineHistory {
    /// The timeline it branched off from, and where.
    pub fn parent(&self) -> Option<&TimelineBranch> {
        self.branches.last()
    }
}

/// One timeline in the history of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineBranch {
    /// The earlier timeline.
    pub timeline: TimelineId,
    /// Where it was left for the next one.
    pub end_lsn: Lsn,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn segment_names_follow_the_segment_size() {
        let lsn = Lsn(0x16_B374_D848);
        assert_eq!(WalSegmentName::containing(TimelineId(1), lsn, 16 * MIB).as_str(), "0000000100000016000000B3");
        assert_eq!(WalSegmentName::containing(TimelineId(2), lsn, 1 << 30).as_str(), "000000020000001600000002");
    }

    #[test]
    fn segment_names_round_trip() {
        let name: WalSegmentName = "0000000A00000016000000B3".parse().unwrap();
        assert_eq!((name.timeline(), name.log_id(), name.index_in_log()), (TimelineId(10), 0x16, 0xB3));
        assert_eq!(name.start_lsn(16 * MIB), Some(Lsn(0x16_B300_0000)));
        assert_eq!(WalSegmentName::new(TimelineId(10), name.number(16 * MIB).unwrap(), 16 * MIB), name);
        assert_eq!(WalSegmentName::from_parts(TimelineId(10), 0x16, 0xB3), name);
        assert_eq!(name.number(1 << 30), None, "a log id has four segments of 1 GiB");
        for bad in ["", "0000000a00000016000000b3", "0000000A00000016000000B", "0000000A00000016000000B3.partial"] {
            assert!(bad.parse::<WalSegmentName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_those_of_the_server() {
        let at: jiff::Timestamp = "2026-11-22T04:05:06.789012Z".parse().unwrap();
        assert_eq!(WalTime::from_timestamp(at).to_timestamp(), Some(at));
        assert_eq!(WalTime(0).to_string(), "2000-01-01T00:00:00Z");
        assert_eq!(WalTime(i64::MAX).to_timestamp(), None);
    }

    #[test]
    fn facts_of_parts_are_those_of_the_whole() {
        let point = |lsn: u64| RestorePoint { name: "here".to_owned(), lsn: Lsn(lsn), at: WalTime(1) };
        let mut whole = WalFacts { whole: true, end_lsn: Lsn(80), ..WalFacts::default() };
        let mut first = WalFacts { whole: true, end_lsn: Lsn(40), ..WalFacts::default() };
        let mut second = WalFacts { whole: true, end_lsn: Lsn(80), ..WalFacts::default() };
        for (part, xid, at) in [(&mut first, 9, 5), (&mut second, 7, 3)] {
            part.note_end(xid, WalTime(at));
            whole.note_end(xid, WalTime(at));
        }
        first.restore_points.push(point(30));
        second.restore_points.extend([point(30), point(70)]);
        whole.restore_points.extend([point(30), point(70)]);
        first.append(&second);
        first.append(&WalFacts { whole: true, ..WalFacts::default() });
        assert_eq!(first, whole);
        first.append(&WalFacts { whole: false, ends_with_switch: true, ..WalFacts::default() });
        assert!(!first.whole && first.ends_with_switch);
    }

    #[test]
    fn transaction_ids_go_round() {
        let mut facts = WalFacts::default();
        for (xid, at) in [(u32::MAX - 1, 5), (7, 3), (u32::MAX - 9, 4)] {
            facts.note_end(xid, WalTime(at));
        }
        facts.note_end(0, WalTime(9));
        assert_eq!(facts.ended_xids, Some((u32::MAX - 9, 7)));
        assert_eq!(facts.ended_at, Some((WalTime(3), WalTime(9))));
    }
}
