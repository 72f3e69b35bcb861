//! [`Sql`]: the statements of the store, except for those that are sent only once.

/// Defines [`Sql`] from names and texts of statements.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        /// A statement of the store. Each session prepares the statements that it needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Sql {
            $($(#[$doc])* $name,)*
        }

        impl Sql {
            /// All statements.
            pub const ALL: &'static [Sql] = &[$(Sql::$name,)*];

            /// Returns the statement's text.
            pub fn text(self) -> &'static str {
                match self {
                    $(Sql::$name => const { without_header($text) },)*
                }
            }
        }
    };
}

/// Returns a statement without the comments before it. The server shows only the beginning of a statement in
/// `pg_stat_activity` and in its log.
const fn without_header(text: &str) -> &str {
    let bytes = text.as_bytes();
    let mut begin = 0;
    while begin + 1 < bytes.len() && bytes[begin] == b'-' && bytes[begin + 1] == b'-' {
        while begin < bytes.len() && bytes[begin] != b'\n' {
            begin += 1;
        }
        begin += 1;
    }
    text.split_at(begin).1
}

statements! {
    /// Checks the epoch of a lane and takes its next number, or fails the transaction.
    Fence = include_str!("../../queries/fence.sql");
    /// Discards plans that were made when the tables were smaller.
    DiscardPlans = "DISCARD PLANS";
    /// Writes the lane's row unchanged, so that its commit waits for all earlier commits of the lane.
    TouchLane = "UPDATE lanes SET last_number = last_number WHERE worker_id = $1::bigint AND lane = $2::smallint";
    /// Reads a lane's epoch and last number.
    LaneState = include_str!("../../queries/lane_state.sql");
    /// Returns whether another session has locked a table of the schema against writes, or waits to do so.
    IsTableLocked = "SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation \
                     WHERE l.pid <> pg_backend_pid() \
                     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                     AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') \
                     AND c.relkind = 'r' \
                     AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()))";
    /// Returns lanes whose last number is below an acknowledged number.
    RegressedLanes = include_str!("../../queries/regressed_lanes.sql");
    /// Locks executions in key order.
    LockExecutions = include_str!("../../queries/lock_executions.sql");
    /// Ends executions that the lane's worker runs.
    Finish = include_str!("../../queries/finish.sql");
    /// Applies Transitions of executions that the lane's worker runs.
    Transition = include_str!("../../queries/transition.sql");
    /// Queues executions that this flush suspends or parks although a cancel of them is pending.
    RequeueRequested = include_str!("../../queries/requeue_requested.sql");
    /// Deletes the pauses of executions that are parked.
    SettlePauses = include_str!("../../queries/settle_pauses.sql");
    /// Deletes the requests of executions that end.
    DeleteRequests = include_str!("../../queries/delete_requests.sql");
    /// Wakes executions whose wait is over.
    Wake = include_str!("../../queries/wake.sql");
    /// Creates running executions without options.
    StartRunning = include_str!("../../queries/start_running.sql");
    /// Creates executions that have ended, without options.
    StartEnded = include_str!("../../queries/start_ended.sql");
    /// Creates executions with a workflow_id from the caller and no other option.
    StartNamed = include_str!("../../queries/start_named.sql");
    /// Creates self-claiming executions: they run if their queue has no limits, and are queued otherwise.
    StartSelfClaiming = include_str!("../../queries/start_self_claiming.sql");
    /// Creates queued executions without other options.
    StartQueued = include_str!("../../queries/start_queued.sql");
    /// Creates executions with any options.
    Start = include_str!("../../queries/start.sql");
    /// Creates the rows of unfinished batches.
    InsertBatches = include_str!("../../queries/insert_batches.sql");
    /// Creates the rows by which retried items are counted.
    InsertRetriedItems = include_str!("../../queries/insert_retried_items.sql");
    /// Creates bundles that fit into their batches.
    StartBundles = include_str!("../../queries/start_bundles.sql");
    /// Locks unfinished batches in key order.
    LockBatches = include_str!("../../queries/lock_batches.sql");
    /// Closes batches.
    CloseBatches = include_str!("../../queries/close_batches.sql");
    /// Ends batches of which nothing is left to run.
    EndBatches = concat!(
        "WITH complete AS MATERIALIZED (\nSELECT u.key\n",
        include_str!("../../queries/complete_batches.sql"),
        include_str!("../../queries/end_batches.sql")
    );
    /// Deletes the rows of batches that have ended.
    DeleteBatches = "DELETE FROM batches WHERE key = ANY($1::uuid[])";
    /// Records outcomes of items.
    InsertPacks = include_str!("../../queries/insert_packs.sql");
    /// Stores attributes of executions.
    InsertAttributes = include_str!("../../queries/insert_attributes.sql");
    /// Records checkpoints.
    InsertCheckpoints = include_str!("../../queries/insert_checkpoints.sql");
    /// Records failed attempts.
    InsertAttempts = include_str!("../../queries/insert_attempts.sql");
    /// Stores chunks of large values.
    InsertChunks = include_str!("../../queries/insert_chunks.sql");
    /// Deletes the chunks of values to which no row will refer.
    WithdrawValues = "DELETE FROM chunks WHERE ctid = ANY (ARRAY( \
                          SELECT c.place FROM unnest($1::uuid[], $2::bigint[]) AS u (execution, value) \
                          CROSS JOIN LATERAL (SELECT c.ctid AS place FROM chunks AS c \
                                              WHERE c.execution = u.execution AND c.value = u.value OFFSET 0) AS c))";
    /// Deletes chunks.
    DeleteChunks = include_str!("../../queries/delete_chunks.sql");
    /// Makes executions ready for the first time.
    Ready = include_str!("../../queries/ready.sql");
    /// Makes executions ready again that have begun before.
    ReadyResumed = include_str!("../../queries/ready_resumed.sql");
    /// Deletes the slots of executions that stop running.
    FreeSlots = include_str!("../../queries/free_slots.sql");
    /// Inserts timers.
    InsertTimers = include_str!("../../queries/insert_timers.sql");
    /// Inserts rows of `waits`: children that executions wait for.
    InsertWaits = include_str!("../../queries/insert_waits.sql");
    /// Deletes requests that were handled.
    ClearRequests = "DELETE FROM requests WHERE execution = ANY($1::uuid[])";
    /// Deletes pending pauses.
    DeletePauses = "DELETE FROM requests WHERE execution = ANY($1::uuid[]) AND kind = 4 RETURNING worker_id";
    /// Ends executions as cancelled.
    Cancel = include_str!("../../queries/cancel.sql");
    /// Queues executions that were parked or have ended.
    Resume = include_str!("../../queries/resume.sql");
    /// Deletes the last failures of steps, so that those steps are tried again.
    RetractFailures = include_str!("../../queries/retract_failures.sql");
    /// Parks executions on request.
    Park = include_str!("../../queries/park.sql");
    /// Records requests.
    InsertRequests = include_str!("../../queries/insert_requests.sql");
    /// Deletes rows of `ready`, so that their executions cannot be claimed.
    DeleteReady = "DELETE FROM ready WHERE execution = ANY($1::uuid[])";
    /// Releases executions from the quarantine.
    DeleteQuarantine = "DELETE FROM quarantine WHERE execution = ANY($1::uuid[])";
    /// Deletes timers.
    DeleteTimers = "DELETE FROM timers WHERE execution = ANY($1::uuid[])";
    /// Sends messages.
    SendMessages = include_str!("../../queries/send_messages.sql");
    /// Moves kept messages to their executions.
    ForwardMessages = include_str!("../../queries/forward_messages.sql");
    /// Appends entries to streams.
    InsertStreamEntries = include_str!("../../queries/insert_stream_entries.sql");
    /// Deletes received messages.
    DeleteMessages = include_str!("../../queries/delete_messages.sql");
    /// Deletes rows of `waits`, so that executions no longer wait for their children.
    DeleteWaits = "DELETE FROM waits WHERE execution = ANY($1::uuid[])";
    /// Creates debounced executions, or updates those that are scheduled.
    StartDebounced = include_str!("../../queries/start_debounced.sql");
    /// Keeps and returns a report of Starts whose queue is full, with the executions that they conflict with.
    KeepRejected = "SELECT keep_conflicts($1::bigint, $2::smallint, 'rejected', $3::uuid[], $4::text[], $5::text[], \
                        $6::text[]) AS report";
    /// Keeps and returns a report of the outcomes of requests.
    KeepDecided = "SELECT keep_outcomes($1::bigint, $2::smallint, jsonb_build_object('decided', $3::text::jsonb)) \
                       AS report";
    /// Returns pending requests.
    PendingRequests = "SELECT execution, n, kind FROM requests WHERE execution = ANY($1::uuid[])";

    /// Fails if one of these queues has a depth limit.
    AssertNoDepthLimit = "SELECT 1 / (count(*) = 0)::integer FROM depths WHERE queue = ANY($1::text[])";
    /// Locks the settings of queues for self-claiming Starts.
    LockQueues = include_str!("../../queries/lock_queues.sql");
    /// Locks and reads the depths of queues that have a limit.
    LockDepths = include_str!("../../queries/lock_depths.sql");
    /// Counts the executions that have not begun, for each queue.
    CountDepths = include_str!("../../queries/count_depths.sql");
    /// Stores the depths of queues.
    UpdateDepths = include_str!("../../queries/update_depths.sql");

    /// Reads the server's clock.
    ServerTime = "SELECT clock_timestamp()";
    /// Locks and returns the queues that have ready executions.
    LockReadyQueues = include_str!("../../queries/lock_ready_queues.sql");
    /// Waits for the claim that has its turn on a route; see lock_ready_queues.sql.
    AwaitClaimLock = "SELECT pg_advisory_xact_lock(hashtext('stepfast.' || current_schema()), hashtext($1::text) & 63)";
    /// Locks the settings of a queue, once no other claim and no flush has locked them.
    LockQueue = "SELECT pg_advisory_xact_lock(hashtext('stepfast queues ' || current_schema()), \
                 hashtext($1::text) & 255)";
    /// Waits until no change of a queue, and no claim that excludes others, has locked the queue's settings.
    ShareQueue = "SELECT pg_advisory_xact_lock_shared(hashtext('stepfast queues ' || current_schema()), \
                  hashtext($1::text) & 255)";
    /// Counts the slots of queues, one for each running execution.
    CountSlots = include_str!("../../queries/count_slots.sql");
    /// Counts the slots of a queue key.
    CountKeySlots = "SELECT count(*) FROM slots WHERE queue = $1::text AND queue_key = $2::text";
    /// Returns the starts that count for the rates of queues and queue keys.
    RateUsage = include_str!("../../queries/rate_usage.sql");
    /// Records starts for the rates of queues and queue keys.
    RecordStarts = include_str!("../../queries/record_starts.sql");
    /// Returns the queue keys that have ready executions.
    NextKeys = include_str!("../../queries/next_keys.sql");
    /// Checks whether an execution of a named queue is due, and whether the inbox has a row.
    CheckDue = include_str!("../../queries/check_due.sql");
    /// Creates executions from rows of the inbox.
    DrainInbox = include_str!("../../queries/drain_inbox.sql");
    /// Returns the id of the first row of the inbox.
    FirstInboxRow = include_str!("../../queries/first_inbox_row.sql");
    /// Moves a row of the inbox to the dead letters.
    InsertDeadLetter = include_str!("../../queries/insert_dead_letter.sql");
    /// Moves due executions of named queues to `ready`.
    QueueDue = include_str!("../../queries/queue_due.sql");
    /// Assigns slots to claimed executions.
    TakeSlots = include_str!("../../queries/take_slots.sql");
    /// Returns executions of the quarantine that may be tried.
    QuarantineCandidates = include_str!("../../queries/quarantine_candidates.sql");
    /// Claims executions.
    Claim = include_str!("../../queries/claim.sql");
    /// Claims executions that are in quarantine.
    ClaimQuarantined = include_str!("../../queries/claim_quarantined.sql");
    /// Deletes rows of `ready` without a claimable execution.
    DeleteStaleReady = include_str!("../../queries/delete_stale_ready.sql");
    /// Loads checkpoints of executions.
    Checkpoints = include_str!("../../queries/checkpoints.sql");
    /// Loads failed attempts of executions.
    Attempts = include_str!("../../queries/attempts.sql");
    /// Loads the checkpoints of executions from their last continuation on.
    CheckpointsOfPart = include_str!("../../queries/checkpoints_of_part.sql");
    /// Loads the failed attempts of executions from their last continuation on.
    AttemptsOfPart = include_str!("../../queries/attempts_of_part.sql");
    /// Loads the events for which executions wait.
    Waits = "SELECT execution, kind, subject, name FROM waits WHERE execution = ANY($1::uuid[]) \
             ORDER BY execution, kind, subject, name";
    /// Loads requests to executions.
    Requests = "SELECT execution, kind, n FROM requests WHERE execution = ANY($1::uuid[]) ORDER BY execution, n";

    /// Loads the packs of bundles.
    Packs = "SELECT bundle, outcomes FROM packs WHERE bundle = ANY($1::uuid[]) ORDER BY bundle, number";
    /// Returns the items of bundles that have a row of their own.
    PromotedItems = include_str!("../../queries/promoted_items.sql");
    /// Loads checkpoints of the items of bundles.
    ItemCheckpoints = include_str!("../../queries/item_checkpoints.sql");
    /// Loads failed attempts of the items of bundles.
    ItemAttempts = include_str!("../../queries/item_attempts.sql");
    /// Loads attributes of executions.
    Attributes = "SELECT execution, name, value FROM attributes WHERE execution = ANY($1::uuid[])";

    /// Renews a worker's lease.
    Renew = include_str!("../../queries/renew.sql");
    /// Returns what concerns a worker.
    Look = include_str!("../../queries/look.sql");
    /// Returns the leases of other workers.
    Peers = include_str!("../../queries/peers.sql");
    /// Returns the time, and whether the inbox has a row.
    HasInboxRows = "SELECT coalesce($1::timestamptz, clock_timestamp()), \
                    (SELECT true FROM inbox ORDER BY id LIMIT 1) IS TRUE";
    /// Returns the number of registered workers, and of those that can run exactly what a worker can.
    CountWorkers = "SELECT count(*), \
                           count(*) FILTER (WHERE NOT w.is_client AND (w.workflows, w.app_version, w.queues) \
                                                                      IS NOT DISTINCT FROM \
                                                                      (o.workflows, o.app_version, o.queues)) \
                    FROM workers AS w LEFT JOIN workers AS o ON o.worker_id = $1::bigint";
    /// Begins a sweep unless another worker has begun one less than 50 s ago.
    BeginSweep = "UPDATE shard SET swept_at = s.now \
                  FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS s \
                  WHERE swept_at NOT BETWEEN s.now - interval '50 seconds' AND s.now";
    /// Returns the assignments of a worker with the executions that it runs.
    OwnedExecutions = include_str!("../../queries/owned_executions.sql");
    /// Deletes and merges assignments of which no execution, or few executions, still run.
    TidyAssignments = include_str!("../../queries/tidy_assignments.sql");
    /// Registers a worker.
    Register = include_str!("../../queries/register.sql");
    /// Returns the oldest engine that may use the store, and the version of the schema.
    ReadVersions = "SELECT oldest_engine, (SELECT max(version) FROM schema_version) FROM shard";
    /// Locks a registration if its lease has not changed and no other session has locked it. The program must also
    /// support the schema's version.
    LockWorker = "SELECT host, pid, is_client FROM workers WHERE worker_id = $1::bigint \
                  AND ($2::timestamptz IS NULL OR lease_expires_at = $2::timestamptz) \
                  AND (SELECT max(version) FROM schema_version) <= $3::integer FOR UPDATE SKIP LOCKED";
    /// Locks the lanes of a worker, and waits for its flushes in flight.
    LockLanes = "SELECT lane FROM lanes WHERE worker_id = $1::bigint ORDER BY lane FOR UPDATE";
    /// Makes all further flushes of a worker fail.
    RaiseLaneEpochs = "UPDATE lanes SET epoch = epoch + 1 WHERE worker_id = $1::bigint";
    /// Makes all further heartbeats of a worker fail, and ends its lease unless the worker is closing.
    RaiseWorkerEpoch = "UPDATE workers SET epoch = epoch + 1, \
                        lease_expires_at = CASE WHEN $2::boolean THEN 'epoch' ELSE lease_expires_at END \
                        WHERE worker_id = $1::bigint";
    /// Ends the registration of a worker that has no assignments. Its lanes stay for a day: a worker that was cut off may
    /// send a flush again, and the lane's number shows whether the flush was committed. A missing lane fences a flush as a
    /// raised epoch does.
    Unregister = include_str!("../../queries/unregister.sql");
    /// Requeues the executions of a fenced worker.
    Requeue = include_str!("../../queries/requeue.sql");
    /// Returns executions that wait for children that have ended.
    SatisfiedWaits = include_str!("../../queries/satisfied_waits.sql");
    /// Returns closed batches that have not ended, in key order.
    ClosedBatches = "SELECT key FROM batches WHERE item_count IS NOT NULL AND key > $1::uuid \
                     ORDER BY key LIMIT $2::bigint";
    /// Locks batches of which nothing is left to run, and returns them. Batches that another transaction has locked are left
    /// to the next search.
    CompleteBatches = concat!(
        "SELECT e.key\n",
        include_str!("../../queries/complete_batches.sql"),
        "CROSS JOIN LATERAL (SELECT e.key FROM executions AS e\n\
         WHERE e.key = b.key AND e.status = 3 OFFSET 0 FOR UPDATE SKIP LOCKED) AS e"
    );
    /// Deletes slots whose execution does not run.
    DeleteOrphanedSlots = include_str!("../../queries/delete_orphaned_slots.sql");

    /// Loads executions.
    Load = include_str!("../../queries/load.sql");
    /// Lists executions.
    List = concat!(
        include_str!("../../queries/list.sql"),
        "FROM executions AS e\n",
        include_str!("../../queries/filter_where.sql"),
        "ORDER BY e.key DESC LIMIT $13::bigint"
    );
    /// Lists executions that have attributes.
    ListByAttribute = concat!(
        include_str!("../../queries/list.sql"),
        include_str!("../../queries/by_attribute.sql"),
        include_str!("../../queries/filter_where.sql"),
        "ORDER BY a.execution DESC LIMIT $13::bigint"
    );
    /// Counts executions.
    Count = concat!("SELECT count(*)\nFROM executions AS e\n", include_str!("../../queries/filter_where.sql"));
    /// Counts executions that have attributes.
    CountByAttribute = concat!(
        "SELECT count(*)\n",
        include_str!("../../queries/by_attribute.sql"),
        include_str!("../../queries/filter_where.sql")
    );
    /// Finds executions by the value of an attribute.
    Find = include_str!("../../queries/find.sql");
    /// Finds the newest batch before a key.
    NewestBatch = "SELECT greatest((SELECT key FROM bundles WHERE key < $1::uuid ORDER BY key DESC LIMIT 1), \
                                   (SELECT key FROM batches WHERE key < $1::uuid ORDER BY key DESC LIMIT 1)) AS key";
    /// Lists the bundles of a batch.
    Bundles = "SELECT key FROM bundles WHERE key >= $1::uuid AND key < $2::uuid ORDER BY key LIMIT $3::bigint";
    /// Counts the items of a batch by state.
    BatchItems = include_str!("../../queries/batch_items.sql");
    /// Loads pending messages.
    PendingMessages = include_str!("../../queries/pending_messages.sql");
    /// Counts pending messages by topic.
    PendingTopics = include_str!("../../queries/pending_topics.sql");
    /// Loads events.
    Events = include_str!("../../queries/events.sql");
    /// Finds the suspended executions that wait for events.
    EventWaiters = include_str!("../../queries/event_waiters.sql");
    /// Loads entries of streams.
    StreamEntries = include_str!("../../queries/stream_entries.sql");
    /// Lists queues.
    Queues = include_str!("../../queries/queues.sql");
    /// Lists graphs.
    Graphs = include_str!("../../queries/graphs.sql");
    /// Stores graphs.
    SetGraphs = include_str!("../../queries/set_graphs.sql");
    /// Creates or changes a queue.
    SetQueue = include_str!("../../queries/set_queue.sql");
    /// Assigns slots to the running executions of a queue.
    AssignSlots = include_str!("../../queries/assign_slots.sql");
    /// Sets a savepoint before slots are assigned.
    SavepointBeforeSlots = "SAVEPOINT before_slots";
    /// Undoes the assignment of slots, and releases the locks on their executions.
    RollBackToSavepoint = "ROLLBACK TO SAVEPOINT before_slots";
    /// Waits for the transaction that is changing an execution.
    AwaitExecution = "SELECT FROM executions WHERE key = $1::uuid FOR SHARE";
    /// Lists workers.
    Workers = include_str!("../../queries/workers.sql");
    /// Lists dead letters.
    DeadLetters = include_str!("../../queries/dead_letters.sql");
    /// Counts the executions that wait for a worker.
    WaitingWork = include_str!("../../queries/waiting_work.sql");
    /// Returns the dead workers among those given.
    DeadWorkers = include_str!("../../queries/dead_workers.sql");
    /// Loads the chunks of a large value.
    LoadChunks = "SELECT bytes FROM chunks WHERE execution = $1::uuid AND value = $2::bigint AND n < $3::bigint \
             ORDER BY n";
}

/// Commits a transaction, and fails if a statement in it has failed.
///
/// The COMMIT of an aborted transaction rolls back without an error, and the client library hides this. So the string
/// contains a SELECT before the COMMIT. An aborted transaction rejects the SELECT, and the server then does not execute
/// the COMMIT.
pub const CHECKED_COMMIT: &str = "SELECT 1; COMMIT";

/// Statements of flushes.
pub(crate) const FLUSH_STATEMENTS: &[Sql] = &[
    Sql::DiscardPlans,
    Sql::Fence,
    Sql::TouchLane,
    Sql::LaneState,
    Sql::IsTableLocked,
    Sql::AssertNoDepthLimit,
    Sql::LockQueues,
    Sql::LockDepths,
    Sql::CountDepths,
    Sql::UpdateDepths,
    Sql::LockExecutions,
    Sql::Finish,
    Sql::Transition,
    Sql::RequeueRequested,
    Sql::SettlePauses,
    Sql::DeleteRequests,
    Sql::Wake,
    Sql::StartRunning,
    Sql::StartEnded,
    Sql::StartNamed,
    Sql::StartQueued,
    Sql::StartSelfClaiming,
    Sql::StartDebounced,
    Sql::Start,
    Sql::InsertBatches,
    Sql::InsertRetriedItems,
    Sql::StartBundles,
    Sql::LockBatches,
    Sql::CloseBatches,
    Sql::EndBatches,
    Sql::DeleteBatches,
    Sql::InsertPacks,
    Sql::InsertCheckpoints,
    Sql::InsertAttempts,
    Sql::InsertChunks,
    Sql::WithdrawValues,
    Sql::DeleteChunks,
    Sql::InsertAttributes,
    Sql::Ready,
    Sql::ReadyResumed,
    Sql::FreeSlots,
    Sql::InsertTimers,
    Sql::InsertWaits,
    Sql::ClearRequests,
    Sql::DeletePauses,
    Sql::Cancel,
    Sql::Resume,
    Sql::RetractFailures,
    Sql::Park,
    Sql::InsertRequests,
    Sql::DeleteReady,
    Sql::DeleteQuarantine,
    Sql::DeleteTimers,
    Sql::DeleteWaits,
    Sql::SendMessages,
    Sql::ForwardMessages,
    Sql::DeleteMessages,
    Sql::InsertStreamEntries,
    Sql::KeepRejected,
    Sql::KeepDecided,
    Sql::PendingRequests,
];

/// Statements of claims.
pub(crate) const CLAIM_STATEMENTS: &[Sql] = &[
    Sql::DiscardPlans,
    Sql::Fence,
    Sql::LaneState,
    Sql::ServerTime,
    Sql::LockReadyQueues,
    Sql::AwaitClaimLock,
    Sql::LockQueue,
    Sql::ShareQueue,
    Sql::CountSlots,
    Sql::CountKeySlots,
    Sql::RateUsage,
    Sql::RecordStarts,
    Sql::NextKeys,
    Sql::CheckDue,
    Sql::DrainInbox,
    Sql::FirstInboxRow,
    Sql::InsertDeadLetter,
    Sql::QueueDue,
    Sql::TakeSlots,
    Sql::QuarantineCandidates,
    Sql::Claim,
    Sql::ClaimQuarantined,
    Sql::DeleteStaleReady,
    Sql::CheckpointsOfPart,
    Sql::AttemptsOfPart,
    Sql::Requests,
    Sql::Packs,
    Sql::PromotedItems,
    Sql::ItemCheckpoints,
    Sql::ItemAttempts,
];

/// Statements of renewals.
pub(crate) const RENEWAL_STATEMENTS: &[Sql] = &[Sql::Renew, Sql::RegressedLanes];

/// Statements of heartbeats and registrations.
pub(crate) const HEARTBEAT_STATEMENTS: &[Sql] =
    &[Sql::Look, Sql::OwnedExecutions, Sql::LaneState, Sql::Register, Sql::SetGraphs, Sql::ReadVersions];

/// Statements of maintenance, takeovers and changes of queues.
pub(crate) const TAKEOVER_STATEMENTS: &[Sql] = &[
    Sql::Peers,
    Sql::HasInboxRows,
    Sql::CountWorkers,
    Sql::TidyAssignments,
    Sql::BeginSweep,
    Sql::LockWorker,
    Sql::LockLanes,
    Sql::RaiseLaneEpochs,
    Sql::RaiseWorkerEpoch,
    Sql::Unregister,
    Sql::LockQueue,
    Sql::SetQueue,
    Sql::AssignSlots,
    Sql::SavepointBeforeSlots,
    Sql::RollBackToSavepoint,
    Sql::AwaitExecution,
    Sql::Requeue,
    Sql::SatisfiedWaits,
    Sql::ClosedBatches,
    Sql::CompleteBatches,
    Sql::EndBatches,
    Sql::DeleteOrphanedSlots,
    Sql::Wake,
];

/// Statements of loads and lists.
pub(crate) const READ_STATEMENTS: &[Sql] = &[
    Sql::Load,
    Sql::Checkpoints,
    Sql::CheckpointsOfPart,
    Sql::Attempts,
    Sql::AttemptsOfPart,
    Sql::Requests,
    Sql::Waits,
    Sql::Attributes,
    Sql::Packs,
    Sql::PromotedItems,
    Sql::ItemCheckpoints,
    Sql::ItemAttempts,
    Sql::Find,
    Sql::NewestBatch,
    Sql::Bundles,
    Sql::BatchItems,
    Sql::PendingMessages,
    Sql::PendingTopics,
    Sql::Events,
    Sql::EventWaiters,
    Sql::StreamEntries,
    Sql::List,
    Sql::ListByAttribute,
    Sql::Count,
    Sql::CountByAttribute,
    Sql::DeadWorkers,
    Sql::Queues,
    Sql::Graphs,
    Sql::Workers,
    Sql::DeadLetters,
    Sql::WaitingWork,
    Sql::LoadChunks,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_begin_without_comments() {
        for sql in Sql::ALL {
            let text = sql.text();
            assert!(!text.is_empty() && !text.starts_with("--"), "{sql:?}: {text}");
        }
        assert!(Sql::Fence.text().starts_with("WITH here AS (\n    UPDATE lanes SET last_number"));
    }
}
