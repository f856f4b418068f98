//! Packets of TDS, and reading out of bytes that may not all be there yet.

use crate::error::{Error, ErrorKind, Result};

/// Bytes before each packet's content.
pub(super) const HEADER_SIZE_BYTES: usize = 8;
/// What a session begins with; the server may ask for another size.
pub(super) const PACKET_SIZE_DEFAULT: usize = 4096;
/// Sizes that the protocol allows.
pub(super) const PACKET_SIZES: std::ops::RangeInclusive<usize> = 512..=32767;
/// The last packet of a message.
const END_OF_MESSAGE: u8 = 0x01;

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PacketKind {
    SqlBatch = 0x01,
    Response = 0x04,
    Attention = 0x06,
    Login = 0x10,
    Prelogin = 0x12,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHeader {
    pub(super) kind: u8,
    pub(super) is_last: bool,
    /// Of the content, without the header.
    pub(super) content_size: usize,
}

impl PacketHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// What is wrong, for a length that no packet has.
    pub(super) fn parse(bytes: &[u8; HEADER_SIZE_BYTES]) -> std::result::Result<Self, String> {
        let size = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if !(HEADER_SIZE_BYTES..=*PACKET_SIZES.end()).contains(&size) {
            return Err(format!("a packet of {size} bytes"));
        }
        Ok(PacketHeader {
            kind: bytes[0],
            is_last: bytes[1] & END_OF_MESSAGE != 0,
            content_size: size - HEADER_SIZE_BYTES,
        })
    }
}

/// `content` as a message of `kind`, in packets of at most `packet_size` bytes.
pub(super) fn message(kind: PacketKind, content: &[u8], packet_size: usize) -> Vec<u8> {
    let room = packet_size.clamp(*PACKET_SIZES.start(), *PACKET_SIZES.end()) - HEADER_SIZE_BYTES;
    let mut pieces: Vec<&[u8]> = content.chunks(room).collect();
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let last = pieces.len() - 1;
    let mut bytes = Vec::with_capacity(content.len() + pieces.len() * HEADER_SIZE_BYTES);
    for (number, piece) in pieces.into_iter().enumerate() {
        let size = (piece.len() + HEADER_SIZE_BYTES) as u16;
        bytes.extend([kind as u8, if number == last { END_OF_MESSAGE } else { 0 }]);
        bytes.extend(size.to_be_bytes());
        // Session, number and window: the number counts up and wraps, the others are not used.
        bytes.extend([0, 0, (number + 1) as u8, 0]);
        bytes.extend(piece);
    }
    bytes
}

/// Text as the protocol has it.
pub(super) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Text of the protocol; what is no text becomes U+FFFD.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    char::decode_utf16(units).map(|sign| sign.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Why nothing could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// More bytes have to come first.
    More,
    /// It is not what the protocol allows.
    Bad(String),
}

/// Outcome of reading out of what has come so far.
pub(super) type Read<T> = std::result::Result<T, Unread>;

/// A place in bytes that have come.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let end = self.at.checked_add(count).ok_or(Unread::More)?;
        let taken = self.bytes.get(self.at..end).ok_or(Unread::More)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Read<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Read<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Bytes behind a length of 16 bits.
    pub(super) fn short_bytes(&mut self) -> Read<&'a [u8]> {
        let count = usize::from(self.u16()?);
        self.take(count)
    }

    /// Text behind a number of characters of 8 bits.
    pub(super) fn byte_text(&mut self) -> Read<String> {
        let count = usize::from(self.u8()?) * 2;
        Ok(text_of(self.take(count)?))
    }

    /// Text behind a number of characters of 16 bits.
    pub(super) fn short_text(&mut self) -> Read<String> {
        let count = usize::from(self.u16()?) * 2;
        Ok(text_of(self.take(count)?))
    }
}

/// Reads `bytes`, which have come whole.
///
/// # Errors
/// `Source` for what is cut or wrong.
pub(super) fn read_whole<T>(bytes: &[u8], what: &str, read: impl FnOnce(&mut Cursor<'_>) -> Read<T>) -> Result<T> {
    read(&mut Cursor::new(bytes)).map_err(|unread| {
        let cause = match unread {
            Unread::More => "it is cut short".to_owned(),
            Unread::Bad(cause) => cause,
        };
        Error::new(ErrorKind::Source, format!("read {what} of SQL Server"), cause)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_into_packets() {
        let content = vec![7u8; 1100];
        let bytes = message(PacketKind::SqlBatch, &content, 512);
        let mut rest = bytes.as_slice();
        let mut joined = Vec::new();
        let mut ends = Vec::new();
        while let Some((header, after)) = rest.split_first_chunk::<HEADER_SIZE_BYTES>() {
            let header = PacketHeader::parse(header).unwrap();
            joined.extend_from_slice(&after[..header.content_size]);
            ends.push(header.is_last);
            rest = &after[header.content_size..];
        }
        assert_eq!((joined, ends), (content, vec![false, false, true]));
        assert_eq!(message(PacketKind::Attention, &[], 4096), [6, 1, 0, 8, 0, 0, 1, 0]);
    }

    #[test]
    fn lengths_that_no_packet_has_are_refused() {
        for size in [0u16, 7, 32768, 0xffff] {
            let [high, low] = size.to_be_bytes();
            assert!(PacketHeader::parse(&[4, 1, high, low, 0, 0, 0, 0]).is_err(), "{size}");
        }
    }

    #[test]
    fn a_cursor_says_when_more_must_come() {
        let mut cursor = Cursor::new(&[3, b'a', 0, b'b', 0]);
        assert_eq!(cursor.byte_text(), Err(Unread::More));
        let mut cursor = Cursor::new(&[2, b'a', 0, b'b', 0, 9]);
        assert_eq!(cursor.byte_text().unwrap(), "ab");
        assert_eq!((cursor.position(), cursor.u8().unwrap(), cursor.u8()), (5, 9, Err(Unread::More)));
        assert_eq!(text_of(&utf16("Größe 😀")), "Größe 😀");
        assert_eq!(text_of(&[0, 0xd8, b'x', 0]), "\u{fffd}x");
    }
}
