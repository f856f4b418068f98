//! Little-endian fields of untrusted bytes.

/// Why bytes are not what they should be: completes "LAYER at OFFSET: ...".
pub type Parsed<T> = std::result::Result<T, String>;

/// Bytes with fields at fixed places; a field beyond their end is an error, never a panic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// `length` bytes at `at`.
    pub(crate) fn bytes(self, at: usize, length: usize) -> Parsed<&'a [u8]> {
        let end = at.checked_add(length);
        end.and_then(|end| self.0.get(at..end))
            .ok_or_else(|| format!("{length} bytes are expected at byte {at} of {}", self.0.len()))
    }

    fn array<const N: usize>(self, at: usize) -> Parsed<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(at, N)?);
        Ok(array)
    }

    pub(crate) fn u8(self, at: usize) -> Parsed<u8> {
        self.array(at).map(|[byte]: [u8; 1]| byte)
    }

    pub(crate) fn u16(self, at: usize) -> Parsed<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(self, at: usize) -> Parsed<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(self, at: usize) -> Parsed<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(crate) fn tag(self, at: usize) -> Parsed<[u8; 4]> {
        self.array(at)
    }

    /// UTF-16 text whose size and place in the same bytes stand at `at`, as two u16.
    pub(crate) fn text(self, at: usize) -> Parsed<String> {
        let (size, offset) = (self.u16(at)?, self.u16(at + 2)?);
        self.utf16(offset.into(), size.into())
    }

    /// `size` bytes of UTF-16 at `offset`; what is no UTF-16 becomes U+FFFD.
    pub(crate) fn utf16(self, offset: usize, size: usize) -> Parsed<String> {
        let bytes = self.bytes(offset, size)?;
        let units = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        let text: String = char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        Ok(text.trim_end_matches('\0').to_owned())
    }
}

/// A four-letter name as people read it; other bytes in hexadecimal.
pub(crate) fn tag_text(tag: [u8; 4]) -> String {
    if tag.iter().all(u8::is_ascii_alphanumeric) {
        return tag.iter().map(|byte| char::from(*byte)).collect();
    }
    tag.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_end_are_errors() {
        let fields = Fields(&[1, 2, 3, 4, 5]);
        assert_eq!(fields.u16(3), Ok(0x0504));
        assert!(fields.u16(4).is_err() && fields.u64(0).is_err() && fields.bytes(usize::MAX, 2).is_err());
        let text = Fields(&[4, 0, 4, 0, b'a', 0, 0, 0xd8]);
        assert_eq!(text.text(0), Ok("a\u{fffd}".to_owned()));
        assert_eq!(tag_text(*b"MSDA"), "MSDA");
        assert_eq!(tag_text([0, 1, b'a', 255]), "000161ff");
    }
}
