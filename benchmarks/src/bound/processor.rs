//! [`Processor`]: processor time, of this process and of the whole machine.

/// The kernel counts in hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// What had been used at one moment.
pub struct ProcessorTime {
    own: f64,
    all: Option<f64>,
}

impl ProcessorTime {
    /// Now.
    pub fn now() -> Self {
        Self { own: cpu_seconds(), all: machine_seconds() }
    }

    /// What was used of processors since then, if `seconds` have passed: by this process, and by all.
    pub fn since(&self, seconds: f64) -> (f64, Option<f64>) {
        let now = Self::now();
        let per_second = |used: f64| (used / seconds.max(1e-9)).max(0.0);
        let all = self.all.zip(now.all).map(|(then, now)| per_second(now - then));
        (per_second(now.own - self.own), all)
    }
}

/// Processor time that this process has had so far, in seconds; 0 where the system does not tell.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // behind the name, which may hold anything, the fields count from the third on
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

/// Processor time that the machine has spent on anything: user, nice, system, irq, softirq.
fn machine_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|it| it.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|&i| fields.get(i)).sum();
    Some(busy as f64 / TICKS_PER_SECOND)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted() {
        let before = ProcessorTime::now();
        let mut n = 0u64;
        while cpu_seconds() - before.own < 0.05 {
            n = std::hint::black_box(n.wrapping_mul(31).wrapping_add(7));
        }
        let (own, all) = before.since(1.0);
        assert!(own >= 0.05, "{own}");
        assert!(all.is_some_and(|all| all > 0.0), "{all:?}");
    }
}
