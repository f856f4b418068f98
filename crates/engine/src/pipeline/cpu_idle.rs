//! How much of the CPUs is idle: of the machine, whoever uses it, and of what this process may use of it.

use std::time::Instant;

use super::machine_cores;

/// Looks at the counters now and then.
#[derive(Debug)]
pub(super) struct CpuIdle {
    cores: f64,
    /// The last two looks: shares are over both, because the kernel counts in hundredths of a second.
    earlier: [Look; 2],
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    own_s: f64,
    /// Ticks of all CPUs, idle and in total; None where the kernel does not tell.
    machine: Option<(u64, u64)>,
}

impl Look {
    fn now() -> Self {
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Look {
            at: Instant::now(),
            own_s: own.tv_sec as f64 + own.tv_nsec as f64 * 1e-9,
            machine: std::fs::read_to_string("/proc/stat").ok().and_then(|text| idle_and_total(&text)),
        }
    }
}

impl CpuIdle {
    pub(super) fn start() -> Self {
        CpuIdle { cores: f64::from(machine_cores()), earlier: [Look::now(); 2] }
    }

    /// The idle share since the last look but one, 0 to 1: the smaller of the machine's and of what a control group
    /// or a CPU mask leaves to this process.
    pub(super) fn share(&mut self) -> f64 {
        let now = Look::now();
        let [before, last] = self.earlier;
        self.earlier = [last, now];
        let elapsed_s = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let own = 1.0 - (now.own_s - before.own_s) / (elapsed_s * self.cores);
        let machine = match (before.machine, now.machine) {
            (Some(before), Some(now)) if now.1 > before.1 => {
                now.0.saturating_sub(before.0) as f64 / (now.1 - before.1) as f64
            }
            _ => 1.0,
        };
        own.min(machine).clamp(0.0, 1.0)
    }
}

/// The line of all CPUs in /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Waiting for a disk is
/// idle; a stolen tick was used, by another machine.
fn idle_and_total(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let (idle, iowait) = (*ticks.get(3)?, *ticks.get(4)?);
    Some((idle + iowait, ticks.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_all_cpus_is_read() {
        let text = "cpu  10 20 30 400 50 6 7 8 900 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(idle_and_total(text), Some((450, 531)));
        assert_eq!(idle_and_total("cpu0 1 2 3 4 5"), None);
        assert_eq!(idle_and_total("cpu  1 2 3"), None);
    }

    #[test]
    fn a_share_is_of_the_time_between_looks() {
        let mut idle = CpuIdle::start();
        let work = Instant::now();
        let mut sum = 0u64;
        while work.elapsed().as_millis() < 50 {
            sum = std::hint::black_box(sum + 1);
        }
        let share = idle.share();
        // One of the cores was used all the time, if not by this thread then by others.
        assert!(share <= 1.0 - 0.5 / f64::from(machine_cores()), "{share} {sum}");
    }
}
