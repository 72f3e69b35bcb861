//! [`FaultStore`]: a store that fails as a test wants it to, and tells what has landed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use stepfast_core::key::Key;
use stepfast_core::payload::ChunkRef;
use stepfast_core::queue::{QueueChange, QueueRow};
use stepfast_core::store::counters::Counters;
use stepfast_core::store::{
    Claim, ClaimReply, DeadLetter, Detail, ExecutionId, Filter, Flush, Heartbeat, HeartbeatReply, Hint,
    Outcome, Page, Record, Registration, Store, StoreError, StoreInfo, WorkerId, WorkerInfo, WorkerOverview,
    Write,
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
    /// `look`
    Look,
    /// `recover`
    Recover,
    /// `load`
    Load,
    /// `value`
    Value,
    /// `list`
    List,
    /// `queues`
    Queues,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It answers `Unavailable` and has done nothing.
    Before,
    /// It has done what it was asked, and answers `Unavailable`.
    After,
    /// It does not go on until [`FaultStore::release`].
    Hang,
}

/// What an engine is notified of that happens elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Elsewhere {
    /// What the store tells.
    #[default]
    AsItIs,
    /// Something may have changed, all the time.
    Busy,
    /// Nothing.
    Silent,
}

type Matches = Box<dyn Fn(&Write) -> bool + Send>;

#[derive(Default)]
struct Rules {
    /// Calls of the kinds that count.
    calls: u64,
    /// The call that fails, as a number of `calls`, and how.
    failing: Option<(u64, Fault)>,
    has_fired: bool,
    /// The kind of call that fails next, and how.
    failing_next: Option<(Call, Fault)>,
    /// Kinds of calls that answer `Unavailable`.
    down: Vec<Call>,
    /// Kinds of calls that hang.
    held: Vec<Call>,
    /// Kinds of calls whose answers hang.
    held_answers: Vec<Call>,
    /// Flushes with such a Write hang.
    held_writes: Option<Matches>,
    /// The answers to flushes with such a Write hang.
    held_outcomes: Option<Matches>,
    /// The next claim that takes something answers `Unavailable`.
    loses_claim: bool,
    /// The answer to the next call of this kind, claim or look, which does nothing.
    next_answer: Option<(Call, StoreError)>,
    /// How many calls hang.
    hanging: usize,
    refused: Option<Matches>,
    blocked: Option<Matches>,
    /// The answer to the next commit, which does nothing.
    next_commit: Option<StoreError>,
    landed: Vec<(Write, Outcome)>,
    flushes: Vec<usize>,
    /// Calls by kind that have come in.
    seen: Vec<Call>,
    /// How many of the looks were to renew.
    renewals: usize,
    /// What `changed` answers.
    elsewhere: Elsewhere,
    /// Who has registered.
    workers: Vec<WorkerId>,
}

/// A store with faults in front of it.
pub struct FaultStore {
    inner: Arc<dyn Store>,
    about: StoreInfo,
    rules: Mutex<Rules>,
    /// Counts everything that happens, for those who wait for something.
    events: watch::Sender<u64>,
}

impl FaultStore {
    /// `inner`, without faults yet.
    pub fn wrap(inner: Arc<dyn Store>) -> Arc<Self> {
        Self::flushing(inner, usize::MAX)
    }

    /// The same, with at most so many Writes in a flush.
    pub fn flushing(inner: Arc<dyn Store>, flush_writes: usize) -> Arc<Self> {
        let mut about = inner.info().clone();
        about.max_flush_writes = about.max_flush_writes.min(flush_writes);
        Self::saying(inner, about)
    }

    /// The same, for an engine with so many lanes.
    pub fn laned(inner: Arc<dyn Store>, lanes: u16) -> Arc<Self> {
        let about = StoreInfo { lanes, ..inner.info().clone() };
        Self::saying(inner, about)
    }

    fn saying(inner: Arc<dyn Store>, about: StoreInfo) -> Arc<Self> {
        Arc::new(Self { inner, about, rules: Mutex::default(), events: watch::Sender::new(0) })
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rules) -> T) -> T {
        let changed = change(&mut self.rules());
        self.events.send_modify(|events| *events += 1);
        changed
    }

    /// Lets the `n`th call from now fail, counting commits, claims, looks and reads.
    pub fn fail_call(&self, n: u64, fault: Fault) {
        self.change(|rules| {
            rules.failing = Some((rules.calls + n, fault));
            rules.has_fired = false;
        });
    }

    /// Lets the next call of this kind fail.
    pub fn fail_next(&self, call: Call, fault: Fault) {
        self.change(|rules| rules.failing_next = Some((call, fault)));
    }

    /// True if the call that was to fail has failed.
    pub fn has_fired(&self) -> bool {
        self.rules().has_fired
    }

    /// Lets all calls of these kinds answer `Unavailable`, and no others; none to end that.
    pub fn down(&self, calls: &[Call]) {
        self.change(|rules| rules.down = calls.to_vec());
    }

    /// Lets all calls of these kinds hang, until [`release`](Self::release).
    ///
    /// Returns how many of them came before: the next one hangs.
    pub fn hold(&self, calls: &[Call]) -> usize {
        self.change(|rules| {
            rules.held = calls.to_vec();
            rules.seen.iter().filter(|seen| calls.contains(seen)).count()
        })
    }

    /// Lets claims happen and their answers hang, until [`release`](Self::release).
    pub fn hold_claims_answers(&self) {
        self.change(|rules| rules.held_answers = vec![Call::Claim]);
    }

    /// Lets flushes with a Write that matches hang, until [`release`](Self::release).
    pub fn hold_writes(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.held_writes = Some(Box::new(matches)));
    }

    /// Lets flushes with a Write that matches happen and their answers hang, until
    /// [`release`](Self::release).
    pub fn hold_outcomes(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.held_outcomes = Some(Box::new(matches)));
    }

    /// Lets the next claim that takes something happen, and its answer be lost.
    pub fn lose_next_claim(&self) {
        self.change(|rules| rules.loses_claim = true);
    }

    /// Waits until the answer to a claim has been lost.
    pub async fn until_claim_is_lost(&self) {
        self.until(|rules| !rules.loses_claim).await;
    }

    /// Waits until a call hangs.
    pub async fn until_hanging(&self) {
        self.until_hanging_at_once(1).await;
    }

    /// Waits until so many calls hang.
    pub async fn until_hanging_at_once(&self, calls: usize) {
        self.until(|rules| rules.hanging >= calls).await;
    }

    /// Lets go on what hangs.
    pub fn release(&self) {
        self.change(|rules| {
            rules.held.clear();
            rules.held_answers.clear();
            rules.held_writes = None;
            rules.held_outcomes = None;
            if matches!(rules.failing, Some((_, Fault::Hang))) {
                rules.failing = None;
            }
        });
    }

    /// Lets nothing fail any more, and lets go on what hangs.
    pub fn heal(&self) {
        self.release();
        self.accept_all();
        self.change(|rules| {
            rules.failing = None;
            rules.down.clear();
        });
    }

    /// Refuses flushes with a Write that matches: `Rejected`.
    pub fn refuse(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.refused = Some(Box::new(matches)));
    }

    /// Answers `Blocked` to flushes with a Write that matches.
    pub fn block(&self, matches: impl Fn(&Write) -> bool + Send + 'static) {
        self.change(|rules| rules.blocked = Some(Box::new(matches)));
    }

    /// Ends [`refuse`](Self::refuse) and [`block`](Self::block).
    pub fn accept_all(&self) {
        self.change(|rules| (rules.refused, rules.blocked) = (None, None));
    }

    /// Answers this to the next claim or look, which does nothing.
    pub fn answer_next(&self, call: Call, error: StoreError) {
        self.change(|rules| rules.next_answer = Some((call, error)));
    }

    /// Answers this to the next commit, which does nothing.
    pub fn answer_next_commit(&self, error: StoreError) {
        self.change(|rules| rules.next_commit = Some(error));
    }

    /// All Writes that have landed, in order, with their outcomes.
    pub fn landed(&self) -> Vec<(Write, Outcome)> {
        self.rules().landed.clone()
    }

    /// Who has registered through it, as far as the store has answered.
    pub fn workers(&self) -> Vec<WorkerId> {
        self.rules().workers.clone()
    }

    /// How many Writes each flush had.
    pub fn flushes(&self) -> Vec<usize> {
        self.rules().flushes.clone()
    }

    /// Waits until a Write that matches has landed.
    pub async fn until_landed(&self, matches: impl Fn(&Write) -> bool) {
        self.until_landed_times(1, matches).await;
    }

    /// Waits until so many Writes that match have landed.
    pub async fn until_landed_times(&self, times: usize, matches: impl Fn(&Write) -> bool) {
        self.until(|rules| rules.landed.iter().filter(|(write, _)| matches(write)).count() >= times).await;
    }

    /// Waits until so many calls of this kind have come in.
    pub async fn until_called(&self, call: Call, times: usize) {
        self.until(|rules| rules.seen.iter().filter(|seen| **seen == call).count() >= times).await;
    }

    /// How many calls of this kind have come in.
    pub fn called(&self, call: Call) -> usize {
        self.rules().seen.iter().filter(|seen| **seen == call).count()
    }

    /// Waits until so many looks were to renew.
    pub async fn until_renewed(&self, times: usize) {
        self.until(|rules| rules.renewals >= times).await;
    }

    /// How many looks were to renew.
    pub fn renewals(&self) -> usize {
        self.rules().renewals
    }

    /// Tells the engine, over and over, that something may have changed elsewhere.
    pub fn be_busy_elsewhere(&self) {
        self.change(|rules| rules.elsewhere = Elsewhere::Busy);
    }

    /// Keeps all notifications of changes elsewhere from an engine that opens later: only looks find them.
    pub fn be_silent_elsewhere(&self) {
        self.change(|rules| rules.elsewhere = Elsewhere::Silent);
    }

    async fn until(&self, holds: impl Fn(&Rules) -> bool) {
        let mut events = self.events.subscribe();
        while !holds(&self.rules()) {
            events.changed().await.unwrap();
        }
    }

    async fn hang(&self, is_over: impl Fn(&Rules) -> bool) {
        self.change(|rules| rules.hanging += 1);
        self.until(is_over).await;
        self.change(|rules| rules.hanging -= 1);
    }

    /// What is to happen to a call that comes in now.
    async fn enter(&self, call: Call) -> Result<Option<Fault>, StoreError> {
        if let Some((_, error)) = self.change(|rules| rules.next_answer.take_if(|(other, _)| *other == call))
        {
            return Err(error);
        }
        let (fault, is_held) = self.change(|rules| {
            rules.seen.push(call);
            let mut fault = None;
            if !matches!(call, Call::Register | Call::Close) {
                rules.calls += 1;
                if let Some((n, kind)) = rules.failing
                    && n == rules.calls
                {
                    rules.has_fired = true;
                    fault = Some(kind);
                }
            }
            if let Some((_, kind)) = rules.failing_next.take_if(|(other, _)| *other == call) {
                fault = Some(kind);
            }
            if rules.down.contains(&call) {
                fault = Some(Fault::Before);
            }
            (fault, rules.held.contains(&call))
        });
        if is_held {
            self.hang(|rules| !rules.held.contains(&call)).await;
        }
        match fault {
            Some(Fault::Before) => Err(unavailable(call)),
            Some(Fault::Hang) => {
                self.hang(|rules| !matches!(rules.failing, Some((_, Fault::Hang)))).await;
                Ok(None)
            }
            fault => Ok(fault),
        }
    }
}

fn unavailable(call: Call) -> StoreError {
    StoreError::Unavailable(format!("a test lets {call:?} fail"))
}

/// What was asked has happened; whether the answer comes is another matter.
fn leave<T>(call: Call, fault: Option<Fault>, answer: Result<T, StoreError>) -> Result<T, StoreError> {
    if fault == Some(Fault::After) { Err(unavailable(call)) } else { answer }
}

#[async_trait]
impl Store for FaultStore {
    fn info(&self) -> &StoreInfo {
        &self.about
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    async fn register(&self, lanes: u16, info: &WorkerInfo) -> Result<Registration, StoreError> {
        let fault = self.enter(Call::Register).await?;
        let answer = self.inner.register(lanes, info).await;
        if let Ok(registration) = &answer {
            self.change(|rules| rules.workers.push(registration.worker));
        }
        leave(Call::Register, fault, answer)
    }

    async fn close(&self, worker: WorkerId) -> Result<(), StoreError> {
        let fault = self.enter(Call::Close).await?;
        leave(Call::Close, fault, self.inner.close(worker).await)
    }

    async fn commit(&self, flush: &Flush) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let fault = self.enter(Call::Commit).await?;
        let matches = |matches: &Option<Matches>| {
            matches.as_ref().is_some_and(|matches| flush.writes.iter().any(matches))
        };
        if matches(&self.rules().held_writes) {
            self.hang(|rules| !matches(&rules.held_writes)).await;
        }
        let refusal = self.change(|rules| {
            if let Some(error) = rules.next_commit.take() {
                Some(error)
            } else if matches(&rules.refused) {
                Some(StoreError::Rejected("a test does not like it".into()))
            } else if matches(&rules.blocked) {
                Some(StoreError::Blocked("a test is in the way".into()))
            } else {
                None
            }
        });
        if let Some(error) = refusal {
            return Err(error);
        }
        let answer = self.inner.commit(flush).await;
        if let Ok(others) = &answer {
            self.change(|rules| {
                rules.flushes.push(flush.writes.len());
                for (i, write) in flush.writes.iter().enumerate() {
                    let outcome = others.iter().find(|(n, _)| *n == i).map(|(_, outcome)| outcome.clone());
                    rules.landed.push((write.clone(), outcome.unwrap_or(Outcome::Applied)));
                }
            });
        }
        if matches(&self.rules().held_outcomes) {
            self.hang(|rules| !matches(&rules.held_outcomes)).await;
        }
        leave(Call::Commit, fault, answer)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let fault = self.enter(Call::Claim).await?;
        let answer = self.inner.claim(claim).await;
        if answer.as_ref().is_ok_and(|it| !it.records.is_empty()) {
            if self.rules().held_answers.contains(&Call::Claim) {
                self.hang(|rules| rules.held_answers.is_empty()).await;
            }
            if self.change(|rules| std::mem::take(&mut rules.loses_claim)) {
                return Err(unavailable(Call::Claim));
            }
        }
        leave(Call::Claim, fault, answer)
    }

    async fn change_queue(&self, change: &QueueChange) -> Result<Option<QueueRow>, StoreError> {
        self.inner.change_queue(change).await
    }

    async fn queues(&self, names: Option<&[Arc<str>]>) -> Result<Vec<QueueRow>, StoreError> {
        let fault = self.enter(Call::Queues).await?;
        leave(Call::Queues, fault, self.inner.queues(names).await)
    }

    async fn heartbeat(&self, look: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.change(|rules| rules.renewals += usize::from(look.renews_lease));
        let fault = self.enter(Call::Look).await?;
        leave(Call::Look, fault, self.inner.heartbeat(look).await)
    }

    async fn load(&self, ids: &[ExecutionId], detail: Detail) -> Result<Vec<Option<Record>>, StoreError> {
        let fault = self.enter(Call::Load).await?;
        leave(Call::Load, fault, self.inner.load(ids, detail).await)
    }

    async fn load_value(&self, execution: Key, chunks: ChunkRef) -> Result<Bytes, StoreError> {
        let fault = self.enter(Call::Value).await?;
        leave(Call::Value, fault, self.inner.load_value(execution, chunks).await)
    }

    async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let fault = self.enter(Call::List).await?;
        leave(Call::List, fault, self.inner.list(filter).await)
    }

    async fn dead_workers(&self, workers: &[WorkerId]) -> Result<Vec<WorkerId>, StoreError> {
        self.inner.dead_workers(workers).await
    }

    async fn take_over(&self, worker: WorkerId) -> Result<u64, StoreError> {
        let fault = self.enter(Call::Recover).await?;
        leave(Call::Recover, fault, self.inner.take_over(worker).await)
    }

    async fn dead_letters(&self, most: u64) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.dead_letters(most).await
    }

    async fn workers(&self, most: u64) -> Result<WorkerOverview, StoreError> {
        self.inner.workers(most).await
    }

    async fn next_hint(&self) -> Hint {
        let elsewhere = self.rules().elsewhere;
        match elsewhere {
            Elsewhere::AsItIs => self.inner.next_hint().await,
            Elsewhere::Busy => {
                tokio::task::yield_now().await;
                Hint { has_ready: false, has_other: true }
            }
            Elsewhere::Silent => std::future::pending().await,
        }
    }
}
