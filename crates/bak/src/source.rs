//! Cuts a backup file into pieces of its MTF stream: parts of a plain file, chunks of a compressed one.
//!
//! Reading and cutting is the caller's thread; chunks are checked and decoded, and sectors summed, by as many threads as
//! the caller says. Memory is a few pieces for each thread, whatever the file claims.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use pagehaul_engine::codec::xpress::DecodeState;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::in_order::{Caller, Work, in_order};

use crate::bytes::BakFile;
use crate::checksum::{SECTOR_BYTES, chunk_sum};
use crate::container::{
    FIRST_RECORD, FLAG_XPRESS, RECORD_HEADER_BYTES, RecordHeader, TAIL_BYTES, decode_chunk, recognize,
};
use crate::mtf::{BLOCK_HEADER_BYTES, Block, BlockKind};
use crate::piece::Piece;

/// Bytes of a plain file in one piece.
const PLAIN_PIECE_BYTES: usize = 1 << 20;
/// Raw bytes that a thread is given at once, and a piece more.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes that are read ahead of records.
const WINDOW_BYTES: usize = 4 << 20;
/// The longest filemark.
const FILEMARK_BYTES_MAX: usize = 4096;
/// Candidates for a record that are checked after one that was lost, so that no input takes for ever.
const CANDIDATES_MAX: usize = 4096;

/// Hears of bytes that were read since the last call; an error stops the work.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// How a file holds its MTF stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// As it is.
    Plain,
    /// In compressed chunks (MSSQLBAK).
    Compressed,
}

/// The layout of `file`.
///
/// # Errors
/// `Damage` if it is no backup file, or one of a version that is not known; `Source` if it cannot be read.
pub fn layout(file: &BakFile) -> Result<Layout> {
    let refused = |cause: String| {
        Error::new(ErrorKind::Damage, format!("read backup file {}", file.name), cause)
            .hint("either the file is damaged, or it is no SQL Server backup, or a kind of it that this version does not know")
    };
    let mut head = [0; BLOCK_HEADER_BYTES];
    let length = file.read_full_at(&mut head, 0)?;
    if recognize(&head[..length]).map_err(refused)? {
        return Ok(Layout::Compressed);
    }
    if head.starts_with(&BlockKind::Tape.tag()) || Block::parse_header(&head).is_ok() {
        return Ok(Layout::Plain);
    }
    Err(refused(format!("it begins with neither TAPE nor MSSQLBAK, but with {:02x?}", &head[..length.min(8)])))
}

/// A piece, and what it is made of.
#[derive(Default)]
struct Slot {
    /// The chunk that is to be decoded into the piece; None if the piece is whole already but for its sums.
    chunk: Option<Chunk>,
    piece: Piece,
}

/// A compressed chunk, where it was read.
struct Chunk {
    header: RecordHeader,
    window: Arc<Vec<u8>>,
    /// Where in the window it is, with the bytes behind it.
    place: Range<usize>,
}

impl Slot {
    fn finish(&mut self, state: &mut DecodeState) {
        let Slot { chunk, piece } = self;
        if let Some(Chunk { header, window, place }) = chunk.take() {
            // What the piece held before is written over, so it need not be cleared.
            piece.bytes.resize(header.raw_size_bytes, 0);
            if let Err(cause) = decode_chunk(header, &window[place], &mut piece.bytes, state) {
                piece.bytes.fill(0);
                piece.damage = Some(cause);
            }
        }
        piece.take_xors();
    }
}

/// What a thread is given at once: enough that handing it over does not count.
#[derive(Default)]
struct Batch {
    slots: Vec<Slot>,
    /// Slots in use.
    used: usize,
}

impl Batch {
    /// Fills the batch; gives whether there was anything.
    fn fill(&mut self, cutter: &mut Cutter<'_>) -> Result<bool> {
        self.used = 0;
        let mut raw_bytes = 0;
        while raw_bytes < BATCH_BYTES {
            if self.used == self.slots.len() {
                self.slots.push(Slot::default());
            }
            let slot = &mut self.slots[self.used];
            if !cutter.next(slot)? {
                break;
            }
            raw_bytes += match &slot.chunk {
                Some(chunk) => chunk.header.raw_size_bytes,
                None => slot.piece.bytes.len().max(1),
            };
            self.used += 1;
        }
        Ok(self.used > 0)
    }

    fn in_use(&mut self) -> &mut [Slot] {
        &mut self.slots[..self.used]
    }
}

/// Gives every piece of `file` to `sink`, in order; `progress` hears of bytes of the file that were read.
///
/// # Errors
/// Those of [`layout`] and of `sink`. Damage is no error but a piece that says so.
pub fn read_pieces(
    file: &BakFile,
    threads: u16,
    progress: Progress<'_>,
    sink: &mut dyn FnMut(&Piece) -> Result<()>,
) -> Result<()> {
    let layout = layout(file)?;
    // Sums of plain sectors take no time beside reading them, which must not wait.
    let caller = if layout == Layout::Plain { Caller::Feeds } else { Caller::Calculates };
    let mut cutter = Cutter::new(file, layout)?;
    let unused: RefCell<Vec<Batch>> = RefCell::default();
    let mut told = 0;
    let mut next = || {
        let mut batch = unused.borrow_mut().pop().unwrap_or_default();
        let is_filled = batch.fill(&mut cutter)?;
        progress(cutter.offset - told)?;
        told = cutter.offset;
        Ok(is_filled.then_some(batch))
    };
    let make_work = || -> Work<'static, Batch, Batch> {
        let mut state = DecodeState::new();
        Box::new(move |mut batch| {
            batch.in_use().iter_mut().for_each(|slot| slot.finish(&mut state));
            Ok(batch)
        })
    };
    in_order(threads, caller, &mut next, &make_work, &mut |mut batch| {
        batch.in_use().iter().try_for_each(|slot| sink(&slot.piece))?;
        unused.borrow_mut().push(batch);
        Ok(())
    })
}

/// Reads pieces one after the other, and leaves out what nobody wants.
pub struct PieceReader<'a> {
    cutter: Cutter<'a>,
    state: DecodeState,
    slot: Slot,
}

impl<'a> PieceReader<'a> {
    /// A reader from the beginning of `file`.
    ///
    /// # Errors
    /// Those of [`layout`].
    pub fn new(file: &'a BakFile) -> Result<Self> {
        let mut cutter = Cutter::new(file, layout(file)?)?;
        cutter.plain_piece_bytes = 16 << 10;
        Ok(PieceReader { cutter, state: DecodeState::new(), slot: Slot::default() })
    }

    /// The next piece; None at the end.
    ///
    /// # Errors
    /// `Source` if the file cannot be read.
    pub fn next_piece(&mut self) -> Result<Option<&Piece>> {
        if !self.cutter.next(&mut self.slot)? {
            return Ok(None);
        }
        self.slot.finish(&mut self.state);
        Ok(Some(&self.slot.piece))
    }

    /// Bytes of the file that were passed so far.
    pub fn file_offset(&self) -> u64 {
        self.cutter.offset
    }

    /// Leaves out up to `bytes` of the stream, in whole pieces; gives how many it was.
    ///
    /// # Errors
    /// `Source` if the file cannot be read.
    pub fn skip(&mut self, bytes: u64) -> Result<u64> {
        self.cutter.skip(bytes)
    }
}

/// What a header that cannot be may have been: flag, size of the content, size of the chunk and the zero field each made
/// one that can.
fn mended(header: [u8; RECORD_HEADER_BYTES]) -> Option<RecordHeader> {
    let can_be = |header: &[u8]| RecordHeader::parse(header).ok();
    let with = |at: usize, bytes: &[u8]| {
        let mut header = header;
        header[at..at + bytes.len()].copy_from_slice(bytes);
        can_be(&header)
    };
    with(0, &[FLAG_XPRESS]).or_else(|| with(1, &[1])).or_else(|| with(2, &[1, 0])).or_else(|| with(20, &[0; 4]))
}

/// Walks a file and finds where pieces begin and end.
struct Cutter<'a> {
    file: &'a BakFile,
    layout: Layout,
    size_bytes: u64,
    /// Where the next piece begins in the file, and in the stream.
    offset: u64,
    stream_offset: u64,
    plain_piece_bytes: usize,
    window: Arc<Vec<u8>>,
    window_at: u64,
    /// Others, in which chunks may still be.
    windows: Vec<Arc<Vec<u8>>>,
}

impl<'a> Cutter<'a> {
    fn new(file: &'a BakFile, layout: Layout) -> Result<Self> {
        Ok(Cutter {
            file,
            layout,
            size_bytes: file.size_bytes()?,
            offset: if layout == Layout::Compressed { FIRST_RECORD } else { 0 },
            stream_offset: 0,
            plain_piece_bytes: PLAIN_PIECE_BYTES,
            window: Arc::default(),
            window_at: 0,
            windows: Vec::new(),
        })
    }

    /// Finds what comes next; gives whether there was anything.
    fn next(&mut self, slot: &mut Slot) -> Result<bool> {
        if self.offset >= self.size_bytes {
            return Ok(false);
        }
        let piece = &mut slot.piece;
        piece.file_offset = self.offset;
        piece.stream_offset = self.stream_offset;
        (piece.damage, piece.gap) = (None, false);
        piece.is_plain = self.layout == Layout::Plain;
        slot.chunk = None;
        match self.layout {
            Layout::Plain => self.plain(piece),
            Layout::Compressed => self.record(slot),
        }
    }

    fn plain(&mut self, piece: &mut Piece) -> Result<bool> {
        let length = (self.size_bytes - self.offset).min(self.plain_piece_bytes as u64) as usize;
        piece.bytes.resize(length, 0);
        let read = self.file.read_full_at(&mut piece.bytes, self.offset)?;
        piece.bytes.truncate(read);
        self.pass(read as u64, read as u64);
        Ok(read > 0)
    }

    fn pass(&mut self, file_bytes: u64, stream_bytes: u64) {
        self.offset += file_bytes;
        self.stream_offset += stream_bytes;
    }

    /// A record, or what else may be where one can begin.
    fn record(&mut self, slot: &mut Slot) -> Result<bool> {
        let parsed = RecordHeader::parse(self.view(self.offset, RECORD_HEADER_BYTES)?);
        let mut aligned = self.offset.next_multiple_of(SECTOR_BYTES as u64);
        if parsed.is_err() {
            aligned = self.behind_zeros(aligned)?;
        }
        if self.is_filemark(aligned)? && !self.is_record(parsed.as_ref().ok().copied())? {
            return self.filemark(aligned, &mut slot.piece);
        }
        match parsed {
            Ok(header) => {
                let with_tail = header.stored_size_bytes + TAIL_BYTES;
                let begin = self.offset + RECORD_HEADER_BYTES as u64;
                let length = self.view(begin, with_tail)?.len();
                if length < header.stored_size_bytes {
                    return self.lost(&mut slot.piece, "the file ends inside a chunk");
                }
                let from = (begin - self.window_at) as usize;
                let chunk = Chunk { header, window: Arc::clone(&self.window), place: from..from + length };
                if self.is_lost_behind(header)? {
                    return self.lost(&mut slot.piece, "chunk whose header does not lead to the next one");
                }
                slot.chunk = Some(chunk);
                self.pass((RECORD_HEADER_BYTES + header.stored_size_bytes) as u64, header.raw_size_bytes as u64);
                Ok(true)
            }
            Err(_) if aligned >= self.size_bytes => {
                self.offset = self.size_bytes;
                Ok(false)
            }
            Err(cause) => self.lost(&mut slot.piece, &cause),
        }
    }

    /// Whether what stands before a filemark is a record, perhaps a damaged one, and not just left there by the writer.
    fn is_record(&mut self, parsed: Option<RecordHeader>) -> Result<bool> {
        // What is left there ends in zeros; the checksum of a chunk is hardly ever zero.
        if let Some(header) = parsed {
            return Ok(header.stored_sum != 0 || self.is_sound_record(self.offset)?);
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        let seen = self.view(self.offset, RECORD_HEADER_BYTES)?;
        if seen.len() < RECORD_HEADER_BYTES {
            return Ok(false);
        }
        header.copy_from_slice(seen);
        let Some(mended) = mended(header) else { return Ok(false) };
        let content = self.view(self.offset + RECORD_HEADER_BYTES as u64, mended.stored_size_bytes)?;
        Ok(chunk_sum(content) == mended.stored_sum || mended.stored_size_bytes == 1 && mended.stored_sum != 0)
    }

    /// A filemark, with zeros behind it that may be part of it: its blocks have 512 or 4096 bytes.
    fn filemark(&mut self, at: u64, piece: &mut Piece) -> Result<bool> {
        let behind = self.behind_zeros(at + SECTOR_BYTES as u64)?;
        let length = (behind - at).min(FILEMARK_BYTES_MAX as u64) as usize;
        piece.file_offset = at;
        piece.bytes.clear();
        piece.bytes.extend_from_slice(self.view(at, length)?);
        piece.is_plain = true;
        self.pass(at - self.offset + length as u64, length as u64);
        Ok(true)
    }

    /// Whether the record at hand is unsound and nothing that can follow one follows it: then its sizes are not to be
    /// trusted either.
    fn is_lost_behind(&mut self, header: RecordHeader) -> Result<bool> {
        let end = self.offset + (RECORD_HEADER_BYTES + header.stored_size_bytes) as u64;
        let follows = RecordHeader::parse(self.view(end, RECORD_HEADER_BYTES)?).is_ok();
        if follows || self.is_sound_record(self.offset)? {
            return Ok(false);
        }
        let next = self.behind_zeros(end.next_multiple_of(SECTOR_BYTES as u64))?;
        Ok(next < self.size_bytes && !self.is_filemark(next)?)
    }

    /// A piece without content that says what is wrong, and a search for the next record or filemark.
    fn lost(&mut self, piece: &mut Piece, cause: &str) -> Result<bool> {
        piece.bytes.clear();
        piece.gap = true;
        let from = self.offset;
        self.offset = self.find_next(from + 1)?;
        let passed = self.offset - from;
        piece.damage = Some(format!("{cause}; {passed} bytes from there on cannot be read"));
        Ok(true)
    }

    /// The next place from `from` on where a sound record or filemark begins; the file's end if there is none.
    fn find_next(&mut self, from: u64) -> Result<u64> {
        let mut candidates = 0;
        for at in from..self.size_bytes {
            if at.is_multiple_of(SECTOR_BYTES as u64) && self.is_filemark(at)? {
                return Ok(at);
            }
            if candidates >= CANDIDATES_MAX {
                continue;
            }
            let head = self.view(at, RECORD_HEADER_BYTES)?;
            if head.first() == Some(&FLAG_XPRESS) && RecordHeader::parse(head).is_ok() {
                candidates += 1;
                if self.is_sound_record(at)? {
                    return Ok(at);
                }
            }
        }
        Ok(self.size_bytes)
    }

    fn is_sound_record(&mut self, at: u64) -> Result<bool> {
        let Ok(header) = RecordHeader::parse(self.view(at, RECORD_HEADER_BYTES)?) else { return Ok(false) };
        let content = self.view(at + RECORD_HEADER_BYTES as u64, header.stored_size_bytes)?;
        Ok(content.len() == header.stored_size_bytes && chunk_sum(content) == header.stored_sum)
    }

    fn is_filemark(&mut self, at: u64) -> Result<bool> {
        let header = self.view(at, BLOCK_HEADER_BYTES)?;
        let begins = header.starts_with(&BlockKind::Filemark.tag());
        Ok(begins && Block::parse_header(header).is_ok())
    }

    /// The first sector from `at` on with a byte that is not zero; the file's end if there is none.
    fn behind_zeros(&mut self, at: u64) -> Result<u64> {
        let mut at = at;
        while at < self.size_bytes {
            let sector = self.view(at, SECTOR_BYTES)?;
            if sector.is_empty() || sector.iter().any(|byte| *byte != 0) {
                return Ok(at);
            }
            at += SECTOR_BYTES as u64;
        }
        Ok(self.size_bytes)
    }

    /// Bytes of the file at `at`, fewer at its end.
    fn view(&mut self, at: u64, length: usize) -> Result<&[u8]> {
        let end = at.saturating_add(length as u64).min(self.size_bytes);
        if at < self.window_at || end > self.window_at + self.window.len() as u64 {
            let size = self.size_bytes.saturating_sub(at).min(WINDOW_BYTES.max(length) as u64) as usize;
            let file = self.file;
            let window = self.begin_window();
            window.resize(size, 0);
            let read = file.read_full_at(window, at)?;
            window.truncate(read);
            self.window_at = at;
        }
        let from = (at - self.window_at).min(self.window.len() as u64) as usize;
        let to = (end.max(at) - self.window_at).min(self.window.len() as u64) as usize;
        Ok(&self.window[from..to])
    }

    /// A window that no chunk is in any more, as the one at hand.
    fn begin_window(&mut self) -> &mut Vec<u8> {
        let is_unused = |window: &Arc<Vec<u8>>| Arc::strong_count(window) == 1;
        let unused = self.windows.iter().position(is_unused).map(|index| self.windows.swap_remove(index));
        let before = std::mem::replace(&mut self.window, unused.unwrap_or_default());
        self.windows.push(before);
        Arc::make_mut(&mut self.window)
    }

    fn skip(&mut self, bytes: u64) -> Result<u64> {
        let mut skipped = 0;
        if self.layout == Layout::Plain {
            skipped = bytes.min(self.size_bytes.saturating_sub(self.offset));
            self.pass(skipped, skipped);
            return Ok(skipped);
        }
        while let Ok(header) = RecordHeader::parse(self.view(self.offset, RECORD_HEADER_BYTES)?) {
            let (stored, raw) = (header.stored_size_bytes as u64, header.raw_size_bytes as u64);
            let end = self.offset + RECORD_HEADER_BYTES as u64 + stored;
            if skipped + raw > bytes || end > self.size_bytes {
                break;
            }
            self.pass(end - self.offset, raw);
            skipped += raw;
        }
        Ok(skipped)
    }
}
