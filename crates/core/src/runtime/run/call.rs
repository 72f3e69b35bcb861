//! Calls: the durable awaits of a run while they are outstanding.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::commit::Lsn;
use crate::error::Error;
use crate::failure::{Failure, UNREADABLE};
use crate::key::Key;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::{Interrupt, Run};
use crate::store::{PendingSleep, CheckpointKind, Outcome};

/// A call that is outstanding.
pub(crate) struct CallState {
    pub(crate) path: Path,
    pub(crate) name: Name,
    pub(crate) kind: CallKind,
    pub(crate) fingerprint: Option<u64>,
    pub(crate) begun_at: Timestamp,
    pub(crate) phase: Phase,
    /// Its branch waits for it, and for nothing else. A guest may make a call and go on.
    pub(crate) is_awaited: bool,
    pub(crate) waiting_for: Option<WaitingFor>,
    pub(crate) waker: Option<Waker>,
}

impl CallState {
    /// True if its branch waits for it, and nothing has been delivered.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_awaited && !matches!(self.phase, Phase::Delivered(_) | Phase::Heard | Phase::Stuck)
    }
}

pub(crate) enum Phase {
    /// Recorded; its delivery will come.
    Recorded,
    /// Not recorded, while others are: waits for the end of the replay.
    Beyond,
    Live,
    /// Completed, not delivered.
    Completed(CheckpointKind, Payload, u32),
    /// Delivered; whoever made the call has yet to come for it.
    Delivered(Delivery),
    Heard,
    /// Never to be delivered.
    Stuck,
}

/// What a call was handed.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) kind: CheckpointKind,
    /// What was recorded; empty if it was not a replay.
    pub(crate) outcome: Payload,
    pub(crate) lsn: Lsn,
}

/// What a call in a durable wait waits for; none while a body runs.
#[derive(Clone, Debug)]
pub(crate) enum WaitingFor {
    Timer(Timestamp),
    Child(Key),
}

/// What a call may do.
pub(crate) enum Turn {
    Wait,
    Live,
    Delivered(Delivery),
}

/// What a run waits for while nothing can be delivered.
pub(crate) enum Settling {
    /// There is something to do first.
    Interrupted,
    /// For bodies, or for something that is not a durable call.
    Busy,
    /// Some branches are in durable waits; all of them, if `all` says what for. `unarmed` are the sleeps
    /// whose due times the row does not keep.
    Waiting { all: Option<Vec<(Path, WaitingFor, Timestamp)>>, unarmed: Vec<PendingSleep> },
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
        let outcome = self.run.lane().wait_durable(lsn).await;
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
        if payload.chunk_ref().is_none() {
            return payload;
        }
        let core = &self.run.core;
        self.ask(|| crate::runtime::run::chunks::fetch(core, execution, payload.clone())).await
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
        let failure = Failure::with_kind(
            UNREADABLE,
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
