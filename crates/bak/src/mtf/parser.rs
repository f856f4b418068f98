//! Walks blocks and streams of an MTF stream that comes in pieces, with little memory and without trust in lengths.
//!
//! What is damaged is told and walked over: after a header that is not right the parser looks at every sector for the
//! next sound descriptor block.

use super::block::{BLOCK_HEADER_BYTES, Block, BlockKind, TapeHeader};
use super::stream::{STREAM_HEADER_BYTES, StreamHeader, StreamKind};
use crate::checksum::{SECTOR_BYTES, sector_xor};
use crate::piece::Piece;

/// The largest stream that is held in memory; descriptions of databases with tens of thousands of files fit.
const GATHERED_BYTES_MAX: u64 = 64 << 20;

/// Zero bytes before the pages or the log in a stream.
const LEADING_BYTES: u64 = 2;

/// Where in a file something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Byte of the file: of the record that holds it, if the file is compressed.
    pub file_offset: u64,
    /// Byte of the MTF stream in it; the same as the file offset where nothing is compressed.
    pub stream_offset: u64,
}

/// What to do with a stream's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing.
    Skip,
    /// Get it whole.
    Gather,
    /// Get it sector by sector, behind its two leading bytes.
    Sectors,
}

/// 512 bytes of pages or log.
#[derive(Clone, Copy, Debug)]
pub struct Sector<'a> {
    /// Its content; a last one may be shorter.
    pub bytes: &'a [u8],
    /// Its words of 32 bits, exclusive-ored.
    pub xor: u32,
    /// Whether the content could not be read and the bytes are made up.
    pub is_lost: bool,
}

/// Who wants to know what is in an MTF stream.
pub trait MtfSink {
    /// A sound block.
    fn block(&mut self, at: Place, block: &Block);

    /// A stream of that block begins.
    fn stream(&mut self, at: Place, stream: &StreamHeader) -> Want;

    /// A stream that was gathered.
    fn gathered(&mut self, at: Place, stream: &StreamHeader, content: &[u8]);

    /// The next sector of a stream.
    fn sector(&mut self, at: Place, sector: Sector<'_>);

    /// A stream's sectors are all there; or `is_cut` because the file ended first.
    fn stream_end(&mut self, at: Place, stream: &StreamHeader, is_cut: bool);

    /// Something is not as it should be; walking goes on behind it.
    fn damage(&mut self, at: Place, cause: String);
}

/// What the parser waits for.
enum State {
    /// The next block, or zeros between blocks.
    BlockHeader,
    /// The block's own fields.
    BlockBody(Block),
    StreamHeader,
    /// A stream that is gathered.
    Gather(StreamHeader, Place),
    /// A stream's leading bytes.
    Leading(StreamHeader),
    /// A stream's sectors: how many bytes are left.
    Sectors(StreamHeader, u64),
    /// Bytes to pass over, then something else.
    Skip(u64, After),
    /// A sector that may be the next sound block.
    Resync,
}

/// What comes after bytes that are passed over.
#[derive(Clone, Copy)]
enum After {
    Stream,
    Block,
}

/// See the module's documentation.
pub struct MtfParser {
    state: State,
    /// Bytes that are being gathered.
    held: Vec<u8>,
    /// Whether any of them are made up.
    held_is_lost: bool,
    /// Where they begin.
    held_at: Place,
    /// How many are wanted.
    wanted: usize,
    /// Where the next byte is.
    at: Place,
    filemark_bytes: u64,
}

impl Default for MtfParser {
    fn default() -> Self {
        MtfParser {
            state: State::BlockHeader,
            held: Vec::new(),
            held_is_lost: false,
            held_at: Place::default(),
            wanted: BLOCK_HEADER_BYTES,
            at: Place::default(),
            filemark_bytes: SECTOR_BYTES as u64,
        }
    }
}

impl MtfParser {
    /// How many of the next bytes of the stream need not be handed in as they are.
    pub fn skippable_bytes(&self) -> u64 {
        if let State::Skip(left, _) = self.state { left } else { 0 }
    }

    /// Passes over bytes of which [`Self::skippable_bytes`] said so.
    pub fn skip(&mut self, bytes: u64) {
        if let State::Skip(left, after) = self.state {
            self.at.stream_offset += bytes;
            self.passed(left.saturating_sub(bytes), after);
        }
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, piece: &Piece, sink: &mut dyn MtfSink) {
        self.at = Place { file_offset: piece.file_offset, stream_offset: piece.stream_offset };
        let mut from = 0;
        while from < piece.bytes.len() {
            let used = self.step(piece, from, sink);
            from += used;
            self.at.stream_offset += used as u64;
            if piece.is_plain {
                self.at.file_offset += used as u64;
            }
        }
    }

    /// An unknown number of bytes is missing here: looks for the next block.
    pub fn lose_track(&mut self, sink: &mut dyn MtfSink) {
        let state = std::mem::replace(&mut self.state, State::Resync);
        self.hold(SECTOR_BYTES);
        if let State::Sectors(stream, _) = state {
            sink.stream_end(self.at, &stream, true);
        }
    }

    /// Says what was left unfinished when the file ended.
    pub fn finish(&mut self, sink: &mut dyn MtfSink) {
        let at = self.at;
        match std::mem::replace(&mut self.state, State::BlockHeader) {
            State::BlockHeader | State::Resync => {
                if self.held.iter().any(|byte| *byte != 0) {
                    sink.damage(self.held_at, "the file ends inside a descriptor block".to_owned());
                }
            }
            State::BlockBody(block) => {
                sink.damage(at, format!("the file ends inside descriptor block {}", block.kind.name()));
            }
            State::StreamHeader => sink.damage(at, "the file ends before a stream's header".to_owned()),
            State::Gather(stream, _) | State::Leading(stream) => {
                sink.damage(at, format!("the file ends inside stream {}", stream.name()));
            }
            State::Sectors(stream, left) => {
                sink.damage(
                    at,
                    format!("the file ends inside stream {}: {left} bytes of it are missing", stream.name()),
                );
                sink.stream_end(at, &stream, true);
            }
            State::Skip(left, _) => sink.damage(at, format!("the file ends {left} bytes too early")),
        }
        self.hold(BLOCK_HEADER_BYTES);
    }

    /// Takes what it can of the piece's bytes from `from` on; gives how many.
    fn step(&mut self, piece: &Piece, from: usize, sink: &mut dyn MtfSink) -> usize {
        let rest = &piece.bytes[from..];
        match &mut self.state {
            State::Skip(left, after) => {
                let used = (*left).min(rest.len() as u64);
                let (left, after) = (*left - used, *after);
                self.passed(left, after);
                used as usize
            }
            State::Sectors(..) => self.take_sectors(piece, from, sink),
            _ => self.gather(piece, rest, sink),
        }
    }

    fn gather(&mut self, piece: &Piece, rest: &[u8], sink: &mut dyn MtfSink) -> usize {
        if self.held.is_empty() {
            self.held_at = self.at;
        }
        let used = (self.wanted - self.held.len()).min(rest.len());
        self.held.extend_from_slice(&rest[..used]);
        self.held_is_lost |= used > 0 && piece.damage.is_some();
        if self.held.len() == self.wanted {
            self.gathered(sink);
        }
        used
    }

    /// Waits for `wanted` bytes from here on.
    fn hold(&mut self, wanted: usize) {
        self.held.clear();
        self.held_is_lost = false;
        self.wanted = wanted;
    }

    fn passed(&mut self, left: u64, after: After) {
        if left > 0 {
            self.state = State::Skip(left, after);
            return;
        }
        match after {
            After::Stream => self.await_bytes(State::StreamHeader, STREAM_HEADER_BYTES),
            After::Block => self.await_bytes(State::BlockHeader, BLOCK_HEADER_BYTES),
        }
    }

    fn await_bytes(&mut self, state: State, bytes: usize) {
        self.state = state;
        self.hold(bytes);
    }

    /// All wanted bytes are held.
    fn gathered(&mut self, sink: &mut dyn MtfSink) {
        match std::mem::replace(&mut self.state, State::BlockHeader) {
            State::BlockHeader => self.block_header(sink),
            State::BlockBody(block) => self.block_body(block, sink),
            State::StreamHeader => self.stream_header(sink),
            State::Gather(stream, at) => {
                if self.held_is_lost {
                    // The lost chunk was told; half a description would only mislead.
                } else {
                    sink.gathered(at, &stream, &self.held);
                }
                self.stream_is_over(stream.size_bytes);
            }
            State::Leading(stream) => {
                let left = stream.size_bytes - LEADING_BYTES;
                self.state = State::Sectors(stream, left);
                self.hold(left.min(SECTOR_BYTES as u64) as usize);
                if left == 0 {
                    self.sectors_are_over(stream, sink);
                }
            }
            State::Resync => self.resync(sink),
            State::Sectors(..) | State::Skip(..) => {}
        }
    }

    fn block_header(&mut self, sink: &mut dyn MtfSink) {
        if self.held.iter().all(|byte| *byte == 0) {
            // Filemarks of larger media and the end of a file leave zeros.
            return self.passed((SECTOR_BYTES - BLOCK_HEADER_BYTES) as u64, After::Block);
        }
        if self.held_is_lost {
            return self.realign();
        }
        match Block::parse_header(&self.held) {
            Ok(block) => {
                let left = usize::from(block.stream_offset) - BLOCK_HEADER_BYTES;
                if block.kind == BlockKind::Filemark {
                    sink.block(self.held_at, &block);
                    return self.passed(self.filemark_bytes - BLOCK_HEADER_BYTES as u64, After::Block);
                }
                if left == 0 {
                    return self.block_body(block, sink);
                }
                self.await_bytes(State::BlockBody(block), left);
            }
            Err(cause) => {
                sink.damage(self.held_at, cause);
                self.realign();
            }
        }
    }

    /// Looks for the next block from the next sector boundary on.
    fn realign(&mut self) {
        let end = self.held_at.stream_offset + self.held.len() as u64;
        let into = (end % SECTOR_BYTES as u64) as usize;
        self.await_bytes(State::Resync, if into == 0 { SECTOR_BYTES } else { SECTOR_BYTES - into });
    }

    /// A whole sector is held, or what was left of one.
    fn resync(&mut self, sink: &mut dyn MtfSink) {
        let is_whole = self.held.len() == SECTOR_BYTES;
        let known = self.held.get(..4).and_then(|tag| BlockKind::from_tag([tag[0], tag[1], tag[2], tag[3]]));
        if !is_whole || self.held_is_lost || known.is_none() {
            return self.await_bytes(State::Resync, SECTOR_BYTES);
        }
        let Ok(block) = Block::parse_header(&self.held[..BLOCK_HEADER_BYTES]) else {
            return self.await_bytes(State::Resync, SECTOR_BYTES);
        };
        // The sector is in hand already: feed its bytes as if they came now.
        let sector = Piece {
            file_offset: self.held_at.file_offset,
            stream_offset: self.held_at.stream_offset,
            bytes: std::mem::take(&mut self.held),
            ..Piece::default()
        };
        drop(block);
        let at = self.at;
        self.await_bytes(State::BlockHeader, BLOCK_HEADER_BYTES);
        self.feed(&sector, sink);
        self.at = at;
    }

    fn block_body(&mut self, mut block: Block, sink: &mut dyn MtfSink) {
        if self.held_is_lost {
            return self.realign();
        }
        if block.bytes.len() < usize::from(block.stream_offset) {
            block.bytes.extend_from_slice(&self.held);
        }
        if block.kind == BlockKind::Tape
            && let Ok(tape) = TapeHeader::parse(&block)
        {
            self.filemark_bytes = tape.filemark_bytes.into();
        }
        let at = Place {
            file_offset: self.held_at.file_offset,
            stream_offset: self.held_at.stream_offset.saturating_sub(BLOCK_HEADER_BYTES as u64),
        };
        sink.block(at, &block);
        self.await_bytes(State::StreamHeader, STREAM_HEADER_BYTES);
    }

    fn stream_header(&mut self, sink: &mut dyn MtfSink) {
        if self.held_is_lost {
            return self.realign();
        }
        let stream = match StreamHeader::parse(&self.held) {
            Ok(stream) => stream,
            Err(cause) => {
                sink.damage(self.held_at, cause);
                return self.realign();
            }
        };
        let size = stream.size_bytes;
        let at = self.held_at;
        if u64::MAX - at.stream_offset < size.saturating_add(1 << 16) {
            sink.damage(at, format!("stream {} claims {size} bytes", stream.name()));
            return self.realign();
        }
        if stream.kind == StreamKind::Padding {
            return self.padding(size, at, sink);
        }
        match sink.stream(at, &stream) {
            Want::Gather if size > GATHERED_BYTES_MAX => {
                sink.damage(at, format!("stream {} claims {size} bytes, {GATHERED_BYTES_MAX} at most", stream.name()));
                self.realign();
            }
            Want::Gather if size > 0 => self.await_bytes(State::Gather(stream, at), size as usize),
            Want::Sectors if size >= LEADING_BYTES => self.await_bytes(State::Leading(stream), LEADING_BYTES as usize),
            _ => self.passed(size + padding_behind(at, size), After::Stream),
        }
    }

    /// A padding stream leads to the next block, which begins a sector.
    fn padding(&mut self, size: u64, at: Place, sink: &mut dyn MtfSink) {
        let end = at.stream_offset + STREAM_HEADER_BYTES as u64 + size;
        if end.is_multiple_of(SECTOR_BYTES as u64) {
            return self.passed(size, After::Block);
        }
        sink.damage(at, format!("padding of {size} bytes does not end at a sector"));
        self.realign();
    }

    fn stream_is_over(&mut self, size: u64) {
        let begin = self.held_at.stream_offset;
        self.passed((4 - (begin + size) % 4) % 4, After::Stream);
    }

    fn sectors_are_over(&mut self, stream: StreamHeader, sink: &mut dyn MtfSink) {
        sink.stream_end(self.at, &stream, false);
        // Streams begin at multiples of four, and a stream header has 22 bytes: the content begins two bytes off.
        let padding = (4 - (STREAM_HEADER_BYTES as u64 + stream.size_bytes) % 4) % 4;
        self.passed(padding, After::Stream);
    }

    /// Sectors that lie whole in the piece are handed over as they are, others are put together.
    fn take_sectors(&mut self, piece: &Piece, from: usize, sink: &mut dyn MtfSink) -> usize {
        let State::Sectors(stream, mut left) = self.state else { return 0 };
        let (start, is_lost) = (from, piece.damage.is_some());
        let mut from = from;
        while left > 0 && from < piece.bytes.len() {
            let rest = &piece.bytes[from..];
            let whole = left.min(SECTOR_BYTES as u64) as usize;
            let mut at = self.at;
            at.stream_offset += (from - start) as u64;
            at.file_offset += if piece.is_plain { (from - start) as u64 } else { 0 };
            if self.held.is_empty() && rest.len() >= whole {
                let bytes = &rest[..whole];
                let known = piece.sector_xor(from).filter(|_| whole == SECTOR_BYTES);
                let xor = known.unwrap_or_else(|| sector_xor(bytes));
                sink.sector(at, Sector { bytes, xor, is_lost });
                (from, left) = (from + whole, left - whole as u64);
                continue;
            }
            if self.held.is_empty() {
                self.held_at = at;
            }
            let used = (whole - self.held.len()).min(rest.len());
            self.held.extend_from_slice(&rest[..used]);
            self.held_is_lost |= is_lost;
            from += used;
            if self.held.len() == whole {
                let sector = Sector { bytes: &self.held, xor: sector_xor(&self.held), is_lost: self.held_is_lost };
                sink.sector(self.held_at, sector);
                left -= whole as u64;
                self.hold(0);
            }
        }
        self.state = State::Sectors(stream, left);
        if left == 0 {
            self.sectors_are_over(stream, sink);
        }
        from - start
    }
}

/// Bytes from the end of a stream, whose header is at `at`, to the next multiple of four.
fn padding_behind(at: Place, size: u64) -> u64 {
    (4 - (at.stream_offset + STREAM_HEADER_BYTES as u64 + size) % 4) % 4
}
