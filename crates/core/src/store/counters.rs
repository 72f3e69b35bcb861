//! [`Counters`]: running totals of a store's operations, for tests of the write budget, benchmarks and people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A table whose row changes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Table {
    /// `executions`: one row per execution.
    Executions,
    /// `checkpoints`: one row per recorded delivery.
    Checkpoints,
    /// `attempts`: one row per failed attempt.
    Attempts,
    /// `chunks`: one row per piece of a large value.
    Chunks,
    /// `ready`: one row per execution that can be claimed.
    Ready,
    /// `timers`: one row per scheduled execution, and per suspended execution with a due time.
    Timers,
    /// `waits`: one row per event that a suspended execution waits for.
    Waits,
    /// `requests`: one row per pending request to a running execution.
    Requests,
    /// `slots`: one row per running execution of a queue that limits how many run.
    Slots,
    /// `attributes`: one row per attribute of an execution.
    Attributes,
    /// `batches`: one row per unfinished batch.
    Batches,
    /// `bundles`: one row per bundle.
    Bundles,
    /// `packs`: one row per recorded group of items' outcomes.
    Packs,
    /// `messages`: one row per message that was not received yet.
    Messages,
    /// `message_ids`: one row per message that was sent with an id.
    MessageIds,
    /// `stream_entries`: one row per value in a stream, and per end of a closed stream.
    StreamEntries,
}

impl Table {
    /// The number of counted tables.
    pub const COUNT: usize = Self::ALL.len();

    /// All counted tables.
    pub const ALL: [Table; 16] = [
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
        Table::Batches,
        Table::Bundles,
        Table::Packs,
        Table::Messages,
        Table::MessageIds,
        Table::StreamEntries,
    ];

    /// Returns the table's name in the schema.
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
            "batches",
            "bundles",
            "packs",
            "messages",
            "message_ids",
            "stream_entries",
        ];
        names[self as usize]
    }
}

/// The running totals of a store's operations.
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

/// The time that the only writer of a store has spent so far, by activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterTime {
    /// The time in statements, from BEGIN until before COMMIT.
    pub statements: Duration,
    /// The time in COMMIT: writing and synchronising the log, and sometimes copying it into the database.
    pub commit: Duration,
    /// The time spent waiting while another thread or process writes.
    pub turn_wait: Duration,
}

impl WriterTime {
    /// Returns the time spent since an earlier state.
    #[must_use]
    pub fn since(&self, earlier: &WriterTime) -> WriterTime {
        WriterTime {
            statements: self.statements.saturating_sub(earlier.statements),
            commit: self.commit.saturating_sub(earlier.commit),
            turn_wait: self.turn_wait.saturating_sub(earlier.turn_wait),
        }
    }
}

/// The totals of [`Counters`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// The number of inserted rows, by table in the order of [`Table::ALL`].
    pub inserted: [u64; Table::COUNT],
    /// The number of updated rows, by table in the order of [`Table::ALL`].
    pub updated: [u64; Table::COUNT],
    /// The number of deleted rows, by table in the order of [`Table::ALL`].
    pub deleted: [u64; Table::COUNT],
    /// The number of statements executed for flushes and claims.
    pub statements: u64,
    /// The number of committed flushes.
    pub flushes: u64,
    /// The number of Writes in these flushes.
    pub writes: u64,
    /// The size of these Writes in bytes, as [`Write::size`](crate::store::Write::size) counts them.
    pub bytes: u64,
    /// The number of Writes that a lane kept out of flushes for a time.
    pub held: u64,
    /// The number of waits for durability that did not end at once.
    pub waits: u64,
    /// The number of claims that took executions.
    pub claims: u64,
    /// The number of reads: loads of executions and values, lists and other queries.
    pub reads: u64,
}

impl Counters {
    /// Counts inserted rows of a table.
    pub fn add_inserted(&self, table: Table, rows: u64) {
        self.inserted[table as usize].fetch_add(rows, Relaxed);
    }

    /// Counts updated rows of a table.
    pub fn add_updated(&self, table: Table, rows: u64) {
        self.updated[table as usize].fetch_add(rows, Relaxed);
    }

    /// Counts deleted rows of a table.
    pub fn add_deleted(&self, table: Table, rows: u64) {
        self.deleted[table as usize].fetch_add(rows, Relaxed);
    }

    /// Counts executed statements.
    pub fn add_statements(&self, statements: u64) {
        self.statements.fetch_add(statements, Relaxed);
    }

    /// Counts a committed flush of `writes` Writes.
    pub fn add_flush(&self, writes: u64) {
        self.flushes.fetch_add(1, Relaxed);
        self.writes.fetch_add(writes, Relaxed);
        self.largest_flush.fetch_max(writes, Relaxed);
    }

    /// Returns the number of Writes in the largest flush since the last call, and resets it.
    pub fn take_largest_flush(&self) -> u64 {
        self.largest_flush.swap(0, Relaxed)
    }

    /// Adds to the time of a store's only writer.
    pub fn add_writer_time(&self, spent: WriterTime) {
        let add = |to: &AtomicU64, time: Duration| to.fetch_add(time.as_nanos() as u64, Relaxed);
        add(&self.statements_nanos, spent.statements);
        add(&self.commit_nanos, spent.commit);
        add(&self.turn_wait_nanos, spent.turn_wait);
    }

    /// Returns the time of the store's only writer; all zero for a store with several writers.
    pub fn writer_time(&self) -> WriterTime {
        let of = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed));
        WriterTime {
            statements: of(&self.statements_nanos),
            commit: of(&self.commit_nanos),
            turn_wait: of(&self.turn_wait_nanos),
        }
    }

    /// Adds a lane's totals since the last call: committed bytes, held Writes, and waits for durability.
    pub(crate) fn add_lane_totals(&self, bytes: u64, held: u64, waits: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.held.fetch_add(held, Relaxed);
        self.waits.fetch_add(waits, Relaxed);
    }

    /// Counts a claim that took executions.
    pub fn add_claim(&self) {
        self.claims.fetch_add(1, Relaxed);
    }

    /// Counts a read.
    pub fn add_read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    /// Returns the current totals.
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
    /// Returns the increase of the totals since an earlier snapshot.
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

    /// Returns the numbers of rows inserted into, updated in and deleted from `table`.
    pub fn row_changes(&self, table: Table) -> (u64, u64, u64) {
        let i = table as usize;
        (self.inserted[i], self.updated[i], self.deleted[i])
    }
}
