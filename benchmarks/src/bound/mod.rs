//! [`Bound`]: what bounds a run. On Postgres the server's sessions are sampled, on SQLite the store's writer is timed.

mod log;
mod processor;
mod server;
mod writer;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepfast::{Error, Store};
use tokio::time::Instant;

use crate::report::Row;
use crate::target::Target;

pub use log::LogUsage;
pub use processor::{CpuEach, cpu_seconds};
pub use writer::WriterProbe;

use processor::{ProcessorTime, ServerProcesses};
use server::ServerWatch;

/// The shares of a run's time, and its use of resources.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bound {
    /// The share of each kind of activity in the time, in percent. The shares add up to 100.
    pub shares: Vec<Share>,
    /// Postgres: the wait events of the server's processes by their names in Postgres, in percent of the time, largest first.
    /// Events of background processes have the prefix `checkpointer` or `walwriter`, and are not part of the shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Share>,
    /// Postgres: the number of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Postgres: the average number of busy sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_sessions: Option<f64>,
    /// Flushes per second.
    pub flushes_per_second: f64,
    /// The maximum number of Writes in a flush, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_flush: Option<u64>,
    /// Processor time of the process with the engine, in seconds per second: the engine and its callers (on SQLite also the
    /// database).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_processors: Option<f64>,
    /// Processor time of the whole machine, in seconds per second, for any purpose. `None` if the system does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_processors: Option<f64>,
    /// Postgres: the write-ahead log of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogUsage>,
}

/// The share of one kind of activity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The kind of activity.
    pub name: String,
    /// The share in percent.
    pub percent: f64,
}

impl Share {
    pub(crate) fn new(name: impl Into<String>, percent: f64) -> Self {
        Self { name: name.into(), percent }
    }
}

/// Converts `parts` to percentages, in tenths, that add up to exactly 100. If all parts are 0, the first one gets 100.
pub(crate) fn to_shares<const N: usize>(parts: [(&str, f64); N]) -> Vec<Share> {
    const WHOLE: u64 = 1_000;
    let total: f64 = parts.iter().map(|(_, part)| part).sum();
    let exact = parts.map(|(_, part)| if total > 0.0 { part / total * WHOLE as f64 } else { 0.0 });
    let mut tenths = exact.map(|tenths| tenths.floor() as u64);
    let mut by_fraction: Vec<usize> = (0..N).collect();
    by_fraction.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let remaining = WHOLE.saturating_sub(tenths.iter().sum());
    if total > 0.0 {
        by_fraction.iter().cycle().take(remaining as usize).for_each(|&i| tenths[i] += 1);
    } else if let Some(first) = tenths.first_mut() {
        *first = WHOLE;
    }
    let named = parts.iter().zip(tenths);
    named.map(|(&(name, _), tenths)| Share::new(name, tenths as f64 / 10.0)).collect()
}

/// Measures what bounds a run.
pub struct Probe {
    started_at: Instant,
    /// The process with the engine: its number, or `self`.
    process: String,
    server_processes: Option<ServerProcesses>,
    processor: ProcessorTime,
    server_watch: Option<ServerWatch>,
    writer: Option<WriterProbe>,
    log: Option<log::LogReading>,
}

impl Probe {
    /// Starts to measure a run on `target`, and on `store` if the engine is in this process.
    pub async fn start(target: &Target, store: Option<&Arc<dyn Store>>) -> Result<Self, Error> {
        Self::start_for("self".to_owned(), target, store).await
    }

    /// Starts to measure a run whose engine is in another process, with this number.
    pub async fn start_for_process(target: &Target, process: u32) -> Result<Self, Error> {
        Self::start_for(process.to_string(), target, None).await
    }

    async fn start_for(
        process: String,
        target: &Target,
        store: Option<&Arc<dyn Store>>,
    ) -> Result<Self, Error> {
        let timed_store = store.filter(|store| store.info().kind == "sqlite");
        let (mut server_watch, mut log, mut server_processes) = (None, None, None);
        if let Some(client) = target.postgres() {
            server_processes = ServerProcesses::find(client).await?;
            log = Some(log::LogReading::read(client).await?);
            server_watch = Some(ServerWatch::start(&target.url).await?);
        }
        if let Some(store) = store {
            store.counters().take_largest_flush();
        }
        let writer = timed_store.map(|store| WriterProbe::from_store(store.clone()));
        let processor = ProcessorTime::now(&process, server_processes.as_ref());
        Ok(Self {
            started_at: Instant::now(),
            process,
            server_processes,
            processor,
            server_watch,
            writer,
            log,
        })
    }

    /// Sets the writer to time, for connections to SQLite that count their time themselves.
    #[must_use]
    pub fn with_writer(self, writer: WriterProbe) -> Self {
        Self { writer: Some(writer), ..self }
    }

    /// Ends the measurement with the run. Only the log is read later, in [`RunObservation::fill`].
    pub async fn stop(self, store: Option<&Arc<dyn Store>>) -> Result<RunObservation, Error> {
        let seconds = self.started_at.elapsed().as_secs_f64();
        let now = ProcessorTime::now(&self.process, self.server_processes.as_ref());
        let processor = now.since(&self.processor);
        let mut bound = Bound {
            own_processors: Some(processor.of_process() / seconds.max(1e-9)),
            all_processors: processor.of_machine().map(|used| used / seconds.max(1e-9)),
            largest_flush: store.map(|store| store.counters().take_largest_flush()),
            ..Bound::default()
        };
        if let Some(watch) = self.server_watch {
            watch.stop().await?.fill(&mut bound);
        }
        if let Some(writer) = self.writer {
            bound.shares = writer.shares(seconds);
        }
        Ok(RunObservation { bound, processor, log: self.log })
    }
}

/// The measurement of a run.
pub struct RunObservation {
    bound: Bound,
    processor: ProcessorTime,
    log: Option<log::LogReading>,
}

impl RunObservation {
    /// Returns the processor time for each of `operations`. The server's time includes that of the samples, at most 1 %.
    pub fn cpu_each(&self, operations: u64) -> CpuEach {
        self.processor.each(operations)
    }

    /// Adds the measurement to the run's `row`, which must be complete otherwise. All connections of the run must be closed,
    /// because sessions report to the server's statistics at their end.
    pub async fn fill(mut self, target: &Target, row: &mut Row) -> Result<(), Error> {
        if let (Some(reading), Some(client)) = (self.log, target.postgres()) {
            let log = reading.since(client).await?;
            row.bytes_written = log.bytes;
            self.bound.log = Some(log);
        }
        if !self.bound.shares.is_empty() {
            self.bound.flushes_per_second = row.flushes as f64 / row.seconds.max(1e-9);
            row.bound = Some(self.bound);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percents(shares: &[Share]) -> Vec<String> {
        shares.iter().map(|share| format!("{} {}", share.name, share.percent)).collect()
    }

    #[test]
    fn shares_add_up_to_a_hundred() {
        let thirds = to_shares([("a", 1.0), ("b", 1.0), ("c", 1.0)]);
        assert_eq!(percents(&thirds), ["a 33.4", "b 33.3", "c 33.3"]);
        assert_eq!(percents(&to_shares([("a", 0.0), ("b", 7.5)])), ["a 0", "b 100"]);
        assert_eq!(percents(&to_shares([("idle", 0.0), ("b", 0.0)])), ["idle 100", "b 0"]);
        for n in 1..2_000 {
            let parts =
                [("a", f64::from(n)), ("b", f64::from(n % 7)), ("c", 0.001), ("d", f64::from(n).sqrt())];
            let tenths: f64 = to_shares(parts).iter().map(|share| (share.percent * 10.0).round()).sum();
            assert_eq!(tenths.to_string(), "1000", "{n}");
        }
    }
}
