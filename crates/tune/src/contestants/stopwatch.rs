//! Runs a command and says what it cost: wall time, CPU of its process tree and of the server, memory.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use super::proc;

/// How often the memory of the process tree is summed up, and the caller asked whether to go on; each look costs about
/// a millisecond.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
/// What a server needs to collect the processes that ended.
const SERVER_SETTLES: Duration = Duration::from_millis(100);
/// How much of what a failed command said is quoted.
const QUOTED_LINES: usize = 8;

/// What one run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// From start to end of the command; with it the output is durable.
    pub wall_s: f64,
    /// Of the command and all children it waited for.
    pub cpu_user_s: f64,
    /// The same, in the kernel.
    pub cpu_system_s: f64,
    /// Of all processes of the server meanwhile.
    pub server_cpu_s: f64,
    /// Of the largest single process.
    pub rss_bytes_max: u64,
    /// Of all processes of the command together, sampled; pages they share count in each.
    pub rss_tree_bytes_max: u64,
}

/// Where commands run and what they say is kept.
pub struct Stopwatch<'a> {
    /// For the output of the commands.
    pub directory: PathBuf,
    /// The server that works for them.
    pub postmaster: Option<u32>,
    /// Asked now and then; the command is ended when it says so.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for Stopwatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopwatch").field("directory", &self.directory).field("postmaster", &self.postmaster).finish()
    }
}

/// Never stops a command early.
pub fn go_on() -> bool {
    false
}

impl Stopwatch<'_> {
    /// Runs `command` after a sync of all file systems; gives its cost and what it wrote to standard output.
    ///
    /// # Errors
    /// `Configuration` if it cannot be started or fails, with the end of what it said; `Interrupted` if it was stopped.
    pub fn run(&self, command: &mut Command) -> Result<(Cost, String)> {
        let (out, err) = (self.directory.join("stdout.txt"), self.directory.join("stderr.txt"));
        command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?).process_group(0);
        rustix::fs::sync();
        let server_before_s = self.server_cpu_s();
        let started = Instant::now();
        let child = command.spawn().map_err(|cause| failed(command, cause))?;
        let (usage, tree_bytes) = wait(&child, self.stop)?;
        let wall_s = started.elapsed().as_secs_f64();
        std::thread::sleep(SERVER_SETTLES);
        let cost = Cost {
            wall_s,
            server_cpu_s: self.server_cpu_s() - server_before_s,
            // The kernel's account of the largest process begins before exec, with our own size: only what was seen counts.
            rss_tree_bytes_max: if tree_bytes > 0 { tree_bytes } else { usage.cost.rss_bytes_max },
            ..usage.cost
        };
        if usage.stopped {
            return Err(Error::new(ErrorKind::Interrupted, action(command), "it was asked to stop"));
        }
        if !usage.succeeded {
            return Err(failed(command, tail(&err, &out)));
        }
        Ok((cost, std::fs::read_to_string(&out).unwrap_or_default()))
    }

    fn server_cpu_s(&self) -> f64 {
        self.postmaster.map_or(0.0, proc::server_cpu_s)
    }
}

/// Runs `command` unmeasured; gives what it wrote to standard output.
///
/// # Errors
/// `Configuration` if it cannot be started or fails, with what it said.
pub fn run_quietly(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|cause| failed(command, cause))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stderr, output.stdout].concat();
    Err(failed(command, last_lines(&String::from_utf8_lossy(&said))))
}

fn create(path: &Path) -> Result<File> {
    File::create(path)
        .map_err(|cause| Error::new(ErrorKind::Configuration, format!("create {}", path.display()), cause))
}

fn failed(command: &Command, cause: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Configuration, action(command), cause)
}

fn action(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program()).to_string_lossy();
    let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    format!("run {program} {}", arguments.join(" "))
}

fn tail(err: &Path, out: &Path) -> String {
    let said = [err, out].map(|path| std::fs::read(path).unwrap_or_default());
    last_lines(&String::from_utf8_lossy(said.iter().find(|said| !said.is_empty()).unwrap_or(&said[0])))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
}

struct Usage {
    cost: Cost,
    succeeded: bool,
    stopped: bool,
}

/// Waits for `child`, with an eye on the memory of its tree; ends its process group when `stop` says so.
fn wait(child: &Child, stop: &(dyn Fn() -> bool + Sync)) -> Result<(Usage, u64)> {
    let (ended, stopped, peak_bytes) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let usage = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !ended.load(Relaxed) {
                peak_bytes.fetch_max(proc::tree_rss_bytes(child.id()), Relaxed);
                if stop() && !stopped.swap(true, Relaxed) {
                    end_group(child);
                }
                std::thread::park_timeout(SAMPLE_EVERY);
            }
        });
        let usage = wait4(child.id());
        ended.store(true, Relaxed);
        sampler.thread().unpark();
        usage
    })?;
    Ok((Usage { stopped: stopped.into_inner(), ..usage }, peak_bytes.into_inner()))
}

/// Asks the command and what it started to end; one that is gone already needs nothing.
fn end_group(child: &Child) {
    let group = rustix::process::Pid::from_raw(child.id() as i32);
    let asked = group.map(|group| rustix::process::kill_process_group(group, rustix::process::Signal::TERM));
    debug_assert!(!matches!(asked, Some(Err(rustix::io::Errno::PERM))), "a child of ours may be ended");
}

/// wait4: the end of a child, and what it and the children it waited for used.
fn wait4(pid: u32) -> Result<Usage> {
    let mut status: libc::c_int = 0;
    // SAFETY: rusage is a plain struct of integers, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to live local variables of the types wait4 fills.
        let waited = unsafe { libc::wait4(pid as libc::pid_t, &raw mut status, 0, &raw mut usage) };
        if waited > 0 {
            break;
        }
        let cause = std::io::Error::last_os_error();
        if cause.kind() != std::io::ErrorKind::Interrupted {
            return Err(Error::new(ErrorKind::Bug, "wait for a measured command", cause));
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cost = Cost {
        cpu_user_s: seconds(usage.ru_utime),
        cpu_system_s: seconds(usage.ru_stime),
        rss_bytes_max: usage.ru_maxrss as u64 * 1024,
        ..Cost::default()
    };
    Ok(Usage { cost, succeeded: status == 0, stopped: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_measured_and_a_failing_one_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let stopwatch = Stopwatch { directory: directory.path().to_owned(), postmaster: None, stop: &go_on };
        let (cost, said) = stopwatch.run(Command::new("sh").args(["-c", "echo 7; sleep 0.3"])).unwrap();
        assert_eq!(said, "7\n");
        assert!(cost.wall_s >= 0.3 && cost.rss_bytes_max > 0, "{cost:?}");
        let error = stopwatch.run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.message().contains("why"), "{error}");
        let stopwatch = Stopwatch { stop: &|| true, ..stopwatch };
        let error = stopwatch.run(Command::new("sh").args(["-c", "sleep 60"])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
}
