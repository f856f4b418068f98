//! Streams WAL from a server into the archive while it is written, as a standby would.
//!
//! Whole segments go the way of [`super::push`]. What has come of the segment that is not whole yet is stored in pieces,
//! so that a lost server costs seconds, or with `synchronous` nothing that was committed. There is no state but the
//! repository: where to go on is what is stored there, whatever the slot says.

mod compare;
mod link;
mod open_segment;
mod place;
mod spool;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::catalog::Repository;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{CodecSpec, Observer, pause};
use crate::source::postgres::conninfo::ConnectSettings;
use crate::terms::{Lsn, SourceName, TimelineId};
use link::{Ended, Link};
use spool::Spool;

/// Pauses between attempts to reach a server: 1 s, then twice as long each time, up to this.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often a pause looks whether a signal asked to stop.
const PAUSE_STEP: Duration = Duration::from_millis(100);

/// From where WAL is received, and how.
#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    /// The name of the cluster in the repository.
    pub source: SourceName,
    /// libpq-style connection string; None uses the PG* variables.
    pub connection: Option<String>,
    /// The physical slot that keeps WAL for us while we are away; None has the server keep nothing.
    pub slot: Option<String>,
    /// Create the slot if it is not there.
    pub create_slot: bool,
    /// Store what comes at once, so that this receiver may be in synchronous_standby_names.
    pub synchronous: bool,
    /// How long WAL may wait before it is stored; not with `synchronous`.
    pub flush_every: Duration,
    /// Go on where the server can, though WAL between is lost for the archive.
    pub accept_gap: bool,
    /// Codec and level.
    pub compression: CodecSpec,
    /// Where the open segment lies while it is received; None is the system's directory for temporary files.
    pub spool_dir: Option<PathBuf>,
}

impl ReceiveRequest {
    /// A request with the defaults.
    pub fn new(source: SourceName) -> Self {
        ReceiveRequest {
            source,
            connection: None,
            slot: None,
            create_slot: false,
            synchronous: false,
            flush_every: Duration::from_secs(1),
            accept_gap: false,
            compression: CodecSpec::DEFAULT_OF_WAL,
            spool_dir: None,
        }
    }
}

/// What was received until a signal ended it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReceiveReport {
    /// Segments that were stored whole.
    pub segment_count: u64,
    /// Pieces that were stored.
    pub piece_count: u64,
    /// Bytes of WAL that came.
    pub received_bytes: u64,
    /// Everything before this position is durable in the repository.
    pub durable_lsn: Option<Lsn>,
    /// The timeline of that position.
    pub timeline: Option<TimelineId>,
    /// How often the stream had to be begun again.
    pub reconnect_count: u64,
}

/// Why a connection is over before it was asked to be.
#[derive(Debug)]
enum Trouble {
    /// The same may work later.
    Again(Error),
    /// The server has removed the WAL that is wanted.
    Removed(Error),
    /// It will not without somebody's hands.
    Final(Error),
}

impl From<Error> for Trouble {
    /// Servers and stores come back; a wrong cluster, other bytes and wrong settings stay what they are.
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Source | ErrorKind::Repository => Trouble::Again(error),
            _ => Trouble::Final(error),
        }
    }
}

/// Receives WAL until the observer says that a signal asked to stop; everything that came is durable then.
///
/// # Errors
/// What does not get better by waiting: no connection at the very start, a slot that is lost, WAL that the server has
/// removed, another cluster under the source's name, other bytes under a segment's name.
pub fn receive(repository: &Repository, request: &ReceiveRequest, observer: &dyn Observer) -> Result<ReceiveReport> {
    let settings = ConnectSettings::parse(request.connection.as_deref().unwrap_or(""))?;
    let spool = Spool::make(request.spool_dir.as_deref(), &request.source)?;
    let mut link = Link::new(repository, request, observer, &spool);
    let mut wait = Duration::from_secs(1);
    loop {
        let before = link.report.received_bytes;
        let outcome = link.run(&settings);
        if link.report.received_bytes > before {
            wait = Duration::from_secs(1);
        }
        match outcome {
            Ok(Ended::Asked) => return Ok(link.report),
            Ok(Ended::ByServer) => observer.note("the server ended the stream, as it does when it shuts down"),
            Err(Trouble::Final(error) | Trouble::Removed(error)) => return Err(error),
            // Whoever starts this wants to hear of a typing error now.
            Err(Trouble::Again(error)) if !link.has_streamed => return Err(error),
            Err(Trouble::Again(error)) => observer.note(&error.message()),
        }
        observer.note(&format!("trying again in {} s", wait.as_secs()));
        if !pause_unless_interrupted(wait, observer) {
            return Ok(link.report);
        }
        wait = (wait * 2).min(PAUSE_MAX);
        link.report.reconnect_count += 1;
    }
}

/// False if a signal asked to stop meanwhile.
fn pause_unless_interrupted(wait: Duration, observer: &dyn Observer) -> bool {
    let started = Instant::now();
    while started.elapsed() < wait {
        if observer.interrupted() {
            return false;
        }
        pause(PAUSE_STEP);
    }
    !observer.interrupted()
}
