//! System calls counted, and one of them killed or failed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use super::bench::{Place, Ran, Random};

/// System calls that change a file system, and those that make a change durable or take a lock.
pub(crate) const MUTATING: &[&str] = &[
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "fsync",
    "fdatasync",
    "syncfs",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
    "symlink",
    "symlinkat",
    "ftruncate",
    "fallocate",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "fchownat",
    "flock",
    "utimensat",
];

/// One place in a run: the n-th call of a kind in a thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) call: String,
    pub(crate) number: usize,
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.call, self.number)
    }
}

/// Whether processes can be traced here; says so if not.
pub(crate) fn is_usable(test: &str) -> bool {
    let probe = Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    let usable = probe.is_ok_and(|status| status.success());
    if !usable {
        eprintln!("SKIPPED: {test}: strace is not installed or may not trace processes here");
    }
    usable
}

fn traced(place: &Place, options: &[&str], arguments: &[String]) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq"]).args(options).arg(env!("CARGO_BIN_EXE_pagehaul")).args(arguments);
    place.tidy_environment(&mut command);
    command
}

/// Runs the command to a good end and gives its calls, one line each, as strace writes them.
pub(crate) fn trace(place: &Place, calls: &[&str], arguments: &[String]) -> Vec<String> {
    let log = place.directory.join("trace");
    let filter = format!("trace={}", calls.join(","));
    // The kernel picks the calls, which is quicker; with injections some strace releases then miss those of threads.
    let options = ["--seccomp-bpf", "-o", &log.display().to_string(), "-e", &filter];
    let ran = Ran::of(&mut traced(place, &options, arguments));
    assert_eq!(ran.code, Some(0), "{ran}");
    let lines = std::fs::read(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect()
}

/// Every place of a run: strace counts each thread's calls by itself, and the first thread that gets to a number is it.
pub(crate) fn places(trace: &[String], wanted: impl Fn(&str) -> bool) -> Vec<At> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut places = Vec::new();
    for line in trace {
        // A call that another thread interrupted in the log has a second line, which begins with "<...".
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, _)) = rest.trim_start().split_once('(').filter(|(call, _)| !call.contains(['<', '-', '+']))
        else {
            continue;
        };
        let count = counts.entry((thread, call)).or_default();
        *count += 1;
        if wanted(line) {
            places.push(At { call: call.to_owned(), number: *count });
        }
    }
    places.sort();
    places.dedup();
    places
}

/// A choice of places: the first and the last of each call, then random ones.
pub(crate) fn sample(places: Vec<At>, count: usize, random: &mut Random) -> Vec<At> {
    let mut ends = Vec::new();
    for call in MUTATING {
        let of_call: Vec<&At> = places.iter().filter(|at| at.call == *call).collect();
        ends.extend(of_call.first().into_iter().chain(of_call.last()).map(|at| (*at).clone()));
    }
    ends.dedup();
    let ends = random.choose(ends, count.div_ceil(2));
    let others = places.into_iter().filter(|at| !ends.contains(at)).collect();
    let others = random.choose(others, count - ends.len().min(count));
    ends.into_iter().chain(others).collect()
}

/// Runs the command and does `what` (such as `signal=KILL` or `error=EIO`) at one place; `number` may end in `+`.
pub(crate) fn inject(place: &Place, call: &str, what: &str, number: &str, arguments: &[String]) -> Ran {
    let (filter, injection) = (format!("trace={call}"), format!("inject={call}:{what}:when={number}"));
    Ran::of(&mut traced(place, &["-o", "/dev/null", "-e", &filter, "-e", &injection], arguments))
}

/// Kills the command at a place; false if it came to a good end before.
pub(crate) fn kill(place: &Place, at: &At, arguments: &[String]) -> bool {
    let ran = inject(place, &at.call, "signal=KILL", &at.number.to_string(), arguments);
    assert!(ran.signal == Some(9) || ran.code == Some(0), "killed at {at}: {ran}");
    ran.signal == Some(9)
}

/// Whether a path of the log is below `directory`.
pub(crate) fn names(line: &str, directory: &Path) -> bool {
    line.contains(&format!("\"{}", directory.display()))
}
