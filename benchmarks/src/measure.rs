//! Measures latencies of operations and bytes written.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::report::Row;

/// Returns the steps of a sweep that fills a store, in ascending order and without duplicates.
pub(crate) fn sort_ascending(steps: &[usize]) -> Vec<usize> {
    let mut steps = steps.to_vec();
    steps.sort_unstable();
    steps.dedup();
    steps
}

/// The latencies of a fixed number of operations, in microseconds. Any thread may record them.
pub struct Latencies {
    begun: Instant,
    next: AtomicU64,
    micros: Box<[AtomicU32]>,
    failed: AtomicU64,
    done: AtomicU64,
}

impl Latencies {
    /// Creates a record for `operations` operations, and starts the clock.
    pub fn new(operations: usize) -> Self {
        Self {
            begun: Instant::now(),
            next: AtomicU64::new(0),
            micros: (0..operations).map(|_| AtomicU32::new(0)).collect(),
            failed: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// Returns the number of the next operation. `None` means that all have begun.
    pub fn next(&self) -> Option<usize> {
        let next = self.next.fetch_add(1, Relaxed) as usize;
        (next < self.micros.len()).then_some(next)
    }

    /// Records that operation number `n` has ended.
    pub fn record(&self, n: usize, begun: Instant, is_ok: bool) {
        self.micros[n].store(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX), Relaxed);
        self.done.fetch_add(1, Relaxed);
        if !is_ok {
            self.failed.fetch_add(1, Relaxed);
        }
    }

    /// Returns the time since the start of the clock.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the number of operations that have ended.
    pub fn done_count(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Sets the duration and the latencies of `row`.
    pub fn fill(&self, row: &mut Row) {
        self.fill_with_elapsed(self.begun.elapsed(), row);
    }

    /// Sets the duration to `elapsed`, and the latencies of `row`.
    pub fn fill_with_elapsed(&self, elapsed: Duration, row: &mut Row) {
        row.failed = self.failed.load(Relaxed);
        row.completed = self.done_count() - row.failed;
        row.seconds = elapsed.as_secs_f64();
        row.per_second = row.completed as f64 / row.seconds.max(1e-9);
        // up to an hour, with three digits
        let Ok(mut histogram) = Histogram::<u64>::new_with_max(3_600_000_000, 3) else { return };
        for micros in &self.micros[..self.done_count() as usize] {
            histogram.saturating_record(u64::from(micros.load(Relaxed)));
        }
        let ms = |micros: u64| micros as f64 / 1000.0;
        row.p50_ms = ms(histogram.value_at_quantile(0.5));
        row.p99_ms = ms(histogram.value_at_quantile(0.99));
        row.max_ms = ms(histogram.max());
    }
}

/// A list of times in milliseconds, sorted.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl FromIterator<f64> for Samples {
    fn from_iter<T: IntoIterator<Item = f64>>(times: T) -> Self {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_by(f64::total_cmp);
        Self(times)
    }
}

impl Samples {
    /// Adds a time.
    pub fn push(&mut self, ms: f64) {
        self.0.push(ms);
        self.0.sort_by(f64::total_cmp);
    }

    /// Returns the number of times.
    #[allow(clippy::len_without_is_empty)] // not needed
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the median, or 0 if the list is empty.
    pub fn median(&self) -> f64 {
        median(&self.0).unwrap_or(0.0)
    }

    /// Returns a row with these times.
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

/// Returns the median of `numbers`: the middle one, or the mean of the middle two. `None` if there are none.
pub fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(*sorted.get(last / 2)?, *sorted.get(sorted.len() / 2)?))
}

/// Returns the milliseconds since `begun`.
pub fn ms_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}

/// Returns the bytes that this process has written to disk. 0 if the system does not report it.
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
    fn median_is_the_middle_of_the_samples() {
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
