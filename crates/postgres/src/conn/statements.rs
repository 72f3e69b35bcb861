//! Every statement of the store that is sent more than once.

/// Names statements and their text.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        /// A statement; sessions prepare those that they need.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Sql {
            $($(#[$doc])* $name,)*
        }

        impl Sql {
            /// All of them.
            pub const ALL: &'static [Sql] = &[$(Sql::$name,)*];

            /// Its text.
            pub fn text(self) -> &'static str {
                match self {
                    $(Sql::$name => $text,)*
                }
            }
        }
    };
}

statements! {
    /// Takes the next number of a lane, or fails the transaction.
    Fence = include_str!("../../queries/fence.sql");
    /// Forgets plans that were made when the tables were smaller.
    Replan = "DISCARD PLANS";
    /// Writes to the log behind all that the lane has written.
    Prove = "UPDATE lanes SET last_number = last_number WHERE worker_id = $1::bigint AND lane = $2::smallint";
    /// A lane as it is.
    Lane = include_str!("../../queries/lane.sql");
    /// Lanes that have less than was acknowledged.
    Behind = include_str!("../../queries/behind.sql");
    /// Locks rows in key order.
    Lock = include_str!("../../queries/lock.sql");
    /// Ends executions that the lane's worker runs.
    MoveEnded = include_str!("../../queries/move_ended.sql");
    /// Moves executions that the lane's worker runs.
    Move = include_str!("../../queries/move.sql");
    /// Queues what was to be suspended or parked, but is asked for something.
    RequeueRequested = include_str!("../../queries/heed.sql");
    /// Deletes what was asked of executions that end.
    Forget = include_str!("../../queries/forget.sql");
    /// Wakes what waits and need not.
    Wake = include_str!("../../queries/wake.sql");
    /// Creates executions that run, with nothing special about them.
    StartRunning = include_str!("../../queries/start_running.sql");
    /// Creates executions that have ended, with nothing special about them.
    StartEnded = include_str!("../../queries/start_ended.sql");
    /// Creates executions with an id of their caller, and nothing else special about them.
    StartNamed = include_str!("../../queries/start_named.sql");
    /// Creates executions that run if their queue lets them, and are queued if not.
    StartYielding = include_str!("../../queries/start_yielding.sql");
    /// Creates executions that are queued, with nothing else special about them.
    StartQueued = include_str!("../../queries/start_queued.sql");
    /// Creates executions.
    Start = include_str!("../../queries/start.sql");
    /// What executions are found by.
    Attribute = include_str!("../../queries/attribute.sql");
    /// Records deliveries.
    Checkpoint = include_str!("../../queries/checkpoint.sql");
    /// Records failed attempts.
    Attempt = include_str!("../../queries/attempt.sql");
    /// Stores pieces of large values.
    Chunk = include_str!("../../queries/chunk.sql");
    /// Deletes pieces.
    Discard = include_str!("../../queries/discard.sql");
    /// Makes executions claimable for the first time.
    Ready = include_str!("../../queries/ready.sql");
    /// Makes executions claimable again.
    ReadyAgain = include_str!("../../queries/ready_again.sql");
    /// Frees the slots of executions that do not run any more.
    Unslot = include_str!("../../queries/unslot.sql");
    /// Sets due times.
    Timer = include_str!("../../queries/timer.sql");
    /// Sets children to wait for.
    Wait = include_str!("../../queries/wait.sql");
    /// Deletes answered requests.
    Answer = "DELETE FROM requests WHERE execution = ANY($1::uuid[])";
    /// Ends executions as cancelled.
    Cancel = include_str!("../../queries/cancel.sql");
    /// Continues executions that were parked or have ended.
    Resume = include_str!("../../queries/resume.sql");
    Withdraw = include_str!("../../queries/withdraw.sql");
    /// Records requests.
    Request = include_str!("../../queries/request.sql");
    /// Makes executions unclaimable.
    Unready = "DELETE FROM ready WHERE execution = ANY($1::uuid[])";
    /// Releases executions from the quarantine.
    Unquarantine = "DELETE FROM quarantine WHERE execution = ANY($1::uuid[])";
    /// Deletes due times.
    Untimer = "DELETE FROM timers WHERE execution = ANY($1::uuid[])";
    /// Deletes children to wait for.
    Unwait = "DELETE FROM waits WHERE execution = ANY($1::uuid[])";
    /// Inserts executions that are debounced, or puts them into those that are there.
    Merge = include_str!("../../queries/merge.sql");
    /// The executions that Starts lost against.
    Existing = include_str!("../../queries/existing.sql");
    /// Which requests are there.
    Asked = "SELECT execution, n FROM requests WHERE execution = ANY($1::uuid[])";

    /// Fails if one of these queues has a maximal depth.
    Boundless = "SELECT 1 / (count(*) = 0)::integer FROM depths WHERE queue = ANY($1::text[])";
    /// Locks and reads the depths of queues that have a maximum.
    Depths = include_str!("../../queries/depths.sql");
    /// Counts what waits in queues for its beginning.
    CountDepths = include_str!("../../queries/count_depths.sql");
    /// Keeps the depths of queues.
    KeepDepths = include_str!("../../queries/keep_depths.sql");

    /// The server's time.
    Time = "SELECT clock_timestamp()";
    /// Locks the queues of which something is ready.
    Open = include_str!("../../queries/open.sql");
    /// Waits until nobody else claims from a queue without limits; see open.sql.
    AwaitTurn = "SELECT pg_advisory_xact_lock(hashtext('stepfast.' || current_schema()), hashtext($1::text) & 63)";
    /// Waits until nobody else claims from a queue.
    LockQueue = "SELECT FROM queues WHERE name = $1::text FOR NO KEY UPDATE";
    /// Counts what runs of queues.
    Slots = include_str!("../../queries/slots.sql");
    /// Counts what runs of a key.
    KeySlots = "SELECT count(*) FROM slots WHERE queue = $1::text AND queue_key = $2::text";
    /// Starts that count for rates.
    Used = include_str!("../../queries/used.sql");
    /// Enters starts that count for rates.
    EnterStarts = include_str!("../../queries/enter_starts.sql");
    /// Finds the keys of queues.
    Keys = include_str!("../../queries/keys.sql");
    /// Whether something that stands in a queue of its own is due.
    Due = include_str!("../../queries/due.sql");
    /// Makes executions of what is in the inbox.
    Receive = include_str!("../../queries/receive.sql");
    /// The first row of the inbox.
    FirstLetter = include_str!("../../queries/first_letter.sql");
    /// Makes a dead letter of a row of the inbox.
    Bury = include_str!("../../queries/bury.sql");
    /// Queues that.
    Admit = include_str!("../../queries/admit.sql");
    /// What was claimed counts for the limits of its queue.
    Slot = include_str!("../../queries/slot.sql");
    /// What may be tried of the quarantine.
    Quarantined = include_str!("../../queries/quarantined.sql");
    /// Claims executions.
    Take = include_str!("../../queries/take.sql");
    /// Claims executions that are in quarantine.
    TakeQuarantined = include_str!("../../queries/take_quarantined.sql");
    /// Deletes ready rows that lead nowhere.
    Stale = include_str!("../../queries/stale.sql");
    /// Checkpoints of executions.
    Checkpoints = include_str!("../../queries/checkpoints.sql");
    /// Failed attempts of executions.
    Attempts = include_str!("../../queries/attempts.sql");
    /// Requests to executions.
    Requests = "SELECT execution, kind FROM requests WHERE execution = ANY($1::uuid[]) ORDER BY execution, n";

    /// What executions are found by.
    Attributes = "SELECT execution, name, value FROM attributes WHERE execution = ANY($1::uuid[])";

    /// Renews a worker and looks around.
    Look = include_str!("../../queries/look.sql");
    /// What a worker runs.
    Owned = include_str!("../../queries/owned.sql");
    /// Enters some of what a worker has started in the index of owners.
    Enter = include_str!("../../queries/enter.sql");
    /// Which of those are not there yet.
    Unentered = "SELECT key FROM executions \
                 WHERE key = ANY($2::uuid[]) AND status = 2 AND started_by = $1::bigint";
    /// Registers a worker.
    Register = include_str!("../../queries/register.sql");
    /// The oldest engine that may use the store, and the version of the schema.
    Versions = "SELECT oldest_engine, (SELECT max(version) FROM schema_version) FROM shard";
    /// Locks a registration, if its lease is still the one that was seen, no other session has locked it, and
    /// the schema is known to this program.
    LockWorker = "SELECT from_key, to_key, host, pid FROM workers WHERE worker_id = $1::bigint \
                  AND ($2::timestamptz IS NULL OR lease_expires_at = $2::timestamptz) \
                  AND (SELECT max(version) FROM schema_version) <= $3::integer FOR UPDATE SKIP LOCKED";
    /// Locks the lanes of a worker, waiting for flushes on their way.
    LockLanes = "SELECT lane FROM lanes WHERE worker_id = $1::bigint ORDER BY lane FOR UPDATE";
    /// Makes all further flushes of a worker fail.
    BumpLanes = "UPDATE lanes SET epoch = epoch + 1 WHERE worker_id = $1::bigint";
    /// Makes all further looks of a worker fail.
    BumpWorker = "UPDATE workers SET epoch = epoch + 1 WHERE worker_id = $1::bigint";
    /// Enters all that workers have started in the index of owners.
    EnterAll = include_str!("../../queries/enter_all.sql");
    /// Deletes the rows of claims of which nothing is left that only they tell.
    ForgetClaims = "DELETE FROM claims WHERE worker_id = $1::bigint AND number <= $2::bigint";
    /// What claims have taken.
    ClaimedBy = "SELECT DISTINCT unnest(executions) FROM claims WHERE worker_id = $1::bigint AND number = ANY($2::bigint[])";
    /// The same of all claims of workers.
    ForgetAllClaims = "DELETE FROM claims WHERE worker_id = ANY($1::bigint[])";
    /// Ends registrations.
    Unregister = "DELETE FROM workers WHERE worker_id = ANY($1::bigint[])";
    /// Makes executions of owners that are gone claimable.
    Requeue = include_str!("../../queries/requeue.sql");
    /// Finds what waits for children that have ended.
    Satisfied = include_str!("../../queries/satisfied.sql");
    /// Deletes slots whose execution does not run.
    StraySlots = include_str!("../../queries/stray_slots.sql");

    /// Loads executions.
    Load = include_str!("../../queries/load.sql");
    /// Lists executions.
    List = concat!(
        include_str!("../../queries/list.sql"),
        "FROM executions AS e\n",
        include_str!("../../queries/matches.sql"),
        "ORDER BY e.key DESC LIMIT $13::bigint"
    );
    /// Lists executions that have attributes.
    ListByAttribute = concat!(
        include_str!("../../queries/list.sql"),
        include_str!("../../queries/by_attribute.sql"),
        include_str!("../../queries/matches.sql"),
        "ORDER BY a.execution DESC LIMIT $13::bigint"
    );
    /// Counts executions.
    Count = concat!("SELECT count(*)\nFROM executions AS e\n", include_str!("../../queries/matches.sql"));
    /// Counts executions that have attributes.
    CountByAttribute = concat!(
        "SELECT count(*)\n",
        include_str!("../../queries/by_attribute.sql"),
        include_str!("../../queries/matches.sql")
    );
    /// Lists queues.
    Queues = include_str!("../../queries/queues.sql");
    /// Creates or changes a queue.
    SetQueue = include_str!("../../queries/set_queue.sql");
    /// What runs of a queue counts for its limits.
    RunningIn = include_str!("../../queries/running_in.sql");
    /// Marks where no slots were given yet.
    BeforeSlots = "SAVEPOINT before_slots";
    /// Takes slots back that were given, with the locks that were taken for that.
    TakeSlotsBack = "ROLLBACK TO SAVEPOINT before_slots";
    /// Waits for whoever is changing an execution.
    AwaitExecution = "SELECT FROM executions WHERE key = $1::uuid FOR SHARE";
    /// Lists workers.
    Workers = include_str!("../../queries/workers.sql");
    /// Dead letters.
    DeadLetters = include_str!("../../queries/dead_letters.sql");
    /// Counts what waits for a worker.
    Waiting = include_str!("../../queries/waiting.sql");
    /// Which of some workers are lost.
    Lost = include_str!("../../queries/lost.sql");
    /// The pieces of a large value.
    Value = "SELECT bytes FROM chunks WHERE execution = $1::uuid AND value = $2::bigint AND n < $3::bigint \
             ORDER BY n";
}

/// Ends a transaction, and fails if anything in it has failed.
///
/// COMMIT of an aborted transaction answers ROLLBACK without an error, and the client library hides that
/// answer. So a statement goes before it in the same string: an aborted transaction refuses that, and the
/// server then does not reach the COMMIT.
pub const COMMIT: &str = "SELECT 1; COMMIT";

/// Statements of flushes.
pub(crate) const FLUSH: &[Sql] = &[
    Sql::Replan,
    Sql::Fence,
    Sql::Prove,
    Sql::Lane,
    Sql::Boundless,
    Sql::Depths,
    Sql::CountDepths,
    Sql::KeepDepths,
    Sql::Lock,
    Sql::MoveEnded,
    Sql::Move,
    Sql::RequeueRequested,
    Sql::Forget,
    Sql::Wake,
    Sql::StartRunning,
    Sql::StartEnded,
    Sql::StartNamed,
    Sql::StartQueued,
    Sql::StartYielding,
    Sql::Merge,
    Sql::Start,
    Sql::Checkpoint,
    Sql::Attempt,
    Sql::Chunk,
    Sql::Discard,
    Sql::Attribute,
    Sql::Ready,
    Sql::ReadyAgain,
    Sql::Unslot,
    Sql::Timer,
    Sql::Wait,
    Sql::Answer,
    Sql::Cancel,
    Sql::Resume,
    Sql::Withdraw,
    Sql::Request,
    Sql::Unready,
    Sql::Unquarantine,
    Sql::Untimer,
    Sql::Unwait,
    Sql::Existing,
    Sql::Asked,
];

/// Statements of claims.
pub(crate) const CLAIM: &[Sql] = &[
    Sql::Replan,
    Sql::Fence,
    Sql::Lane,
    Sql::Time,
    Sql::Open,
    Sql::AwaitTurn,
    Sql::LockQueue,
    Sql::Slots,
    Sql::KeySlots,
    Sql::Used,
    Sql::EnterStarts,
    Sql::Keys,
    Sql::Due,
    Sql::Receive,
    Sql::FirstLetter,
    Sql::Bury,
    Sql::Admit,
    Sql::Slot,
    Sql::Quarantined,
    Sql::Take,
    Sql::TakeQuarantined,
    Sql::Stale,
    Sql::Checkpoints,
    Sql::Attempts,
    Sql::Requests,
];

/// Statements of the look and of registering.
pub(crate) const CONTROL: &[Sql] = &[
    Sql::Look,
    Sql::Behind,
    Sql::Owned,
    Sql::Lane,
    Sql::Enter,
    Sql::Unentered,
    Sql::ForgetClaims,
    Sql::ClaimedBy,
    Sql::Register,
    Sql::Versions,
];

/// Statements of taking over.
pub(crate) const TAKEOVER: &[Sql] = &[
    Sql::LockWorker,
    Sql::LockLanes,
    Sql::BumpLanes,
    Sql::BumpWorker,
    Sql::EnterAll,
    Sql::ForgetAllClaims,
    Sql::Unregister,
    Sql::SetQueue,
    Sql::RunningIn,
    Sql::BeforeSlots,
    Sql::TakeSlotsBack,
    Sql::AwaitExecution,
    Sql::Requeue,
    Sql::Satisfied,
    Sql::StraySlots,
    Sql::Lock,
    Sql::Wake,
];

/// Statements of loads and lists.
pub(crate) const READ: &[Sql] = &[
    Sql::Load,
    Sql::Checkpoints,
    Sql::Attempts,
    Sql::Requests,
    Sql::Attributes,
    Sql::List,
    Sql::ListByAttribute,
    Sql::Count,
    Sql::CountByAttribute,
    Sql::Lost,
    Sql::Queues,
    Sql::Workers,
    Sql::DeadLetters,
    Sql::Waiting,
    Sql::Value,
];
