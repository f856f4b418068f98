//! The encrypted object: a header in the clear, then chunks that are sealed one by one.

use super::FORMAT_VERSION;
use super::checksum::crc32c;
use super::wire::{FieldReader, FieldWriter, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::terms::KeyId;

/// First bytes of an encrypted object.
pub const ENCRYPTED_MAGIC: [u8; 8] = *b"PHCRYPT\x01";
/// Bytes of content in each chunk but the last, which may have fewer.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes that sealing adds to a chunk.
pub const TAG_BYTES: usize = 16;
/// Most bytes of a header: a few hundred recipients.
pub const ENCRYPTED_HEADER_BYTES_MAX: usize = 64 * 1024;
/// Last bytes of an object: size of the end, and its checksum.
pub const ENCRYPTED_END_BYTES: usize = 8;
/// Most bytes of an end.
pub const SHOWN_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes before name and wrapped key.
const FIXED_BYTES: usize = 88;
const CRC_BYTES: usize = 4;
const CIPHER_AES_256_GCM: u8 = 1;
/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 1024;

/// What stands before the chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptedHeader {
    /// Random; the object's own key comes from it and the data key.
    pub salt: [u8; 32],
    /// Which data key.
    pub key_id: KeyId,
    /// The object's name in the repository.
    pub name: String,
    /// The data key, as an age file for its recipients.
    pub wrapped_key: Vec<u8>,
}

impl EncryptedHeader {
    /// Bytes of the header.
    pub fn size_bytes(&self) -> usize {
        FIXED_BYTES + self.name.len() + self.wrapped_key.len() + CRC_BYTES
    }

    /// The header's bytes.
    ///
    /// # Errors
    /// `Configuration` if there are too many recipients.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let size_bytes = self.size_bytes();
        if size_bytes > ENCRYPTED_HEADER_BYTES_MAX || self.name.len() > NAME_BYTES_MAX {
            let cause = format!("the data key for all recipients takes {} bytes", self.wrapped_key.len());
            return Err(Error::new(ErrorKind::Configuration, format!("encrypt {}", self.name), cause)
                .hint("name fewer recipients"));
        }
        let mut bytes = vec![0u8; size_bytes];
        FieldWriter::new(&mut bytes)
            .put(&ENCRYPTED_MAGIC)
            .u16(FORMAT_VERSION)
            .u8(CIPHER_AES_256_GCM)
            .reserved(1)
            .u32(size_bytes as u32)
            .put(&self.salt)
            .put(&self.key_id.0)
            .u32(self.name.len() as u32)
            .reserved(4)
            .put(self.name.as_bytes())
            .put(&self.wrapped_key);
        let sum = crc32c(&bytes[..size_bytes - CRC_BYTES]);
        bytes[size_bytes - CRC_BYTES..].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// The part of `header` that the object's key is bound to: all but the wrapped key, which may be wrapped anew.
    pub fn bound_part(header: &[u8]) -> &[u8] {
        let name_bytes = header.get(80..84).and_then(|field| field.try_into().ok()).map_or(0, u32::from_le_bytes);
        header.get(..FIXED_BYTES + name_bytes as usize).unwrap_or(header)
    }

    /// How many bytes the header of an object has that begins with `first`; None if it is no encrypted object.
    ///
    /// # Errors
    /// `Damage` if it is one and says what cannot be.
    pub fn announced_bytes(first: &[u8]) -> Result<Option<usize>> {
        const WHAT: &str = "the header of an encrypted object";
        if first.get(..ENCRYPTED_MAGIC.len()) != Some(&ENCRYPTED_MAGIC[..]) {
            return Ok(None);
        }
        let mut fields = FieldReader::new(&first[ENCRYPTED_MAGIC.len()..], WHAT);
        let version = fields.u16()?;
        if version != FORMAT_VERSION {
            let cause = format!("format version {version} is not known to this build, which reads {FORMAT_VERSION}");
            return Err(Error::new(ErrorKind::Damage, format!("read {WHAT}"), cause));
        }
        if fields.u8()? != CIPHER_AES_256_GCM {
            return Err(damaged(WHAT, "its cipher is not known to this build"));
        }
        fields.reserved(1)?;
        let size_bytes = fields.u32()? as usize;
        if !(FIXED_BYTES + CRC_BYTES..=ENCRYPTED_HEADER_BYTES_MAX).contains(&size_bytes) {
            return Err(damaged(WHAT, "its size is out of bounds"));
        }
        Ok(Some(size_bytes))
    }

    /// Reads a header, all of it and nothing behind it.
    ///
    /// # Errors
    /// `Damage` if its checksum or a rule does not hold.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "the header of an encrypted object";
        if Self::announced_bytes(bytes)? != Some(bytes.len()) {
            return Err(damaged(WHAT, "it is not as long as it says"));
        }
        let (body, sum) = bytes.split_at(bytes.len() - CRC_BYTES);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let mut fields = FieldReader::new(&body[16..], WHAT);
        let mut take = |into: &mut [u8]| fields.take(into.len()).map(|field| into.copy_from_slice(field));
        let (mut salt, mut key_id) = ([0u8; 32], [0u8; 32]);
        take(&mut salt)?;
        take(&mut key_id)?;
        let name_bytes = fields.u32()? as usize;
        fields.reserved(4)?;
        if name_bytes > NAME_BYTES_MAX || FIXED_BYTES + name_bytes > body.len() {
            return Err(damaged(WHAT, "its name is too long"));
        }
        let name =
            String::from_utf8(fields.take(name_bytes)?.to_vec()).map_err(|_| damaged(WHAT, "its name is not UTF-8"))?;
        let wrapped_key = body[FIXED_BYTES + name_bytes..].to_vec();
        Ok(EncryptedHeader { salt, key_id: KeyId(key_id), name, wrapped_key })
    }
}

/// Bytes of content in chunks of so many bytes together; what is too short for a chunk counts as none.
///
/// An object has at least one chunk, which may be of no content.
pub fn content_bytes(sealed_bytes: u64) -> u64 {
    let whole = (CHUNK_BYTES + TAG_BYTES) as u64;
    let (chunks, rest) = (sealed_bytes / whole, sealed_bytes % whole);
    chunks * CHUNK_BYTES as u64 + rest.saturating_sub(TAG_BYTES as u64)
}

/// What stands behind the chunks: parts of the content that are shown to who has no key, too.
///
/// They are as good as who wrote them last: who has the key reads them out of the chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptedEnd {
    /// Where each part begins in the content, and its bytes; no two touch.
    parts: Vec<(u64, Vec<u8>)>,
}

impl EncryptedEnd {
    /// Shows these bytes, which lie at `offset` of the content, behind all that is shown.
    pub fn show(&mut self, offset: u64, bytes: &[u8]) {
        match self.parts.last_mut() {
            Some((start, part)) if *start + part.len() as u64 == offset => part.extend_from_slice(bytes),
            _ => self.parts.push((offset, bytes.to_vec())),
        }
    }

    /// `length` bytes of the content from `offset` on, if one part has all of them.
    pub fn bytes_at(&self, offset: u64, length: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, part)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            part.get(from..from.checked_add(length)?)
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (start, part) in &self.parts {
            bytes.extend_from_slice(&start.to_le_bytes());
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(&((bytes.len() + ENCRYPTED_END_BYTES) as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// How many bytes an end has whose last ones are these; None if they cannot be the last of one.
    pub fn announced_bytes(last: &[u8; ENCRYPTED_END_BYTES]) -> Option<u64> {
        let bytes = u32::from_le_bytes([last[0], last[1], last[2], last[3]]);
        (bytes as usize >= ENCRYPTED_END_BYTES).then_some(u64::from(bytes))
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// `Damage` if its checksum or a rule does not hold.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "the end of an encrypted object";
        let (body, sum) = bytes.split_at_checked(bytes.len().wrapping_sub(CRC_BYTES)).unwrap_or_default();
        if body.len() < CRC_BYTES || crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let mut rest = &body[..body.len() - CRC_BYTES];
        let mut end = EncryptedEnd::default();
        while let Some((start, part, behind)) = next_part(rest) {
            end.parts.push((start, part.to_vec()));
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(damaged(WHAT, "a part of it is cut"));
        }
        Ok(end)
    }
}

/// The first part: its place in the content, its bytes, and what lies behind it.
fn next_part(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (offset, rest) = bytes.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (part, behind) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((u64::from_le_bytes(*offset), part, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> EncryptedHeader {
        EncryptedHeader {
            salt: [7; 32],
            key_id: KeyId([9; 32]),
            name: "main/sets/20261121-201530F/files.table".into(),
            wrapped_key: b"age-encryption.org/v1\n".to_vec(),
        }
    }

    #[test]
    fn a_header_reads_back_and_every_flipped_bit_and_cut_is_seen() {
        let good = header().to_bytes().unwrap();
        assert_eq!(EncryptedHeader::from_bytes(&good).unwrap(), header());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(EncryptedHeader::from_bytes(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(EncryptedHeader::from_bytes(&good[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn what_the_key_is_bound_to_is_all_but_the_wrapped_key() {
        let one = header().to_bytes().unwrap();
        let part = EncryptedHeader::bound_part(&one);
        assert!(part.ends_with(header().name.as_bytes()));
        let other = EncryptedHeader { name: "main/sets/20261121-201530F/files.tabl".into(), ..header() };
        assert_ne!(EncryptedHeader::bound_part(&other.to_bytes().unwrap()), part);
    }

    #[test]
    fn every_size_of_content_has_one_size_of_object() {
        let chunk = CHUNK_BYTES as u64;
        for content in [0, 1, 100, chunk - 1, chunk, chunk + 1, 2 * chunk, 7 * chunk + 5] {
            assert_eq!(content_bytes(content + content.div_ceil(chunk).max(1) * TAG_BYTES as u64), content);
        }
        // Less than a tag, alone and behind a whole chunk.
        assert_eq!([content_bytes(3), content_bytes(chunk + 16 + 3)], [0, chunk]);
    }

    #[test]
    fn shown_parts_read_back_whole_and_every_flipped_bit_is_seen() {
        let mut end = EncryptedEnd::default();
        end.show(0, b"the header");
        end.show(70_000, b"table");
        end.show(70_005, b" and index");
        let bytes = end.to_bytes();
        let last = bytes.last_chunk::<ENCRYPTED_END_BYTES>().unwrap();
        assert_eq!(EncryptedEnd::announced_bytes(last), Some(bytes.len() as u64));
        assert_eq!(EncryptedEnd::from_bytes(&bytes).unwrap(), end);
        assert_eq!(end.bytes_at(70_006, 3), Some(&b"and"[..]));
        assert_eq!(end.bytes_at(4, 6), Some(&b"header"[..]));
        for outside in [(4, 7), (69_999, 2), (70_010, 6), (u64::MAX, 1)] {
            assert_eq!(end.bytes_at(outside.0, outside.1), None);
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(EncryptedEnd::from_bytes(&bad).is_err(), "bit {bit}");
        }
        assert!(EncryptedEnd::from_bytes(&[]).is_err());
    }
}
