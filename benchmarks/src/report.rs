//! [`Report`]: the figures of an experiment. Its JSON is a contract that other programs read.

use serde::{Deserialize, Serialize};

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
    /// What is measured, in `flush`: `write` (a raw write and sync) or `commit` (a bare commit of the store).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Concurrent callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// Steps in a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
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
    /// Flushes committed.
    pub flushes: u64,
    /// Writes per flush.
    pub writes_per_flush: f64,
    /// Bytes the store wrote: by this process to its disk for SQLite, of the server's log for Postgres.
    pub bytes_written: u64,
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
