//! Gives a file of the archive back: whole, checked and durable under the name that was asked for, or not at all.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::cluster::cluster_of_source;
use super::helper::PREFETCH_DIRECTORY;
use super::stored::{Covering, StoredLog};
use crate::catalog::Repository;
use crate::catalog::wal_bundle::{OpenBundle, open_bundle};
use crate::catalog::wal_inventory::{Detail, WalInventory};
use crate::catalog::wal_names::{WalFileName, file_name};
use crate::catalog::wal_pieces::chain_of;
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{combine, crc32c};
use crate::format::wal_bundle::Member;
use crate::io::{self, StagedFile};
use crate::pipeline::bundle::{decode_member, default_threads};
use crate::source::postgres::wal_header::{LONG_HEADER_SIZE_BYTES, SegmentHeader};
use crate::terms::{SourceName, WalSegmentName};

/// Which file is wanted, and where.
#[derive(Clone, Debug)]
pub struct GetRequest {
    /// The name of the cluster in the repository.
    pub source: SourceName,
    /// The file's name, as the server asks for it (%f).
    pub name: String,
    /// Where it is to be written (%p); a file that is there is replaced.
    pub destination: PathBuf,
    /// The cluster; None: the one that writes under the source's name.
    pub system_identifier: Option<u64>,
    /// Threads that decode; None: one a core, four at most.
    pub decoders: Option<u16>,
}

/// Whether the file was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// It lies at its destination, whole and durable.
    Delivered(GetReport),
    /// It is surely not in the archive.
    NotThere,
}

/// How often a segment is looked for while its objects change.
const LOOKS_MAX: usize = 10;

/// Bytes of the server's own segment that are read at once.
const COMPARE_BYTES: usize = 256 * 1024;

/// A file that was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReport {
    /// The objects it came from: one, or the pieces of a segment that was still being streamed.
    pub objects: Vec<String>,
    /// Its size.
    pub size_bytes: u64,
    /// What of a segment that came in pieces was there; the rest is zeros. Else its size.
    pub content_bytes: u64,
}

/// Delivers a file of the archive.
///
/// # Errors
/// Whatever keeps it from being sure: `Usage` for a name that no file of an archive has; `Conflict` if two different
/// files have that name; `Damage` if what is stored is not what was written, or of another cluster; `Target` if the
/// destination cannot be written; those of the storage. The destination is untouched then.
pub fn get(repository: &Repository, request: &GetRequest) -> Result<GetOutcome> {
    let Some(name) = WalFileName::parse(&request.name) else {
        let action = format!("get {}", request.name);
        return Err(Error::new(ErrorKind::Usage, action, "no file of a WAL archive has such a name")
            .hint("restore_command = 'pagehaul wal get %f %p'"));
    };
    let found = match wanted_cluster(repository, request)? {
        Some(system_identifier) => Get { repository, request, system_identifier }.deliver(&name)?,
        None => GetOutcome::NotThere,
    };
    if found == GetOutcome::NotThere {
        // A repository that went away, such as a mount, looks empty too.
        repository.check_is_there()?;
    }
    Ok(found)
}

/// Whether a file that is not there is a segment that has later ones of its timeline behind it: then it is no end of WAL.
///
/// # Errors
/// Those of the storage.
pub fn is_in_gap(repository: &Repository, request: &GetRequest) -> Result<bool> {
    let Some(WalFileName::Segment(segment)) = WalFileName::parse(&request.name) else { return Ok(false) };
    let Some(system_identifier) = wanted_cluster(repository, request)? else { return Ok(false) };
    let inventory = WalInventory::load(repository, &request.source, system_identifier, Detail::Listing)?;
    let number = inventory.segment_size_bytes.and_then(|size| segment.number(size));
    let last = inventory.timelines.get(&segment.timeline()).and_then(|timeline| timeline.ranges.last());
    Ok(number.zip(last).is_some_and(|(number, last)| last.last > number))
}

/// The cluster that was named, or the one that writes under the source's name; None if none does.
fn wanted_cluster(repository: &Repository, request: &GetRequest) -> Result<Option<u64>> {
    match request.system_identifier {
        Some(system_identifier) => Ok(Some(system_identifier)),
        None => cluster_of_source(repository, &request.source),
    }
}

struct Get<'a> {
    repository: &'a Repository,
    request: &'a GetRequest,
    system_identifier: u64,
}

impl Get<'_> {
    fn deliver(&self, name: &WalFileName) -> Result<GetOutcome> {
        let WalFileName::Segment(segment) = name else {
            let object = file_name(&self.request.source, self.system_identifier, name);
            let Some(bundle) = open_bundle(self.repository, &object)? else {
                return Ok(GetOutcome::NotThere);
            };
            bundle.check_holds(self.system_identifier, [name.to_string()].into_iter())?;
            return self.deliver_member(&bundle, 0).map(GetOutcome::Delivered);
        };
        let mut listed = self.list(segment)?;
        let mut covering = listed.covering(segment)?;
        for _ in 0..LOOKS_MAX {
            if !covering.is_empty() {
                break;
            }
            let pieces = listed.pieces(segment)?;
            // A receiver stores the whole segment first and removes its pieces then: what was found says something only if
            // nothing has changed since it was listed.
            let again = self.list(segment)?;
            if again.has_same_of(&listed, segment) {
                return self.deliver_pieces(segment, &pieces);
            }
            covering = again.covering(segment)?;
            listed = again;
        }
        let Some(first) = covering.first() else {
            let action = format!("get {segment}");
            return Err(Error::new(ErrorKind::Repository, action, "its objects change faster than they can be read")
                .hint("the server asks again by itself"));
        };
        let (crc, size) = (first.member().crc32c, first.member().size_bytes);
        if let Some(other) =
            covering.iter().find(|other| (other.member().crc32c, other.member().size_bytes) != (crc, size))
        {
            let cause = format!("{} and {} have different bytes for it", first.bundle.name, other.bundle.name);
            return Err(Error::new(ErrorKind::Conflict, format!("get {segment}"), cause).hint(
                "two servers wrote the same WAL: find out which one is right, and move the other's object away",
            ));
        }
        self.deliver_one_of(segment, &covering).map(GetOutcome::Delivered)
    }

    fn list(&self, segment: &WalSegmentName) -> Result<StoredLog<'_>> {
        StoredLog::list(self.repository, &self.request.source, self.system_identifier, segment)
    }

    /// All have the same bytes: one that is damaged may have a sound twin.
    fn deliver_one_of(&self, segment: &WalSegmentName, covering: &[Covering]) -> Result<GetReport> {
        let mut first_error: Option<Error> = None;
        for candidate in covering {
            match self.deliver_member(&candidate.bundle, candidate.place) {
                Err(error) if error.kind() == ErrorKind::Damage => match &mut first_error {
                    Some(first) => first.attach(error),
                    None => first_error = Some(error),
                },
                other => return other,
            }
        }
        Err(first_error.unwrap_or_else(|| Error::new(ErrorKind::Bug, format!("get {segment}"), "no object was tried")))
    }

    fn deliver_member(&self, bundle: &OpenBundle, place: usize) -> Result<GetReport> {
        let member = &bundle.table.members[place];
        let mut output = Output::begin(&self.request.destination)?;
        self.decode(bundle, member, &mut |bytes| output.append(bytes))?;
        if let Ok(segment) = member.name.parse::<WalSegmentName>() {
            self.check_segment(&segment, &output)?;
        }
        output.finish()?;
        Ok(GetReport {
            objects: vec![bundle.name.clone()],
            size_bytes: member.size_bytes,
            content_bytes: member.size_bytes,
        })
    }

    fn decode(&self, bundle: &OpenBundle, member: &Member, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let threads = self.request.decoders.unwrap_or_else(default_threads);
        decode_member(bundle.object.as_ref(), &bundle.header, &bundle.index, member, threads, sink).map_err(|error| {
            match error.kind() {
                ErrorKind::Damage => {
                    let action = format!("read {} from {}", member.name, bundle.name);
                    Error::new(ErrorKind::Damage, action, error.message()).hint(
                        "the object is damaged: recovery cannot go beyond this segment without another copy of it",
                    )
                }
                _ => error,
            }
        })
    }

    /// What is delivered must be this segment of this cluster, whatever the repository says of it.
    fn check_segment(&self, segment: &WalSegmentName, output: &Output) -> Result<()> {
        let header = SegmentHeader::parse(&output.head, segment)?;
        let cause = if header.system_identifier != self.system_identifier {
            format!("it is of system {}, wanted is {}", header.system_identifier, self.system_identifier)
        } else if u64::from(header.segment_size_bytes) != output.written_bytes {
            format!("it has {} bytes instead of {}", output.written_bytes, header.segment_size_bytes)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Damage, format!("deliver WAL segment {segment}"), cause))
    }

    /// A segment that is not there as a whole: what was streamed of it, from its start on, and zeros behind.
    fn deliver_pieces(&self, segment: &WalSegmentName, pieces: &[OpenBundle]) -> Result<GetOutcome> {
        let chain = chain_of(pieces);
        let Some(segment_size) = chain.first().map(|(piece, _)| u64::from(piece.table.segment_size_bytes)) else {
            return Ok(GetOutcome::NotThere);
        };
        let mut output = Output::begin(&self.request.destination)?;
        let mut sum = 0;
        for (piece, already_bytes) in &chain {
            // The part that the piece before has too.
            let mut skip = *already_bytes;
            self.decode(piece, &piece.table.members[0], &mut |bytes| {
                let skipped = skip.min(bytes.len() as u64);
                skip -= skipped;
                let bytes = &bytes[skipped as usize..];
                sum = combine(sum, crc32c(bytes), bytes.len() as u64);
                output.append(bytes)
            })?;
        }
        let content_bytes = output.written_bytes;
        if server_has(&self.request.destination, segment, segment_size, (content_bytes, sum)) {
            return Ok(GetOutcome::NotThere);
        }
        let zeros = [0u8; 64 * 1024];
        while output.written_bytes < segment_size {
            let count = (segment_size - output.written_bytes).min(zeros.len() as u64);
            output.append(&zeros[..count as usize])?;
        }
        self.check_segment(segment, &output)?;
        output.finish()?;
        let objects = chain.iter().map(|(piece, _)| piece.name.clone()).collect();
        Ok(GetOutcome::Delivered(GetReport { objects, size_bytes: segment_size, content_bytes }))
    }
}

/// Whether the server that asks has the segment in its own `pg_wal`, beginning with the bytes of this length and CRC32C:
/// it may have more of it. A restored server has the WAL of its set, and would not look at it if it got less here.
fn server_has(destination: &Path, segment: &WalSegmentName, segment_size: u64, found: (u64, u32)) -> bool {
    let Some(directory) = destination.parent() else { return false };
    // Files that are fetched ahead are one level deeper.
    let is_ahead = directory.ends_with(PREFETCH_DIRECTORY);
    let Some(directory) = (if is_ahead { directory.parent() } else { Some(directory) }) else { return false };
    let own = directory.join(segment.as_str());
    if own == destination || !directory.join("archive_status").is_dir() {
        return false;
    }
    let Ok(mut own) = File::open(own) else { return false };
    if own.metadata().map_or(0, |metadata| metadata.len()) != segment_size {
        return false;
    }
    let (mut sum, mut left) = (0, found.0);
    let mut buffer = vec![0u8; COMPARE_BYTES];
    while left > 0 {
        let bytes = &mut buffer[..left.min(COMPARE_BYTES as u64) as usize];
        if own.read_exact(bytes).is_err() {
            return false;
        }
        sum = combine(sum, crc32c(bytes), bytes.len() as u64);
        left -= bytes.len() as u64;
    }
    sum == found.1
}

/// The destination while it is written, under another name.
struct Output {
    file: StagedFile,
    path: PathBuf,
    written_bytes: u64,
    /// The first bytes.
    head: Vec<u8>,
}

impl Output {
    fn begin(path: &Path) -> Result<Self> {
        let failed = |cause| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause);
        let file = StagedFile::create(path).map_err(failed)?;
        Ok(Output { file, path: path.to_owned(), written_bytes: 0, head: Vec::new() })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.head.len() < LONG_HEADER_SIZE_BYTES {
            let wanted = bytes.len().min(LONG_HEADER_SIZE_BYTES - self.head.len());
            self.head.extend_from_slice(&bytes[..wanted]);
        }
        io::write_all_at(self.file.fd(), bytes, self.written_bytes)
            .map_err(|cause| Error::new(ErrorKind::Target, format!("write {}", self.path.display()), cause))?;
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<()> {
        let Output { file, path, .. } = self;
        file.replace().map_err(|cause| Error::new(ErrorKind::Target, format!("make {} durable", path.display()), cause))
    }
}
