//! [`Throughput`]: the number of executions that end per second.

use std::time::Duration;

use tokio::time::Instant;

/// Length of the spans in which ends are counted.
const SPAN: Duration = Duration::from_millis(250);
/// Number of spans over which a rate is measured.
const SPANS_PER_RATE: u32 = 4;
/// Share of the throughput before the fault that counts as recovered.
const RECOVERED_SHARE: f64 = 0.9;

/// The times at which executions ended.
#[derive(Debug, Default)]
pub struct Throughput {
    ends: Vec<Instant>,
}

/// The impact of a fault on the throughput, in executions per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultImpact {
    /// The throughput just before the fault.
    pub before: f64,
    /// The throughput during the fault.
    pub during: f64,
    /// The throughput after its recovery, or after the fault if it has not recovered.
    pub after: f64,
    /// Time from the end of the fault until the throughput was back at 90 % of that before; `None` if it never was.
    pub recovered_after: Option<Duration>,
}

impl Throughput {
    /// Records that an execution has ended.
    pub fn record_end(&mut self, at: Instant) {
        self.ends.push(at);
    }

    /// Returns the number of executions that have ended.
    pub fn end_count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the number of executions that ended per second.
    pub fn rate(&self, from: Instant, to: Instant) -> f64 {
        let count = self.ends.iter().filter(|at| (from..to).contains(at)).count();
        count as f64 / to.duration_since(from).as_secs_f64().max(1e-9)
    }

    /// Measures the impact of a fault from `fault_start` to `fault_end`, with the time before from `since`.
    pub fn measure_impact(&self, since: Instant, fault_start: Instant, fault_end: Instant) -> FaultImpact {
        let now = Instant::now();
        let before = self.rate(since, fault_start);
        let spans = (now.duration_since(fault_end).as_millis() / SPAN.as_millis()) as u32 + 1;
        let recovered_at = (SPANS_PER_RATE..spans)
            .map(|n| fault_end + SPAN * (n - SPANS_PER_RATE))
            .find(|from| self.rate(*from, *from + SPAN * SPANS_PER_RATE) >= RECOVERED_SHARE * before);
        FaultImpact {
            before,
            during: self.rate(fault_start, fault_end),
            after: self.rate(recovered_at.unwrap_or(fault_end), now),
            recovered_after: recovered_at.map(|at| at.duration_since(fault_end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_begins_with_first_second_at_full_rate() {
        let millis = Duration::from_millis;
        let since = Instant::now().checked_sub(millis(20_000)).unwrap();
        let (fault_start, fault_end) = (since + millis(4000), since + millis(6000));
        let mut throughput = Throughput::default();
        // 100 per second, half of it during the fault, none for 3 s after it
        for n in 0..400 {
            throughput.record_end(since + millis(n * 10));
        }
        for n in 0..100 {
            throughput.record_end(fault_start + millis(n * 20));
        }
        for n in 300..1400 {
            throughput.record_end(fault_end + millis(n * 10));
        }
        let impact = throughput.measure_impact(since, fault_start, fault_end);
        assert_eq!((impact.before, impact.during, impact.recovered_after), (100.0, 50.0, Some(millis(3000))));
        assert!((99.0..101.0).contains(&impact.after), "{impact:?}");
        throughput.ends.retain(|at| *at < fault_end);
        assert_eq!(throughput.measure_impact(since, fault_start, fault_end).recovered_after, None);
    }
}
