//! Bytes read from the front, and the numbers of variable length in between.

use crate::error::{Damaged, Decoded};

/// Reads a slice from its front; what is not there is [`Damaged`].
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// What has not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        let (first, rest) = self.rest.split_first().ok_or(Damaged("a stream ends early"))?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    pub(crate) fn take(&mut self, length: usize) -> Decoded<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Damaged("a stream ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number as [`put_varint`] writes it.
    #[inline]
    pub(crate) fn varint(&mut self) -> Decoded<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Damaged("a number is longer than 64 bits"))
    }

    /// A varint that counts or measures something of which there may be `max`.
    #[inline]
    pub(crate) fn count(&mut self, max: usize) -> Decoded<usize> {
        let count = self.varint()?;
        usize::try_from(count).ok().filter(|count| *count <= max).ok_or(Damaged("a count is above its limit"))
    }
}

/// Appends `number`, 7 bits per byte, the lowest first; every byte but the last has its top bit set.
#[inline]
pub(crate) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_and_longer_ones_are_refused() {
        for number in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(number, &mut bytes);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.varint(), Ok(number));
            assert!(reader.is_empty());
            assert!(Reader::new(&bytes[..bytes.len() - 1]).varint().is_err());
        }
        assert!(Reader::new(&[0xff; 10]).varint().is_err());
        assert!(Reader::new(&[0x80; 11]).varint().is_err());
        assert_eq!(Reader::new(&[5]).count(4), Err(Damaged("a count is above its limit")));
    }
}
