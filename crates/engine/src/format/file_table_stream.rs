//! The file table at rest: a header, then compressed blocks of entries and runs; paths share prefixes with the one before.

use super::FORMAT_VERSION;
use super::checksum::{crc32c, xxh3};
use super::file_table::{EntryKind, FileEntry, FileTable, Place, Run, ZEROS};
use super::object_digest::{ObjectHasher, ObjectSums};
use super::wire::{FieldReader, FieldWriter, damaged, put_varint};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{FILE_COUNT_MAX, PATH_BYTES_MAX, PRIOR_COUNT_MAX, STRIPE_COUNT_MAX};
use crate::terms::{FileId, SetId, SetIndex, StripeIndex};

/// First bytes of a file table.
pub const FILE_TABLE_MAGIC: [u8; 8] = *b"PHFILES\x01";
const HEADER_BYTES: usize = 64;
const BLOCK_HEADER_BYTES: usize = 16;
/// How far the place numbers of the same stripe of two neighbour sets of a chain are apart.
const SETS_APART: u64 = STRIPE_COUNT_MAX as u64;
/// A block is closed at the first element boundary after this many raw bytes.
const BLOCK_RAW_BYTES: usize = 256 * 1024;
/// Longest raw block: one more element (two paths and some numbers) may follow the boundary.
const BLOCK_RAW_BYTES_MAX: usize = BLOCK_RAW_BYTES + 2 * PATH_BYTES_MAX + 256;

impl FileTable {
    /// Writes the table in pieces to `sink`.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write(&self, set_id: SetId, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<ObjectSums> {
        let mut out = BlockSink {
            sink,
            raw: Vec::with_capacity(BLOCK_RAW_BYTES_MAX),
            stored: Vec::new(),
            hasher: ObjectHasher::default(),
        };
        let mut header = [0u8; HEADER_BYTES];
        FieldWriter::new(&mut header)
            .put(&FILE_TABLE_MAGIC)
            .u16(FORMAT_VERSION)
            .reserved(6)
            .put(&set_id.0)
            .u64(self.entries.len() as u64)
            .u64(self.runs.len() as u64);
        let sum = crc32c(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        out.emit_bytes(&header)?;
        let mut previous: &[u8] = &[];
        for file in self.ids() {
            self.put_entry(&mut out.raw, file, previous);
            out.boundary()?;
            for run in self.runs(file) {
                put_run(&mut out.raw, run);
                out.boundary()?;
            }
            previous = self.path(file);
        }
        out.close_block()?;
        Ok(out.hasher.finish())
    }

    fn put_entry(&self, out: &mut Vec<u8>, file: FileId, previous: &[u8]) {
        let (entry, path, target) = (self.entry(file), self.path(file), self.target(file));
        let shared = path.iter().zip(previous).take_while(|(a, b)| a == b).count();
        out.push(match entry.kind {
            EntryKind::Directory => 0,
            EntryKind::File => 1,
            EntryKind::Symlink => 2,
        });
        put_varint(out, shared as u64);
        put_varint(out, (path.len() - shared) as u64);
        out.extend_from_slice(&path[shared..]);
        put_varint(out, u64::from(entry.mode));
        put_varint(out, zigzag(entry.mtime_s));
        match entry.kind {
            EntryKind::Directory => {}
            EntryKind::Symlink => {
                put_varint(out, target.len() as u64);
                out.extend_from_slice(target);
            }
            EntryKind::File => {
                put_varint(out, entry.size_bytes);
                out.extend_from_slice(&entry.crc32c.to_le_bytes());
                put_varint(out, u64::from(entry.run_count));
            }
        }
    }

    /// Reads a table of set `set_id` from `source`, which fills a buffer exactly or fails.
    ///
    /// # Errors
    /// `Damage` if a checksum, bound or rule does not hold; those of `source`.
    pub fn read(
        set_id: SetId,
        size_bytes: u64,
        source: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<(FileTable, ObjectSums)> {
        let mut input = BlockSource::new(source, size_bytes);
        let mut header = [0u8; HEADER_BYTES];
        input.take_bytes(&mut header)?;
        let (file_count, run_count) = read_header(&header, set_id)?;
        let mut table = FileTable::default();
        // Counts are claims until the entries were read: memory grows with what was really there.
        let mut content_bytes = 0u64;
        for _ in 0..file_count {
            let (file, runs) = table.read_entry(&mut input)?;
            let size_bytes = table.entries[file.0 as usize].size_bytes;
            content_bytes =
                content_bytes.checked_add(size_bytes).ok_or_else(|| damaged(WHAT, "its sizes add up to too much"))?;
            let mut offset = 0u64;
            for _ in 0..runs {
                let run = input.run(offset)?;
                offset = run.end();
                table.runs.push(run);
            }
            let entry = &table.entries[file.0 as usize];
            if entry.kind == EntryKind::File && offset != entry.size_bytes {
                return Err(damaged(WHAT, "the runs of a file do not add up to its size"));
            }
        }
        let digest = input.finish()?;
        if table.run_count() != run_count {
            return Err(damaged(WHAT, "its run count does not hold"));
        }
        Ok((table, digest))
    }

    fn read_entry(&mut self, input: &mut BlockSource<'_>) -> Result<(FileId, u32)> {
        let kind = match input.byte()? {
            0 => EntryKind::Directory,
            1 => EntryKind::File,
            2 => EntryKind::Symlink,
            _ => return Err(damaged(WHAT, "an entry is of an unknown kind")),
        };
        let shared = input.length(PATH_BYTES_MAX)?;
        let previous =
            self.entries.last().map_or(0..0, |entry| entry.path_start..entry.path_start + usize::from(entry.path_len));
        if shared > previous.len() {
            return Err(damaged(WHAT, "a path shares more than there is"));
        }
        let suffix = input.bytes_of(PATH_BYTES_MAX - shared)?;
        let path_start = self.paths.len();
        self.paths.extend_from_within(previous.start..previous.start + shared);
        self.paths.extend_from_slice(suffix);
        let path_len = (self.paths.len() - path_start) as u16;
        check_path(&self.paths[path_start..])?;
        let mode = input.varint()? as u32 & 0o7777;
        let mtime_s = unzigzag(input.varint()?);
        let mut entry = FileEntry {
            path_start,
            path_len,
            target_len: 0,
            kind,
            mode,
            mtime_s,
            size_bytes: 0,
            crc32c: 0,
            run_count: 0,
            run_start: self.runs.len(),
        };
        match kind {
            EntryKind::Directory => {}
            EntryKind::Symlink => {
                let target = input.bytes_of(PATH_BYTES_MAX)?;
                entry.target_len = target.len() as u16;
                self.paths.extend_from_slice(target);
            }
            EntryKind::File => {
                entry.size_bytes = input.varint()?;
                entry.crc32c = input.u32()?;
                entry.run_count =
                    u32::try_from(input.varint()?).map_err(|_| damaged(WHAT, "a run count is out of bounds"))?;
            }
        }
        if self.entries.len() as u64 >= FILE_COUNT_MAX {
            return Err(damaged(WHAT, "it has too many files"));
        }
        self.entries.push(entry);
        Ok((FileId(self.entries.len() as u32 - 1), entry.run_count))
    }
}

const WHAT: &str = "the file table";

/// A restore joins the path to its target directory, so it must stay below it: relative, no empty or dot parts, no NUL.
fn check_path(path: &[u8]) -> Result<()> {
    let safe = path
        .split(|byte| *byte == b'/')
        .all(|part| !part.is_empty() && part != b"." && part != b".." && !part.contains(&0));
    if safe {
        Ok(())
    } else {
        Err(damaged(WHAT, &format!("path {:?} could leave the target directory", String::from_utf8_lossy(path))))
    }
}

fn read_header(header: &[u8; HEADER_BYTES], set_id: SetId) -> Result<(u64, u64)> {
    let mut fields = FieldReader::new(header, WHAT);
    if fields.take(8)? != FILE_TABLE_MAGIC {
        return Err(damaged(WHAT, "it does not start with the file table magic"));
    }
    let (body, sum) = header.split_at(HEADER_BYTES - 4);
    if crc32c(body).to_le_bytes() != sum {
        return Err(damaged(WHAT, "the checksum of its header does not match"));
    }
    let version = fields.u16()?;
    if version != FORMAT_VERSION {
        return Err(damaged(WHAT, &format!("format version {version} is not known to this build")));
    }
    fields.reserved(6)?;
    if fields.id()? != set_id.0 {
        return Err(damaged(WHAT, "it belongs to another backup set"));
    }
    let counts = (fields.u64()?, fields.u64()?);
    fields.reserved(HEADER_BYTES - 4 - 48)?;
    Ok(counts)
}

fn put_run(out: &mut Vec<u8>, run: &Run) {
    put_varint(out, run.size_bytes);
    let place = 1 + u64::from(run.stripe) + SETS_APART * u64::from(run.set);
    put_varint(out, if run.stripe == ZEROS { 0 } else { place });
    if run.stripe != ZEROS {
        put_varint(out, run.first_frame);
        put_varint(out, u64::from(run.offset_in_frame));
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

struct BlockSink<'a> {
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
    raw: Vec<u8>,
    stored: Vec<u8>,
    hasher: ObjectHasher,
}

impl BlockSink<'_> {
    fn emit_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        (self.sink)(bytes)
    }

    fn boundary(&mut self) -> Result<()> {
        if self.raw.len() >= BLOCK_RAW_BYTES { self.close_block() } else { Ok(()) }
    }

    fn close_block(&mut self) -> Result<()> {
        if self.raw.is_empty() {
            return Ok(());
        }
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        stored.reserve(zstd_safe::compress_bound(self.raw.len()));
        let bug = |code| Error::new(ErrorKind::Bug, "compress the file table", zstd_safe::get_error_name(code));
        zstd_safe::compress(&mut stored, &self.raw, 3).map_err(bug)?;
        let mut header = [0u8; BLOCK_HEADER_BYTES];
        FieldWriter::new(&mut header).u32(self.raw.len() as u32).u32(stored.len() as u32).u64(xxh3(&stored));
        self.emit_bytes(&header)?;
        self.emit_bytes(&stored)?;
        self.raw.clear();
        self.stored = stored;
        Ok(())
    }
}

struct BlockSource<'a> {
    source: &'a mut dyn FnMut(&mut [u8]) -> Result<()>,
    left_bytes: u64,
    raw: Vec<u8>,
    position: usize,
    stored: Vec<u8>,
    hasher: ObjectHasher,
}

impl<'a> BlockSource<'a> {
    fn new(source: &'a mut dyn FnMut(&mut [u8]) -> Result<()>, size_bytes: u64) -> Self {
        BlockSource {
            source,
            left_bytes: size_bytes,
            raw: Vec::with_capacity(BLOCK_RAW_BYTES_MAX),
            position: 0,
            stored: Vec::new(),
            hasher: ObjectHasher::default(),
        }
    }

    fn take_bytes(&mut self, into: &mut [u8]) -> Result<()> {
        self.left_bytes =
            self.left_bytes.checked_sub(into.len() as u64).ok_or_else(|| damaged(WHAT, "it ends too early"))?;
        (self.source)(into)?;
        self.hasher.update(into);
        Ok(())
    }

    fn next_block(&mut self) -> Result<()> {
        let mut header = [0u8; BLOCK_HEADER_BYTES];
        self.take_bytes(&mut header)?;
        let mut fields = FieldReader::new(&header, WHAT);
        let (raw_size, stored_size, sum) = (fields.u32()? as usize, fields.u32()? as usize, fields.u64()?);
        if raw_size == 0 || raw_size > BLOCK_RAW_BYTES_MAX || stored_size > zstd_safe::compress_bound(raw_size) {
            return Err(damaged(WHAT, "a block size is out of bounds"));
        }
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(stored_size, 0);
        self.take_bytes(&mut stored)?;
        if xxh3(&stored) != sum {
            return Err(damaged(WHAT, "the checksum of a block does not match"));
        }
        self.raw.clear();
        self.position = 0;
        let decoded = zstd_safe::decompress(&mut self.raw, &stored)
            .map_err(|code| damaged(WHAT, zstd_safe::get_error_name(code)))?;
        self.stored = stored;
        if decoded == raw_size { Ok(()) } else { Err(damaged(WHAT, "a block has not the size it says")) }
    }

    fn byte(&mut self) -> Result<u8> {
        if self.position == self.raw.len() {
            self.next_block()?;
        }
        self.position += 1;
        Ok(self.raw[self.position - 1])
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if (bits << shift) >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged(WHAT, "a number is too large"))
    }

    fn length(&mut self, most: usize) -> Result<usize> {
        let length = self.varint()?;
        if length > most as u64 { Err(damaged(WHAT, "a length is out of bounds")) } else { Ok(length as usize) }
    }

    fn bytes_of(&mut self, most: usize) -> Result<&[u8]> {
        let length = self.length(most)?;
        let start = self.position;
        self.position += length;
        self.raw.get(start..self.position).ok_or_else(|| damaged(WHAT, "an element crosses its block"))
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0u8; 4];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(u32::from_le_bytes(bytes))
    }

    fn run(&mut self, file_offset: u64) -> Result<Run> {
        let size_bytes = self.varint()?;
        if size_bytes == 0 || file_offset.checked_add(size_bytes).is_none() {
            return Err(damaged(WHAT, "a run's size is out of bounds"));
        }
        let place = match self.varint()? {
            0 => Place::Zeros,
            place if place <= SETS_APART * (PRIOR_COUNT_MAX as u64 + 1) => {
                let (set, stripe) = ((place - 1) / SETS_APART, (place - 1) % SETS_APART);
                let (set, stripe) = (SetIndex(set as u16), StripeIndex(stripe as u16));
                let first_frame = self.varint()?;
                let offset_in_frame =
                    u32::try_from(self.varint()?).map_err(|_| damaged(WHAT, "an offset is out of bounds"))?;
                Place::Frames { set, stripe, first_frame, offset_in_frame }
            }
            _ => return Err(damaged(WHAT, "a stripe number is out of bounds")),
        };
        Ok(Run::new(file_offset, size_bytes, place))
    }

    fn finish(self) -> Result<ObjectSums> {
        if self.left_bytes != 0 || self.position != self.raw.len() {
            return Err(damaged(WHAT, "bytes follow its last entry"));
        }
        Ok(self.hasher.finish())
    }
}
