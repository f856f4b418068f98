//! What the server answers when it refuses: an ErrorResponse or NoticeResponse with its fields.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// SQLSTATE of a missing right.
pub const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// An error or notice of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `WARNING`, ... ; not translated.
    pub severity: String,
    /// The five characters of the SQL standard that programs may rely on.
    pub sqlstate: String,
    /// One line, in the server's language.
    pub message: String,
    /// More lines, often empty.
    pub detail: String,
    /// The server's own advice, often empty.
    pub hint: String,
}

impl ServerError {
    /// Reads the fields of an ErrorResponse or NoticeResponse body; unknown and missing fields do no harm.
    pub(super) fn parse(body: &[u8]) -> Self {
        let mut error = ServerError::default();
        for field in body.split(|byte| *byte == 0) {
            let Some((kind, value)) = field.split_first() else { continue };
            let text = String::from_utf8_lossy(value).into_owned();
            match kind {
                b'V' => error.severity = text,
                b'C' => error.sqlstate = text,
                b'M' => error.message = text,
                b'D' => error.detail = text,
                b'H' => error.hint = text,
                _ => {}
            }
        }
        error
    }

    /// Whether a right is missing.
    pub fn is_missing_privilege(&self) -> bool {
        self.sqlstate == INSUFFICIENT_PRIVILEGE
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate)?;
        if !self.detail.is_empty() {
            write!(f, "; {}", self.detail)?;
        }
        Ok(())
    }
}

/// Why a query gave no rows.
#[derive(Debug)]
pub enum QueryError {
    /// The server refused the statement; after `ERROR` the session goes on, after `FATAL` it is over.
    Server(Box<ServerError>),
    /// The connection broke or the answer made no sense.
    Lost(Error),
}

impl QueryError {
    /// The engine's error; `action` completes "unable to ...".
    pub fn into_error(self, action: impl Into<String>) -> Error {
        match self {
            QueryError::Server(error) => {
                let hint = error.hint.clone();
                let engine_error = Error::new(ErrorKind::Source, action, error);
                if hint.is_empty() { engine_error } else { engine_error.hint(hint) }
            }
            QueryError::Lost(error) => error,
        }
    }

    /// The server's answer, if it gave one.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            QueryError::Server(error) => Some(error),
            QueryError::Lost(_) => None,
        }
    }
}

impl From<ServerError> for QueryError {
    fn from(error: ServerError) -> Self {
        QueryError::Server(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_rubbish_is_harmless() {
        let error = ServerError::parse(b"SFEHLER\0VERROR\0C42501\0Mno right\0Dbecause\0Zx\0\0");
        assert_eq!(error.severity, "ERROR");
        assert!(error.is_missing_privilege());
        assert_eq!(error.to_string(), "no right (SQLSTATE 42501); because");
        assert_eq!(ServerError::parse(b"\0\0\xff\xfe"), ServerError::default());
        let error = QueryError::from(error).into_error("begin a backup");
        assert_eq!(error.message(), "unable to begin a backup: no right (SQLSTATE 42501); because");
    }
}
