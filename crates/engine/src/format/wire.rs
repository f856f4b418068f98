//! Little-endian fields in fixed-size structures: a writer and a reader that cannot run past the end.

use crate::error::{Error, ErrorKind, Result};

/// Puts fields one after the other into a fixed-size array.
pub(super) struct FieldWriter<'a> {
    bytes: &'a mut [u8],
    position: usize,
}

impl<'a> FieldWriter<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        FieldWriter { bytes, position: 0 }
    }

    pub(super) fn put(&mut self, field: &[u8]) -> &mut Self {
        self.bytes[self.position..self.position + field.len()].copy_from_slice(field);
        self.position += field.len();
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Leaves `count` bytes zero: room reserved for later versions.
    pub(super) fn reserved(&mut self, count: usize) -> &mut Self {
        self.bytes[self.position..self.position + count].fill(0);
        self.position += count;
        self
    }
}

/// Takes fields one after the other; running past the end is an error, not a panic.
pub(super) struct FieldReader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        FieldReader { bytes, what }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        if self.bytes.len() < count {
            return Err(damaged(self.what, "it ends too early"));
        }
        let (field, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut field = [0u8; N];
        field.copy_from_slice(self.take(N)?);
        Ok(field)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(super) fn id(&mut self) -> Result<[u8; 16]> {
        self.array()
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(damaged(self.what, "bytes follow its end")) }
    }

    /// Reserved bytes must be zero: a value there means a writer that knows more than we do.
    pub(super) fn reserved(&mut self, count: usize) -> Result<()> {
        if self.take(count)?.iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(damaged(self.what, "a reserved field is used: it was written by a newer version"))
        }
    }
}

/// The error of a structure that does not read.
pub(super) fn damaged(what: &str, cause: &str) -> Error {
    Error::new(ErrorKind::Damage, format!("read {what}"), cause)
}

/// Appends `value` as LEB128.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7F) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
