//! [`Statements`]: the prepared statements of one transaction. A statement is looked up by its text once per
//! transaction instead of once per row, and keeps its bindings from row to row.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, Params};
use stepfast_core::store::counters::Table;

use crate::conn::row_counts::StatementCounts;
use crate::error::DbResult;

/// Number of rows that a batch statement inserts.
pub(crate) const BATCH_ROWS: usize = 16;

/// Texts of the batch statements, each of which inserts [`BATCH_ROWS`] rows.
static START_RUNNING_BATCH: LazyLock<String> =
    LazyLock::new(|| repeat_values(include_str!("../../queries/start_running.sql")));
static START_ENDED_BATCH: LazyLock<String> =
    LazyLock::new(|| repeat_values(include_str!("../../queries/start_ended.sql")));
static INSERT_CHECKPOINT_BATCH: LazyLock<String> =
    LazyLock::new(|| repeat_values(include_str!("../../queries/insert_checkpoints.sql")));

static INSERT_PIECE_BATCH: LazyLock<String> =
    LazyLock::new(|| repeat_values(include_str!("../../queries/insert_pieces.sql")));

static INSERT_BUNDLE_BATCH: LazyLock<String> =
    LazyLock::new(|| repeat_values(include_str!("../../queries/insert_bundles.sql")));

/// Repeats the line of values of an INSERT, for [`BATCH_ROWS`] rows.
fn repeat_values(statement: &str) -> String {
    let is_values = |line: &&str| line.trim_start().starts_with("(?");
    let values = statement.lines().find(is_values).unwrap_or_default();
    statement.replacen(values, &vec![values; BATCH_ROWS].join(",\n"), 1)
}

/// The statements that [`Statements`] prepares, for reads and writes. Long texts are in `queries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Sql {
    Fence,
    TakeNumber,
    LaneState,
    KeepOutcomes,
    StartRunning,
    StartEnded,
    StartRunningBatch,
    StartEndedBatch,
    Start,
    InsertAttribute,
    Attributes,
    ExecutionsByValue,
    ExistingByKey,
    ExistingById,
    ExistingByDedupId,
    InsertCheckpoint,
    InsertCheckpointBatch,
    Checkpoints,
    CompareCheckpoint,
    InsertAttempt,
    Attempts,
    CompareAttempt,
    InsertChunk,
    NextChunkedValue,
    DeleteChunks,
    NextPieceId,
    InsertPiece,
    InsertPieceBatch,
    Pieces,
    DeletePieces,
    DebouncedInput,
    StoredOutcome,
    Finish,
    FinishWithoutDedupId,
    SetPendingSleeps,
    Transition,
    Wake,
    InsertReady,
    ReadyResumed,
    DeleteReady,
    DeleteReadyRange,
    DeleteReadyRangeOfScope,
    TakeSlot,
    FreeSlot,
    DeleteOrphanedSlots,
    CountSlots,
    CountKeySlots,
    AssignSlots,
    SetQueue,
    Queue,
    DepthBound,
    SetDepthBound,
    CountDepth,
    DeleteRates,
    RateUsage,
    DeleteOldStarts,
    IdleStarts,
    RecordStarts,
    HasWoken,
    WokenPage,
    ReadyDue,
    NextReadyRoute,
    NextTimerRoute,
    FirstQuarantineVersion,
    NextQuarantineVersion,
    FirstReadyKey,
    NextReadyKey,
    FirstWokenKey,
    NextWokenKey,
    QueueDue,
    QueueDueScheduled,
    InboxRows,
    InboxAttributes,
    ExecutionFromInbox,
    AttributesFromInbox,
    InboxConflict,
    InsertDeadLetter,
    InboxSavepoint,
    RollBackInboxRow,
    ReleaseInboxSavepoint,
    Shard,
    DeleteInboxRows,
    InvalidateDepthBound,
    UpdateDebounced,
    PostponeTimer,
    InsertTimer,
    DeleteTimer,
    InsertWait,
    DeleteWaits,
    RequestTarget,
    UnfinishedChildren,
    Cancel,
    Resume,
    Park,
    TrailingFailures,
    ChunkedOutcomes,
    RetractAttempts,
    RetractFailures,
    InsertRequest,
    HasCancelRequest,
    HasPauseRequest,
    HasRequest,
    HasAnyRequest,
    ClearRequests,
    DeletePauses,
    AssignRequests,
    Requests,
    DueTimers,
    ReadyPage,
    Execution,
    ExecutionById,
    StartRunTimeout,
    Claim,
    MarkAlone,
    Requeue,
    Progress,
    SetStrikes,
    InsertQuarantine,
    QuarantineCandidates,
    DeleteQuarantine,
    DeleteLanes,
    RaiseEpoch,
    DeleteWorker,
    InsertAssignment,
    Assignments,
    DeleteAssignment,
    HasEpoch,
    Workers,
    InsertBatch,
    UnfinishedBatch,
    CloseBatch,
    CloseBatchAgain,
    ClosedBatches,
    HasUnfinished,
    SumBundles,
    EndBatch,
    DeleteBatch,
    LastBundle,
    InsertBundle,
    InsertBundleBatch,
    NewestBatch,
    Bundles,
    BundleItemCount,
    BundledItems,
    InsertPack,
    ComparePack,
    PackedBundles,
    Packs,
    PackedItems,
    Promoted,
    PromotedItems,
    ItemCheckpoints,
    ItemAttempts,
    IsRunBy,
    StatusOf,
    HasMessageId,
    InsertMessageId,
    InsertMessage,
    ForwardMessages,
    ForwardMessageIds,
    DeleteMessage,
    PendingMessages,
    PendingTopics,
    LastEvent,
    Events,
    EventWaiters,
    InsertStreamEntry,
    StreamEntries,
    LastStreamEntry,
    LastContinuation,
    Waits,
}

const STATEMENT_COUNT: usize = Sql::Waits as usize + 1;

impl Sql {
    fn text(self) -> &'static str {
        match self {
            Sql::Fence => "SELECT epoch FROM lanes WHERE worker_id = ?1 AND lane = ?2",
            Sql::TakeNumber => {
                "UPDATE lanes SET last_number = ?4, last_outcomes = NULL
                 WHERE worker_id = ?1 AND lane = ?2 AND epoch = ?3 AND last_number = ?4 - 1"
            }
            Sql::LaneState => {
                "SELECT epoch, last_number, last_outcomes FROM lanes WHERE worker_id = ?1 AND lane = ?2"
            }
            Sql::KeepOutcomes => "UPDATE lanes SET last_outcomes = ?3 WHERE worker_id = ?1 AND lane = ?2",
            Sql::StartRunning => include_str!("../../queries/start_running.sql"),
            Sql::StartEnded => include_str!("../../queries/start_ended.sql"),
            Sql::StartRunningBatch => &START_RUNNING_BATCH,
            Sql::StartEndedBatch => &START_ENDED_BATCH,
            Sql::Start => include_str!("../../queries/start.sql"),
            Sql::InsertAttribute => "INSERT INTO attributes (execution, name, value) VALUES (?1, ?2, ?3)",
            Sql::ExecutionsByValue => {
                "SELECT execution FROM attributes WHERE name = ?1 AND value = ?2 ORDER BY execution DESC LIMIT ?3"
            }
            Sql::Attributes => "SELECT name, value FROM attributes WHERE execution = ?1",
            Sql::ExistingByKey => include_str!("../../queries/existing_by_key.sql"),
            Sql::ExistingById => include_str!("../../queries/existing_by_id.sql"),
            Sql::InsertCheckpoint => include_str!("../../queries/insert_checkpoints.sql"),
            Sql::InsertCheckpointBatch => &INSERT_CHECKPOINT_BATCH,
            Sql::Checkpoints => include_str!("../../queries/checkpoints.sql"),
            Sql::CompareCheckpoint => {
                "SELECT run_no = ?3 AND order_no = ?4 AND recorded_at = ?5, outcome FROM checkpoints
                 WHERE stripe = ?6 AND execution = ?1 AND path = ?2"
            }
            Sql::InsertAttempt => {
                "INSERT INTO attempts (execution, path, attempt, failed_at, failure) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO NOTHING"
            }
            Sql::Attempts => {
                "SELECT path, attempt, failed_at, failure FROM attempts WHERE execution = ?1 AND path >= ?2
                 ORDER BY path, attempt"
            }
            Sql::CompareAttempt => {
                "SELECT failed_at = ?4, failure FROM attempts
                 WHERE execution = ?1 AND path = ?2 AND attempt = ?3"
            }
            Sql::InsertChunk => {
                "INSERT INTO chunks (execution, value, n, bytes) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING"
            }
            Sql::NextChunkedValue => {
                "SELECT value FROM chunks WHERE execution = ?1 AND value >= ?2 ORDER BY value LIMIT 1"
            }
            Sql::DeleteChunks => "DELETE FROM chunks WHERE execution = ?1 AND value = ?2",
            Sql::NextPieceId => "SELECT coalesce(max(id), 0) + 1 FROM payloads",
            Sql::InsertPiece => include_str!("../../queries/insert_pieces.sql"),
            Sql::InsertPieceBatch => &INSERT_PIECE_BATCH,
            Sql::Pieces => "SELECT bytes FROM payloads WHERE id >= ?1 AND id < ?2 ORDER BY id",
            Sql::DeletePieces => "DELETE FROM payloads WHERE id >= ?1 AND id < ?2",
            Sql::DebouncedInput => {
                "SELECT input FROM executions
                 WHERE queue = ?1 AND dedup_id = ?2 AND dedup_id IS NOT NULL AND status = 0"
            }
            Sql::StoredOutcome => "SELECT outcome FROM executions WHERE key = ?1",
            Sql::Finish => include_str!("../../queries/finish.sql"),
            Sql::FinishWithoutDedupId => include_str!("../../queries/finish_without_dedup_id.sql"),
            Sql::SetPendingSleeps => {
                "UPDATE executions SET armed = ?3 WHERE key = ?1 AND owner = ?2 AND status = 2"
            }
            Sql::Transition => include_str!("../../queries/transition.sql"),
            Sql::Wake => include_str!("../../queries/wake.sql"),
            Sql::InsertReady => include_str!("../../queries/insert_ready.sql"),
            Sql::ReadyResumed => include_str!("../../queries/ready_resumed.sql"),
            Sql::DeleteReady => "DELETE FROM ready WHERE execution = ?1",
            Sql::DeleteReadyRange => include_str!("../../queries/delete_ready_range.sql"),
            Sql::DeleteReadyRangeOfScope => include_str!("../../queries/delete_ready_range_of_scope.sql"),
            Sql::TakeSlot => {
                "INSERT INTO slots (queue, queue_key, execution, worker_id) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING"
            }
            Sql::FreeSlot => "DELETE FROM slots WHERE queue = ?1 AND queue_key = ?2 AND execution = ?3",
            Sql::DeleteOrphanedSlots => include_str!("../../queries/delete_orphaned_slots.sql"),
            Sql::CountSlots => {
                "SELECT count(*), count(*) FILTER (WHERE worker_id = ?2) FROM slots WHERE queue = ?1"
            }
            Sql::CountKeySlots => "SELECT count(*) FROM slots WHERE queue = ?1 AND queue_key = ?2",
            Sql::AssignSlots => include_str!("../../queries/assign_slots.sql"),
            Sql::SetQueue => include_str!("../../queries/set_queue.sql"),
            Sql::Queue => include_str!("../../queries/queue.sql"),
            Sql::DepthBound => "SELECT depth_bound FROM queues WHERE name = ?1",
            Sql::SetDepthBound => "UPDATE queues SET depth_bound = ?2 WHERE name = ?1",
            Sql::CountDepth => include_str!("../../queries/count_depth.sql"),
            Sql::DeleteRates => "DELETE FROM rates WHERE queue = ?1",
            Sql::RateUsage => include_str!("../../queries/rate_usage.sql"),
            Sql::DeleteOldStarts => {
                "DELETE FROM rates WHERE queue = ?1 AND is_key = ?2 AND queue_key = ?3 AND at <= ?4"
            }
            Sql::IdleStarts => include_str!("../../queries/idle_starts.sql"),
            Sql::RecordStarts => include_str!("../../queries/record_starts.sql"),
            Sql::HasWoken => "SELECT 1 FROM ready WHERE route = ?1 AND is_woken = 1",
            Sql::WokenPage => include_str!("../../queries/woken_page.sql"),
            Sql::ReadyDue => include_str!("../../queries/ready_due.sql"),
            Sql::NextReadyRoute => include_str!("../../queries/next_ready_route.sql"),
            Sql::NextTimerRoute => include_str!("../../queries/next_timer_route.sql"),
            Sql::FirstQuarantineVersion => {
                "SELECT app_version FROM quarantine WHERE workflow = ?1 ORDER BY app_version LIMIT 1"
            }
            Sql::NextQuarantineVersion => {
                "SELECT app_version FROM quarantine WHERE workflow = ?1 AND app_version > ?2
                 ORDER BY app_version LIMIT 1"
            }
            Sql::FirstReadyKey => "SELECT queue_key FROM ready WHERE route = ?1 ORDER BY queue_key LIMIT 1",
            Sql::NextReadyKey => {
                "SELECT queue_key FROM ready WHERE route = ?1 AND queue_key > ?2 ORDER BY queue_key LIMIT 1"
            }
            Sql::FirstWokenKey => {
                "SELECT queue_key FROM ready INDEXED BY ready_woken
                 WHERE route = ?1 AND is_woken = 1 ORDER BY queue_key LIMIT 1"
            }
            Sql::NextWokenKey => {
                "SELECT queue_key FROM ready INDEXED BY ready_woken
                 WHERE route = ?1 AND is_woken = 1 AND queue_key > ?2 ORDER BY queue_key LIMIT 1"
            }
            Sql::QueueDue => "UPDATE executions SET status = 1 WHERE key = ?1 AND status = 3",
            Sql::QueueDueScheduled => include_str!("../../queries/queue_due_scheduled.sql"),
            Sql::UpdateDebounced => include_str!("../../queries/update_debounced.sql"),
            Sql::InboxRows => include_str!("../../queries/inbox_rows.sql"),
            Sql::InboxAttributes => include_str!("../../queries/inbox_attributes.sql"),
            Sql::ExecutionFromInbox => include_str!("../../queries/execution_from_inbox.sql"),
            Sql::AttributesFromInbox => include_str!("../../queries/attributes_from_inbox.sql"),
            Sql::InboxConflict => include_str!("../../queries/inbox_conflict.sql"),
            Sql::InsertDeadLetter => include_str!("../../queries/insert_dead_letter.sql"),
            Sql::InboxSavepoint => "SAVEPOINT letter",
            Sql::RollBackInboxRow => "ROLLBACK TO letter",
            Sql::ReleaseInboxSavepoint => "RELEASE letter",
            Sql::Shard => "SELECT number FROM shard",
            Sql::DeleteInboxRows => "DELETE FROM inbox WHERE id <= ?1",
            Sql::InvalidateDepthBound => "UPDATE queues SET depth_bound = 9223372036854775807 WHERE name = ?1",
            Sql::PostponeTimer => include_str!("../../queries/postpone_timer.sql"),
            Sql::InsertTimer => include_str!("../../queries/insert_timer.sql"),
            Sql::DeleteTimer => "DELETE FROM timers WHERE execution = ?1",
            Sql::InsertWait => {
                "INSERT INTO waits (execution, kind, subject, name) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING"
            }
            Sql::DeleteWaits => "DELETE FROM waits WHERE execution = ?1",
            Sql::RequestTarget => "SELECT status, is_paused, parent, deadline_at FROM executions WHERE key = ?1",
            Sql::UnfinishedChildren => {
                "SELECT key, status FROM executions WHERE parent = ?1 AND is_detached = 0 AND status < 4
                 ORDER BY key"
            }
            Sql::Cancel => include_str!("../../queries/cancel.sql"),
            Sql::Resume => include_str!("../../queries/resume.sql"),
            Sql::Park => include_str!("../../queries/park.sql"),
            Sql::TrailingFailures => include_str!("../../queries/trailing_failures.sql"),
            Sql::ChunkedOutcomes => {
                "SELECT outcome FROM executions WHERE key = ?1 AND substr(outcome, 1, 1) = x'81'
                 UNION ALL
                 SELECT outcome FROM checkpoints
                 WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND order_no >= ?2 AND substr(outcome, 1, 1) = x'81'"
            }
            Sql::RetractAttempts => {
                "DELETE FROM attempts
                 WHERE execution = ?1
                     AND path IN (
                         SELECT path FROM checkpoints
                         WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND kind = 2 AND order_no >= ?2
                     )
                 RETURNING failure"
            }
            Sql::RetractFailures => {
                "DELETE FROM checkpoints
                 WHERE stripe IN (0, 1, 2, 3, 4, 5) AND execution = ?1 AND order_no >= ?2 RETURNING outcome"
            }
            Sql::InsertRequest => {
                "INSERT INTO requests (execution, n, kind, requested_at, worker_id)
                 SELECT key, ?2, ?3, ?4, owner FROM executions WHERE key = ?1
                 ON CONFLICT DO NOTHING"
            }
            Sql::HasCancelRequest => "SELECT 1 FROM requests WHERE execution = ?1 AND kind = 1",
            Sql::HasPauseRequest => "SELECT 1 FROM requests WHERE execution = ?1 AND kind = 4",
            Sql::HasRequest => "SELECT 1 FROM requests WHERE execution = ?1",
            Sql::HasAnyRequest => "SELECT 1 FROM requests",
            Sql::ClearRequests => "DELETE FROM requests WHERE execution = ?1",
            Sql::DeletePauses => "DELETE FROM requests WHERE execution = ?1 AND kind = 4",
            Sql::AssignRequests => "UPDATE requests SET worker_id = ?2 WHERE execution = ?1",
            Sql::Requests => "SELECT kind, n FROM requests WHERE execution = ?1 ORDER BY n",
            Sql::DueTimers => include_str!("../../queries/due_timers.sql"),
            Sql::ReadyPage => include_str!("../../queries/ready_page.sql"),
            Sql::ExistingByDedupId => include_str!("../../queries/existing_by_dedup_id.sql"),
            Sql::Execution => include_str!("../../queries/execution.sql"),
            Sql::ExecutionById => include_str!("../../queries/execution_by_id.sql"),
            Sql::StartRunTimeout => "UPDATE executions SET deadline_at = ?2, run_timeout_ms = NULL WHERE key = ?1",
            Sql::Claim => "UPDATE executions SET status = 2, owner = ?2, is_alone = NULL WHERE key = ?1",
            Sql::MarkAlone => "UPDATE executions SET is_alone = 1 WHERE key = ?1",
            Sql::Requeue => include_str!("../../queries/requeue.sql"),
            Sql::Progress => include_str!("../../queries/progress.sql"),
            Sql::SetStrikes => {
                "UPDATE executions SET strikes = ?2, progress = ?3, is_alone = NULL WHERE key = ?1"
            }
            Sql::InsertQuarantine => include_str!("../../queries/insert_quarantine.sql"),
            Sql::QuarantineCandidates => include_str!("../../queries/quarantine_candidates.sql"),
            Sql::DeleteQuarantine => "DELETE FROM quarantine WHERE execution = ?1",
            Sql::DeleteLanes => "DELETE FROM lanes WHERE worker_id = ?1",
            Sql::RaiseEpoch => {
                "UPDATE workers SET epoch = epoch + 1 WHERE worker_id = ?1 RETURNING host, pid"
            }
            Sql::DeleteWorker => "DELETE FROM workers WHERE worker_id = ?1",
            Sql::InsertAssignment => {
                "INSERT INTO assignments (worker_id, lane, number, executions) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING"
            }
            Sql::Assignments => {
                "SELECT lane, number, executions FROM assignments WHERE worker_id = ?1 ORDER BY lane, number"
            }
            Sql::DeleteAssignment => {
                "DELETE FROM assignments WHERE worker_id = ?1 AND lane = ?2 AND number = ?3"
            }
            Sql::HasEpoch => "SELECT 1 FROM workers WHERE worker_id = ?1 AND epoch = ?2",
            Sql::Workers => "SELECT worker_id FROM workers",
            Sql::InsertBatch => "INSERT INTO batches (key, item_count) VALUES (?1, ?2)",
            Sql::UnfinishedBatch => "SELECT item_count FROM batches WHERE key = ?1",
            Sql::CloseBatch => include_str!("../../queries/close_batch.sql"),
            Sql::CloseBatchAgain => include_str!("../../queries/close_batch_again.sql"),
            Sql::ClosedBatches => "SELECT key FROM batches WHERE item_count IS NOT NULL",
            Sql::HasUnfinished => {
                "SELECT 1 FROM executions WHERE key BETWEEN ?1 AND ?2 AND status < 4 ORDER BY key DESC LIMIT 1"
            }
            Sql::SumBundles => {
                "SELECT coalesce(sum(item_count), 0) FROM bundles WHERE key BETWEEN ?1 AND ?2"
            }
            Sql::EndBatch => include_str!("../../queries/end_batch.sql"),
            Sql::DeleteBatch => "DELETE FROM batches WHERE key = ?1",
            Sql::LastBundle => "SELECT max(key) FROM bundles WHERE key BETWEEN ?1 AND ?2",
            Sql::InsertBundle => include_str!("../../queries/insert_bundles.sql"),
            Sql::InsertBundleBatch => &INSERT_BUNDLE_BATCH,
            Sql::NewestBatch => {
                "SELECT max(key) FROM (SELECT max(key) AS key FROM bundles WHERE key < ?1 \
                 UNION ALL SELECT max(key) FROM batches WHERE key < ?1)"
            }
            Sql::Bundles => "SELECT key, item_count FROM bundles WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT ?3",
            Sql::BundleItemCount => "SELECT item_count FROM bundles WHERE key = ?1",
            Sql::BundledItems => include_str!("../../queries/bundled_items.sql"),
            Sql::InsertPack => {
                "INSERT INTO packs (bundle, number, completed, failed, cancelled, outcomes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT DO NOTHING"
            }
            // the outcomes determine the other columns
            Sql::ComparePack => "SELECT 1, outcomes FROM packs WHERE bundle = ?1 AND number = ?2",
            Sql::PackedBundles => include_str!("../../queries/packed_bundles.sql"),
            Sql::Packs => "SELECT outcomes FROM packs WHERE bundle = ?1 ORDER BY number",
            Sql::PackedItems => include_str!("../../queries/packed_items.sql"),
            Sql::Promoted => "SELECT key FROM executions WHERE key BETWEEN ?1 AND ?2 ORDER BY key",
            Sql::PromotedItems => {
                "SELECT status, count(*) FROM executions WHERE key BETWEEN ?1 AND ?2 GROUP BY status"
            }
            Sql::ItemCheckpoints => include_str!("../../queries/item_checkpoints.sql"),
            Sql::ItemAttempts => {
                "SELECT path, attempt, failed_at, failure, execution FROM attempts
                 WHERE execution BETWEEN ?1 AND ?2 ORDER BY execution, path, attempt"
            }
            Sql::IsRunBy => "SELECT 1 FROM executions WHERE key = ?1 AND owner = ?2 AND status = 2",
            Sql::StatusOf => "SELECT status FROM executions WHERE key = ?1",
            Sql::HasMessageId => "SELECT 1 FROM message_ids WHERE execution = ?1 AND id = ?2",
            Sql::InsertMessageId => "INSERT INTO message_ids (execution, id) VALUES (?1, ?2)",
            Sql::InsertMessage => {
                "INSERT INTO messages (execution, topic, value, sent_at) VALUES (?1, ?2, ?3, ?4)"
            }
            Sql::ForwardMessages => "UPDATE messages SET execution = ?1 WHERE execution = ?2",
            Sql::ForwardMessageIds => {
                "INSERT INTO message_ids (execution, id) SELECT ?1, id FROM message_ids WHERE execution = ?2
                 ON CONFLICT DO NOTHING"
            }
            Sql::InsertStreamEntry => {
                "INSERT INTO stream_entries (execution, stream, \"offset\", path, attempt_offset, written_at, value)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING"
            }
            Sql::StreamEntries => {
                "SELECT \"offset\", attempt_offset, path, value, written_at FROM stream_entries
                 WHERE execution = ?1 AND stream = ?2 AND \"offset\" >= ?3 ORDER BY \"offset\" LIMIT ?4"
            }
            Sql::LastStreamEntry => {
                "SELECT \"offset\", attempt_offset, path, value, written_at FROM stream_entries
                 WHERE execution = ?1 AND stream = ?2 ORDER BY \"offset\" DESC LIMIT 1"
            }
            Sql::LastContinuation => include_str!("../../queries/last_continuation.sql"),
            Sql::DeleteMessage => "DELETE FROM messages WHERE number = ?1",
            Sql::PendingTopics => {
                "SELECT topic, count(*) FROM messages WHERE execution = ?1 GROUP BY topic ORDER BY topic"
            }
            Sql::PendingMessages => {
                "SELECT number, value, sent_at FROM messages WHERE execution = ?1 AND topic = ?2
                 ORDER BY number LIMIT ?3"
            }
            Sql::LastEvent => {
                "SELECT step_name, outcome, recorded_at FROM checkpoints INDEXED BY checkpoints_events
                 WHERE execution = ?1 AND kind = 9 AND step_name = ?2 ORDER BY order_no DESC LIMIT 1"
            }
            Sql::Events => {
                "SELECT step_name, outcome, recorded_at FROM checkpoints INDEXED BY checkpoints_events
                 WHERE execution = ?1 AND kind = 9 ORDER BY order_no"
            }
            Sql::EventWaiters => {
                "SELECT execution FROM waits INDEXED BY waits_events WHERE kind = 3 AND subject = ?1 AND name = ?2"
            }
            Sql::Waits => "SELECT kind, subject, name FROM waits WHERE execution = ?1 ORDER BY kind, subject, name",
        }
    }
}

/// The statements that a transaction uses, with counts of the rows that they changed.
pub(crate) struct Statements<'c> {
    conn: &'c Connection,
    prepared: [Option<CachedStatement<'c>>; STATEMENT_COUNT],
    pub(crate) counts: StatementCounts,
}

impl<'c> Statements<'c> {
    pub(crate) fn new(conn: &'c Connection) -> Self {
        Self { conn, prepared: std::array::from_fn(|_| None), counts: StatementCounts::default() }
    }

    /// Returns a statement, and counts it as executed once.
    pub(crate) fn get(&mut self, sql: Sql) -> DbResult<&mut CachedStatement<'c>> {
        self.counts.statements += 1;
        self.get_uncounted(sql)
    }

    /// Returns a statement for binding its parameters, without counting it as executed. Inlined, because most
    /// statements are prepared already.
    #[inline]
    pub(crate) fn get_uncounted(&mut self, sql: Sql) -> DbResult<&mut CachedStatement<'c>> {
        match &mut self.prepared[sql as usize] {
            Some(statement) => Ok(statement),
            none => Ok(none.insert(prepare(self.conn, sql)?)),
        }
    }

    /// Runs a statement that returns no rows. Returns the number of changed rows.
    pub(crate) fn run(&mut self, sql: Sql, params: impl Params) -> DbResult<u64> {
        Ok(self.get(sql)?.execute(params)? as u64)
    }

    /// Runs an INSERT and counts its rows.
    pub(crate) fn insert(&mut self, table: Table, sql: Sql, params: impl Params) -> DbResult<u64> {
        let rows = self.run(sql, params)?;
        self.counts.inserted[table as usize] += rows;
        Ok(rows)
    }

    /// Runs an UPDATE and counts its rows.
    pub(crate) fn update(&mut self, table: Table, sql: Sql, params: impl Params) -> DbResult<u64> {
        let rows = self.run(sql, params)?;
        self.counts.updated[table as usize] += rows;
        Ok(rows)
    }

    /// Runs a DELETE and counts its rows.
    pub(crate) fn delete(&mut self, table: Table, sql: Sql, params: impl Params) -> DbResult<u64> {
        let rows = self.run(sql, params)?;
        self.counts.deleted[table as usize] += rows;
        Ok(rows)
    }

    /// Whether a query returns a row.
    pub(crate) fn exists(&mut self, sql: Sql, params: impl Params) -> DbResult<bool> {
        Ok(self.get(sql)?.exists(params)?)
    }
}

#[inline(never)]
fn prepare(conn: &Connection, sql: Sql) -> DbResult<CachedStatement<'_>> {
    Ok(conn.prepare_cached(sql.text())?)
}
