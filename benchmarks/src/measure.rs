//! Measuring: latencies by operation, flushes, bytes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::report::Row;

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
    pub fn note(&self, n: usize, begun: Instant, is_ok: bool) {
        self.micros[n].store(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX), Relaxed);
        self.done.fetch_add(1, Relaxed);
        if !is_ok {
            self.failed.fetch_add(1, Relaxed);
        }
    }

    /// How many operations have ended.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Fills in the time and latencies of `row`.
    pub fn fill(&self, row: &mut Row) {
        self.fill_after(self.begun.elapsed(), row);
    }

    /// The same with a wall time taken elsewhere.
    pub fn fill_after(&self, wall: Duration, row: &mut Row) {
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

/// Bytes that this process has had written to disk.
pub fn bytes_written_here() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(0)
}
