//! [`Report`]: the figures of an experiment. Its JSON is a contract that other programs read.

use serde::{Deserialize, Serialize};

use crate::bound::Bound;

/// An experiment's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// Which language's API was driven.
    pub sdk: String,
    /// Kind and version of the store.
    pub store: String,
    /// `full`, `relaxed` or `none`.
    pub durability: String,
    /// Version of Stepfast.
    pub version: String,
    /// Where it ran.
    pub machine: Machine,
    /// The figures.
    pub rows: Vec<Row>,
    /// What else was measured, and what was aimed at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

/// One figure, with its target if there is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What it is, with the rule for its limit.
    pub name: String,
    /// What was measured.
    pub value: f64,
    /// Of the value and the limit.
    pub unit: String,
    /// The value should not be above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

impl Figure {
    /// A figure without a target.
    pub fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { name: name.into(), value, unit: unit.to_owned(), limit: None }
    }

    /// The same with a limit, where there is one.
    #[must_use]
    pub fn at_most(self, limit: impl Into<Option<f64>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Whether the target was met, if there is one.
    pub fn is_met(&self) -> Option<bool> {
        self.limit.map(|limit| self.value <= limit)
    }
}

/// Where an experiment ran.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system and architecture.
    pub system: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Model of the processor.
    pub processor: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// One combination of parameters, and what it came to. Parameters that do not apply are absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// How callers start workflows (`start`, `run`), or what is measured. In `flush`: `write` (a raw write and
    /// sync) or `commit` (a bare commit of the store).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Concurrent callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// What the callers are, if not tasks: `threads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<String>,
    /// Steps in a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Queues that workflows were put into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<usize>,
    /// Worker processes that ran them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Bytes written at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Operations that completed.
    pub completed: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Operations completed per second.
    pub per_second: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of latency in milliseconds.
    pub p99_ms: f64,
    /// Largest latency in milliseconds.
    pub max_ms: f64,
    /// Smallest latency in milliseconds, where it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ms: Option<f64>,
    /// The figure of somebody else's published report that this one answers, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_ms: Option<f64>,
    /// Flushes committed.
    pub flushes: u64,
    /// Writes per flush.
    pub writes_per_flush: f64,
    /// Bytes the store wrote: by this process to its disk for SQLite, of the server's log for Postgres.
    pub bytes_written: u64,
    /// Bytes on the disk that a workflow takes once its engine is closed, where sizes were varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes_each: Option<f64>,
    /// Finished executions that the store had when the run began, or executions that waited in its queue, where that was
    /// varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<usize>,
    /// Operations that took longer than a bound that matters, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// What bounded it, where that was watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
}

impl Machine {
    /// This machine, from `/proc` where there is one.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0);
        Self {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            memory_bytes: memory_kib * 1024,
        }
    }
}
