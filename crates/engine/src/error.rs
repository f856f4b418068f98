//! The one error of the engine: what was being done to which object, why it failed, and what to do next.

use std::fmt;

/// What an error means for the caller; each kind has one exit code of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong: an unknown codec, a value out of range.
    Usage,
    /// The settings do not fit this machine or each other.
    Configuration,
    /// The database that is backed up: not there, no rights, unreadable file, lost session.
    Source,
    /// The repository or storage: not there, full, unreadable.
    Repository,
    /// Stored or source bytes are not what they should be.
    Damage,
    /// Another process holds what is needed.
    Conflict,
    /// The restore target is refused or cannot be written.
    Target,
    /// A signal asked to stop.
    Interrupted,
    /// A broken promise of our own code.
    Bug,
}

/// An error that reads "unable to VERB OBJECT: CAUSE", with a hint on its own line.
///
/// Errors are returned, never logged where they pass through; the command line prints them once.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    action: String,
    cause: String,
    hint: Option<String>,
    attached: Vec<Error>,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind`; `action` completes "unable to ...", `cause` says why.
    pub fn new(kind: ErrorKind, action: impl Into<String>, cause: impl fmt::Display) -> Self {
        Error { kind, action: action.into(), cause: cause.to_string(), hint: None, attached: Vec::new() }
    }

    /// Adds the next step for the person who reads it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a sentence to the hint.
    #[must_use]
    pub fn more_hint(mut self, sentence: &str) -> Self {
        let hint = self.hint_text().map_or_else(String::new, |hint| format!("{hint}; "));
        self.hint = Some(hint + sentence);
        self
    }

    /// Adds a later error of the same run, shown after this one.
    pub fn attach(&mut self, later: Error) {
        self.attached.push(later);
    }

    /// What it means for the caller.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What completes "unable to ...".
    pub fn action(&self) -> &str {
        &self.action
    }

    /// Why.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// "unable to VERB OBJECT: CAUSE", one line.
    pub fn message(&self) -> String {
        format!("unable to {}: {}", self.action, self.cause)
    }

    /// The next step, if there is a useful one.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref().or_else(|| hint_of_system_error(&self.cause))
    }

    /// Later errors of the same run.
    pub fn attached(&self) -> &[Error] {
        &self.attached
    }
}

/// What helps whoever gets no memory.
pub const NO_MEMORY_HINT: &str = "use fewer or smaller buffers, fewer threads or a lower level, or allow the process more memory: the limits of \
                                  its shell (ulimit -v), service or container, and of the system (vm.overcommit_memory)";

/// What helps whoever gets no thread.
pub const NO_THREAD_HINT: &str = "use fewer threads, or allow the process more of them, or more memory: the limits of its shell \
                                  (ulimit -u, ulimit -v), service or container";

/// What helps against an error of the system, whatever it happened to.
fn hint_of_system_error(cause: &str) -> Option<&'static str> {
    let (_, number) = cause.strip_suffix(')')?.rsplit_once("(os error ")?;
    Some(match number {
        "5" => "the disk or the network behind it fails: look at the kernel log",
        "12" => NO_MEMORY_HINT,
        "23" | "24" => "raise the limit of open files (ulimit -n), or use fewer threads and stripes",
        "27" => "raise the limit of a file's size (ulimit -f), or use a file system for large files",
        "28" | "122" => "the disk, its inodes or its quota is full: free space and run the command again",
        _ => return None,
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        if let Some(hint) = self.hint_text() {
            write!(f, "\nhint: {hint}")?;
        }
        for later in &self.attached {
            write!(f, "\nalso: {}", later.message())?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// What `work` makes; a panic is an error of kind `Bug`.
///
/// # Errors
/// Those of `work`.
pub(crate) fn guarded<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Bug, "go on", "a thread panicked, see above")))
}
