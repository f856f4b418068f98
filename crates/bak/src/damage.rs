//! What is wrong with backup files, and where.

use serde::Serialize;

use crate::mtf::Place;
use crate::page::PageId;

/// Entries of a list of damage at most; more is only counted.
pub const DAMAGE_LISTED_MAX: usize = 10_000;

/// Which check found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Chunks of a compressed file: their headers, checksums and content.
    Chunk,
    /// Headers of blocks and streams, and how they follow each other.
    Structure,
    /// What the server says of the set.
    Description,
    /// Checksums and torn bits of pages.
    Page,
    /// Checksums of a set made WITH CHECKSUM.
    BackupChecksum,
    /// Files that belong together.
    MediaSet,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The backup file.
    pub file: String,
    /// Which check found it.
    pub layer: Layer,
    /// Byte of the file: of the chunk that holds it, if the file is compressed. None if it is about a whole file.
    pub offset: Option<u64>,
    /// Byte of the MTF stream in the file.
    pub stream_offset: Option<u64>,
    /// Number of the set in the file, from 1.
    pub set: Option<u16>,
    /// The page, if it is one.
    pub page: Option<PageId>,
    /// What is wrong.
    pub cause: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.file)?;
        if let Some(offset) = self.offset {
            write!(out, " at byte {offset}")?;
            if let Some(stream_offset) = self.stream_offset.filter(|stream_offset| *stream_offset != offset) {
                write!(out, " (byte {stream_offset} uncompressed)")?;
            }
        }
        if let Some(page) = self.page {
            write!(out, ", page {page}")?;
        }
        write!(out, ": {}", self.cause)
    }
}

/// Damage found so far; memory stays bounded.
#[derive(Clone, Debug, Default)]
pub struct DamageList {
    /// The first ones.
    pub listed: Vec<Damage>,
    /// All of them.
    pub count: u64,
}

impl DamageList {
    /// Adds one.
    pub fn add(&mut self, damage: Damage) {
        self.count += 1;
        if self.listed.len() < DAMAGE_LISTED_MAX {
            self.listed.push(damage);
        }
    }

    /// Adds one at a place of a file.
    pub fn at(&mut self, file: &str, layer: Layer, place: Place, set: Option<u16>, cause: String) {
        self.add(Damage {
            file: file.to_owned(),
            layer,
            offset: Some(place.file_offset),
            stream_offset: Some(place.stream_offset),
            set,
            page: None,
            cause,
        });
    }

    /// Adds one that is about a whole file.
    pub fn whole(&mut self, file: &str, layer: Layer, cause: String) {
        let (offset, stream_offset) = (None, None);
        self.add(Damage { file: file.to_owned(), layer, offset, stream_offset, set: None, page: None, cause });
    }
}
