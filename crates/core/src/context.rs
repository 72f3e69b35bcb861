//! [`Context`]: what workflow code holds; one branch of an execution.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::call::{Delivery, Turn, WaitingFor};
use crate::clock::Timestamp;
use crate::commit::Lsn;
use crate::error::Error;
use crate::key::Key;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::replay::CallKind;
use crate::run::{Interrupt, Run};
use crate::write::{CheckpointKind, Outcome};

/// A branch of an execution: what its durable calls go through.
///
/// Calls take `&mut self`, so a branch makes one at a time; [`join`](Context::join), [`map`](Context::map),
/// [`race`](Context::race) and [`spawn`](Context::spawn) give each branch a context of its own.
///
/// Code between durable calls is repeated in a replay: it must depend on nothing but its input and the
/// outcomes of its calls. Clocks, random numbers and the outside world belong into steps.
pub struct Context {
    pub(crate) run: Arc<Run>,
    /// Path of the branch.
    pub(crate) path: Path,
    /// Number of the next call in the branch.
    next: u32,
}

impl Context {
    pub(crate) fn root(run: Arc<Run>) -> Self {
        Self { run, path: Path::root(), next: 1 }
    }

    /// A context for branch `n` below `path`.
    pub(crate) fn branch(&self, path: &Path, n: u32) -> Self {
        Self { run: self.run.clone(), path: path.child(n), next: 1 }
    }

    /// The path that the next call will have.
    pub(crate) fn coming_path(&self) -> Path {
        self.path.child(self.next)
    }

    /// The path of the next call.
    pub(crate) fn next_path(&mut self) -> Path {
        let path = self.path.child(self.next);
        self.next += 1;
        path
    }

    /// The execution's key, as text; its workflow_id unless the caller gave one.
    pub fn execution(&self) -> String {
        self.run.key.to_string()
    }

    /// Waits, durably, for `duration`. Never shorter, judged by the database's clock; after a crash the
    /// time that has passed counts. While all branches wait long, the execution takes no memory.
    pub async fn sleep(&mut self, duration: Duration) {
        let call = self.begin_sleep();
        sleep_for(&call, duration).await;
    }

    pub(crate) fn begin_sleep(&mut self) -> Call {
        let path = self.next_path();
        Call::begin(&self.run, path, &"sleep".into(), CallKind::Sleep, None)
    }
}

/// Sleeps, as the call that has begun.
pub(crate) async fn sleep_for(call: &Call, duration: Duration) {
    if call.recorded().await.is_some() {
        return;
    }
    let run = &call.run;
    let path = call.path.clone();
    let armed = { run.state().armed.iter().find(|armed| armed.path == path).map(|armed| armed.due_at) };
    if let Some(due_at) = armed {
        // so that what is recorded says how long it slept, also after a suspension
        run.began_at(call.id(), due_at.minus(duration));
    }
    let due_at = armed.unwrap_or_else(|| run.core.now().plus(duration));
    call.until(due_at).await;
    call.deliver(CheckpointKind::Timer, Payload::empty(), 0).await;
}

/// Longest that a run sleeps before it asks again what time it is: our clock stands still while the machine
/// is suspended, and the database's may be set.
pub(crate) const LONGEST_NAP: Duration = Duration::from_secs(5);

/// A durable call while its future lives. Dropped undelivered, it is recorded as given up.
pub(crate) struct Call {
    pub(crate) run: Arc<Run>,
    pub(crate) path: Path,
    id: usize,
    /// True if it was to be carried out at once when it began.
    is_live: bool,
}

impl Call {
    pub(crate) fn begin(
        run: &Arc<Run>,
        path: Path,
        name: &Name,
        kind: CallKind,
        fingerprint: Option<u64>,
    ) -> Self {
        let (id, is_live) = run.begin(path.clone(), name, kind, fingerprint);
        Self { run: run.clone(), path, id, is_live }
    }

    /// Its branch waits for it from here on.
    pub(crate) fn set_awaited(&self) {
        if self.run.definition.is_guest() {
            self.run.await_call(self.id);
        }
    }

    /// Waits for the call's turn: the recorded delivery, or `None` if it has to be done.
    pub(crate) async fn recorded(&self) -> Option<Delivery> {
        self.set_awaited();
        poll_fn(|cx| self.poll_recorded(cx)).await
    }

    /// The same for a call that is awaited.
    pub(crate) fn poll_recorded(&self, cx: &mut TaskContext<'_>) -> Poll<Option<Delivery>> {
        if self.is_live { Poll::Ready(None) } else { self.poll_delivery(cx) }
    }

    /// What is delivered to it; `None` if it is to be done now.
    pub(crate) fn poll_delivery(&self, cx: &mut TaskContext<'_>) -> Poll<Option<Delivery>> {
        match self.run.turn(self.id, cx.waker()) {
            Turn::Wait => Poll::Pending,
            Turn::Live => Poll::Ready(None),
            Turn::Delivered(delivery) => Poll::Ready(Some(delivery)),
        }
    }

    async fn delivery(&self) -> Option<Delivery> {
        poll_fn(|cx| self.poll_delivery(cx)).await
    }

    /// Waits until `due_at`, as something that the run may suspend for.
    pub(crate) async fn until(&self, due_at: Timestamp) {
        loop {
            // by the store's clock it is never over early
            let now = self.run.core.store_time.certainly();
            if now >= due_at {
                return;
            }
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            self.run.waits_for(self.id, WaitingFor::Timer(due_at), &waker);
            tokio::time::sleep(due_at.since(now).min(LONGEST_NAP)).await;
        }
    }

    /// Its number among the run's calls.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    /// Completes the call and waits until that is delivered.
    pub(crate) async fn deliver(&self, kind: CheckpointKind, outcome: Payload, room: u32) -> Delivery {
        self.delivered(self.run.complete(self.id, kind, outcome, room)).await
    }

    /// Waits until the completed call is delivered, if that has not happened at once.
    pub(crate) async fn delivered(&self, at_once: Option<Delivery>) -> Delivery {
        let delivery = match at_once {
            Some(delivery) => delivery,
            None => match self.delivery().await {
                Some(delivery) => delivery,
                None => std::future::pending().await,
            },
        };
        if !self.run.definition.is_eager {
            // boxed, as few workflows are: what a step needs while it waits is kept small
            Box::pin(self.until_durable(delivery.lsn)).await;
        }
        delivery
    }

    async fn until_durable(&self, lsn: Lsn) {
        let _busy = Busy::new(&self.run);
        let outcome = self.run.lane().durable(lsn).await;
        if outcome != Outcome::Applied || self.run.is_lost() {
            // refused, or fenced: the code must not show what nobody will find recorded
            self.run.interrupt(Interrupt::Lost);
            std::future::pending::<()>().await;
        }
    }

    /// The value behind a delivered payload, fetched if it is stored aside. A payload that cannot be had
    /// parks the execution.
    pub(crate) async fn fetch(&self, payload: Payload) -> Payload {
        self.fetch_of(self.run.key, payload).await
    }

    /// The same for a payload of another execution.
    pub(crate) async fn fetch_of(&self, execution: Key, payload: Payload) -> Payload {
        if payload.chunks().is_none() {
            return payload;
        }
        let core = &self.run.core;
        self.ask(|| crate::value::fetch(core, execution, payload.clone())).await
    }

    /// The database's answer, with nothing else delivered meanwhile. An answer that cannot be had parks the
    /// execution.
    pub(crate) async fn ask<T, F>(&self, question: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<T, Error>>,
    {
        let _busy = Busy::new(&self.run);
        match self.run.core.ask(question).await {
            Ok(answer) => answer,
            // the engine is ending, and hands the run back
            Err(Error::Unavailable(_)) => std::future::pending().await,
            Err(error) => self.park(error.to_string()).await,
        }
    }

    /// Parks the execution because a recorded value cannot be read. Never returns.
    pub(crate) async fn park<T>(&self, reason: String) -> T {
        let failure = crate::Failure::of_kind(
            crate::failure::UNREADABLE,
            format!("workflow {:?}, position {}: {reason}", &*self.run.definition.name, self.path),
        );
        self.run.interrupt(Interrupt::Park(failure.permanent().into()));
        std::future::pending().await
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.run.finish_call(self.id);
    }
}

/// While it lives nothing else is delivered to the run.
pub(crate) struct Busy<'r>(&'r Run);

impl<'r> Busy<'r> {
    pub(crate) fn new(run: &'r Run) -> Self {
        run.state().busy += 1;
        Self(run)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().busy -= 1;
        self.0.poke();
    }
}
