//! What kind of machine this is and which versions ran: everything but names and places.

use std::path::Path;
use std::process::Command;

use pagehaul_tune::contestants::stopwatch::run_quietly;

/// Lines of the README: what and which.
pub(crate) type Facts = Vec<(&'static str, String)>;

/// Processor, cores, memory, kernel, file system of `work`.
pub(crate) fn describe(work: &Path) -> Facts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = value_of(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned());
    let virtual_machine = if cpuinfo.contains(" hypervisor") { ", a virtual machine" } else { "" };
    let memory_gib = value_of(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.trim_end_matches("kB").trim().parse::<f64>().ok())
        .map_or(0.0, |kib| kib / 1_048_576.0);
    let system = read("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    vec![
        ("processor", format!("{model}, {} cores{virtual_machine}", cores())),
        ("memory", format!("{memory_gib:.1} GiB")),
        ("system", format!("{}, Linux {}", system.trim_matches('"'), read("/proc/sys/kernel/osrelease").trim())),
        ("file system", file_system(&read("/proc/self/mounts"), work)),
    ]
}

/// Cores this process may use.
pub(crate) fn cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| u16::try_from(cores.get()).unwrap_or(u16::MAX))
}

/// The versions of the tools; those that are not there are left out.
pub(crate) fn versions(pagehaul: &Path, pg_bin: &Path, backrest: &str) -> Facts {
    let commit = first_line(Command::new("git").args(["describe", "--always", "--dirty"]));
    let pagehaul = first_line(Command::new(pagehaul).arg("--version")).map(|version| match commit {
        Some(commit) => format!("{version}, commit {commit}"),
        None => version,
    });
    let list = [
        ("pagehaul", pagehaul),
        ("rustc", first_line(Command::new("rustc").arg("--version"))),
        ("PostgreSQL", first_line(Command::new(pg_bin.join("postgres")).arg("--version"))),
        ("pg_basebackup", first_line(Command::new(pg_bin.join("pg_basebackup")).arg("--version"))),
        ("pgBackRest", first_line(Command::new(backrest).arg("version"))),
        ("zstd, the command", first_line(Command::new("zstd").arg("--version"))),
        ("lz4, the command", first_line(Command::new("lz4").arg("--version"))),
        ("tar", first_line(Command::new("tar").arg("--version"))),
    ];
    list.into_iter().filter_map(|(name, version)| Some((name, version?))).collect()
}

fn first_line(command: &mut Command) -> Option<String> {
    run_quietly(command).ok()?.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

fn value_of(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|field| field.trim() == name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Kind of the file system that holds `path`, from the kernel's table of mounts.
fn file_system(mounts: &str, path: &Path) -> String {
    let entries = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        path.starts_with(point).then_some((point.len(), kind))
    });
    // Of mounts at one place the last is the visible one.
    entries.max_by_key(|(length, _)| *length).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts() {
        let mounts = "a / ext4 rw 0 0\nb /var tmpfs rw 0 0\nc /var/tmp xfs rw 0 0\nd /va btrfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/var/tmp/x")), "xfs");
        assert_eq!(file_system(mounts, Path::new("/var/x")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/x")), "ext4");
        assert_eq!(value_of("a\t: b c\nd : e", "a"), Some("b c".to_owned()));
    }
}
