//! Timeline history files: which timelines a timeline comes from, and where it left each of them.
//!
//! The rules: src/backend/access/transam/timeline.c (readTimeLineHistory).

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::terms::{Lsn, TimelineId};

/// The part of the WAL on one timeline that leads to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// The timeline.
    pub timeline: TimelineId,
    /// Where it was left.
    pub switched_at: Lsn,
}

/// The ancestors of `timeline`, oldest first, from the history file in `pg_wal`; none for timeline 1.
///
/// # Errors
/// `Source` if the file is not there or does not read.
pub fn read_history(pgdata: &Path, timeline: TimelineId) -> Result<Vec<Ancestor>> {
    if timeline.0 <= 1 {
        return Ok(Vec::new());
    }
    let path = pgdata.join("pg_wal").join(format!("{:08X}.history", timeline.0));
    let failed = |cause: String| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause);
    let text = std::fs::read_to_string(&path).map_err(|cause| failed(cause.to_string()))?;
    parse_history(&text).ok_or_else(|| failed("it is not a timeline history".to_owned()))
}

/// The lines of a history file; None if one does not read.
pub fn parse_history(text: &str) -> Option<Vec<Ancestor>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let timeline = TimelineId(fields.next()?.parse().ok()?);
        Some(Ancestor { timeline, switched_at: fields.next()?.parse().ok()? })
    };
    let ancestors: Vec<Ancestor> = lines.map(parse).collect::<Option<_>>()?;
    ancestors.windows(2).all(|pair| pair[0].timeline < pair[1].timeline).then_some(ancestors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_lines_read() {
        let text = "1\t0/3000148\tno recovery target specified\n\n# odd\n2\t1/A0\tbefore 2026-01-01 00:00:00+00\n";
        let ancestors = parse_history(text).unwrap();
        assert_eq!(ancestors[0], Ancestor { timeline: TimelineId(1), switched_at: Lsn(0x300_0148) });
        assert_eq!(ancestors[1].switched_at, Lsn(0x1_0000_00A0));
        assert!(parse_history("1\n").is_none());
        assert!(parse_history("2 0/1 x\n1 0/2 y\n").is_none(), "timelines only grow");
    }
}
