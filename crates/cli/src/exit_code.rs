//! What the number means that the command ends with. Scripts rely on it: numbers are never reused.

use pagehaul_engine::error::ErrorKind;

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    /// All is well.
    Done,
    /// `wal get`: the file is surely not in the archive.
    NotThere,
    /// `wal get`: whether it is there could not be found out.
    CouldNotAsk,
    /// An error of this kind.
    Failed(ErrorKind),
}

/// For `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  wal get: the file is surely not in the archive
    2  usage: the command line is wrong
   10  configuration: the settings do not fit this machine or each other
   20  source: the database could not be read
   30  repository or storage: not there, full, unreadable
   40  damage found: stored bytes or pages of the source are not what they should be
   50  conflict: another process holds what is needed
   60  target refused: not empty, not writable, or in use
   70  a bug in pagehaul
  126  wal get: any failure, so that the server does not take it for the end of WAL
  130  interrupted by a signal";

impl ExitCode {
    /// The end of a command that failed; `wal get` has one code for all failures.
    pub(crate) fn of(kind: ErrorKind, is_wal_get: bool) -> Self {
        if is_wal_get { ExitCode::CouldNotAsk } else { ExitCode::Failed(kind) }
    }

    /// The number.
    pub(crate) fn number(self) -> u8 {
        let kind = match self {
            ExitCode::Done => return 0,
            ExitCode::NotThere => return 1,
            ExitCode::CouldNotAsk => return 126,
            ExitCode::Failed(kind) => kind,
        };
        match kind {
            ErrorKind::Usage => 2,
            ErrorKind::Configuration => 10,
            ErrorKind::Source => 20,
            ErrorKind::Repository => 30,
            ErrorKind::Damage => 40,
            ErrorKind::Conflict => 50,
            ErrorKind::Target => 60,
            ErrorKind::Interrupted => 130,
            // A kind that this table does not know is a mistake of ours as well.
            _ => 70,
        }
    }
}

/// The name of an error's kind in JSON.
pub(crate) fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Usage => "usage",
        ErrorKind::Configuration => "configuration",
        ErrorKind::Source => "source",
        ErrorKind::Repository => "repository",
        ErrorKind::Damage => "damage",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Target => "target",
        ErrorKind::Interrupted => "interrupted",
        _ => "bug",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number_and_the_help_lists_it() {
        let kinds = [
            (ErrorKind::Usage, 2),
            (ErrorKind::Configuration, 10),
            (ErrorKind::Source, 20),
            (ErrorKind::Repository, 30),
            (ErrorKind::Damage, 40),
            (ErrorKind::Conflict, 50),
            (ErrorKind::Target, 60),
            (ErrorKind::Bug, 70),
            (ErrorKind::Interrupted, 130),
        ];
        for (kind, number) in kinds {
            assert_eq!(ExitCode::Failed(kind).number(), number);
            let listed = EXIT_CODES.lines().any(|line| line.trim_start().starts_with(&format!("{number}  ")));
            assert!(listed, "{number} is not in the help");
        }
        assert_eq!(ExitCode::Done.number(), 0);
        for (kind, _) in kinds {
            assert_eq!(ExitCode::of(kind, true).number(), 126);
            assert_eq!(ExitCode::of(kind, false), ExitCode::Failed(kind));
        }
        assert_eq!(ExitCode::NotThere.number(), 1);
    }
}
