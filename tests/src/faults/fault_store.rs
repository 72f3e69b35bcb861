//! [`FaultStore`]: a store that fails as a test requests, and lists the Writes that were committed through it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use stepfast_core::key::Key;
use stepfast_core::payload::ChunkRef;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::store::counters::Counters;
use stepfast_core::store::{
    BatchItems, Claim, ClaimReply, DeadLetter, Detail, Event, EventQuery, Execution, ExecutionId, Filter,
    Flush, GraphRow, Heartbeat, HeartbeatReply, Hint, Maintenance, Outcome, Page, PendingMessage, Record,
    Registration, Renewal, Store, StoreError, StoreInfo, StreamEntry, StreamQuery, WorkerId, WorkerInfo,
    WorkerOverview, Write,
};
use tokio::sync::watch;

/// A method of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `register`
    Register,
    /// `close`
    Close,
    /// `commit`
    Commit,
    /// `claim`
    Claim,
    /// `heartbeat`. Faults of this kind also apply to `renew` and `maintain`.
    Heartbeat,
    /// `renew`
    Renew,
    /// `maintain`
    Maintain,
    /// `take_over`
    TakeOver,
    /// `load`
    Load,
    /// `load_value`
    LoadValue,
    /// `list`, `bundles` and `batch_items`
    List,
    /// `queues`
    Queues,
    /// `graphs` and `store_graphs`
    Graphs,
}

/// The fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call returns `Unavailable` and has no effect.
    Before,
    /// The call takes effect and returns `Unavailable`.
    After,
    /// The call hangs until [`FaultStore::release`].
    Hang,
}

/// The hints that an engine receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HintMode {
    /// The hints of the store.
    #[default]
    PassThrough,
    /// Endless hints that something may have changed.
    Busy,
    /// No hints.
    Silent,
}

type WriteMatcher = Box<dyn Fn(&Write) -> bool + Send>;

#[derive(Default)]
struct Rules {
    /// Number of calls so far, of the kinds that [`FaultStore::fail_nth_call`] counts.
    calls: u64,
    /// The number of the call that fails, and its fault.
    failing_call: Option<(u64, Fault)>,
    has_fired: bool,
    /// The kind of call that fails next, and its fault.
    failing_kind: Option<(Call, Fault)>,
    /// Kinds of calls that return `Unavailable`.
    unavailable: Vec<Call>,
    /// Kinds of calls that hang.
    held_calls: Vec<Call>,
    /// Kinds of calls whose replies hang.
    held_replies: Vec<Call>,
    /// Matches the Writes whose flushes hang.
    held_writes: Option<WriteMatcher>,
    /// Matches the Writes of flushes whose replies hang.
    held_write_replies: Option<WriteMatcher>,
    /// Whether the next claim that takes an execution returns `Unavailable`.
    drops_claim_reply: bool,
    /// The error of the next call of a kind, which then has no effect.
    next_error: Option<(Call, StoreError)>,
    /// Number of calls that hang.
    hanging: usize,
    rejected: Option<WriteMatcher>,
    blocked: Option<WriteMatcher>,
    table_locked: Option<WriteMatcher>,
    /// The error of the next commit, which then has no effect.
    next_commit_error: Option<StoreError>,
    committed: Vec<(Write, Outcome)>,
    flush_sizes: Vec<usize>,
    /// The kinds of all calls received, in order.
    received: Vec<Call>,
    /// The hints that engines receive.
    hint_mode: HintMode,
    /// All workers that registered.
    workers: Vec<WorkerId>,
}

/// A store that injects faults in front of another store.
pub struct FaultStore {
    inner: Arc<dyn Store>,
    info: StoreInfo,
    rules: Mutex<Rules>,
    /// A count of all events, for waiters.
    events: watch::Sender<u64>,
}

impl FaultStore {
    /// Wraps `inner`, without faults.
    pub fn wrap(inner: Arc<dyn Store>) -> Arc<Self> {
        Self::with_flush_writes(inner, usize::MAX)
    }

    /// Wraps `inner`, with at most `flush_writes` Writes in a flush.
    pub fn with_flush_writes(inner: Arc<dyn Store>, flush_writes: usize) -> Arc<Self> {
        let mut about = inner.info().clone();
        about.max_flush_writes = about.max_flush_writes.min(flush_writes);
        Self::with_info(inner, about)
    }

    /// Wraps `inner`, for an engine with this number of lanes.
    pub fn with_lanes(inner: Arc<dyn Store>, lanes: u16) -> Arc<Self> {
        let about = StoreInfo { lanes, ..inner.info().clone() };
        Self::with_info(inner, about)
    }

    fn with_info(inner: Arc<dyn Store>, about: StoreInfo) -> Arc<Self> {
        Arc::new(Self { inner, info: about, rules: Mutex::default(), events: watch::Sender::new(0) })
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rules) -> T) -> T {
        let changed = change(&mut self.rules());
        self.events.send_modify(|events| *events += 1);
        changed
    }

    /// Makes the `n`th call from now fail. Registrations, closes and graphs do not count.
    pub fn fail_nth_call(&self, n: u64, fault: Fault) {
        self.change(|rules| {
            rules.failing_call = Some((rules.calls + n, fault));
            rules.has_fired = false;
        });
    }

    /// Makes the next call of this kind fail.
    pub fn fail_next(&self, call: Call, fault: Fault) {
        self.change(|rules| rules.failing_kind = Some((call, fault)));
    }

    /// Returns whether the call of [`fail_nth_call`](Self::fail_nth_call) has failed.
    pub fn has_fired(&self) -> bool {
        self.rules().has_fired
    }

    /// Makes all calls of these kinds return `Unavailable`, and no others. An empty list ends this.
    pub fn make_unavailable(&self, calls: &[Call]) {
        self.change(|rules| rules.unavailable = calls.to_vec());
    }

    /// Makes all calls of these kinds hang until [`release`](Self::release). Returns the number of earlier calls of
    /// these kinds.
    pub fn hold_calls(&self, calls: &[Call]) -> usize {
        self.change(|rules| {
            rules.held_calls = calls.to_vec();
            rules.received.iter().filter(|seen| calls.contains(seen)).count()
        })
    }

    /// Lets claims take effect, and makes their replies hang until [`release`](Self::release).
    pub fn hold_claim_replies(&self) {
        self.change(|rules| rules.held_replies = vec![Call::Claim]);
    }

    /// Makes replies to heartbeats that contain requests hang until [`release`](Self::release).
    pub fn hold_request_replies(&self) {
        self.change(|rules| rules.held_replies = vec![Call::Heartbeat]);
    }

    /// Makes flushes with a matching Write hang until [`release`](Self::release).
    pub fn hold_writes(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.held_writes = Some(Box::new(matches)));
    }

    /// Lets flushes with a matching Write take effect, and makes their replies hang until [`release`](Self::release).
    pub fn hold_write_replies(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.held_write_replies = Some(Box::new(matches)));
    }

    /// Lets the next claim that takes an execution take effect, and drops its reply.
    pub fn drop_next_claim_reply(&self) {
        self.change(|rules| rules.drops_claim_reply = true);
    }

    /// Waits until the reply to a claim was dropped.
    pub async fn wait_until_claim_reply_dropped(&self) {
        self.wait_until(|rules| !rules.drops_claim_reply).await;
    }

    /// Waits until a call hangs.
    pub async fn wait_until_hanging(&self) {
        self.wait_until_hanging_calls(1).await;
    }

    /// Waits until this number of calls hang.
    pub async fn wait_until_hanging_calls(&self, calls: usize) {
        self.wait_until(|rules| rules.hanging >= calls).await;
    }

    /// Lets all hanging calls continue.
    pub fn release(&self) {
        self.change(|rules| {
            rules.held_calls.clear();
            rules.held_replies.clear();
            rules.held_writes = None;
            rules.held_write_replies = None;
            if matches!(rules.failing_call, Some((_, Fault::Hang))) {
                rules.failing_call = None;
            }
        });
    }

    /// Ends all faults, and lets all hanging calls continue.
    pub fn heal(&self) {
        self.release();
        self.accept_all();
        self.change(|rules| {
            rules.failing_call = None;
            rules.unavailable.clear();
        });
    }

    /// Makes flushes with a matching Write fail with `Rejected`.
    pub fn reject(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.rejected = Some(Box::new(matches)));
    }

    /// Makes flushes with a matching Write fail with `TableLocked`.
    pub fn lock_table(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.table_locked = Some(Box::new(matches)));
    }

    /// Makes flushes with a matching Write fail with `Blocked`.
    pub fn block(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.blocked = Some(Box::new(matches)));
    }

    /// Ends [`reject`](Self::reject) and [`block`](Self::block).
    pub fn accept_all(&self) {
        self.change(|rules| (rules.rejected, rules.blocked, rules.table_locked) = (None, None, None));
    }

    /// Makes the next claim or heartbeat fail with this error, without effect.
    pub fn fail_next_with(&self, call: Call, error: StoreError) {
        self.change(|rules| rules.next_error = Some((call, error)));
    }

    /// Makes the next commit fail with this error, without effect.
    pub fn fail_next_commit_with(&self, error: StoreError) {
        self.change(|rules| rules.next_commit_error = Some(error));
    }

    /// Returns all committed Writes in order, with their outcomes.
    pub fn committed_writes(&self) -> Vec<(Write, Outcome)> {
        self.rules().committed.clone()
    }

    /// Returns all workers that registered through this store.
    pub fn workers(&self) -> Vec<WorkerId> {
        self.rules().workers.clone()
    }

    /// Returns the number of Writes of each committed flush.
    pub fn flush_sizes(&self) -> Vec<usize> {
        self.rules().flush_sizes.clone()
    }

    /// Waits until a matching Write was committed.
    pub async fn wait_until_committed(&self, matches: impl Fn(&Write) -> bool) {
        self.wait_until_committed_times(1, matches).await;
    }

    /// Waits until this number of matching Writes were committed.
    pub async fn wait_until_committed_times(&self, times: usize, matches: impl Fn(&Write) -> bool) {
        self.wait_until(|rules| rules.committed.iter().filter(|(write, _)| matches(write)).count() >= times)
            .await;
    }

    /// Waits until this number of calls of a kind were received.
    pub async fn wait_until_called(&self, call: Call, times: usize) {
        self.wait_until(|rules| rules.received.iter().filter(|seen| **seen == call).count() >= times).await;
    }

    /// Returns the number of calls of a kind that were received.
    pub fn call_count(&self, call: Call) -> usize {
        self.rules().received.iter().filter(|seen| **seen == call).count()
    }

    /// Waits until the lease was renewed this number of times.
    pub async fn wait_until_renewed(&self, times: usize) {
        self.wait_until_called(Call::Renew, times).await;
    }

    /// Returns the number of renewals of leases.
    pub fn renewal_count(&self) -> usize {
        self.call_count(Call::Renew)
    }

    /// Sends the engine endless hints.
    pub fn send_endless_hints(&self) {
        self.change(|rules| rules.hint_mode = HintMode::Busy);
    }

    /// Suppresses all hints for an engine that opens later, so that only heartbeats show changes.
    pub fn suppress_hints(&self) {
        self.change(|rules| rules.hint_mode = HintMode::Silent);
    }

    async fn wait_until(&self, holds: impl Fn(&Rules) -> bool) {
        let mut events = self.events.subscribe();
        while !holds(&self.rules()) {
            events.changed().await.unwrap();
        }
    }

    async fn hang_until(&self, is_over: impl Fn(&Rules) -> bool) {
        self.change(|rules| rules.hanging += 1);
        self.wait_until(is_over).await;
        self.change(|rules| rules.hanging -= 1);
    }

    /// Receives a call, and returns the fault to apply after its effect.
    async fn begin_call(&self, call: Call) -> Result<Option<Fault>, StoreError> {
        if let Some((_, error)) = self.change(|rules| rules.next_error.take_if(|(other, _)| *other == call)) {
            return Err(error);
        }
        let (fault, is_held) = self.change(|rules| {
            rules.received.push(call);
            let mut fault = None;
            if !matches!(call, Call::Register | Call::Close | Call::Graphs) {
                rules.calls += 1;
                if let Some((n, kind)) = rules.failing_call
                    && n == rules.calls
                {
                    rules.has_fired = true;
                    fault = Some(kind);
                }
            }
            if let Some((_, kind)) = rules.failing_kind.take_if(|(other, _)| *other == call) {
                fault = Some(kind);
            }
            if includes(&rules.unavailable, call) {
                fault = Some(Fault::Before);
            }
            (fault, includes(&rules.held_calls, call))
        });
        if is_held {
            self.hang_until(|rules| !includes(&rules.held_calls, call)).await;
        }
        match fault {
            Some(Fault::Before) => Err(unavailable(call)),
            Some(Fault::Hang) => {
                self.hang_until(|rules| !matches!(rules.failing_call, Some((_, Fault::Hang)))).await;
                Ok(None)
            }
            fault => Ok(fault),
        }
    }
}

/// Whether a fault of these kinds applies to a call.
fn includes(kinds: &[Call], call: Call) -> bool {
    kinds.contains(&call) || matches!(call, Call::Renew | Call::Maintain) && kinds.contains(&Call::Heartbeat)
}

fn unavailable(call: Call) -> StoreError {
    StoreError::Unavailable(format!("a test makes {call:?} fail"))
}

/// Returns the reply to a call that took effect, or the error that replaces it.
fn finish_call<T>(call: Call, fault: Option<Fault>, reply: Result<T, StoreError>) -> Result<T, StoreError> {
    if fault == Some(Fault::After) { Err(unavailable(call)) } else { reply }
}

#[async_trait]
impl Store for FaultStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let fault = self.begin_call(Call::Register).await?;
        let reply = self.inner.register(lanes, info).await;
        if let Ok(registration) = &reply {
            self.change(|rules| rules.workers.push(registration.worker));
        }
        finish_call(Call::Register, fault, reply)
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let fault = self.begin_call(Call::Close).await?;
        finish_call(Call::Close, fault, self.inner.close(worker).await)
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let fault = self.begin_call(Call::Commit).await?;
        let matches = |matches: &Option<WriteMatcher>| {
            matches.as_ref().is_some_and(|matches| flush.writes.iter().any(matches))
        };
        if matches(&self.rules().held_writes) {
            self.hang_until(|rules| !matches(&rules.held_writes)).await;
        }
        let injected = self.change(|rules| {
            if let Some(error) = rules.next_commit_error.take() {
                Some(error)
            } else if matches(&rules.rejected) {
                Some(StoreError::Rejected("a test rejects it".into()))
            } else if matches(&rules.blocked) {
                Some(StoreError::Blocked("a test blocks it".into()))
            } else if matches(&rules.table_locked) {
                Some(StoreError::TableLocked("a test locks a table".into()))
            } else {
                None
            }
        });
        if let Some(error) = injected {
            return Err(error);
        }
        let reply = self.inner.commit(flush).await;
        if let Ok(others) = &reply {
            self.change(|rules| {
                rules.flush_sizes.push(flush.writes.len());
                for (i, write) in flush.writes.iter().enumerate() {
                    let outcome = others.iter().find(|(n, _)| *n == i).map(|(_, outcome)| outcome.clone());
                    rules.committed.push((write.clone(), outcome.unwrap_or(Outcome::Applied)));
                }
            });
        }
        if matches(&self.rules().held_write_replies) {
            self.hang_until(|rules| !matches(&rules.held_write_replies)).await;
        }
        finish_call(Call::Commit, fault, reply)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let fault = self.begin_call(Call::Claim).await?;
        let reply = self.inner.claim(claim).await;
        if reply.as_ref().is_ok_and(|it| !it.records.is_empty()) {
            if self.rules().held_replies.contains(&Call::Claim) {
                self.hang_until(|rules| rules.held_replies.is_empty()).await;
            }
            if self.change(|rules| std::mem::take(&mut rules.drops_claim_reply)) {
                return Err(unavailable(Call::Claim));
            }
        }
        finish_call(Call::Claim, fault, reply)
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        self.inner.change_queue(change).await
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let fault = self.begin_call(Call::Queues).await?;
        finish_call(Call::Queues, fault, self.inner.queues(names).await)
    }

    async fn store_graphs(&self, graphs: &[GraphRow]) -> Result<(), StoreError> {
        let fault = self.begin_call(Call::Graphs).await?;
        finish_call(Call::Graphs, fault, self.inner.store_graphs(graphs).await)
    }

    async fn graphs(&self, names: Option<&[Arc<str>]>) -> Result<Vec<GraphRow>, StoreError> {
        let fault = self.begin_call(Call::Graphs).await?;
        finish_call(Call::Graphs, fault, self.inner.graphs(names).await)
    }

    async fn renew(&self, worker: WorkerId, epoch: i64) -> Result<Renewal, StoreError> {
        let fault = self.begin_call(Call::Renew).await?;
        let renewal = self.inner.renew(worker, epoch).await;
        // tests wait for regular heartbeats, which are rare if hints announce all changes
        let renewal = renewal.map(|renewal| Renewal { receives_hints: false, ..renewal });
        finish_call(Call::Renew, fault, renewal)
    }

    async fn maintain(&self, worker: WorkerId, epoch: i64) -> Result<Maintenance, StoreError> {
        let fault = self.begin_call(Call::Maintain).await?;
        finish_call(Call::Maintain, fault, self.inner.maintain(worker, epoch).await)
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let fault = self.begin_call(Call::Heartbeat).await?;
        let reply = self.inner.heartbeat(heartbeat).await;
        if reply.as_ref().is_ok_and(|it| !it.requests.is_empty())
            && self.rules().held_replies.contains(&Call::Heartbeat)
        {
            self.hang_until(|rules| rules.held_replies.is_empty()).await;
        }
        finish_call(Call::Heartbeat, fault, reply)
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.load(ids, detail).await)
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        let fault = self.begin_call(Call::LoadValue).await?;
        finish_call(Call::LoadValue, fault, self.inner.load_value(execution, chunks).await)
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let fault = self.begin_call(Call::List).await?;
        finish_call(Call::List, fault, self.inner.list(filter).await)
    }

    async fn find(&self, name: &str, values: &[&str], limit: u64) -> Result<Vec<Vec<Key>>, StoreError> {
        let fault = self.begin_call(Call::List).await?;
        finish_call(Call::List, fault, self.inner.find(name, values, limit).await)
    }

    async fn load_items(&self, items: &[Key]) -> Result<Vec<Option<Execution>>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.load_items(items).await)
    }

    async fn newest_batch(&self, before: Option<Key>) -> Result<Option<Key>, StoreError> {
        let fault = self.begin_call(Call::List).await?;
        finish_call(Call::List, fault, self.inner.newest_batch(before).await)
    }

    async fn bundles(&self, batch: Key, first_item: u32, limit: u64) -> Result<Vec<Key>, StoreError> {
        let fault = self.begin_call(Call::List).await?;
        finish_call(Call::List, fault, self.inner.bundles(batch, first_item, limit).await)
    }

    async fn messages(&self, receivers: &[(Key, Arc<str>)]) -> Result<Vec<Vec<PendingMessage>>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.messages(receivers).await)
    }

    async fn pending_topics(&self, receiver: Key) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.pending_topics(receiver).await)
    }

    async fn events(&self, queries: &[EventQuery]) -> Result<Vec<Vec<Event>>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.events(queries).await)
    }

    async fn event_waiters(&self, events: &[(Key, Arc<str>)]) -> Result<Vec<Vec<Key>>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.event_waiters(events).await)
    }

    async fn stream_entries(&self, queries: &[StreamQuery]) -> Result<Vec<Vec<StreamEntry>>, StoreError> {
        let fault = self.begin_call(Call::Load).await?;
        finish_call(Call::Load, fault, self.inner.stream_entries(queries).await)
    }

    async fn batch_items(&self, batch: Key) -> Result<BatchItems, StoreError> {
        let fault = self.begin_call(Call::List).await?;
        finish_call(Call::List, fault, self.inner.batch_items(batch).await)
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.inner.dead_workers(workers).await
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let fault = self.begin_call(Call::TakeOver).await?;
        finish_call(Call::TakeOver, fault, self.inner.take_over(worker).await)
    }

    async fn dead_letters(&self, limit: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.dead_letters(limit).await
    }

    async fn workers(&self, limit: u64, counts_running: bool) -> Result<WorkerOverview, StoreError> {
        self.inner.workers(limit, counts_running).await
    }

    async fn next_hint(&self, worker: WorkerId) -> Hint {
        let hint_mode = self.rules().hint_mode;
        match hint_mode {
            HintMode::PassThrough => self.inner.next_hint(worker).await,
            HintMode::Busy => {
                tokio::task::yield_now().await;
                Hint::ANY_CHANGE
            }
            HintMode::Silent => std::future::pending().await,
        }
    }
}
