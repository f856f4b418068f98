//! What is asked of each ratio, in one place. A ratio is pagehaul's speed over the other's: above 1 pagehaul is faster.

use pagehaul_engine::error::{Error, ErrorKind, Result};

/// Name, ratio asked, and what it is about.
const TARGETS: &[(&str, f64, &str)] = &[
    ("engine-read", 0.95, "data path without a codec, over a plain parallel read"),
    ("engine-whole", 0.90, "whole backup process, checkpoint and WAL included, over the whole process of a plain read"),
    ("engine-codec", 0.95, "data path with a codec, over the codec alone on all cores, same data"),
    ("engine-roofline", 0.95, "data path, over what reading, encoding and checks cost one after the other"),
    ("peer-backup", 1.43, "speed of a full backup over the peer's (wall time at most 0.7 of it), same codec and level"),
    (
        "peer-restore",
        1.67,
        "speed of a full restore over the peer's (wall time at most 0.6 of it), same codec and level",
    ),
    (
        "peer-size",
        0.999,
        "stored bytes of the peer's backup over pagehaul's, same codec and level; equal means within 0.1 %",
    ),
    ("files-backup", 1.0, "speed of a backup of many files over the peer's"),
    ("files-restore", 1.0, "speed of a restore of many files over the peer's"),
    ("tune-found", 0.95, "figure of the grid's best point over that of the point which the search found"),
    ("tune-time", 10.0, "time of the whole grid over that of the search"),
    ("tune-model", 1.0, "a tenth, over the median error of the model in the search's trials"),
    ("auto-time", 0.97, "speed of auto over the fastest fixed level's"),
    ("auto-size", 0.97, "stored bytes of the smallest fixed level that takes no longer over auto's"),
    ("auto-statistics", 1.0, "1 % of a run's CPU time over what its statistics take"),
    ("wal-push", 3.0, "segments a second of a burst that is archived, over the other's, same codec"),
    ("wal-get", 3.0, "segments a second that are fetched one command after the other, over the other's, same codec"),
    (
        "wal-singly",
        3.0,
        "segments a second when none is ready before the one before is archived, over the other's, same codec",
    ),
    (
        "wal-copy",
        1.0,
        "segments a second over those of a plain copy, which no catalog, check or recovery point comes with",
    ),
    ("wal-replay", 1.0, "speed of a server's replay over that with the other's restore_command"),
    (
        "wal-delivery",
        1.0,
        "what the restore_command delivers alone over what a server replays with it; above 1 the server is the limit",
    ),
    (
        "incr-size",
        0.909,
        "bytes of the changed pages, put together and compressed alike, over all that an incremental backup stored (at most 1.1 of them)",
    ),
    ("incr-backup", 1.0, "speed of an incremental backup over the peer's"),
    ("incr-restore", 1.0, "speed of a restore of a full backup and an incremental one over the peer's"),
    ("xpress-size", 0.952, "stored bytes of the reference encoder's fastest level over ours (at most 5 % more)"),
    ("xpress-encode", 1.0, "MB/s of one thread over 150"),
    ("xpress-decode", 1.0, "MB/s of one thread over 500"),
    (
        "bak-verify",
        0.9,
        "speed of `bak verify` of a compressed file over that of the decoder alone, as many threads at once",
    ),
    ("bak-verify-disk", 1.0, "speed of `bak verify` of a plain file that is in no cache over that of reading it"),
    ("memory", 1.0, "stated ceiling plus 32 MiB for the program, over peak resident memory"),
];

/// The targets of one run.
#[derive(Clone, Debug)]
pub(crate) struct Targets(Vec<(&'static str, f64, &'static str)>);

impl Targets {
    /// The usual ones, changed by `NAME=RATIO` words.
    ///
    /// # Errors
    /// `Usage` for a name that is not there or a ratio that is no number.
    pub(crate) fn new(words: &[String]) -> Result<Self> {
        let mut targets = TARGETS.to_vec();
        for word in words {
            let changed = word.split_once('=').and_then(|(name, ratio)| {
                let target = targets.iter_mut().find(|(known, _, _)| *known == name)?;
                target.1 = ratio.parse().ok()?;
                Some(())
            });
            if changed.is_none() {
                let names: Vec<&str> = TARGETS.iter().map(|(name, _, _)| *name).collect();
                return Err(Error::new(ErrorKind::Usage, format!("use {word:?} as a target"), "not NAME=RATIO")
                    .hint(format!("names are {}", names.join(", "))));
            }
        }
        Ok(Targets(targets))
    }

    /// The ratio asked for.
    pub(crate) fn ratio(&self, name: &str) -> f64 {
        self.0.iter().find(|(known, _, _)| *known == name).map_or(1.0, |(_, ratio, _)| *ratio)
    }

    /// What the name means.
    pub(crate) fn meaning(&self, name: &str) -> &'static str {
        self.0.iter().find(|(known, _, _)| *known == name).map_or("", |(_, _, meaning)| *meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_can_be_changed_by_name() {
        let targets = Targets::new(&["peer-backup=2.5".to_owned()]).unwrap();
        assert_eq!(targets.ratio("peer-backup"), 2.5);
        assert_eq!(targets.ratio("engine-read"), 0.95);
        assert!(Targets::new(&["peer=2".to_owned()]).is_err());
        assert!(Targets::new(&["peer-backup".to_owned()]).is_err());
    }
}
