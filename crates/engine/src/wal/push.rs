//! Stores WAL files: each file that comes out well is in the repository, durable, with these bytes and no others.

use std::path::{Path, PathBuf};

use super::bundle_writer::{BundleFacts, Look, NewMember, write_bundle};
use super::cluster::{cluster_of_data_directory, cluster_of_source, data_directory_of};
use super::content::Content;
use super::push_outcome::{PushReport, Pushed, PushedFile, conflict, has_bytes, stored, vanished, was_there};
use super::stored::StoredLog;
use crate::catalog::Repository;
use crate::catalog::encryption_mark::keep_encrypted;
use crate::catalog::identity::{self, ClusterFacts};
use crate::catalog::wal_bundle::open_bundle;
use crate::catalog::wal_names::{WalFileName, bundle_name, file_name};
use crate::error::{Error, ErrorKind, Result};
use crate::format::checksum::{combine, crc32c};
use crate::format::wal_bundle::{BundleKind, MEMBER_BYTES_MAX, MEMBER_COUNT_MAX, Member};
use crate::limits::MIB;
use crate::pipeline::bundle::{FrameSettings, default_threads};
use crate::pipeline::{CodecSpec, Observer};
use crate::source::postgres::timeline_history::{self, HISTORY_BYTES_MAX};
use crate::source::postgres::wal_header::{LONG_HEADER_SIZE_BYTES, SegmentHeader, not_the_segment};
use crate::terms::{SourceName, TimelineId, WalSegmentName};

/// Raw bytes of one bundle unless somebody says otherwise: four segments of the usual size.
const BUNDLE_BYTES_DEFAULT: u64 = 64 * MIB;
/// Bytes that are compared at once.
const COMPARE_BYTES: usize = 1 << 20;

/// Which files are to be stored, and how.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// The name of the cluster in the repository.
    pub source: SourceName,
    /// The files; their names say what they are.
    pub files: Vec<PathBuf>,
    /// The data directory they are from; None: found by their paths, else by what they say.
    pub pgdata: Option<PathBuf>,
    /// Codec and level.
    pub compression: CodecSpec,
    /// Threads that encode; None: one a core, four at most.
    pub encoders: Option<u16>,
    /// Most raw bytes of one object with several segments.
    pub bundle_bytes_max: u64,
}

impl PushRequest {
    /// A request with the defaults.
    pub fn new(source: SourceName, files: Vec<PathBuf>) -> Self {
        PushRequest {
            source,
            files,
            pgdata: None,
            compression: CodecSpec::DEFAULT_OF_WAL,
            encoders: None,
            bundle_bytes_max: BUNDLE_BYTES_DEFAULT,
        }
    }

    fn frame_settings(&self) -> FrameSettings {
        let codec = self.compression;
        FrameSettings {
            codec,
            threads: self.encoders.unwrap_or_else(default_threads),
            frame_size_bytes: codec.default_frame_size_bytes(),
        }
    }

    /// Most memory that a push takes: the frames on their way and the encoders' state.
    pub fn memory_bytes(&self) -> u64 {
        self.frame_settings().memory_bytes()
    }
}

/// Stores files of one cluster's WAL archive.
///
/// A file whose outcome is well is durable in the repository. A file that is there with the same bytes is well; one that
/// is there with other bytes is an error, and what is there stays.
///
/// # Errors
/// Only if nothing could be tried: `Conflict` if another cluster has the source's name; `Source` if the cluster is not
/// known; those of the storage. What happens to a file is its outcome.
pub fn push(repository: &Repository, request: &PushRequest, observer: &dyn Observer) -> Result<PushReport> {
    let names: Vec<Option<WalFileName>> = request.files.iter().map(|path| name_of(path)).collect();
    let cluster = find_cluster(repository, request, &names)?;
    identity::check_or_create(repository, &request.source, &cluster)?;
    keep_encrypted(repository, &request.source, repository.keys())?;
    let push = Push { repository, request, observer, system_identifier: cluster.system_identifier };
    let mut outcomes: Vec<Option<Result<Pushed>>> = request.files.iter().map(|_| None).collect();
    let mut segments = Vec::new();
    for (place, name) in names.iter().enumerate() {
        match name {
            Some(WalFileName::Segment(segment)) => segments.push((segment.clone(), place)),
            Some(other) => outcomes[place] = Some(push.store_file(&request.files[place], other)),
            None => outcomes[place] = Some(Err(not_a_wal_file(&request.files[place]))),
        }
    }
    segments.sort();
    segments.dedup_by(|later, first| later.0 == first.0 && request.files[later.1] == request.files[first.1]);
    for group in push.groups(&segments) {
        for (place, outcome) in push.store_segments(group) {
            outcomes[place] = Some(outcome);
        }
    }
    let files = request.files.iter().zip(&names).zip(outcomes);
    let mut report = PushReport { files: Vec::new() };
    for ((path, name), outcome) in files {
        let name = name.as_ref().map_or_else(|| path.display().to_string(), ToString::to_string);
        let outcome = outcome.unwrap_or_else(|| report.outcome_of_twin(path));
        report.files.push(PushedFile { path: path.clone(), name, outcome });
    }
    Ok(report)
}

fn name_of(path: &Path) -> Option<WalFileName> {
    WalFileName::parse(path.file_name()?.to_str()?)
}

fn not_a_wal_file(path: &Path) -> Error {
    Error::new(ErrorKind::Usage, format!("store {}", path.display()), "no file of a WAL archive has such a name").hint(
        "the server hands over segments (24 hexadecimal digits), .partial, .history and .backup files: archive_command = \
         'pagehaul wal push %p'",
    )
}

fn find_cluster(repository: &Repository, request: &PushRequest, names: &[Option<WalFileName>]) -> Result<ClusterFacts> {
    let of_paths = || request.files.iter().find_map(|path| data_directory_of(path));
    if let Some(pgdata) = request.pgdata.clone().or_else(of_paths) {
        return cluster_of_data_directory(&pgdata);
    }
    for (path, name) in request.files.iter().zip(names) {
        let Some(WalFileName::Segment(segment) | WalFileName::Partial(segment)) = name else { continue };
        let header = Content::open(path, MEMBER_BYTES_MAX).and_then(|content| content.head(LONG_HEADER_SIZE_BYTES));
        // A file that does not read is its own outcome; another one may say.
        if let Ok(header) = header.and_then(|head| SegmentHeader::parse(&head, segment)) {
            let system_identifier = header.system_identifier;
            return Ok(ClusterFacts { system_identifier, pg_version_num: header.major * 10_000 });
        }
    }
    match cluster_of_source(repository, &request.source) {
        Ok(Some(system_identifier)) => Ok(ClusterFacts { system_identifier, pg_version_num: 0 }),
        Ok(None) | Err(_) => {
            Err(Error::new(ErrorKind::Source, "find out whose WAL this is", "none of the files says it")
                .hint("run it in the data directory as archive_command does, or give --pgdata"))
        }
    }
}

/// What a push needs throughout.
struct Push<'a> {
    repository: &'a Repository,
    request: &'a PushRequest,
    observer: &'a dyn Observer,
    system_identifier: u64,
}

/// A segment that passed its first checks.
struct Checked {
    segment: WalSegmentName,
    place: usize,
    content: Content<'static>,
    header: SegmentHeader,
}

impl Push<'_> {
    /// Consecutive segments of one timeline and log id, as many as fit into a bundle.
    fn groups<'s>(&self, segments: &'s [(WalSegmentName, usize)]) -> Vec<&'s [(WalSegmentName, usize)]> {
        let size = |place: usize| {
            std::fs::metadata(&self.request.files[place]).map_or(MEMBER_BYTES_MAX, |metadata| metadata.len().max(1))
        };
        let mut groups = Vec::new();
        let mut start = 0;
        let mut bytes = 0;
        for (at, (segment, place)) in segments.iter().enumerate() {
            let own = size(*place);
            let goes_on = at > start
                && follows(&segments[at - 1].0, segment)
                && bytes + own <= self.request.bundle_bytes_max
                && at - start < MEMBER_COUNT_MAX;
            if !goes_on {
                groups.push(&segments[start..at]);
                (start, bytes) = (at, 0);
            }
            bytes += own;
        }
        groups.push(&segments[start..]);
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// Stores what of a group is not there; every file of it has its outcome.
    fn store_segments(&self, group: &[(WalSegmentName, usize)]) -> Vec<(usize, Result<Pushed>)> {
        let mut outcomes = Vec::new();
        let mut missing: Vec<Checked> = Vec::new();
        let listed = match self.list(&group[0].0) {
            Ok(listed) => listed,
            Err(error) => return all_failed(group, &error),
        };
        for (segment, place) in group {
            let checked = self.check(segment, *place);
            match checked.and_then(|checked| self.compare(&listed, &checked).map(|found| (checked, found))) {
                Ok((_, Some(pushed))) => outcomes.push((*place, Ok(pushed))),
                Ok((checked, None)) => missing.push(checked),
                Err(error) => outcomes.push((*place, Err(error))),
            }
        }
        while !missing.is_empty() {
            let gap = missing.windows(2).position(|pair| !follows(&pair[0].segment, &pair[1].segment));
            let rest = missing.split_off(gap.map_or(missing.len(), |before| before + 1));
            outcomes.extend(self.store_run(missing));
            missing = rest;
        }
        if listed.has_temporaries {
            // What a killed push left; if it cannot be removed now, the next push tries again.
            self.repository.storage().sweep(listed.prefix()).ok();
        }
        outcomes
    }

    fn list(&self, segment: &WalSegmentName) -> Result<StoredLog<'_>> {
        StoredLog::list(self.repository, &self.request.source, self.system_identifier, segment)
    }

    /// Whether the file is the segment that its name says, of this cluster.
    fn check(&self, segment: &WalSegmentName, place: usize) -> Result<Checked> {
        let content = Content::open(&self.request.files[place], MEMBER_BYTES_MAX)?;
        let header = self.header_of(segment, &content)?;
        let (size, wanted) = (content.size_bytes(), header.segment_size_bytes);
        if size != u64::from(wanted) {
            return Err(not_the_segment(segment, format!("it has {size} bytes instead of {wanted}")));
        }
        Ok(Checked { segment: segment.clone(), place, content, header })
    }

    /// The header of a whole or partial segment of this cluster.
    fn header_of(&self, segment: &WalSegmentName, content: &Content<'_>) -> Result<SegmentHeader> {
        let header = SegmentHeader::parse(&content.head(LONG_HEADER_SIZE_BYTES)?, segment)?;
        let (own, found) = (self.system_identifier, header.system_identifier);
        if found != own {
            return Err(not_the_segment(segment, format!("it is of system {found}, this cluster is {own}")));
        }
        Ok(header)
    }

    /// The outcome for what is there: its writer may have been killed before its name was durable.
    fn was_there(&self, member: &Member, object: &str) -> Result<Pushed> {
        self.repository.storage().make_durable(object)?;
        Ok(was_there(member, object))
    }

    /// The outcome for a segment that is there; None if it is not.
    fn compare(&self, listed: &StoredLog<'_>, checked: &Checked) -> Result<Option<Pushed>> {
        if !listed.names(&checked.segment) {
            return Ok(None);
        }
        let covering = listed.covering(&checked.segment)?;
        let Some(first) = covering.first() else { return Ok(None) };
        let crc = crc_of(&checked.content)?;
        let other = covering.iter().find(|other| !has_bytes(other.member(), crc, checked.content.size_bytes()));
        if let Some(other) = other {
            return Err(conflict(checked.segment.as_str(), &other.bundle.name));
        }
        self.was_there(first.member(), &first.bundle.name).map(Some)
    }

    /// Stores consecutive segments of which none is there as one object.
    fn store_run(&self, run: Vec<Checked>) -> Vec<(usize, Result<Pushed>)> {
        let places: Vec<(WalSegmentName, usize)> =
            run.iter().map(|checked| (checked.segment.clone(), checked.place)).collect();
        let is_alone = run.len() == 1;
        match self.try_store_run(run) {
            Ok(pushed) => places.into_iter().map(|(_, place)| place).zip(pushed).collect(),
            Err(error) if is_alone => all_failed(&places, &error),
            // One of them made all fail: each has its own outcome.
            Err(_) => {
                let alone = places.iter().flat_map(|(segment, place)| match self.check(segment, *place) {
                    Ok(checked) => self.store_run(vec![checked]),
                    Err(error) => vec![(*place, Err(error))],
                });
                alone.collect()
            }
        }
    }

    fn try_store_run(&self, run: Vec<Checked>) -> Result<Vec<Result<Pushed>>> {
        let Some((first, header)) = run.first().map(|checked| (checked.segment.clone(), checked.header)) else {
            return Ok(Vec::new());
        };
        let object = bundle_name(&self.request.source, self.system_identifier, &first, run.len() as u32);
        let segments: Vec<WalSegmentName> = run.iter().map(|checked| checked.segment.clone()).collect();
        let members: Vec<NewMember<'_>> = run.into_iter().map(new_segment).collect();
        let facts =
            BundleFacts { kind: BundleKind::Segments, system_identifier: self.system_identifier, header: Some(header) };
        let settings = self.request.frame_settings();
        let written = write_bundle(self.repository, &object, &settings, &facts, &members)?;
        if self.repository.storage().discards() {
            return Ok(written
                .members
                .iter()
                .map(|member| Ok(stored(member, &object, written.stored_bytes)))
                .collect());
        }
        // Somebody else may have stored the same segments at the same time, in another bundle or the same one.
        let listed = self.list(&first)?;
        let share = written.stored_bytes / segments.len().max(1) as u64;
        let outcomes = segments.iter().zip(&written.members).map(|(segment, member)| {
            let covering = listed.covering(segment)?;
            let other = covering.iter().find(|other| !has_bytes(other.member(), member.crc32c, member.size_bytes));
            match other {
                Some(other) => Err(conflict(segment.as_str(), &other.bundle.name)),
                None if covering.is_empty() => Err(vanished(segment.as_str(), &object)),
                None if written.is_new => {
                    self.tell_of_damage(member);
                    Ok(stored(member, &object, share))
                }
                None => self.was_there(member, &object),
            }
        });
        Ok(outcomes.collect())
    }

    /// Damaged WAL is stored all the same: the server has no better one, and would stop when its disk is full of it.
    fn tell_of_damage(&self, member: &Member) {
        if let Some(facts) = member.wal_facts().filter(|facts| !facts.whole) {
            self.observer.note(&format!(
                "the records of WAL segment {} cannot be followed beyond {}: it is stored as it is, and recovery may end \
                 there; make a new backup",
                member.name, facts.end_lsn
            ));
        }
    }

    /// Stores a history, a label or a partial segment.
    fn store_file(&self, path: &Path, name: &WalFileName) -> Result<Pushed> {
        let object = file_name(&self.request.source, self.system_identifier, name);
        let is_history = matches!(name, WalFileName::History(_));
        let content = Content::open(path, if is_history { HISTORY_BYTES_MAX } else { MEMBER_BYTES_MAX })?;
        let (look, header) = self.look_at(name, &content)?;
        let member = NewMember { name: name.to_string(), content, piece_offset: 0, look };
        if let Some(pushed) = self.compare_file(&object, &member)? {
            return Ok(pushed);
        }
        let facts = BundleFacts { kind: BundleKind::File, system_identifier: self.system_identifier, header };
        let settings = self.request.frame_settings();
        let members = [member];
        let written = write_bundle(self.repository, &object, &settings, &facts, &members)?;
        match written.members.first() {
            Some(stored_member) if written.is_new => Ok(stored(stored_member, &object, written.stored_bytes)),
            _ => self.compare_file(&object, &members[0])?.ok_or_else(|| vanished(&members[0].name, &object)),
        }
    }

    fn look_at(&self, name: &WalFileName, content: &Content<'_>) -> Result<(Look, Option<SegmentHeader>)> {
        match name {
            WalFileName::History(timeline) => Ok((Look::History(read_history(*timeline, content)?), None)),
            WalFileName::Partial(segment) => {
                let header = self.header_of(segment, content)?;
                Ok((Look::Wal(header.place(0)), Some(header)))
            }
            WalFileName::Label(..) | WalFileName::Segment(_) => Ok((Look::Nothing, None)),
        }
    }

    fn compare_file(&self, object: &str, member: &NewMember<'_>) -> Result<Option<Pushed>> {
        let Some(bundle) = open_bundle(self.repository, object)? else { return Ok(None) };
        bundle.check_holds(self.system_identifier, [member.name.clone()].into_iter())?;
        let stored = &bundle.table.members[0];
        if has_bytes(stored, crc_of(&member.content)?, member.content.size_bytes()) {
            self.was_there(stored, object).map(Some)
        } else {
            Err(conflict(&member.name, object))
        }
    }
}

fn follows(one: &WalSegmentName, next: &WalSegmentName) -> bool {
    one.timeline() == next.timeline()
        && one.log_id() == next.log_id()
        && one.index_in_log().checked_add(1) == Some(next.index_in_log())
}

fn new_segment(checked: Checked) -> NewMember<'static> {
    let look = Look::Wal(checked.header.place(0));
    NewMember { name: checked.segment.to_string(), content: checked.content, piece_offset: 0, look }
}

fn read_history(timeline: TimelineId, content: &Content<'_>) -> Result<crate::terms::TimelineHistory> {
    timeline_history::parse(timeline, &content.head(content.size_bytes() as usize)?)
}

fn crc_of(content: &Content<'_>) -> Result<u32> {
    let mut buffer = vec![0u8; COMPARE_BYTES];
    let (mut crc, mut offset) = (0, 0);
    while offset < content.size_bytes() {
        let length = (content.size_bytes() - offset).min(COMPARE_BYTES as u64);
        let piece = &mut buffer[..length as usize];
        content.read_at(piece, offset)?;
        crc = combine(crc, crc32c(piece), length);
        offset += length;
    }
    Ok(crc)
}

fn all_failed(group: &[(WalSegmentName, usize)], error: &Error) -> Vec<(usize, Result<Pushed>)> {
    let one = |(segment, place): &(WalSegmentName, usize)| {
        let mut own = Error::new(error.kind(), format!("store {segment}"), error.message());
        if let Some(hint) = error.hint_text() {
            own = own.hint(hint);
        }
        (*place, Err(own))
    };
    group.iter().map(one).collect()
}
