//! [`Counters`]: what a store has done, for tests of the write budget, benchmarks and people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A table whose row changes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Table {
    /// One row per execution.
    Executions,
    /// One per recorded delivery.
    Checkpoints,
    /// One per failed attempt.
    Attempts,
    /// One per piece of a large value.
    Chunks,
    /// One per execution that can be claimed.
    Ready,
    /// One per suspended execution with a due time.
    Timers,
    /// One per child that a suspended execution waits for.
    Waits,
    /// One per request to a running execution.
    Requests,
    /// One per running execution of a queue that limits how many run.
    Slots,
    /// One per name with a value that an execution is found by.
    Attributes,
}

impl Table {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All of them.
    pub const ALL: [Table; 10] = [
        Table::Executions,
        Table::Checkpoints,
        Table::Attempts,
        Table::Chunks,
        Table::Ready,
        Table::Timers,
        Table::Waits,
        Table::Requests,
        Table::Slots,
        Table::Attributes,
    ];

    /// Its name in the schema.
    pub fn as_str(self) -> &'static str {
        let names = [
            "executions",
            "checkpoints",
            "attempts",
            "chunks",
            "ready",
            "timers",
            "waits",
            "requests",
            "slots",
            "attributes",
        ];
        names[self as usize]
    }
}

/// Running totals of a store.
#[derive(Debug, Default)]
pub struct Counters {
    inserted: [AtomicU64; Table::COUNT],
    updated: [AtomicU64; Table::COUNT],
    deleted: [AtomicU64; Table::COUNT],
    statements: AtomicU64,
    flushes: AtomicU64,
    writes: AtomicU64,
    largest_flush: AtomicU64,
    statements_nanos: AtomicU64,
    commit_nanos: AtomicU64,
    turn_wait_nanos: AtomicU64,
    bytes: AtomicU64,
    held: AtomicU64,
    waits: AtomicU64,
    claims: AtomicU64,
    reads: AtomicU64,
}

/// What the one writer of a store has spent its time on, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterTime {
    /// Statements, from BEGIN to before COMMIT.
    pub statements: Duration,
    /// COMMIT: writing and synchronising the log, now and then folding it into the database.
    pub commit: Duration,
    /// Waiting for its turn, while another thread or process writes.
    pub turn_wait: Duration,
}

impl WriterTime {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &WriterTime) -> WriterTime {
        WriterTime {
            statements: self.statements.saturating_sub(earlier.statements),
            commit: self.commit.saturating_sub(earlier.commit),
            turn_wait: self.turn_wait.saturating_sub(earlier.turn_wait),
        }
    }
}

/// The totals at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// Rows inserted, by table in the order of [`Table::ALL`].
    pub inserted: [u64; Table::COUNT],
    /// Rows updated, by table.
    pub updated: [u64; Table::COUNT],
    /// Rows deleted, by table.
    pub deleted: [u64; Table::COUNT],
    /// Statements executed for flushes and claims.
    pub statements: u64,
    /// Flushes committed.
    pub flushes: u64,
    /// Writes in those flushes.
    pub writes: u64,
    /// Bytes in those Writes, as the engine's bounds count them.
    pub bytes: u64,
    /// Writes that were held aside on their way.
    pub held: u64,
    /// Waits for something to be durable that were not over at once.
    pub waits: u64,
    /// Claims that took something.
    pub claims: u64,
    /// Loads of executions or values.
    pub reads: u64,
}

impl Counters {
    /// Counts rows inserted.
    pub fn add_inserted(&self, table: Table, rows: u64) {
        self.inserted[table as usize].fetch_add(rows, Relaxed);
    }

    /// Counts rows updated.
    pub fn add_updated(&self, table: Table, rows: u64) {
        self.updated[table as usize].fetch_add(rows, Relaxed);
    }

    /// Counts rows deleted.
    pub fn add_deleted(&self, table: Table, rows: u64) {
        self.deleted[table as usize].fetch_add(rows, Relaxed);
    }

    /// Counts statements executed.
    pub fn add_statements(&self, statements: u64) {
        self.statements.fetch_add(statements, Relaxed);
    }

    /// Counts a flush of `writes` Writes.
    pub fn add_flush(&self, writes: u64) {
        self.flushes.fetch_add(1, Relaxed);
        self.writes.fetch_add(writes, Relaxed);
        self.largest_flush.fetch_max(writes, Relaxed);
    }

    /// The most Writes in a flush since this was last asked.
    pub fn take_largest_flush(&self) -> u64 {
        self.largest_flush.swap(0, Relaxed)
    }

    /// Adds to what the writer has spent its time on, where a store has one writer.
    pub fn add_writer_time(&self, spent: WriterTime) {
        let add = |to: &AtomicU64, time: Duration| to.fetch_add(time.as_nanos() as u64, Relaxed);
        add(&self.statements_nanos, spent.statements);
        add(&self.commit_nanos, spent.commit);
        add(&self.turn_wait_nanos, spent.turn_wait);
    }

    /// What the writer has spent its time on; all zero for a store that has not just one.
    pub fn writer_time(&self) -> WriterTime {
        let of = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed));
        WriterTime {
            statements: of(&self.statements_nanos),
            commit: of(&self.commit_nanos),
            turn_wait: of(&self.turn_wait_nanos),
        }
    }

    /// Counts what a lane has seen since it was last asked: bytes landed, Writes held aside, waits.
    pub(crate) fn add_lane_totals(&self, bytes: u64, held: u64, waits: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.held.fetch_add(held, Relaxed);
        self.waits.fetch_add(waits, Relaxed);
    }

    /// Counts a claim that took something.
    pub fn add_claim(&self) {
        self.claims.fetch_add(1, Relaxed);
    }

    /// Counts a load.
    pub fn add_read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    /// The totals now.
    pub fn snapshot(&self) -> CounterSnapshot {
        let all = |counters: &[AtomicU64; Table::COUNT]| std::array::from_fn(|i| counters[i].load(Relaxed));
        CounterSnapshot {
            inserted: all(&self.inserted),
            updated: all(&self.updated),
            deleted: all(&self.deleted),
            statements: self.statements.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            held: self.held.load(Relaxed),
            waits: self.waits.load(Relaxed),
            claims: self.claims.load(Relaxed),
            reads: self.reads.load(Relaxed),
        }
    }
}

impl CounterSnapshot {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &CounterSnapshot) -> CounterSnapshot {
        let minus = |a: &[u64; Table::COUNT], b: &[u64; Table::COUNT]| std::array::from_fn(|i| a[i] - b[i]);
        CounterSnapshot {
            inserted: minus(&self.inserted, &earlier.inserted),
            updated: minus(&self.updated, &earlier.updated),
            deleted: minus(&self.deleted, &earlier.deleted),
            statements: self.statements - earlier.statements,
            flushes: self.flushes - earlier.flushes,
            writes: self.writes - earlier.writes,
            bytes: self.bytes - earlier.bytes,
            held: self.held - earlier.held,
            waits: self.waits - earlier.waits,
            claims: self.claims - earlier.claims,
            reads: self.reads - earlier.reads,
        }
    }

    /// Rows inserted into, updated in and deleted from `table`.
    pub fn row_changes(&self, table: Table) -> (u64, u64, u64) {
        let i = table as usize;
        (self.inserted[i], self.updated[i], self.deleted[i])
    }
}
