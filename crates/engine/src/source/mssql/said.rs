//! What the server says about its work: percents, pages, and the last line of a BACKUP or RESTORE.

/// The last line: "BACKUP DATABASE successfully processed 1254 pages in 0.123 seconds (79.600 MB/sec)."
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processed {
    /// Whether it was a backup.
    pub is_backup: bool,
    /// Pages of 8 KiB.
    pub pages: u64,
    /// What the server says it took: less than the statement, for it leaves out making and zeroing files.
    pub seconds: f64,
}

/// The share that is done, in per cent, if `text` is message 3211.
pub fn percent(text: &str) -> Option<u32> {
    text.trim().strip_suffix(" percent processed.")?.parse().ok().filter(|percent| *percent <= 100)
}

/// What `text` says if it is message 3014.
pub fn processed(text: &str) -> Option<Processed> {
    let text = text.trim();
    let (verb, rest) = text.split_once(" successfully processed ")?;
    let is_backup = verb.starts_with("BACKUP ");
    if !is_backup && !verb.starts_with("RESTORE ") {
        return None;
    }
    let (pages, rest) = rest.split_once(" pages in ")?;
    let (seconds, _) = rest.split_once(" seconds")?;
    let seconds = seconds.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds >= 0.0)?;
    Some(Processed { is_backup, pages: pages.parse().ok()?, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_and_last_lines() {
        assert_eq!(percent("10 percent processed."), Some(10));
        assert_eq!((percent("900 percent processed."), percent("x percent processed.")), (None, None));
        let found = processed("BACKUP DATABASE successfully processed 1254 pages in 0.123 seconds (79.600 MB/sec).");
        assert_eq!(found, Some(Processed { is_backup: true, pages: 1254, seconds: 0.123 }));
        let found = processed("RESTORE DATABASE successfully processed 8 pages in 12.5 seconds (0.005 MB/sec).");
        assert_eq!(found.map(|found| found.is_backup), Some(false));
        for other in [
            "",
            "Processed 8 pages for database 'd', file 'f' on file 1.",
            "x successfully processed 1 pages in 1 seconds",
        ] {
            assert_eq!(processed(other), None, "{other}");
        }
    }
}
