//! What the kernel's tables under /proc say of processes.

use std::collections::BTreeMap;

/// Bytes of a page of memory, and clock ticks a second, as Linux shows them on the machines we know.
const PAGE_BYTES: u64 = 4096;
const TICKS_PER_SECOND: f64 = 100.0;

/// One line of /proc/PID/stat.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stat {
    pub(super) parent: u32,
    /// CPU seconds of the process and of its children that it waited for.
    pub(super) cpu_s: f64,
    pub(super) rss_bytes: u64,
}

/// Reads `text`; the second field, a name in parentheses, may hold anything.
fn parse(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        cpu_s: ticks as f64 / TICKS_PER_SECOND,
        rss_bytes: number(21)? * PAGE_BYTES,
    })
}

/// Every process there is.
fn all() -> BTreeMap<u32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

/// CPU seconds of a server so far: the postmaster, its children that ended, its children that live.
pub fn server_cpu_s(postmaster: u32) -> f64 {
    all()
        .iter()
        .filter(|(pid, stat)| **pid == postmaster || stat.parent == postmaster)
        .map(|(_, stat)| stat.cpu_s)
        .sum()
}

/// Resident bytes of `root` and all below it; pages they share count in each.
pub(super) fn tree_rss_bytes(root: u32) -> u64 {
    let all = all();
    let (mut todo, mut sum) = (vec![root], 0);
    while let Some(pid) = todo.pop() {
        sum += all.get(&pid).map_or(0, |stat| stat.rss_bytes);
        todo.extend(all.iter().filter(|(_, stat)| stat.parent == pid).map(|(pid, _)| *pid));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_understood() {
        let line = "12 (a b) c) S 7 1 1 0 -1 4194560 1 0 0 0 250 50 100 10 20 0 1 0 1 1 3 18446744073709551615";
        assert_eq!(parse(line), Some(Stat { parent: 7, cpu_s: 4.1, rss_bytes: 3 * 4096 }));
        assert_eq!(parse("12 (x) S 1"), None);
    }

    #[test]
    fn this_process_is_in_its_own_tree() {
        assert!(tree_rss_bytes(std::process::id()) > 0);
    }
}
