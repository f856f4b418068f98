//! How far a restored server replays, as people type it.

use std::fmt;
use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

/// Longest name of a restore point, in bytes (MAXFNAMELEN in src/include/access/xlog_internal.h).
const RESTORE_POINT_NAME_BYTES_MAX: usize = 63;

/// How far the server replays when it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// All WAL inside the set: the set's own end. Needs no archive.
    SetEnd,
    /// Until the cluster is consistent. Needs no archive.
    Immediate,
    /// All archived WAL.
    Latest,
    /// For ever: the server becomes a standby that replays the archive, and streams if it is told from where.
    Standby,
    /// Up to a time, by the commit times in WAL.
    Time(TargetTime),
    /// Up to a position in WAL.
    Lsn(Lsn),
    /// Up to the end of a transaction.
    Xid(u32),
    /// Up to a restore point.
    Name(String),
}

/// A time with what it was read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetTime {
    /// The moment, in whole microseconds as WAL has them.
    pub at: Timestamp,
    /// The local zone, if none was given.
    pub assumed_zone: Option<String>,
}

/// Which timeline recovery follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetTimeline {
    /// The newest one in the archive.
    #[default]
    Latest,
    /// That of the set.
    Current,
    /// This one.
    Number(TimelineId),
}

/// What the server does when it reached its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetAction {
    /// Stay read-only until told to go on.
    Pause,
    /// Open for writing on a new timeline.
    Promote,
    /// Stop.
    Shutdown,
}

impl RecoveryTarget {
    /// The value of `--type`; "none" for the set's own end.
    pub fn kind(&self) -> &'static str {
        match self {
            RecoveryTarget::SetEnd => "none",
            RecoveryTarget::Immediate => "immediate",
            RecoveryTarget::Latest => "latest",
            RecoveryTarget::Standby => "standby",
            RecoveryTarget::Time(_) => "time",
            RecoveryTarget::Lsn(_) => "lsn",
            RecoveryTarget::Xid(_) => "xid",
            RecoveryTarget::Name(_) => "name",
        }
    }

    /// The point as the server reads it, without any doubt about zones; none for targets that are no point.
    pub fn value(&self) -> Option<String> {
        match self {
            RecoveryTarget::Time(time) => Some(server_time(time.at)),
            RecoveryTarget::Lsn(lsn) => Some(lsn.to_string()),
            RecoveryTarget::Xid(xid) => Some(xid.to_string()),
            RecoveryTarget::Name(name) => Some(name.clone()),
            _ => None,
        }
    }

    /// Whether the server reads the WAL archive on its way.
    pub fn needs_archive(&self) -> bool {
        !matches!(self, RecoveryTarget::SetEnd | RecoveryTarget::Immediate)
    }

    /// Whether recovery stops before or after a certain record, so that excluding that record makes sense.
    pub fn may_exclude(&self) -> bool {
        matches!(self, RecoveryTarget::Time(_) | RecoveryTarget::Lsn(_) | RecoveryTarget::Xid(_))
    }

    /// The target of `--type KIND --target VALUE`, with times in `zone` unless they say theirs.
    ///
    /// # Errors
    /// `Usage` if the kind needs a value and has none, or the other way round, or the value does not read.
    pub fn parse(kind: &str, value: Option<&str>, zone: &TimeZone) -> Result<Self> {
        let point = match kind {
            "immediate" => RecoveryTarget::Immediate,
            "latest" => RecoveryTarget::Latest,
            "standby" => RecoveryTarget::Standby,
            _ => {
                let value = value.ok_or_else(|| {
                    usage(&format!("use --type {kind}"), "it needs a point to stop at").hint(EXAMPLES)
                })?;
                return parse_point(kind, value, zone);
            }
        };
        match value {
            None => Ok(point),
            Some(value) => {
                Err(usage(&format!("use --target {value:?}"), &format!("--type {kind} takes no point")).hint(EXAMPLES))
            }
        }
    }
}

const EXAMPLES: &str = "--type time --target \"2026-11-21 20:15:30+01\", --type lsn --target 16/B374D848, --type xid \
                        --target 4711, --type name --target before-the-change";

fn usage(action: &str, cause: &str) -> Error {
    Error::new(ErrorKind::Usage, action, cause)
}

fn parse_point(kind: &str, value: &str, zone: &TimeZone) -> Result<RecoveryTarget> {
    let action = || format!("use --target {value:?}");
    match kind {
        "time" => parse_time(value, zone).map(RecoveryTarget::Time),
        "lsn" => value
            .parse()
            .map(RecoveryTarget::Lsn)
            .map_err(|_| usage(&action(), "not an LSN").hint("an LSN looks like 16/B374D848")),
        "xid" => {
            // Functions such as pg_current_xact_id() give 64 bits; WAL has the lower 32 of them.
            let xid: u64 = value.trim().parse().map_err(|_| {
                usage(&action(), "not a transaction id").hint("a decimal number, as pg_current_xact_id() gives it")
            })?;
            match xid as u32 {
                0..3 => Err(usage(&action(), "no transaction of a user has that id")),
                xid => Ok(RecoveryTarget::Xid(xid)),
            }
        }
        "name" if value.is_empty() || value.len() > RESTORE_POINT_NAME_BYTES_MAX => {
            Err(usage(&action(), "a restore point's name has 1 to 63 bytes"))
        }
        "name" => Ok(RecoveryTarget::Name(value.to_owned())),
        _ => Err(usage(&format!("use --type {kind}"), "there is no such type").hint(EXAMPLES)),
    }
}

/// ISO 8601 with a zone, in UTC: what every DateStyle and TimeZone of a server reads alike.
fn server_time(at: Timestamp) -> String {
    format!("{}+00", at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S.%6f"))
}

/// Reads a time with an offset (`2026-11-21 20:15:30+01`, `...Z`), a zone (`... Europe/Berlin`) or neither, which means
/// `local`.
///
/// # Errors
/// `Usage` for what is no time, has no time of day, or names an hour that the zone has twice or not at all.
pub fn parse_time(text: &str, local: &TimeZone) -> Result<TargetTime> {
    let action = format!("use the time {text:?}");
    let bad = |cause: &str| usage(&action, cause).hint(TIME_HINT);
    let text = text.trim();
    if !text.contains(':') {
        return Err(bad("it has no time of day"));
    }
    let at = if text.contains('[') {
        text.parse::<Zoned>().map(|zoned| zoned.timestamp()).map_err(|cause| bad(&cause.to_string()))?
    } else if let Ok(timestamp) = without_blank_before_offset(text).parse::<Timestamp>() {
        timestamp
    } else if let Some((civil, zone)) = civil_and_zone(text) {
        let zone = TimeZone::get(zone).map_err(|_| bad(&format!("{zone:?} is not a time zone")))?;
        in_zone(civil, &zone, &bad)?
    } else {
        let at = in_zone(text, local, &bad)?;
        return Ok(TargetTime { at: whole_microseconds(at, &bad)?, assumed_zone: Some(zone_text(at, local)) });
    };
    Ok(TargetTime { at: whole_microseconds(at, &bad)?, assumed_zone: None })
}

const TIME_HINT: &str =
    "give it as 2026-11-21 20:15:30+01:00, 2026-11-21T19:15:30Z or 2026-11-21 20:15:30 Europe/Berlin";

/// "20:15:30 +01" is "20:15:30+01", and "UTC" is "Z".
fn without_blank_before_offset(text: &str) -> String {
    match text.rsplit_once(char::is_whitespace) {
        Some((time, "UTC" | "GMT" | "Z" | "z")) => format!("{}Z", time.trim_end()),
        Some((time, offset)) if offset.starts_with(['+', '-']) => format!("{}{offset}", time.trim_end()),
        _ => text.to_owned(),
    }
}

/// The part before a zone's name, which begins with a letter.
fn civil_and_zone(text: &str) -> Option<(&str, &str)> {
    let (civil, zone) = text.rsplit_once(char::is_whitespace)?;
    zone.starts_with(|first: char| first.is_ascii_alphabetic()).then_some((civil.trim_end(), zone))
}

fn in_zone(civil: &str, zone: &TimeZone, bad: &dyn Fn(&str) -> Error) -> Result<Timestamp> {
    let civil: DateTime = civil.parse().map_err(|_| bad("it does not read as date and time"))?;
    let moments = zone.to_ambiguous_zoned(civil);
    if moments.is_ambiguous() {
        let name = zone.iana_name().unwrap_or("the local zone");
        return Err(bad(&format!("the clocks of {name} show it twice or never: it needs an offset")));
    }
    moments.unambiguous().map(|zoned| zoned.timestamp()).map_err(|cause| bad(&cause.to_string()))
}

fn whole_microseconds(at: Timestamp, bad: &dyn Fn(&str) -> Error) -> Result<Timestamp> {
    if at.subsec_nanosecond() % 1_000 == 0 { Ok(at) } else { Err(bad("commit times have microseconds, no finer ones")) }
}

/// "Europe/Berlin (+01:00)".
fn zone_text(at: Timestamp, zone: &TimeZone) -> String {
    let offset = at.to_zoned(zone.clone()).strftime("%:z").to_string();
    match zone.iana_name() {
        Some(name) => format!("{name} ({offset})"),
        None => offset,
    }
}

impl FromStr for TargetTimeline {
    type Err = Error;

    /// `latest`, `current`, a decimal number, or a hexadecimal one: `0x1F`, or eight digits as in names of WAL files.
    fn from_str(text: &str) -> Result<Self> {
        let number = match text {
            "latest" => return Ok(TargetTimeline::Latest),
            "current" => return Ok(TargetTimeline::Current),
            _ => match text.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16),
                None if text.len() == 8 => u32::from_str_radix(text, 16),
                None => text.parse(),
            },
        };
        match number {
            Ok(number) if number > 0 => Ok(TargetTimeline::Number(TimelineId(number))),
            _ => Err(usage(&format!("use --target-timeline {text:?}"), "not a timeline")
                .hint("latest, current, a decimal number, or a hexadecimal one as in file names: 0x1F or 0000001F")),
        }
    }
}

impl fmt::Display for TargetTimeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetTimeline::Latest => f.write_str("latest"),
            TargetTimeline::Current => f.write_str("current"),
            TargetTimeline::Number(timeline) => write!(f, "{timeline}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        // By rule, so that no zone files are needed.
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn time(text: &str) -> Result<(String, bool)> {
        let time = parse_time(text, &berlin())?;
        Ok((time.at.to_string(), time.assumed_zone.is_some()))
    }

    #[test]
    fn times_with_an_offset_need_no_zone() {
        for text in [
            "2026-11-21T19:15:30Z",
            "2026-11-21 19:15:30Z",
            "2026-11-21 19:15:30 UTC",
            "2026-11-21 20:15:30+01",
            "2026-11-21 20:15:30 +01:00",
            "2026-11-21 20:15:30+0100",
            "2026-11-21T14:15:30-05:00",
        ] {
            assert_eq!(time(text).unwrap(), ("2026-11-21T19:15:30Z".to_owned(), false), "{text}");
        }
    }

    #[test]
    fn times_without_one_are_local_and_say_so() {
        assert_eq!(time("2026-11-21 20:15:30").unwrap(), ("2026-11-21T19:15:30Z".to_owned(), true));
        assert_eq!(time("2026-07-21 20:15").unwrap(), ("2026-07-21T18:15:00Z".to_owned(), true));
        let assumed = parse_time("2026-07-21 20:15:00.25", &berlin()).unwrap();
        assert_eq!(assumed.assumed_zone.as_deref(), Some("+02:00"));
        assert_eq!(server_time(assumed.at), "2026-07-21 18:15:00.250000+00");
    }

    #[test]
    fn hours_that_come_twice_or_never_are_refused() {
        for text in ["2026-10-25 02:30:00", "2026-03-29 02:30:00"] {
            let error = time(text).unwrap_err();
            assert!(error.message().contains("twice or never"), "{error}");
        }
        assert!(time("2026-10-25 02:30:00+02").is_ok());
        for bad in ["", "yesterday", "2026-11-21", "2026-11-21 20:15:30 Nowhere/Atall", "2026-11-21 25:00:00", "now:"] {
            assert_eq!(time(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
        assert!(time("2026-11-21 20:15:30.1234567Z").unwrap_err().message().contains("microseconds"));
    }

    #[test]
    fn zones_go_by_name() {
        let Ok(_) = TimeZone::get("Asia/Tokyo") else {
            eprintln!("SKIPPED: this machine has no time zone files");
            return;
        };
        assert_eq!(time("2026-11-22 04:15:30 Asia/Tokyo").unwrap(), ("2026-11-21T19:15:30Z".to_owned(), false));
        let bracketed = time("2026-11-22T04:15:30+09:00[Asia/Tokyo]").unwrap();
        assert_eq!(bracketed, ("2026-11-21T19:15:30Z".to_owned(), false));
    }

    #[test]
    fn targets_take_what_they_need_and_no_more() {
        let parse = |kind, value| RecoveryTarget::parse(kind, value, &berlin());
        assert_eq!(parse("lsn", Some("0/3000100")).unwrap().value().unwrap(), "0/3000100");
        assert_eq!(parse("xid", Some("4294968000")).unwrap(), RecoveryTarget::Xid(704));
        assert_eq!(parse("latest", None).unwrap(), RecoveryTarget::Latest);
        for (kind, value) in [
            ("time", None),
            ("latest", Some("1")),
            ("lsn", Some("x")),
            ("xid", Some("-1")),
            ("xid", Some("2")),
            ("name", Some("")),
        ] {
            assert_eq!(parse(kind, value).unwrap_err().kind(), ErrorKind::Usage, "{kind} {value:?}");
        }
    }

    #[test]
    fn timelines_are_decimal_or_as_in_file_names() {
        let number = |text: &str| match text.parse::<TargetTimeline>().unwrap() {
            TargetTimeline::Number(timeline) => timeline.0,
            other => panic!("{other}"),
        };
        assert_eq!([number("31"), number("0x1F"), number("0000001F"), number("00000010")], [31, 31, 31, 16]);
        assert_eq!("latest".parse::<TargetTimeline>().unwrap(), TargetTimeline::Latest);
        for bad in ["", "0", "-1", "newest", "0x", "1F"] {
            assert!(bad.parse::<TargetTimeline>().is_err(), "{bad}");
        }
    }
}
