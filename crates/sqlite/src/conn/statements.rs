//! [`Statements`]: the statements of one transaction. Each is looked up by its text once per transaction, not
//! once per row, and keeps its bindings from row to row.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, Params};
use stepfast_core::store::counters::{Counters, Table};

use crate::error::DbResult;

/// Rows that one statement inserts where there are that many.
pub(crate) const ROWS: usize = 16;

/// The texts of the statements for [`ROWS`] rows.
static START_RUNNING: LazyLock<String> =
    LazyLock::new(|| many(include_str!("../../queries/start_running.sql")));
static START_ENDED: LazyLock<String> = LazyLock::new(|| many(include_str!("../../queries/start_ended.sql")));
static CHECKPOINT: LazyLock<String> = LazyLock::new(|| many(include_str!("../../queries/checkpoint.sql")));

static PIECE: LazyLock<String> = LazyLock::new(|| many(include_str!("../../queries/piece.sql")));

/// Repeats the line of values.
fn many(one: &str) -> String {
    let is_values = |line: &&str| line.trim_start().starts_with("(?");
    let values = one.lines().find(is_values).unwrap_or_default();
    one.replacen(values, &vec![values; ROWS].join(",\n"), 1)
}

/// Statements that writing uses; the text of those longer than three lines is in `queries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Sql {
    Fence,
    SetNumber,
    HasNumber,
    StartRunning,
    StartEnded,
    StartsRunning,
    StartsEnded,
    Start,
    Attribute,
    Attributes,
    Existing,
    ExistingById,
    ExistingByDedupId,
    Checkpoint,
    CheckpointMany,
    Checkpoints,
    SameCheckpoint,
    Attempt,
    Attempts,
    SameAttempt,
    Chunk,
    NextValue,
    DeleteValue,
    NextPiece,
    Piece,
    PieceMany,
    Pieces,
    DeletePieces,
    InputToMerge,
    OutcomeOf,
    MoveEnded,
    MoveEndedPlain,
    MoveRunning,
    Move,
    Wake,
    Ready,
    ReadyAs,
    Unready,
    Slot,
    Unslot,
    StraySlots,
    Slots,
    KeySlots,
    RunningIn,
    SetQueue,
    Queue,
    DepthBound,
    SetDepthBound,
    CountDepth,
    ForgetRates,
    Used,
    ForgetStarts,
    EnterStarts,
    HasWoken,
    WokenOf,
    ReadyNow,
    NextQueue,
    FirstKey,
    NextKey,
    FirstWokenKey,
    NextWokenKey,
    IsReady,
    Admit,
    AdmitNew,
    Inbox,
    LetterAttributes,
    Receive,
    ReceiveAttributes,
    Taken,
    Bury,
    KeepPlace,
    GoBack,
    GoOn,
    Shard,
    ForgetMail,
    DeepenQueue,
    Merge,
    PutOff,
    Timer,
    Untimer,
    Wait,
    Unwait,
    Status,
    Children,
    Cancel,
    Resume,
    LastFailures,
    Untry,
    Withdraw,
    Ask,
    HasAsked,
    AnyAsked,
    Answer,
    Asked,
    Due,
    ReadyOf,
    Execution,
    ExecutionById,
    Begin,
    Take,
    TakeAlone,
    Requeue,
    Recorded,
    Judge,
    Quarantine,
    Quarantined,
    Unquarantine,
    ForgetLanes,
    ForgetWorker,
}

const COUNT: usize = Sql::ForgetWorker as usize + 1;

impl Sql {
    fn text(self) -> &'static str {
        match self {
            Sql::Fence => "SELECT epoch FROM lanes WHERE worker_id = ?1 AND lane = ?2",
            Sql::SetNumber => "UPDATE lanes SET last_number = ?3 WHERE worker_id = ?1 AND lane = ?2",
            Sql::HasNumber => {
                "SELECT 1 FROM lanes WHERE worker_id = ?1 AND lane = ?2 AND last_number = ?3"
            }
            Sql::StartRunning => include_str!("../../queries/start_running.sql"),
            Sql::StartEnded => include_str!("../../queries/start_ended.sql"),
            Sql::StartsRunning => &START_RUNNING,
            Sql::StartsEnded => &START_ENDED,
            Sql::Start => include_str!("../../queries/start.sql"),
            Sql::Attribute => "INSERT INTO attributes (execution, name, value) VALUES (?1, ?2, ?3)",
            Sql::Attributes => "SELECT name, value FROM attributes WHERE execution = ?1",
            Sql::Existing => include_str!("../../queries/existing.sql"),
            Sql::ExistingById => include_str!("../../queries/existing_by_id.sql"),
            Sql::Checkpoint => include_str!("../../queries/checkpoint.sql"),
            Sql::CheckpointMany => &CHECKPOINT,
            Sql::Checkpoints => include_str!("../../queries/checkpoints.sql"),
            Sql::SameCheckpoint => {
                "SELECT run_no = ?3 AND order_no = ?4 AND recorded_at = ?5, outcome FROM checkpoints
                 WHERE execution = ?1 AND path = ?2"
            }
            Sql::Attempt => {
                "INSERT INTO attempts (execution, path, attempt, failed_at, failure) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO NOTHING"
            }
            Sql::Attempts => {
                "SELECT path, attempt, failed_at, failure FROM attempts WHERE execution = ?1
                 ORDER BY path, attempt"
            }
            Sql::SameAttempt => {
                "SELECT failed_at = ?4, failure FROM attempts
                 WHERE execution = ?1 AND path = ?2 AND attempt = ?3"
            }
            Sql::Chunk => {
                "INSERT INTO chunks (execution, value, n, bytes) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING"
            }
            Sql::NextValue => {
                "SELECT value FROM chunks WHERE execution = ?1 AND value >= ?2 ORDER BY value LIMIT 1"
            }
            Sql::DeleteValue => "DELETE FROM chunks WHERE execution = ?1 AND value = ?2",
            Sql::NextPiece => "SELECT coalesce(max(id), 0) + 1 FROM payloads",
            Sql::Piece => include_str!("../../queries/piece.sql"),
            Sql::PieceMany => &PIECE,
            Sql::Pieces => "SELECT bytes FROM payloads WHERE id >= ?1 AND id < ?2 ORDER BY id",
            Sql::DeletePieces => "DELETE FROM payloads WHERE id >= ?1 AND id < ?2",
            Sql::InputToMerge => {
                "SELECT input FROM executions
                 WHERE queue = ?1 AND dedup_id = ?2 AND dedup_id IS NOT NULL AND status = 0"
            }
            Sql::OutcomeOf => "SELECT outcome FROM executions WHERE key = ?1",
            Sql::MoveEnded => include_str!("../../queries/move_ended.sql"),
            Sql::MoveEndedPlain => include_str!("../../queries/move_ended_plain.sql"),
            Sql::MoveRunning => {
                "UPDATE executions SET armed = ?3 WHERE key = ?1 AND owner = ?2 AND status = 2"
            }
            Sql::Move => include_str!("../../queries/move.sql"),
            Sql::Wake => include_str!("../../queries/wake.sql"),
            Sql::Ready => include_str!("../../queries/ready.sql"),
            Sql::ReadyAs => include_str!("../../queries/ready_as.sql"),
            Sql::Unready => "DELETE FROM ready WHERE execution = ?1",
            Sql::Slot => {
                "INSERT INTO slots (queue, queue_key, execution, worker_id) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING"
            }
            Sql::Unslot => "DELETE FROM slots WHERE queue = ?1 AND queue_key = ?2 AND execution = ?3",
            Sql::StraySlots => include_str!("../../queries/stray_slots.sql"),
            Sql::Slots => {
                "SELECT count(*), count(*) FILTER (WHERE worker_id = ?2) FROM slots WHERE queue = ?1"
            }
            Sql::KeySlots => "SELECT count(*) FROM slots WHERE queue = ?1 AND queue_key = ?2",
            Sql::RunningIn => include_str!("../../queries/running_in.sql"),
            Sql::SetQueue => include_str!("../../queries/set_queue.sql"),
            Sql::Queue => include_str!("../../queries/queue.sql"),
            Sql::DepthBound => "SELECT depth_bound FROM queues WHERE name = ?1",
            Sql::SetDepthBound => "UPDATE queues SET depth_bound = ?2 WHERE name = ?1",
            Sql::CountDepth => include_str!("../../queries/count_depth.sql"),
            Sql::ForgetRates => "DELETE FROM rates WHERE queue = ?1",
            Sql::Used => include_str!("../../queries/used.sql"),
            Sql::ForgetStarts => {
                "DELETE FROM rates WHERE queue = ?1 AND is_key = ?2 AND queue_key = ?3 AND at <= ?4"
            }
            Sql::EnterStarts => include_str!("../../queries/enter_starts.sql"),
            Sql::HasWoken => "SELECT 1 FROM ready WHERE workflow = ?1 AND queue = ?2 AND is_woken = 1",
            Sql::WokenOf => include_str!("../../queries/woken_of.sql"),
            Sql::ReadyNow => include_str!("../../queries/ready_now.sql"),
            Sql::NextQueue => {
                "SELECT queue FROM ready WHERE workflow = ?1 AND queue > ?2 ORDER BY queue LIMIT 1"
            }
            Sql::FirstKey => {
                "SELECT queue_key FROM ready WHERE workflow = ?1 AND queue = ?2 ORDER BY queue_key LIMIT 1"
            }
            Sql::NextKey => {
                "SELECT queue_key FROM ready WHERE workflow = ?1 AND queue = ?2 AND queue_key > ?3
                 ORDER BY queue_key LIMIT 1"
            }
            Sql::FirstWokenKey => {
                "SELECT queue_key FROM ready INDEXED BY ready_woken
                 WHERE workflow = ?1 AND queue = ?2 AND is_woken = 1 ORDER BY queue_key LIMIT 1"
            }
            Sql::NextWokenKey => {
                "SELECT queue_key FROM ready INDEXED BY ready_woken
                 WHERE workflow = ?1 AND queue = ?2 AND is_woken = 1 AND queue_key > ?3 ORDER BY queue_key LIMIT 1"
            }
            Sql::IsReady => {
                "SELECT 1 FROM ready WHERE workflow = ?1 AND queue = ?2 AND queue_key = ?3
                 AND (app_version = ?4 OR app_version IS NULL OR ?4 IS NULL)"
            }
            Sql::Admit => "UPDATE executions SET status = 1 WHERE key = ?1 AND status = 3",
            Sql::AdmitNew => include_str!("../../queries/admit_new.sql"),
            Sql::Merge => include_str!("../../queries/merge.sql"),
            Sql::Inbox => include_str!("../../queries/inbox.sql"),
            Sql::LetterAttributes => include_str!("../../queries/letter_attributes.sql"),
            Sql::Receive => include_str!("../../queries/receive.sql"),
            Sql::ReceiveAttributes => include_str!("../../queries/receive_attributes.sql"),
            Sql::Taken => include_str!("../../queries/taken.sql"),
            Sql::Bury => include_str!("../../queries/bury.sql"),
            Sql::KeepPlace => "SAVEPOINT letter",
            Sql::GoBack => "ROLLBACK TO letter",
            Sql::GoOn => "RELEASE letter",
            Sql::Shard => "SELECT number FROM shard",
            Sql::ForgetMail => "DELETE FROM inbox WHERE id <= ?1",
            Sql::DeepenQueue => "UPDATE queues SET depth_bound = 9223372036854775807 WHERE name = ?1",
            Sql::PutOff => "UPDATE timers SET due_at = ?2 WHERE execution = ?1",
            Sql::Timer => "INSERT INTO timers (execution, due_at) VALUES (?1, ?2)",
            Sql::Untimer => "DELETE FROM timers WHERE execution = ?1",
            Sql::Wait => "INSERT INTO waits (execution, child) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            Sql::Unwait => "DELETE FROM waits WHERE execution = ?1",
            Sql::Status => "SELECT status, is_paused, parent, ended_at, iif(is_alone = 0, owner, NULL), deadline_at FROM executions WHERE key = ?1",
            Sql::Children => {
                "SELECT key, status FROM executions WHERE parent = ?1 AND is_detached = 0 AND status < 4
                 ORDER BY key"
            }
            Sql::Cancel => include_str!("../../queries/cancel.sql"),
            Sql::Resume => include_str!("../../queries/resume.sql"),
            Sql::LastFailures => include_str!("../../queries/last_failures.sql"),
            Sql::Untry => {
                "DELETE FROM attempts
                 WHERE execution = ?1
                     AND path IN (SELECT path FROM checkpoints WHERE execution = ?1 AND kind = 2 AND order_no >= ?2)
                 RETURNING failure"
            }
            Sql::Withdraw => {
                "DELETE FROM checkpoints WHERE execution = ?1 AND order_no >= ?2 RETURNING outcome"
            }
            Sql::Ask => {
                "INSERT INTO requests (execution, n, kind, requested_at) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING"
            }
            Sql::HasAsked => "SELECT 1 FROM requests WHERE execution = ?1 AND kind = 1",
            Sql::AnyAsked => "SELECT 1 FROM requests",
            Sql::Answer => "DELETE FROM requests WHERE execution = ?1",
            Sql::Asked => "SELECT kind FROM requests WHERE execution = ?1 ORDER BY n",
            Sql::Due => include_str!("../../queries/due.sql"),
            Sql::ReadyOf => include_str!("../../queries/ready_of.sql"),
            Sql::ExistingByDedupId => include_str!("../../queries/existing_by_dedup_id.sql"),
            Sql::Execution => include_str!("../../queries/execution.sql"),
            Sql::ExecutionById => include_str!("../../queries/execution_by_id.sql"),
            Sql::Begin => "UPDATE executions SET deadline_at = ?2, run_timeout_ms = NULL WHERE key = ?1",
            Sql::Take => "UPDATE executions SET status = 2, owner = ?2, is_alone = NULL WHERE key = ?1",
            Sql::TakeAlone => "UPDATE executions SET is_alone = 1 WHERE key = ?1",
            Sql::Requeue => include_str!("../../queries/requeue.sql"),
            Sql::Recorded => include_str!("../../queries/recorded.sql"),
            Sql::Judge => {
                "UPDATE executions SET strikes = ?2, progress = ?3, is_alone = NULL WHERE key = ?1"
            }
            Sql::Quarantine => include_str!("../../queries/quarantine.sql"),
            Sql::Quarantined => include_str!("../../queries/quarantined.sql"),
            Sql::Unquarantine => "DELETE FROM quarantine WHERE execution = ?1",
            Sql::ForgetLanes => "DELETE FROM lanes WHERE worker_id = ?1",
            Sql::ForgetWorker => "DELETE FROM workers WHERE worker_id = ?1 RETURNING host, pid",
        }
    }
}

/// The statements that a transaction uses, and how many rows they changed.
pub(crate) struct Statements<'c> {
    conn: &'c Connection,
    slots: [Option<CachedStatement<'c>>; COUNT],
    pub(crate) tally: Tally,
}

impl<'c> Statements<'c> {
    pub(crate) fn new(conn: &'c Connection) -> Self {
        Self { conn, slots: std::array::from_fn(|_| None), tally: Tally::default() }
    }

    /// A statement, counted as executed once.
    pub(crate) fn get(&mut self, sql: Sql) -> DbResult<&mut CachedStatement<'c>> {
        self.tally.statements += 1;
        self.bind(sql)
    }

    /// Returns a statement for its parameters to be bound; it does not count as executed. Inline, as most statements are
    /// there.
    #[inline]
    pub(crate) fn bind(&mut self, sql: Sql) -> DbResult<&mut CachedStatement<'c>> {
        match &mut self.slots[sql as usize] {
            Some(statement) => Ok(statement),
            none => Ok(none.insert(prepare(self.conn, sql)?)),
        }
    }

    /// Runs a statement that returns no rows; the rows that it changed.
    pub(crate) fn run(&mut self, sql: Sql, params: impl Params) -> DbResult<u64> {
        Ok(self.get(sql)?.execute(params)? as u64)
    }

    /// Runs an INSERT and counts its rows.
    pub(crate) fn insert(&mut self, table: Table, sql: Sql, params: impl Params) -> DbResult<u64> {
        let rows = self.run(sql, params)?;
        self.tally.inserted[table as usize] += rows;
        Ok(rows)
    }

    /// Runs an UPDATE and counts its rows.
    pub(crate) fn update(&mut self, table: Table, sql: Sql, params: impl Params) -> DbResult<u64> {
        let rows = self.run(sql, params)?;
        self.tally.updated[table as usize] += rows;
        Ok(rows)
    }

    /// Runs a DELETE and counts its rows.
    pub(crate) fn delete(&mut self, table: Table, sql: Sql, params: impl Params) -> DbResult<u64> {
        let rows = self.run(sql, params)?;
        self.tally.deleted[table as usize] += rows;
        Ok(rows)
    }

    /// True if a query has a row.
    pub(crate) fn exists(&mut self, sql: Sql, params: impl Params) -> DbResult<bool> {
        Ok(self.get(sql)?.exists(params)?)
    }
}

#[inline(never)]
fn prepare(conn: &Connection, sql: Sql) -> DbResult<CachedStatement<'_>> {
    Ok(conn.prepare_cached(sql.text())?)
}

/// What a transaction did, to be added to the totals once it is committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) inserted: [u64; Table::COUNT],
    pub(crate) updated: [u64; Table::COUNT],
    pub(crate) deleted: [u64; Table::COUNT],
    pub(crate) statements: u64,
}

impl Tally {
    /// Adds it to the totals, with BEGIN and COMMIT.
    pub(crate) fn add_to(&self, counters: &Counters) {
        for table in Table::ALL {
            let i = table as usize;
            for (rows, count) in [
                (self.inserted[i], Counters::add_inserted as fn(&Counters, Table, u64)),
                (self.updated[i], Counters::add_updated),
                (self.deleted[i], Counters::add_deleted),
            ] {
                if rows > 0 {
                    count(counters, table, rows);
                }
            }
        }
        counters.add_statements(self.statements + 2);
    }
}
