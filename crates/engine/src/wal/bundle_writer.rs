//! Writes one bundle: header, the members' frames, their table, index and footer; it appears whole or not at all.

use super::content::Content;
use crate::catalog::Repository;
use crate::encryption::{Keys, Signed};
use crate::error::{Error, ErrorKind, Result};
use crate::format::bundle_seal::BundleSeal;
use crate::format::checksum::{combine, crc32c, crc32c_of_zeros, sha256};
use crate::format::frame::FrameDigest;
use crate::format::stripe::{FrameIndex, IndexEntry};
use crate::format::wal_bundle::{BundleHeader, BundleKind, Member, MemberFacts, MemberTable};
use crate::pipeline::RelationLayout;
use crate::pipeline::bundle::{Filled, FrameSettings, encode_frames};
use crate::source::postgres::wal_header::SegmentHeader;
use crate::source::postgres::wal_records::{WalPlace, WalWalker};
use crate::storage::confirm;
use crate::terms::{SetId, TimelineHistory, WalFacts};

/// One file, or piece of one, that is to be stored.
pub(super) struct NewMember<'a> {
    /// Its name.
    pub(super) name: String,
    /// Its bytes.
    pub(super) content: Content<'a>,
    /// Where a piece lies in its segment; else 0.
    pub(super) piece_offset: u32,
    /// What to look for in it.
    pub(super) look: Look,
}

/// What to look for in a member.
pub(super) enum Look {
    /// Nothing.
    Nothing,
    /// Records of WAL.
    Wal(WalPlace),
    /// They were looked at.
    Walked(WalFacts),
    /// It was looked at.
    History(TimelineHistory),
}

/// What all members of a bundle have in common.
pub(super) struct BundleFacts {
    pub(super) kind: BundleKind,
    pub(super) system_identifier: u64,
    /// None where there is no WAL.
    pub(super) header: Option<SegmentHeader>,
}

/// A bundle that was written.
pub(super) struct Written {
    /// False if an object of that name was there; nothing was stored then.
    pub(super) is_new: bool,
    /// The members, as the table has them.
    pub(super) members: Vec<Member>,
    /// Size of the object.
    pub(super) stored_bytes: u64,
}

/// Stores `members` as the object `name`, signed if the process signs.
///
/// # Errors
/// `Source` if a member cannot be read; those of the storage. Nothing is stored then.
pub(super) fn write_bundle(
    repository: &Repository,
    name: &str,
    settings: &FrameSettings,
    facts: &BundleFacts,
    members: &[NewMember<'_>],
) -> Result<Written> {
    let header = BundleHeader { bundle_id: SetId::random()?, frame_size_bytes: settings.frame_size_bytes };
    let (storage, keys) = (repository.storage(), repository.keys());
    let mut object = storage.stage(name, 0)?;
    object.append_shown(&header.to_bytes())?;
    let mut reading = Reading::new(members, settings.frame_size_bytes, facts.header)?;
    let mut index = FrameIndex::default();
    let mut digests = keys.signs().then(Vec::new);
    encode_frames(settings, &header, &mut index, &mut |raw| reading.next_frame(raw), &mut |frame| {
        if let Some(digests) = &mut digests {
            digests.push(sha256(frame));
        }
        object.append(frame)
    })?;
    let mut table = MemberTable {
        kind: facts.kind,
        system_identifier: facts.system_identifier,
        page_magic: facts.header.map_or(0, |header| header.page_magic),
        segment_size_bytes: facts.header.map_or(0, |header| header.segment_size_bytes),
        wal_block_size_bytes: facts.header.map_or(0, |header| header.block_size_bytes),
        members: reading.done,
        seal: None,
    };
    table.seal = digests.map(|digests| sign(keys, &header, &table, digests)).transpose()?;
    let frame = table.to_frame(&header, index.frame_count())?;
    object.append_shown(&frame)?;
    let table_bytes = (frame.len() - crate::format::frame::FRAME_HEADER_BYTES) as u32;
    index.push(IndexEntry { stored_size_bytes: table_bytes, raw_size_bytes: table_bytes });
    table
        .check_frames(&index, header.frame_size_bytes)
        .map_err(|error| Error::new(ErrorKind::Bug, format!("write {name}"), error.message()))?;
    let trailer = index.to_trailer(&header.as_stripe());
    object.append_shown(&trailer)?;
    let stored_bytes = index.end_offset() + trailer.len() as u64;
    members.iter().try_for_each(|member| member.content.check_unchanged())?;
    let is_new = object.commit()?;
    if is_new {
        confirm(storage, name, stored_bytes)?;
    }
    Ok(Written { is_new, members: table.members, stored_bytes })
}

/// The seal of the bundle with this header and table, whose frames have these digests.
fn sign(keys: &Keys, header: &BundleHeader, table: &MemberTable, digests: Vec<FrameDigest>) -> Result<BundleSeal> {
    let mut seal = BundleSeal { frame_digests: digests, ..BundleSeal::default() };
    let (_, signature) = keys.signing().sign(Signed::Wal, |signer| {
        signer.clone_into(&mut seal.signer);
        Ok(table.signed_bytes(header, &seal))
    })?;
    Ok(BundleSeal { signature, ..seal })
}

/// Cuts members into frames, one member after the other.
struct Reading<'a> {
    members: std::slice::Iter<'a, NewMember<'a>>,
    current: Option<Current<'a>>,
    /// What the pages of WAL are like, if it is WAL.
    layout: Option<RelationLayout>,
    frame_size: u64,
    next_frame: u64,
    done: Vec<Member>,
}

struct Current<'a> {
    member: &'a NewMember<'a>,
    content_bytes: u64,
    read_bytes: u64,
    crc32c: u32,
    walker: Option<WalWalker>,
}

impl<'a> Reading<'a> {
    fn new(members: &'a [NewMember<'a>], frame_size_bytes: u32, header: Option<SegmentHeader>) -> Result<Self> {
        let mut reading = Reading {
            members: members.iter(),
            current: None,
            layout: header.map(|header| RelationLayout::wal(header.block_size_bytes)),
            frame_size: u64::from(frame_size_bytes),
            next_frame: 0,
            done: Vec::new(),
        };
        reading.begin_next()?;
        Ok(reading)
    }

    /// Goes to the next member that has content.
    fn begin_next(&mut self) -> Result<()> {
        for member in self.members.by_ref() {
            let content_bytes = member.content.end_of_content()?;
            let walker = match &member.look {
                Look::Wal(place) => Some(WalWalker::new(*place)),
                Look::Nothing | Look::Walked(_) | Look::History(_) => None,
            };
            let current = Current { member, content_bytes, read_bytes: 0, crc32c: 0, walker };
            if content_bytes > 0 {
                self.current = Some(current);
                return Ok(());
            }
            self.done.push(current.finish(self.frame_size, self.next_frame));
        }
        Ok(())
    }

    /// Fills in the next frame.
    fn next_frame(&mut self, raw: &mut Vec<u8>) -> Result<Option<Filled>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        let length = (current.content_bytes - current.read_bytes).min(self.frame_size);
        raw.resize(length as usize, 0);
        current.member.content.read_at(raw, current.read_bytes)?;
        let crc = crc32c(raw);
        current.crc32c = combine(current.crc32c, crc, length);
        if let Some(walker) = &mut current.walker {
            walker.feed(raw);
        }
        let pages = self.layout.clone().map(|layout| {
            let offset = u64::from(current.member.piece_offset) + current.read_bytes;
            (first_page_at(offset, layout.page_size_bytes).min(raw.len()), layout)
        });
        current.read_bytes += length;
        if current.read_bytes == current.content_bytes
            && let Some(current) = self.current.take()
        {
            let member = current.finish(self.frame_size, self.next_frame);
            self.next_frame += u64::from(member.frame_count);
            self.done.push(member);
            self.begin_next()?;
        }
        Ok(Some(Filled { crc32c: crc, pages }))
    }
}

/// How far behind `offset` of a segment the next page starts.
fn first_page_at(offset: u64, page_size_bytes: u32) -> usize {
    let page_size = u64::from(page_size_bytes);
    (offset.next_multiple_of(page_size.max(1)) - offset) as usize
}

impl Current<'_> {
    fn finish(self, frame_size: u64, first_frame: u64) -> Member {
        let size_bytes = self.member.content.size_bytes();
        let zeros = size_bytes - self.content_bytes;
        let facts = match (&self.member.look, self.walker) {
            (Look::History(history), _) => MemberFacts::History(history.clone()),
            (Look::Walked(facts), _) => MemberFacts::Wal(facts.clone()),
            (_, Some(mut walker)) => {
                walker.feed_zeros(zeros);
                MemberFacts::Wal(walker.finish())
            }
            _ => MemberFacts::None,
        };
        Member {
            name: self.member.name.clone(),
            size_bytes,
            content_bytes: self.content_bytes,
            crc32c: combine(self.crc32c, crc32c_of_zeros(zeros), zeros),
            first_frame,
            frame_count: self.content_bytes.div_ceil(frame_size) as u32,
            piece_offset: self.member.piece_offset,
            facts,
        }
    }
}
