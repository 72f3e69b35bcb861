//! Calls: the outstanding durable calls of a run.

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
use crate::runtime::run::chunks::{self, ROW_BYTES};
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::{Interrupt, Run};
use crate::store::{CheckpointKind, Outcome, PendingSleep};

/// An outstanding call.
pub(crate) struct CallState {
    pub(crate) path: Path,
    pub(crate) name: Name,
    pub(crate) kind: CallKind,
    pub(crate) fingerprint: Option<u64>,
    pub(crate) begun_at: Timestamp,
    pub(crate) phase: Phase,
    /// Whether the call's branch waits for the call, and for nothing else. A guest may make a call and wait
    /// for it later.
    pub(crate) is_awaited: bool,
    pub(crate) waiting_for: Option<WaitingFor>,
    /// The number of the message that the call has taken.
    pub(crate) message: Option<i64>,
    pub(crate) waker: Option<Waker>,
}

impl CallState {
    /// Whether the call's branch waits for a delivery that was not made yet.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_awaited && !matches!(self.phase, Phase::Delivered(_) | Phase::Consumed | Phase::Unreachable)
    }
}

pub(crate) enum Phase {
    /// The outcome is recorded and will be delivered in its order.
    Recorded,
    /// The outcome is not recorded: the call waits for the end of the replay.
    AfterReplay,
    Live,
    /// The call has completed, and its outcome is not delivered yet. Contains the kind of its checkpoint, the
    /// outcome, and the budget reserved for the checkpoint.
    Completed(CheckpointKind, Payload, u32),
    /// The outcome was delivered, and the call's future has not taken it yet.
    Delivered(Delivery),
    Consumed,
    /// The outcome of the call will never be delivered.
    Unreachable,
}

/// A delivery to a call.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) kind: CheckpointKind,
    /// The recorded outcome, if a replay repeats the delivery. Empty in a live delivery, because the code
    /// that completed the call has the outcome.
    pub(crate) outcome: Payload,
    pub(crate) lsn: Lsn,
}

/// The object of a call's wait. A call whose body runs waits for nothing.
#[derive(Clone, Debug)]
pub(crate) enum WaitingFor {
    Timer(Timestamp),
    Child(Key),
    /// A message of this topic, or the end of the wait for it.
    Message {
        topic: Arc<str>,
        until: Option<Timestamp>,
    },
    /// An event of this name that another execution sets, or the end of that execution, or of the wait.
    Event {
        setter: Key,
        name: Arc<str>,
        until: Option<Timestamp>,
    },
    /// The end of a pause: the body of the call has not begun.
    Resume,
}

impl WaitingFor {
    /// Returns the time at which the wait ends without another event; `None` if there is none.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        match self {
            Self::Timer(due_at) => Some(*due_at),
            Self::Message { until, .. } | Self::Event { until, .. } => *until,
            Self::Child(_) | Self::Resume => None,
        }
    }
}

/// The result of polling a call.
pub(crate) enum CallPoll {
    Pending,
    Execute,
    Delivered(Delivery),
}

/// The state of a run in which no delivery can be made.
pub(crate) enum IdleState {
    /// The run was interrupted: its task must handle the interrupt first.
    Interrupted,
    /// No branch waits for a timer, a child, a message or an event, or the end of another branch may still make code run.
    /// The branches may wait for bodies, or for the results of other code than durable calls.
    NoDurableWait,
    /// The run has many calls, and stays in memory at least until this time.
    TooEarly(Timestamp),
    /// Some branches wait for timers, children, messages or events. `durable_waits` lists these waits if all branches have one,
    /// and is `None` otherwise. `unrecorded_sleeps` are the sleeps whose due times are not in the execution's
    /// row.
    Waiting {
        durable_waits: Option<Vec<(Path, WaitingFor, Timestamp)>>,
        unrecorded_sleeps: Vec<PendingSleep>,
    },
}

/// Longest sleep of a run before it reads the clock again. The process's clock stands still while the machine
/// is suspended, and the database's clock may be set.
pub(crate) const CLOCK_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A durable call while its future lives. If this value is dropped before the delivery, the run records the
/// call as abandoned.
pub(crate) struct Call {
    pub(crate) run: Arc<Run>,
    pub(crate) path: Path,
    id: usize,
    /// Whether the call could be executed at once when it began.
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
        let (id, is_live) = run.begin_call(path.clone(), name, kind, fingerprint);
        Self { run: run.clone(), path, id, is_live }
    }

    /// Marks the call as awaited by its branch from here on.
    pub(crate) fn mark_awaited(&self) {
        if self.run.definition.is_guest() {
            self.run.await_call(self.id);
        }
    }

    /// Waits until the call's outcome is delivered, or the call may be executed. Returns the recorded
    /// delivery, or `None` if the call has to be executed.
    pub(crate) async fn wait_recorded(&self) -> Option<Delivery> {
        self.mark_awaited();
        poll_fn(|cx| self.poll_recorded(cx)).await
    }

    /// Polls for the result of [`wait_recorded`](Self::wait_recorded). The call must be marked as awaited.
    pub(crate) fn poll_recorded(&self, cx: &mut TaskContext<'_>) -> Poll<Option<Delivery>> {
        if self.is_live { Poll::Ready(None) } else { self.poll_delivery(cx) }
    }

    /// Polls for the delivery. Resolves to `None` if the call has to be executed now.
    pub(crate) fn poll_delivery(&self, cx: &mut TaskContext<'_>) -> Poll<Option<Delivery>> {
        match self.run.poll_call(self.id, cx.waker()) {
            CallPoll::Pending => Poll::Pending,
            CallPoll::Execute => Poll::Ready(None),
            CallPoll::Delivered(delivery) => Poll::Ready(Some(delivery)),
        }
    }

    async fn wait_delivery(&self) -> Option<Delivery> {
        poll_fn(|cx| self.poll_delivery(cx)).await
    }

    /// Waits until `due_at`. The run may be suspended during the wait.
    pub(crate) async fn sleep_until(&self, due_at: Timestamp) {
        loop {
            // the lower bound of the store's time, so that the sleep never ends early by the store's clock
            let now = self.run.engine.store_clock.earliest_now();
            if now >= due_at {
                return;
            }
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            self.run.set_waiting_for(self.id, WaitingFor::Timer(due_at), &waker);
            tokio::time::sleep(due_at.since(now).min(CLOCK_RECHECK_INTERVAL)).await;
        }
    }

    /// Polls for the end of the pause of a pausing run. The run may be parked while the call waits.
    pub(crate) fn poll_pause(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.run.is_pausing() {
            self.run.set_waiting_for(self.id, WaitingFor::Resume, cx.waker());
            // the pause may have been withdrawn before the waker was kept
            if self.run.is_pausing() {
                return Poll::Pending;
            }
        }
        self.run.clear_waiting_for(self.id);
        Poll::Ready(())
    }

    /// Returns the call's number among the run's calls.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    /// Completes the call and waits until its outcome is delivered. If no budget was reserved for the checkpoint, the
    /// call reserves it first.
    pub(crate) async fn deliver(&self, kind: CheckpointKind, outcome: Payload, reserved: u32) -> Delivery {
        let reserved = if reserved > 0 { reserved } else { self.reserve_row(&outcome).await };
        self.wait_delivered(self.run.complete_call(self.id, kind, outcome, reserved)).await
    }

    /// Completes the call with this failure and waits until it is delivered.
    pub(crate) async fn deliver_failure(&self, failure: &Failure) -> Delivery {
        self.deliver(CheckpointKind::Failed, Payload::from_failure(failure), 0).await
    }

    /// Reserves budget for a checkpoint with this outcome.
    pub(crate) async fn reserve_row(&self, outcome: &Payload) -> u32 {
        let lane = self.run.lane();
        match lane.try_reserve(outcome.len() + ROW_BYTES) {
            0 => {
                // a call that waits for budget must not hold budget: the budget of the run's own Start is released only
                // when that Start is flushed
                let _ = self.run.barrier(false);
                // boxed to keep the futures of calls small
                Box::pin(chunks::reserve_row(lane, outcome, 0)).await
            }
            reserved => reserved,
        }
    }

    /// Waits until the outcome of a completed call is delivered. `immediate` is the delivery if it was made
    /// at once.
    pub(crate) async fn wait_delivered(&self, immediate: Option<Delivery>) -> Delivery {
        let delivery = match immediate {
            Some(delivery) => delivery,
            None => match self.wait_delivery().await {
                Some(delivery) => delivery,
                None => std::future::pending().await,
            },
        };
        if !self.run.definition.is_eager {
            // boxed to keep the future of a waiting step small: few workflows need this wait
            Box::pin(self.wait_durable(delivery.lsn)).await;
        }
        delivery
    }

    async fn wait_durable(&self, lsn: Lsn) {
        let _block = DeliveryBlock::new(&self.run);
        let outcome = self.run.lane().wait_durable(lsn).await;
        if outcome != Outcome::Applied || self.run.is_disowned() {
            // rejected or fenced: the code must not show an outcome that is not recorded
            self.run.interrupt(Interrupt::Disowned);
            std::future::pending::<()>().await;
        }
    }

    /// Returns the value behind a delivered payload, fetching it if it is stored in chunks. A payload that
    /// cannot be read parks the execution.
    pub(crate) async fn fetch(&self, payload: Payload) -> Payload {
        self.fetch_from(self.run.key, payload).await
    }

    /// Does the same as [`fetch`](Self::fetch) for a payload of another execution.
    pub(crate) async fn fetch_from(&self, execution: Key, payload: Payload) -> Payload {
        if payload.chunk_ref().is_none() {
            return payload;
        }
        let engine = &self.run.engine;
        self.query(|| crate::runtime::run::chunks::fetch(engine, execution, payload.clone())).await
    }

    /// Returns the result of a query. Blocks other deliveries while the query runs. Parks the execution if
    /// the query fails.
    pub(crate) async fn query<T, F>(&self, query: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<T, Error>>,
    {
        let _block = DeliveryBlock::new(&self.run);
        match self.run.engine.query_with_retry(query).await {
            Ok(result) => result,
            // the engine is ending, and requeues the execution
            Err(Error::Unavailable(_)) => std::future::pending().await,
            Err(error) => self.park(error.to_string()).await,
        }
    }

    /// Parks the execution because a recorded value cannot be read. The future never resolves.
    pub(crate) async fn park<T>(&self, reason: String) -> T {
        let failure = Failure::with_kind(
            UNREADABLE,
            format!("workflow {:?}, position {}: {reason}", &*self.run.definition.name, self.path),
        );
        self.run.interrupt(Interrupt::Park(failure.permanent().into()));
        std::future::pending().await
    }
}

/// An attempt of a step whose body makes calls: the id of its call, its number and its path. A later call may get the id of
/// an ended one.
#[derive(Clone, PartialEq)]
pub(crate) struct BodyAttempt {
    pub(crate) call: usize,
    pub(crate) number: u32,
    pub(crate) path: Path,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.run.finish_call(self.id);
    }
}

/// A guard: while this value lives, the run makes no delivery.
pub(crate) struct DeliveryBlock<'r>(&'r Run);

impl<'r> DeliveryBlock<'r> {
    pub(crate) fn new(run: &'r Run) -> Self {
        run.state().delivery.block_count += 1;
        Self(run)
    }
}

impl Drop for DeliveryBlock<'_> {
    fn drop(&mut self) {
        self.0.state().delivery.block_count -= 1;
        self.0.wake_task();
    }
}
