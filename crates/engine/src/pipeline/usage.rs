//! What this process has used so far: CPU time and memory, from the kernel's own accounts.

/// CPU seconds and peak memory of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// In our code.
    pub cpu_user_s: f64,
    /// In the kernel, for us.
    pub cpu_system_s: f64,
    /// Largest resident set.
    pub rss_bytes_max: u64,
}

impl ProcessUsage {
    /// The accounts now; zeros where /proc is not there.
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (cpu_user_s, cpu_system_s) = cpu_times(&stat, rustix::param::clock_ticks_per_second()).unwrap_or_default();
        ProcessUsage { cpu_user_s, cpu_system_s, rss_bytes_max: peak_bytes(&status).unwrap_or_default() }
    }

    /// What was used since `before`; the peak is that of the whole process.
    #[must_use]
    pub fn since(&self, before: &ProcessUsage) -> Self {
        ProcessUsage {
            cpu_user_s: self.cpu_user_s - before.cpu_user_s,
            cpu_system_s: self.cpu_system_s - before.cpu_system_s,
            rss_bytes_max: self.rss_bytes_max,
        }
    }
}

/// utime and stime, fields 14 and 15 of /proc/self/stat; the second field may hold blanks.
fn cpu_times(stat: &str, ticks_per_second: u64) -> Option<(f64, f64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<u64>().ok()? as f64 / ticks_per_second as f64);
    Some((seconds()?, seconds()?))
}

fn peak_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_tables() {
        let stat = "12 (a b) c) S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(cpu_times(stat, 100), Some((2.5, 0.5)));
        assert_eq!(peak_bytes("Name: x\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert!(ProcessUsage::now().rss_bytes_max > 0);
    }
}
