//! What the server says beside rows: information and errors, several of them for one statement.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Least severity that is an error.
const ERROR_CLASS_MIN: u8 = 11;

/// An INFO or ERROR token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerMessage {
    /// Its number, as in `sys.messages`; 0 of PRINT.
    pub number: i32,
    /// State.
    pub state: u8,
    /// Severity; 11 and more are errors.
    pub class: u8,
    /// The text, in the session's language.
    pub text: String,
    /// Line of the batch, from 1.
    pub line: u32,
}

impl ServerMessage {
    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.class >= ERROR_CLASS_MIN
    }
}

impl fmt::Display for ServerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Msg {}: {}", self.number, self.text)
    }
}

/// Why a statement was ended by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A signal asked for it.
    Interrupted,
    /// It took longer than it may.
    TimedOut,
}

/// Why a batch did not do what it should.
#[derive(Debug)]
pub enum RunError {
    /// The server refused it, with all it said about that; the session goes on.
    Refused(Vec<ServerMessage>),
    /// It was ended by us, and the server knows; the session goes on.
    Stopped(StopReason),
    /// The connection broke or the answer made no sense.
    Lost(Error),
}

impl RunError {
    /// The engine's error; `action` completes "unable to ...".
    pub fn into_error(self, action: impl Into<String>) -> Error {
        match self {
            RunError::Refused(errors) => {
                let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let error = Error::new(ErrorKind::Source, action, texts.join("; "));
                match errors.iter().find_map(hint) {
                    Some(hint) => error.hint(hint),
                    None => error,
                }
            }
            RunError::Stopped(StopReason::Interrupted) => {
                Error::new(ErrorKind::Interrupted, action, "a signal asked to stop; the server has ended the statement")
            }
            RunError::Stopped(StopReason::TimedOut) => {
                Error::new(ErrorKind::Source, action, "it took longer than it may; the server has ended the statement")
            }
            RunError::Lost(error) => error,
        }
    }

    /// Whether one of `numbers` is among what the server said.
    pub fn has_number(&self, numbers: &[i32]) -> bool {
        matches!(self, RunError::Refused(errors) if errors.iter().any(|error| numbers.contains(&error.number)))
    }
}

/// What the server calls a backup, or a page in it, that is damaged, cut short or not all there.
pub const DAMAGE: [i32; 10] = [3043, 3132, 3183, 3189, 3231, 3241, 3242, 3256, 3266, 3287];

/// Memory for buffers cannot be had.
pub const OUT_OF_MEMORY: [i32; 2] = [701, 802];

/// The next step for what DBAs meet.
fn hint(error: &ServerMessage) -> Option<&'static str> {
    Some(match error.number {
        701 | 802 => {
            "BUFFERCOUNT times MAXTRANSFERSIZE is more than the server has outside its buffer pool: take less of either, \
             or raise max server memory"
        }
        3201 => {
            "the path is the server's own, and its service account must be able to write (backup) or read (restore) there"
        }
        3202 | 3203 => "the device failed: look at the server's error log and at free space there",
        3013 => return None,
        3023 => "another backup, file change or shrink of this database is running: try again when it is over",
        3132 | 3231 => "the media set has another number of files: give all of them, as many as when it was made",
        3159 => {
            "the tail of the log is not backed up: take a log backup WITH NORECOVERY first, or restore under another name"
        }
        3035 | 4214 => "there is no full backup in the server's chain yet: take one with --in-chain first",
        1834 | 3154 => {
            "what is there is not overwritten: restore under another name with --data-to, or say --replace if it may go"
        }
        3101 => "somebody uses that database: end those sessions, or restore under another name",
        3117 => "restore the full backup with --recovery norecovery first",
        3136 => "it is built on another full backup: pagehaul bak chain shows which, or mssql restore --look header",
        4305 => "log before it is missing: restore that first (pagehaul bak chain shows the gap)",
        4326 => "that log is in the database already: go on with the next one",
        33111 => {
            "the server has not the certificate that the backup was encrypted for: restore that certificate there first"
        }
        3169 => "the backup was made by a newer SQL Server: restore it on that version or a later one",
        3256 | 3266 => "the backup was interrupted, or the file is cut: take another backup",
        3183 | 3043 | 3189 => "pages in it are damaged: verify the other backups you have before you need them",
        3187 => "the set was written without CHECKSUM: leave --checksum out for it",
        229 | 262 | 297 | 300 | 916 => {
            "this log-in lacks a permission: VIEW SERVER STATE and VIEW ANY DEFINITION to ask, db_backupoperator to back \
             up, dbcreator to restore"
        }
        3241 | 3242 | 3287 => {
            "that is no backup that this server can read: wrong file, cut short, or of a newer version"
        }
        15129 => {
            "this server does not take that value: a setting or algorithm of a later version or of another edition"
        }
        18456 => "wrong user or password, or SQL Server authentication is switched off there",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_errors_are_told_and_the_cause_gives_the_hint() {
        let error = |number, text: &str| ServerMessage { number, class: 16, text: text.into(), ..Default::default() };
        let refused = RunError::Refused(vec![error(701, "no memory"), error(3013, "BACKUP is terminating")]);
        assert!(refused.has_number(&OUT_OF_MEMORY) && !refused.has_number(&[3201]));
        let error = refused.into_error("back up [x]");
        assert_eq!(error.message(), "unable to back up [x]: Msg 701: no memory; Msg 3013: BACKUP is terminating");
        assert!(error.hint_text().unwrap().contains("BUFFERCOUNT"), "{error}");
        let stopped = RunError::Stopped(StopReason::Interrupted).into_error("x");
        assert_eq!(stopped.kind(), ErrorKind::Interrupted);
        // Whatever is called damage has a next step.
        assert!(DAMAGE.iter().all(|number| hint(&ServerMessage { number: *number, ..Default::default() }).is_some()));
    }
}
