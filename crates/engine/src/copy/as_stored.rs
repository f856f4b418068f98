//! Encrypted objects that are copied as they lie there: nothing is encrypted anew, and who copies needs no key.

use crate::catalog::wal_bundle::OpenBundle;
use crate::error::{Error, ErrorKind, Result};
use crate::format::wal_bundle::BUNDLE_HEADER_BYTES;
use crate::pipeline::{Transfer, TransferCheck, TransferTo};
use crate::storage::{Contents, ObjectReader, StagedObject};

/// The transfer of `from`: of its content, or, `as_stored`, of the bytes of an encrypted one as they are. Then `check` sees
/// the content if there is a key for it; without one only the size is checked.
pub(super) fn transfer(
    from: Box<dyn ObjectReader>,
    to: TransferTo,
    check: Box<dyn TransferCheck>,
    as_stored: bool,
) -> Result<Transfer> {
    if !as_stored {
        return Ok(Transfer { from, to, check });
    }
    let stored = from.stored().ok_or_else(|| {
        Error::new(ErrorKind::Bug, "copy an encrypted object as it is", "only its content is at hand")
    })?;
    let size_bytes = stored.object.size_bytes();
    let check: Box<dyn TransferCheck> = match stored.contents {
        Some(contents) => Box::new(ContentCheck { contents, check }),
        None => Box::new(SizeCheck { left: size_bytes }),
    };
    Ok(Transfer { from: stored.object, to, check })
}

/// Checks the content of an encrypted object.
struct ContentCheck {
    contents: Box<dyn Contents>,
    check: Box<dyn TransferCheck>,
}

impl TransferCheck for ContentCheck {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let ContentCheck { contents, check } = self;
        contents.take(bytes, &mut |content| check.take(content))
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.check.end()
    }
}

/// Checks that no byte is missing.
struct SizeCheck {
    left: u64,
}

impl TransferCheck for SizeCheck {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        match self.left {
            0 => Ok(()),
            left => Err(Error::new(ErrorKind::Damage, "copy an encrypted object", format!("{left} bytes are missing"))),
        }
    }
}

/// A bundle that may be encrypted as it is written: its header, its table and what follows stay shown to everybody, as when
/// it was pushed.
pub(super) struct ShownEnds {
    inner: Box<dyn StagedObject>,
    /// Where the content lies that is not shown.
    hidden: std::ops::Range<u64>,
    offset: u64,
}

impl ShownEnds {
    pub(super) fn around(inner: Box<dyn StagedObject>, bundle: &OpenBundle) -> Box<dyn StagedObject> {
        let table_bytes = bundle.index.entries().last().map_or(0, |table| table.size_on_stripe_bytes());
        let hidden = BUNDLE_HEADER_BYTES as u64..bundle.index.end_offset().saturating_sub(table_bytes);
        Box::new(ShownEnds { inner, hidden, offset: 0 })
    }
}

impl StagedObject for ShownEnds {
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let edge = [self.hidden.start, self.hidden.end].into_iter().find(|edge| *edge > self.offset);
            let left = edge.map_or(u64::MAX, |edge| edge - self.offset).min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(left);
            if self.hidden.contains(&self.offset) {
                self.inner.append(now)?;
            } else {
                self.inner.append_shown(now)?;
            }
            self.offset += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<bool> {
        self.inner.commit()
    }
}
