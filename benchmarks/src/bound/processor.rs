//! [`ProcessorTime`]: processor time of this process and of the whole machine.

/// The kernel's unit of processor time: hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processor time used up to one moment.
pub struct ProcessorTime {
    own: f64,
    all: Option<f64>,
}

impl ProcessorTime {
    /// Reads the current values.
    pub fn now() -> Self {
        Self { own: cpu_seconds(), all: machine_seconds() }
    }

    /// Returns the processors used since then, if `seconds` have passed: by this process, and by the machine.
    pub fn since(&self, seconds: f64) -> (f64, Option<f64>) {
        let now = Self::now();
        let per_second = |used: f64| (used / seconds.max(1e-9)).max(0.0);
        let all = self.all.zip(now.all).map(|(then, now)| per_second(now - then));
        (per_second(now.own - self.own), all)
    }
}

/// Returns the processor time of this process so far, in seconds. 0 if the system does not report it.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // after the name, which may contain any character, the fields begin with the third one
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

/// Returns the machine's processor time for any purpose, in seconds: user, nice, system, irq, softirq.
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
    fn processor_time_grows_with_work() {
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
