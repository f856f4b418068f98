//! `UPLOAD_MANIFEST`: tells a server of version 17 or later what an earlier backup holds, before `BASE_BACKUP` with
//! `INCREMENTAL` on the same connection.
//!
//! The rules: the manual's "Streaming Replication Protocol" and src/backend/replication/walsender.c.

use std::io::{self, Write};

use super::replication::Replication;
use super::server_error::QueryError;
use crate::error::{Error, Result};

/// Bytes of one message of data.
const MESSAGE_BYTES: usize = 64 << 10;

impl Replication {
    /// Sends the manifest that `write` writes.
    ///
    /// # Errors
    /// [`QueryError::Server`] for one that the server does not take, [`QueryError::Lost`] when the connection is lost
    /// or `write` fails.
    pub fn upload_manifest(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> std::result::Result<(), QueryError> {
        let lost = QueryError::Lost;
        self.send_command("UPLOAD_MANIFEST").map_err(lost)?;
        let message = self.connection.read_message().map_err(lost)?;
        match message.tag {
            b'G' => {}
            b'E' => return Err(self.refused(&message)),
            _ => return Err(lost(self.connection.unexpected("no question for a manifest"))),
        }
        let mut data = CopyData { replication: self, bytes: Vec::with_capacity(MESSAGE_BYTES + 5), failed: None };
        let written = write(&mut data).and_then(|()| data.send());
        if let Some(error) = data.failed.take() {
            return Err(lost(error));
        }
        written.map_err(lost)?;
        self.connection.send(b"c\0\0\0\x04").map_err(lost)?;
        loop {
            let message = self.connection.read_message().map_err(lost)?;
            match message.tag {
                b'C' => {}
                b'Z' => return Ok(()),
                b'E' => return Err(self.refused(&message)),
                _ => return Err(lost(self.connection.unexpected("something else than thanks for a manifest"))),
            }
        }
    }
}

/// Bytes on their way as messages of data.
struct CopyData<'a> {
    replication: &'a mut Replication,
    bytes: Vec<u8>,
    failed: Option<Error>,
}

impl CopyData<'_> {
    fn send(&mut self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let mut message = Vec::with_capacity(self.bytes.len() + 5);
        message.push(b'd');
        // The length counts itself.
        message.extend_from_slice(&(self.bytes.len() as u32 + 4).to_be_bytes());
        message.append(&mut self.bytes);
        self.replication.connection.send(&message)
    }
}

impl Write for CopyData<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= MESSAGE_BYTES {
            self.send().map_err(|error| {
                let cause = io::Error::other(error.message());
                self.failed = Some(error);
                cause
            })?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
