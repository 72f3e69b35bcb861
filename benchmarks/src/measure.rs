//! Measuring: latencies by operation, flushes, bytes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::report::Row;

/// The steps of a sweep that fills a store: from the least on, each once.
pub(crate) fn ascending(steps: &[usize]) -> Vec<usize> {
    let mut steps = steps.to_vec();
    steps.sort_unstable();
    steps.dedup();
    steps
}

/// Latencies of a fixed number of operations, in microseconds, written by any thread.
pub struct Latencies {
    begun: Instant,
    next: AtomicU64,
    micros: Box<[AtomicU32]>,
    failed: AtomicU64,
    done: AtomicU64,
}

impl Latencies {
    /// Room for `operations` operations; the clock starts now.
    pub fn new(operations: usize) -> Self {
        Self {
            begun: Instant::now(),
            next: AtomicU64::new(0),
            micros: (0..operations).map(|_| AtomicU32::new(0)).collect(),
            failed: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// The number of the next operation; `None` if all have been given out.
    pub fn next(&self) -> Option<usize> {
        let next = self.next.fetch_add(1, Relaxed) as usize;
        (next < self.micros.len()).then_some(next)
    }

    /// Notes that operation number `n` ended, and how.
    pub fn record(&self, n: usize, begun: Instant, is_ok: bool) {
        self.micros[n].store(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX), Relaxed);
        self.done.fetch_add(1, Relaxed);
        if !is_ok {
            self.failed.fetch_add(1, Relaxed);
        }
    }

    /// The time since it began.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How many operations have ended.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Fills in the time and latencies of `row`.
    pub fn fill(&self, row: &mut Row) {
        self.fill_with_elapsed(self.begun.elapsed(), row);
    }

    /// The same with a wall time taken elsewhere.
    pub fn fill_with_elapsed(&self, wall: Duration, row: &mut Row) {
        row.failed = self.failed.load(Relaxed);
        row.completed = self.done() - row.failed;
        row.seconds = wall.as_secs_f64();
        row.per_second = row.completed as f64 / row.seconds.max(1e-9);
        // up to an hour, three digits
        let Ok(mut histogram) = Histogram::<u64>::new_with_max(3_600_000_000, 3) else { return };
        for micros in &self.micros[..self.done() as usize] {
            histogram.saturating_record(u64::from(micros.load(Relaxed)));
        }
        let ms = |micros: u64| micros as f64 / 1000.0;
        row.p50_ms = ms(histogram.value_at_quantile(0.5));
        row.p99_ms = ms(histogram.value_at_quantile(0.99));
        row.max_ms = ms(histogram.max());
    }
}

/// Times in milliseconds, all of them kept.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, ms: f64) {
        self.0.push(ms);
        self.0.sort_by(f64::total_cmp);
    }

    /// How many.
    #[allow(clippy::len_without_is_empty)] // nobody asks
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The one in the middle; the mean of two if there are two. 0 if there is none.
    pub fn median(&self) -> f64 {
        median(&self.0).unwrap_or(0.0)
    }

    /// A row of them.
    pub fn row(&self, mode: &str) -> Row {
        let last = self.0.last().copied().unwrap_or(0.0);
        let seconds = self.0.iter().sum::<f64>() / 1000.0;
        Row {
            mode: Some(mode.to_owned()),
            completed: self.0.len() as u64,
            seconds,
            per_second: self.0.len() as f64 / seconds.max(1e-9),
            p50_ms: self.median(),
            p99_ms: self.0.get(self.0.len() * 99 / 100).copied().unwrap_or(last),
            max_ms: last,
            min_ms: self.0.first().copied(),
            ..Row::default()
        }
    }
}

/// The one in the middle of any numbers; the mean of two if there are two.
pub fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(*sorted.get(last / 2)?, *sorted.get(sorted.len() / 2)?))
}

/// The milliseconds since `begun`.
pub fn ms_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}

/// Bytes that this process has had written to disk.
pub fn own_bytes_written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let mut samples = Samples::default();
        assert_eq!(samples.median().to_string(), "0");
        for (sample, median) in [(5.0, "5"), (1.0, "3"), (2.0, "2"), (9.0, "3.5")] {
            samples.push(sample);
            assert_eq!(samples.median().to_string(), median);
        }
        let row = samples.row("commit");
        assert_eq!((row.completed, row.min_ms), (4, Some(1.0)));
        assert_eq!((row.p99_ms.to_string(), row.max_ms.to_string()), ("9".into(), "9".into()));
    }
}
