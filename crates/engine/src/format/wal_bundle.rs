//! The bundle: WAL segments, or one other file of an archive, as one object. Header, frames, a last frame with the
//! table of members, index, footer: all but header and table are those of a stripe.

use super::FORMAT_VERSION;
use super::bundle_seal::BundleSeal;
use super::checksum::{crc32c, xxh3};
use super::frame::{FRAME_HEADER_BYTES, FrameHeader};
use super::member_facts::{put_text, take_text};
use super::stripe::{FrameIndex, STRIPE_HEADER_BYTES, StripeHeader};
use super::wire::{FieldReader, FieldWriter, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FRAME_SIZE_BYTES_MAX, FRAME_SIZE_BYTES_MIN};
use crate::terms::{SetId, StripeIndex, WalFacts};

pub use super::member_facts::{BRANCHES_MAX, MemberFacts, RESTORE_POINTS_MAX};

/// First bytes of a bundle.
pub const BUNDLE_MAGIC: [u8; 8] = *b"PHBUNDLE";
/// First bytes of the table of members.
pub const MEMBERS_MAGIC: [u8; 8] = *b"PHMEMBS\x01";
/// Bytes of a bundle's header.
pub const BUNDLE_HEADER_BYTES: usize = STRIPE_HEADER_BYTES;
/// Most members of one bundle: the segments of one log id, if they are the smallest there are.
pub const MEMBER_COUNT_MAX: usize = 4096;
/// Longest table of members; it is one frame.
pub const MEMBER_TABLE_BYTES_MAX: usize = FRAME_SIZE_BYTES_MAX as usize;
/// Most frames of one bundle: those of a log id's WAL in the smallest frames, a short one for each member, the table.
pub const BUNDLE_FRAMES_MAX: u64 = (1 << 32) / FRAME_SIZE_BYTES_MIN as u64 + MEMBER_COUNT_MAX as u64 + 1;
/// Longest name of a member.
pub const MEMBER_NAME_BYTES_MAX: usize = 64;
/// Largest member: a segment of the largest size.
pub const MEMBER_BYTES_MAX: u64 = 1 << 30;

const TABLE_HEADER_BYTES: usize = 48;
const WHAT: &str = "a bundle's table of members";

/// The first 512 bytes of a bundle: those of a stripe that is the only one, with another magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleHeader {
    /// 128 random bits that all its frames carry.
    pub bundle_id: SetId,
    /// Raw size of a full frame.
    pub frame_size_bytes: u32,
}

impl BundleHeader {
    /// Its identity in frames, index and footer.
    pub fn as_stripe(&self) -> StripeHeader {
        StripeHeader {
            set_id: self.bundle_id,
            stripe: StripeIndex(0),
            stripe_count: 1,
            frame_size_bytes: self.frame_size_bytes,
        }
    }

    /// The header's 512 bytes.
    pub fn to_bytes(&self) -> [u8; BUNDLE_HEADER_BYTES] {
        let mut bytes = self.as_stripe().to_bytes();
        bytes[..8].copy_from_slice(&BUNDLE_MAGIC);
        seal(&mut bytes);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Damage` if it is not a bundle, its checksum does not hold, or its version is not known.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "a bundle's header";
        let bytes = bytes.get(..BUNDLE_HEADER_BYTES).ok_or_else(|| damaged(WHAT, "it ends too early"))?;
        if !bytes.starts_with(&BUNDLE_MAGIC) {
            return Err(damaged(WHAT, "it does not start with the bundle magic"));
        }
        let (body, sum) = bytes.split_at(BUNDLE_HEADER_BYTES - 4);
        if crc32c(body).to_le_bytes() != sum {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let mut as_stripe = [0u8; STRIPE_HEADER_BYTES];
        as_stripe.copy_from_slice(bytes);
        as_stripe[..8].copy_from_slice(&super::stripe::STRIPE_MAGIC);
        seal(&mut as_stripe);
        let header = StripeHeader::from_bytes(&as_stripe)?;
        let in_bounds = (FRAME_SIZE_BYTES_MIN..=FRAME_SIZE_BYTES_MAX).contains(&header.frame_size_bytes);
        if header.stripe_count != 1 || !in_bounds || !header.frame_size_bytes.is_multiple_of(FRAME_SIZE_BYTES_MIN) {
            return Err(damaged(WHAT, "a count or size is out of bounds"));
        }
        Ok(BundleHeader { bundle_id: header.set_id, frame_size_bytes: header.frame_size_bytes })
    }
}

/// Puts the checksum at the end of a header.
fn seal(header: &mut [u8; STRIPE_HEADER_BYTES]) {
    let sum = crc32c(&header[..STRIPE_HEADER_BYTES - 4]);
    header[STRIPE_HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}

/// What a bundle holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleKind {
    /// Consecutive whole segments of one timeline and log id.
    Segments,
    /// One other file: a timeline history, a backup label, a partial segment.
    File,
    /// A piece of one segment.
    Piece,
}

/// The table of members: what is in the bundle, and what its WAL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberTable {
    /// What it holds.
    pub kind: BundleKind,
    /// The cluster it is from.
    pub system_identifier: u64,
    /// Magic number of its WAL pages, which tells the server's major version; 0 where there are no pages.
    pub page_magic: u16,
    /// Size of a segment; 0 where there is no WAL.
    pub segment_size_bytes: u32,
    /// Size of a WAL page; 0 where there is no WAL.
    pub wal_block_size_bytes: u32,
    /// The members in order; one unless these are segments.
    pub members: Vec<Member>,
    /// Who signed it; None if nobody did.
    pub seal: Option<BundleSeal>,
}

/// One file, or piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The file's name.
    pub name: String,
    /// Its size, or the size of the piece.
    pub size_bytes: u64,
    /// So many first bytes of it are in frames; the others are zero.
    pub content_bytes: u64,
    /// CRC32C of all its bytes, zeros included.
    pub crc32c: u32,
    /// The frame that its content starts in, at that frame's first byte.
    pub first_frame: u64,
    /// How many frames have its content.
    pub frame_count: u32,
    /// Where a piece lies in its segment; else 0.
    pub piece_offset: u32,
    /// What was found in it.
    pub facts: MemberFacts,
}

impl Member {
    /// What its WAL says, if it is WAL.
    pub fn wal_facts(&self) -> Option<&WalFacts> {
        match &self.facts {
            MemberFacts::Wal(facts) => Some(facts),
            MemberFacts::None | MemberFacts::History(_) => None,
        }
    }
}

impl MemberTable {
    /// The table's bytes: what the last frame holds.
    ///
    /// # Errors
    /// `Bug` if it breaks its own rules, such as a name that is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = self.before_seal(self.seal.is_some());
        if let Some(seal) = &self.seal {
            seal.put(&mut bytes);
        }
        if Self::from_bytes(&bytes).ok().as_ref() != Some(self) {
            return Err(Error::new(ErrorKind::Bug, format!("write {WHAT}"), "it would not read"));
        }
        Ok(bytes)
    }

    /// What `seal` signs of the bundle `header` with this table: the header, and the table up to the signature.
    pub fn signed_bytes(&self, header: &BundleHeader, seal: &BundleSeal) -> Vec<u8> {
        let mut bytes = [&header.to_bytes()[..], &self.before_seal(true)].concat();
        seal.put_signed(&mut bytes);
        bytes
    }

    fn before_seal(&self, is_sealed: bool) -> Vec<u8> {
        let mut header = [0u8; TABLE_HEADER_BYTES];
        let kind = match self.kind {
            BundleKind::Segments => 0,
            BundleKind::File => 1,
            BundleKind::Piece => 2,
        };
        FieldWriter::new(&mut header)
            .put(&MEMBERS_MAGIC)
            .u16(FORMAT_VERSION)
            .u8(kind)
            .u8(u8::from(is_sealed))
            .u32(self.members.len() as u32)
            .u64(self.system_identifier)
            .u32(self.segment_size_bytes)
            .u32(self.wal_block_size_bytes)
            .u16(self.page_magic)
            .reserved(14);
        let mut bytes = header.to_vec();
        self.members.iter().for_each(|member| member.put(&mut bytes));
        bytes
    }

    /// Reads the table.
    ///
    /// # Errors
    /// `Damage` if a rule is broken or the version is not known.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MEMBER_TABLE_BYTES_MAX {
            return Err(damaged(WHAT, "it is too long"));
        }
        let mut fields = FieldReader::new(bytes, WHAT);
        if fields.take(8)? != MEMBERS_MAGIC {
            return Err(damaged(WHAT, "it does not start with its magic"));
        }
        let version = fields.u16()?;
        if version != FORMAT_VERSION {
            let cause =
                format!("format version {version} is not known to this build, which reads version {FORMAT_VERSION}");
            return Err(Error::new(ErrorKind::Damage, format!("read {WHAT}"), cause));
        }
        let kind = match fields.u8()? {
            0 => BundleKind::Segments,
            1 => BundleKind::File,
            2 => BundleKind::Piece,
            _ => return Err(damaged(WHAT, "its kind is not known")),
        };
        let is_sealed = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return Err(damaged(WHAT, "its mark of a seal is not known: it was written by a newer version")),
        };
        let count = fields.u32()? as usize;
        let mut table = MemberTable {
            kind,
            system_identifier: fields.u64()?,
            segment_size_bytes: fields.u32()?,
            wal_block_size_bytes: fields.u32()?,
            page_magic: fields.u16()?,
            members: Vec::new(),
            seal: None,
        };
        fields.reserved(14)?;
        if count == 0 || count > MEMBER_COUNT_MAX || kind != BundleKind::Segments && count != 1 {
            return Err(damaged(WHAT, "its number of members is out of bounds"));
        }
        for _ in 0..count {
            table.members.push(Member::take(&mut fields)?);
        }
        table.seal = is_sealed.then(|| BundleSeal::take(&mut fields)).transpose()?;
        fields.end()?;
        table.check()?;
        Ok(table)
    }

    /// The last frame of the bundle `header`: the table as it is, without a codec.
    ///
    /// # Errors
    /// As [`MemberTable::to_bytes`].
    pub fn to_frame(&self, header: &BundleHeader, sequence: u64) -> Result<Vec<u8>> {
        let raw = self.to_bytes()?;
        let frame = FrameHeader {
            set_id: header.bundle_id,
            stripe: StripeIndex(0),
            sequence,
            codec: 0,
            raw_size_bytes: raw.len() as u32,
            stored_size_bytes: raw.len() as u32,
            raw_crc32c: crc32c(&raw),
            stored_xxh3: xxh3(&raw),
        };
        Ok([&frame.to_bytes()[..], &raw].concat())
    }

    /// Reads the last frame of the bundle `header`, and checks that it names the frames of `index`.
    ///
    /// # Errors
    /// `Damage` if a checksum does not hold, or the frame is another one.
    pub fn from_frame(bytes: &[u8], header: &BundleHeader, index: &FrameIndex) -> Result<Self> {
        let frame = FrameHeader::from_bytes(bytes)?;
        let raw = &bytes[FRAME_HEADER_BYTES..];
        let is_expected = frame.set_id == header.bundle_id
            && frame.stripe == StripeIndex(0)
            && frame.sequence.checked_add(1) == Some(index.frame_count())
            && frame.codec == 0
            && frame.raw_size_bytes as usize == raw.len()
            && frame.stored_size_bytes as usize == raw.len();
        if !is_expected {
            return Err(damaged(WHAT, "another frame is in its place"));
        }
        if xxh3(raw) != frame.stored_xxh3 || crc32c(raw) != frame.raw_crc32c {
            return Err(damaged(WHAT, "its checksum does not match"));
        }
        let table = Self::from_bytes(raw)?;
        table.check_frames(index, header.frame_size_bytes)?;
        Ok(table)
    }

    /// Sizes and places fit each other.
    fn check(&self) -> Result<()> {
        let mut next_frame = 0u64;
        for member in &self.members {
            if member.first_frame != next_frame {
                return Err(damaged(WHAT, "its members do not follow each other"));
            }
            next_frame += u64::from(member.frame_count);
            let whole = u64::from(self.segment_size_bytes);
            let fits = match self.kind {
                BundleKind::Segments => member.size_bytes == whole && member.piece_offset == 0,
                BundleKind::File => member.piece_offset == 0,
                BundleKind::Piece => u64::from(member.piece_offset) + member.size_bytes <= whole,
            };
            if !fits || member.size_bytes > MEMBER_BYTES_MAX || member.content_bytes > member.size_bytes {
                return Err(damaged(WHAT, "a member's size is out of bounds"));
            }
        }
        Ok(())
    }

    /// Checks that the frames of `index` are those the table names, and itself the last.
    ///
    /// # Errors
    /// `Damage` if not.
    pub fn check_frames(&self, index: &FrameIndex, frame_size_bytes: u32) -> Result<()> {
        let full = u64::from(frame_size_bytes);
        let mut left: &[_] = index.entries();
        for member in &self.members {
            let count = member.frame_count as usize;
            let Some((own, rest)) = left.split_at_checked(count) else {
                return Err(damaged(WHAT, "it names frames that are not there"));
            };
            left = rest;
            let expected =
                |place: usize| (member.content_bytes - (place as u64 * full).min(member.content_bytes)).min(full);
            let mut sizes = own.iter().enumerate();
            let count_is_right = member.content_bytes.div_ceil(full) == count as u64;
            if !count_is_right || !sizes.all(|(place, entry)| u64::from(entry.raw_size_bytes) == expected(place)) {
                return Err(damaged(WHAT, "the frames of a member have other sizes than its content"));
            }
        }
        if left.len() != 1 {
            return Err(damaged(WHAT, "there are frames that belong to no member"));
        }
        let digest_count = self.seal.as_ref().map(|seal| seal.frame_digests.len() + 1);
        match digest_count.is_none_or(|count| count == index.entries().len()) {
            true => Ok(()),
            false => Err(damaged(WHAT, "its seal has not one digest for each frame")),
        }
    }
}

impl Member {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(out, &self.name);
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        out.extend_from_slice(&self.content_bytes.to_le_bytes());
        out.extend_from_slice(&self.crc32c.to_le_bytes());
        out.extend_from_slice(&self.first_frame.to_le_bytes());
        out.extend_from_slice(&self.frame_count.to_le_bytes());
        out.extend_from_slice(&self.piece_offset.to_le_bytes());
        self.facts.put(out);
    }

    fn take(fields: &mut FieldReader<'_>) -> Result<Self> {
        let name = take_text(fields, MEMBER_NAME_BYTES_MAX)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_plain) {
            return Err(damaged(WHAT, "a name has characters that no WAL file's name has"));
        }
        Ok(Member {
            name,
            size_bytes: fields.u64()?,
            content_bytes: fields.u64()?,
            crc32c: fields.u32()?,
            first_frame: fields.u64()?,
            frame_count: fields.u32()?,
            piece_offset: fields.u32()?,
            facts: MemberFacts::take(fields)?,
        })
    }
}
