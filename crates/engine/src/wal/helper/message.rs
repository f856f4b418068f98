//! Question and answer as bytes on a socket. Both ends are the same program, so there is no version in them; the name
//! of the socket has it.
//!
//! A message is its length in four bytes, least first, and JSON. Length 0 is a sign of life.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

const MESSAGE_BYTES_MAX: u32 = 64 * 1024;

/// What a client asks: for this file of the helper's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) name: String,
}

/// What it hears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// It is durable in the repository.
    Pushed,
    /// It is in this file, which the client may take.
    Fetched(PathBuf),
    /// The repository was asked just now and has no such file.
    NotThere,
    /// It did not work.
    Failed(ErrorText),
}

/// An error on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ErrorText {
    kind: String,
    action: String,
    cause: String,
    hint: Option<String>,
    attached: Vec<ErrorText>,
}

/// What is never sent as itself, and so comes back as `Bug`, is not in here.
const KINDS: &[(&str, ErrorKind)] = &[
    ("usage", ErrorKind::Usage),
    ("configuration", ErrorKind::Configuration),
    ("source", ErrorKind::Source),
    ("repository", ErrorKind::Repository),
    ("damage", ErrorKind::Damage),
    ("conflict", ErrorKind::Conflict),
    ("target", ErrorKind::Target),
    ("interrupted", ErrorKind::Interrupted),
];

impl ErrorText {
    pub(super) fn of(error: &Error) -> Self {
        let kind = KINDS.iter().find(|(_, kind)| *kind == error.kind()).map_or("bug", |(name, _)| name);
        ErrorText {
            kind: kind.to_owned(),
            action: error.action().to_owned(),
            cause: error.cause().to_owned(),
            hint: error.hint_text().map(str::to_owned),
            attached: error.attached().iter().map(ErrorText::of).collect(),
        }
    }

    pub(super) fn into_error(self) -> Error {
        let kind = KINDS.iter().find(|(name, _)| *name == self.kind).map_or(ErrorKind::Bug, |(_, kind)| *kind);
        let mut error = Error::new(kind, self.action, self.cause);
        if let Some(hint) = self.hint {
            error = error.hint(hint);
        }
        for later in self.attached {
            error.attach(later.into_error());
        }
        error
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
}

fn failed(cause: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, "talk to the helper", cause)
}

impl Line {
    /// With somebody who is silent or does not listen for `super::SILENCE_MAX` at most.
    ///
    /// # Errors
    /// `Configuration` if the other end is another user, or gone.
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(super::SILENCE_MAX)).map_err(failed)?;
        stream.set_write_timeout(Some(super::SILENCE_MAX)).map_err(failed)?;
        let other = rustix::net::sockopt::socket_peercred(&stream).map_err(failed)?;
        if other.uid != rustix::process::geteuid() {
            return Err(failed(format!("user {} is on the other end", other.uid.as_raw())));
        }
        Ok(Line { stream })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `Configuration` if it does not arrive.
    pub(super) fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let text = serde_json::to_vec(message).map_err(failed)?;
        let length = u32::try_from(text.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        let length = length.ok_or_else(|| failed("a message is too long"))?;
        self.stream.write_all(&[&length.to_le_bytes()[..], &text].concat()).map_err(failed)
    }

    /// Says that the answer takes time.
    ///
    /// # Errors
    /// `Configuration` if nobody listens any more.
    pub(super) fn send_life_sign(&mut self) -> Result<()> {
        self.stream.write_all(&[0; 4]).map_err(failed)
    }

    /// The next message that is no sign of life.
    ///
    /// # Errors
    /// `Configuration` if the other end is silent, gone, or says something else.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        loop {
            let mut length = [0u8; 4];
            self.stream.read_exact(&mut length).map_err(failed)?;
            let length = u32::from_le_bytes(length);
            if length > MESSAGE_BYTES_MAX {
                return Err(failed(format!("a message of {length} bytes")));
            }
            if length > 0 {
                let mut text = vec![0u8; length as usize];
                self.stream.read_exact(&mut text).map_err(failed)?;
                return serde_json::from_slice(&text).map_err(failed);
            }
        }
    }

    /// Waits until the other end is closed, or for as long as a silence may last.
    pub(super) fn wait_for_end(mut self) {
        // Nothing more is expected: a byte, an end and an error are all the same.
        let _ended = self.stream.read(&mut [0u8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_pair() -> (Line, UnixStream) {
        let (one, two) = UnixStream::pair().unwrap();
        (Line::new(one).unwrap(), two)
    }

    #[test]
    fn messages_arrive_behind_signs_of_life() {
        let (mut one, two) = line_pair();
        let mut two = Line::new(two).unwrap();
        let mut error = Error::new(ErrorKind::Conflict, "store X: in Y", "other bytes: there").hint("look");
        error.attach(Error::new(ErrorKind::Bug, "go on", "really"));
        let said = error.to_string();
        for answer in [Answer::Pushed, Answer::NotThere, Answer::Failed(ErrorText::of(&error))] {
            one.send_life_sign().unwrap();
            one.send_life_sign().unwrap();
            one.send(&answer).unwrap();
            let heard: Answer = two.receive().unwrap();
            assert_eq!(heard, answer);
            if let Answer::Failed(text) = heard {
                let error = text.into_error();
                assert_eq!((error.kind(), error.to_string()), (ErrorKind::Conflict, said.clone()));
            }
        }
    }

    #[test]
    fn every_kind_but_a_bug_comes_back_as_itself() {
        for (_, kind) in KINDS {
            assert_eq!(ErrorText::of(&Error::new(*kind, "a", "b")).into_error().kind(), *kind);
        }
        assert_eq!(ErrorText::of(&Error::new(ErrorKind::Bug, "a", "b")).into_error().kind(), ErrorKind::Bug);
    }

    #[test]
    fn nonsense_is_an_error_and_needs_no_memory() {
        let nonsense: [&[u8]; 6] =
            [b"", b"\x01\0", &[0xff; 64], b"\x05\0\0\0{\"a\"", b"\x02\0\0\0{}", b"\x12\0\0\0{\"name\":12345678}"];
        for bytes in nonsense {
            let (mut one, mut two) = line_pair();
            two.write_all(bytes).unwrap();
            drop(two);
            assert!(one.receive::<Question>().is_err(), "{bytes:?}");
        }
    }
}
