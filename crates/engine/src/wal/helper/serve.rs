//! The helper's life: it takes the lock, shows its socket, answers, and goes when nobody asks any more.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::archive::{GetOrigin, PushTarget};
use super::get_role::GetRole;
use super::message::{Answer, ErrorText, Line, Question};
use super::place::HelperPlace;
use super::push_role::PushRole;
use super::{CLIENTS_MAX, HelperSettings, LIFE_SIGN_EVERY, START_MAX, is_plain_name, workers};
use crate::encryption::Keys;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{self, Locked};
use crate::pipeline::service::{Board, Service, ServiceSettings, run_service};
use crate::pipeline::{machine_cores, pause};

/// How often a second helper looks whether the first one is there or gone.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What a helper does. Methods are called by several threads at once.
pub(super) trait HelperRole: Sync {
    /// The answer for one file; None if the client left before there was one.
    fn answer(&self, name: &str, client: &mut Client) -> Option<Answer>;

    /// The client has this answer and is gone, with or without what was in it.
    fn client_left(&self, _answer: &Answer) {}

    /// As [`Service::work`].
    fn work(&self, patience: Duration) -> bool;

    /// As [`Service::is_busy`].
    fn is_busy(&self) -> bool;

    /// As [`Service::end`].
    fn end(&self);
}

/// A client who waits.
pub(super) struct Client {
    line: Line,
}

impl Client {
    /// Waits until `look` gives something; None if the client left meanwhile.
    pub(super) fn wait<T, R>(&mut self, board: &Board<T>, mut look: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        loop {
            if let Some(found) = board.wait(LIFE_SIGN_EVERY, &mut look) {
                return Some(found);
            }
            self.line.send_life_sign().ok()?;
        }
    }
}

/// Serves what `settings` say until it was idle for long enough or `stopped` says so. Writes a line to `ready` once
/// clients can connect, to this helper or to one that is there already.
///
/// # Errors
/// `Configuration` if there is no safe place for the socket, or no threads; `Target` if there is none for what is
/// fetched ahead; `Usage` if the settings do not read.
pub fn serve(settings: &HelperSettings, ready: &mut dyn Write, stopped: &dyn Fn() -> bool) -> Result<()> {
    let place = HelperPlace::of(settings)?;
    Keys::load(&settings.keys)?.install();
    // Held until nothing of this helper is left.
    let Some(_lock) = take_lock(&place)? else {
        say_ready(ready);
        return Ok(());
    };
    let idle = Duration::from_secs(settings.idle_s);
    if let Some(target) = PushTarget::of(settings)? {
        let role = PushRole::new(&target, &settings.wal_directory, workers(), machine_cores());
        return run_role(&role, &place, idle, ready, stopped);
    }
    match GetOrigin::of(settings) {
        Some(origin) => {
            let role = GetRole::new(&origin, &settings.wal_directory, machine_cores())?;
            run_role(&role, &place, idle, ready, stopped)
        }
        None => Err(Error::new(ErrorKind::Bug, "serve", "the role is not known")),
    }
}

/// Leaves the session, directory and file mode of the process that started this one.
pub fn detach() {
    // It fails only for the leader of a group, who has a session of its own already or a shell that watches over it.
    rustix::process::setsid().ok();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Nothing of ours is relative to it, and no file system is to be kept from being unmounted.
    std::env::set_current_dir("/").ok();
}

/// Takes the lock that makes a helper the only one; None if another one serves already.
///
/// # Errors
/// `Configuration` if the lock's file cannot be had, or its holder neither serves nor ends.
pub(super) fn take_lock(place: &HelperPlace) -> Result<Option<Locked>> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Configuration, format!("lock {}", place.lock.display()), cause)
    };
    let give_up = Instant::now() + START_MAX;
    loop {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let file = options.custom_flags(flags).open(&place.lock).map_err(|cause| failed(&cause))?;
        // One that somebody removed meanwhile keeps nobody out.
        if io::try_lock(&file).map_err(|cause| failed(&cause))? && io::is_same_file(&file, &place.lock) {
            return Ok(Some(Locked(file)));
        }
        if UnixStream::connect(&place.socket).is_ok() {
            return Ok(None);
        }
        if Instant::now() >= give_up {
            return Err(failed(&"another helper holds it and does not serve"));
        }
        // It has not begun to listen yet, or is about to end.
        pause(LOCK_PAUSE);
    }
}

/// Plays `role` until it was idle for long enough or `stopped` says so. Writes a line to `ready` once clients can
/// connect. The caller holds the lock.
///
/// # Errors
/// `Configuration` if there can be no socket or no threads.
pub(super) fn run_role(
    role: &dyn HelperRole,
    place: &HelperPlace,
    idle: Duration,
    ready: &mut dyn Write,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let (listener, inode) = listen(&place.socket).map_err(|cause| {
        Error::new(ErrorKind::Configuration, format!("listen on {}", place.socket.display()), cause)
    })?;
    say_ready(ready);
    let hide = || {
        // Should it be another helper's by now, it stays.
        if inode_of(&place.socket) == Some(inode) {
            std::fs::remove_file(&place.socket).ok();
        }
    };
    let settings = ServiceSettings { workers: workers(), clients_max: CLIENTS_MAX, idle };
    run_service(&listener, &settings, &Host { role }, stopped, &hide)
}

/// Tells who started us; whether somebody still listens does not matter.
pub(super) fn say_ready(ready: &mut dyn Write) {
    ready.write_all(b"ready\n").and_then(|()| ready.flush()).ok();
}

/// A listener under the name `socket`, which never names one that does not listen yet; and its inode.
fn listen(socket: &Path) -> std::io::Result<(UnixListener, u64)> {
    let unnamed = socket.with_extension("new");
    if unnamed.symlink_metadata().is_ok() {
        std::fs::remove_file(&unnamed)?;
    }
    let listener = UnixListener::bind(&unnamed)?;
    std::fs::set_permissions(&unnamed, std::fs::Permissions::from_mode(0o600))?;
    let inode = unnamed.symlink_metadata()?.ino();
    // Over the socket of one that died.
    io::rename_over(&unnamed, socket)?;
    Ok((listener, inode))
}

fn inode_of(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|found| found.ino())
}

/// The role as a service.
struct Host<'a> {
    role: &'a dyn HelperRole,
}

impl Host<'_> {
    fn converse(&self, stream: UnixStream) -> Result<()> {
        let mut client = Client { line: Line::new(stream)? };
        let question: Question = client.line.receive()?;
        let answer = if is_plain_name(&question.name) {
            self.role.answer(&question.name, &mut client)
        } else {
            let refused = Error::new(ErrorKind::Usage, format!("use {:?}", question.name), "no name of a WAL file");
            Some(Answer::Failed(ErrorText::of(&refused)))
        };
        if let Some(answer) = answer {
            let heard = client.line.send(&answer);
            if heard.is_ok() {
                client.line.wait_for_end();
            }
            self.role.client_left(&answer);
            heard?;
        }
        Ok(())
    }
}

impl Service for Host<'_> {
    fn serve(&self, client: UnixStream) {
        // A client that cannot be talked to goes on alone.
        self.converse(client).ok();
    }

    fn work(&self, patience: Duration) -> bool {
        self.role.work(patience)
    }

    fn is_busy(&self) -> bool {
        self.role.is_busy()
    }

    fn end(&self) {
        self.role.end();
    }
}
