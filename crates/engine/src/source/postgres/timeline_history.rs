//! Timeline history files: which timelines came before one, and where each was left.
//!
//! The rule: readTimeLineHistory in src/backend/access/transam/timeline.c.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::terms::{TimelineBranch, TimelineHistory, TimelineId};

/// Largest history file that is read; a line is rarely longer than a hundred bytes.
pub const HISTORY_BYTES_MAX: u64 = 1 << 20;

/// Reads the history of `timeline`: lines of a timeline, the LSN at which it was left, and a reason that nobody reads.
///
/// # Errors
/// `Damage` if a line does not read, timelines do not rise up to `timeline`, or there is none.
pub fn parse(timeline: TimelineId, bytes: &[u8]) -> Result<TimelineHistory> {
    let bad = |cause: String| {
        Error::new(ErrorKind::Damage, format!("read the history of timeline {timeline}"), cause)
            .hint("a timeline history file is written by the server when it is promoted")
    };
    let mut branches: Vec<TimelineBranch> = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        // The reason may be in any encoding.
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let mut fields = text.split_whitespace();
        let parent = fields.next().and_then(|field| field.parse::<u32>().ok());
        let end_lsn = fields.next().and_then(|field| field.parse().ok());
        let (Some(parent), Some(end_lsn)) = (parent, end_lsn) else {
            return Err(bad(format!("a line is not a timeline and an LSN: {:?}", text.chars().take(80).collect::<String>())));
        };
        let last = branches.last().map_or(0, |branch| branch.timeline.0);
        if parent <= last || parent >= timeline.0 {
            return Err(bad(format!("timeline {parent} cannot come after {last} and before {timeline}")));
        }
        branches.push(TimelineBranch { timeline: TimelineId(parent), end_lsn });
    }
    if branches.is_empty() {
        return Err(bad("it names no earlier timeline".to_owned()));
    }
    Ok(TimelineHistory { timeline, branches })
}

/// The history of `timeline` from `pg_wal`; without branches for timeline 1, which has no such file.
///
/// # Errors
/// `Source` if the file is not there or does not read.
pub fn read_history(pgdata: &Path, timeline: TimelineId) -> Result<TimelineHistory> {
    if timeline.0 <= 1 {
        return Ok(TimelineHistory { timeline, branches: Vec::new() });
    }
    let path = pgdata.join("pg_wal").join(format!("{:08X}.history", timeline.0));
    let failed = |cause: String| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause);
    let bytes = std::fs::read(&path).map_err(|cause| failed(cause.to_string()))?;
    parse(timeline, &bytes).map_err(|cause| failed(cause.message()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::Lsn;

    #[test]
    fn lines_are_timelines_in_order() {
        let text = b"1\t0/3000158\tno recovery target specified\n\n# note\n  2\t16/B3000000\tbefore 2026-11-22 \xE9\n";
        let history = parse(TimelineId(4), text).unwrap();
        assert_eq!(history.branches.len(), 2);
        assert_eq!(
            history.parent(),
            Some(&TimelineBranch { timeline: TimelineId(2), end_lsn: Lsn(0x16_B300_0000) })
        );
    }

    #[test]
    fn what_is_no_history_is_damage() {
        for bad in ["", "x", "1", "1\tx", "2\t0/1\n1\t0/2", "1\t0/1\n1\t0/2", "4\t0/1", "0\t0/1"] {
            assert_eq!(parse(TimelineId(4), bad.as_bytes()).unwrap_err().kind(), ErrorKind::Damage, "{bad}");
        }
    }
}
