//! Reports: [`Report`] has the figures of an experiment, which become tables and go into the READMEs. Other programs read
//! its JSON, so its format is a contract.

mod peer_graphs;
pub mod peers;
pub mod plot;
pub mod readme;
pub mod table;

use serde::{Deserialize, Serialize};

use crate::bound::{Bound, CpuEach};

/// The figures of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The name of the experiment.
    pub experiment: String,
    /// The language whose API was measured: `rust` or `python`.
    pub sdk: String,
    /// The kind and version of the store.
    pub store: String,
    /// The durability: `full`, `relaxed` or `none`.
    pub durability: String,
    /// The version of Stepfast.
    pub version: String,
    /// The machine on which the experiment ran.
    pub machine: Machine,
    /// One row for each combination of parameters.
    pub rows: Vec<Row>,
    /// Further figures, some with targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
}

/// A figure, with its target if it has one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The figure's name, with the rule for its limit.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// The unit of the value and the limit.
    pub unit: String,
    /// The target: a maximum for the value. `None` without a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

impl Figure {
    /// Creates a figure without a target.
    pub fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { name: name.into(), value, unit: unit.to_owned(), limit: None }
    }

    /// Sets the limit, if there is one.
    #[must_use]
    pub fn at_most(self, limit: impl Into<Option<f64>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Whether the target was met. `None` without a target.
    pub fn is_met(&self) -> Option<bool> {
        self.limit.map(|limit| self.value <= limit)
    }
}

/// The machine on which an experiment ran.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The operating system and architecture.
    pub system: String,
    /// The number of processors that this process may use.
    pub cores: usize,
    /// The model of the processor.
    pub processor: String,
    /// The memory in bytes.
    pub memory_bytes: u64,
}

/// The results of one combination of parameters. Parameters that do not apply are absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The way in which callers start workflows (`start`, `run`), or the measured operation. In `flush`: `write` (a raw write
    /// and sync) or `commit` (a bare commit of the store).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The measured operation on batches: `write`, `run`, `single calls`, `search`, or `search by id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The number of items of a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// The corresponding rate of a report that others have published, in operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_per_second: Option<f64>,
    /// The number of concurrent callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// The kind of callers, if they are not tasks: `threads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<String>,
    /// The number of steps in a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// The number of queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<usize>,
    /// The number of worker processes that ran the queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// The number of bytes written at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// The number of operations that completed.
    pub completed: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The wall time in seconds.
    pub seconds: f64,
    /// The number of operations completed per second.
    pub per_second: f64,
    /// The number of tasks completed per second, if the operations are graphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks_per_second: Option<f64>,
    /// The median latency in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of the latency in milliseconds.
    pub p99_ms: f64,
    /// The maximum latency in milliseconds.
    pub max_ms: f64,
    /// The minimum latency in milliseconds, if it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ms: Option<f64>,
    /// The corresponding figure of a report that others have published, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_ms: Option<f64>,
    /// The number of committed flushes.
    pub flushes: u64,
    /// The average number of Writes per flush.
    pub writes_per_flush: f64,
    /// The bytes that the store wrote: for SQLite those that this process wrote to disk, for Postgres those of the server's log.
    pub bytes_written: u64,
    /// The processor time per workflow, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_each: Option<CpuEach>,
    /// The bytes on the disk per workflow after its engine is closed, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes_each: Option<f64>,
    /// The number of finished executions in the store at the begin of the run, or of executions that waited in its queue, if
    /// that was varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<usize>,
    /// The number of operations that exceeded the experiment's time bound, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// The measurement of what bounded the run. `None` if it was not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
}

impl Machine {
    /// Describes this machine, from `/proc` if it exists.
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
