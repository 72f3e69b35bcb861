//! [`RunState`]: the state that a run's lock guards.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;
use smallvec::SmallVec;

use crate::clock::Timestamp;
use crate::commit::{FoldTarget, Lsn};
use crate::failure::Failure;
use crate::key::{Key, KeyMap};
use crate::payload::Payload;
use crate::runtime::run::bundle::VirtualItem;
use crate::runtime::run::call::{CallState, WaitingFor};
use crate::runtime::run::mailbox::Mailbox;
use crate::runtime::run::quiescence::BlockedOn;
use crate::runtime::run::quiescence::races::OpenRaces;
use crate::runtime::run::replay::{Attempts, Replay};
use crate::runtime::run::streams::RunStreams;
use crate::store::{CheckpointKind, PendingSleep, Start, Status, Write};

/// The part of a run that its lock guards. The fields that each step uses come first.
#[repr(C)]
pub(crate) struct RunState {
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) delivery: DeliveryState,
    pub(crate) guest: GuestState,
    /// Number of active branches: those that do not wait for branches of their own.
    pub(crate) active_branches: u32,
    /// Whether the run records nothing more.
    pub(crate) is_closed: bool,
    /// The reason for which the run was closed before its code had returned.
    pub(crate) stop_reason: Option<StopReason>,
    /// Whether the run is deferred: its code was dropped, but an interrupt still has an effect.
    pub(crate) is_deferred: bool,
    pub(crate) calls: CallTable,
    /// Spawned branches that the task has not taken yet.
    pub(crate) spawned: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Pending sleeps that the execution's row contains.
    pub(crate) pending_sleeps: Box<[PendingSleep]>,
    pub(crate) staging: RunStaging,
    /// Awaited children that were started.
    pub(crate) children: BTreeMap<Key, ChildState>,
    /// Wakers of waiters for a guest's calls, to be woken when the run is stopped or a race is decided.
    pub(crate) stop_wakers: Vec<Waker>,
}

/// The reason for which a run stops before its code has returned.
#[derive(Clone, Debug)]
pub(crate) enum Interrupt {
    /// All branches wait for distant timers, or have waited long for children.
    Suspend,
    /// The execution was cancelled, or its deadline has passed.
    Cancel(Box<Failure>),
    /// The execution has killed too many workers.
    Fail(Box<Failure>),
    /// The code disagrees with the record, or the record cannot be read.
    Park(Box<Failure>),
    /// The execution was paused, and no body runs.
    Pause,
    /// The engine shuts down and requeues the execution.
    Requeue,
    /// The code continues as new: the execution is requeued, and begins its next part.
    Continue,
    /// The code asked the program to exit. The execution is requeued after a pause, if the program has not
    /// exited by then.
    Defer,
    /// Another worker owns the execution, or its Start was not applied.
    Disowned,
}

/// The reason for which code has to unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The execution continues from its record, later or elsewhere. A parked execution continues when it is
    /// resumed.
    Suspended,
    /// The execution was cancelled, or its deadline has passed.
    Cancelled,
    /// The workflow has returned without waiting for this branch.
    Ended,
    /// Another branch has won the race.
    LostRace,
}

/// The run's unstaged Start, and the Lsns of its staged Writes.
#[repr(C)]
pub(crate) struct RunStaging {
    /// Largest Lsn of the run's own Writes and of all values that it received.
    pub(crate) last_lsn: Lsn,
    /// Largest Lsn as in `last_lsn`, but without the run's own checkpoints of outcomes: the barrier of a
    /// speculative step.
    pub(crate) last_required_lsn: Lsn,
    /// The Start while it is not staged.
    pub(crate) start: Option<Box<Start>>,
    /// The membership in a bundle while the execution has no row of its own; `None` for other executions.
    pub(crate) item: Option<Box<VirtualItem>>,
    /// The budget reserved for the Start while it is not staged.
    pub(crate) start_reserved: u32,
    /// The Start's Lsn; 0 while the Start is not staged.
    pub(crate) start_lsn: Lsn,
    pub(crate) fold_target: FoldTarget,
}

/// Whether a speculative step waits for the Write: for all but the outcomes of calls.
pub(super) fn is_required(write: &Write) -> bool {
    !matches!(write, Write::Checkpoint(c) if c.kind != CheckpointKind::Abandoned)
}

impl RunStaging {
    pub(crate) fn new(
        start: Option<Box<Start>>,
        start_reserved: u32,
        item: Option<Box<VirtualItem>>,
    ) -> Self {
        Self {
            start,
            start_reserved,
            item,
            start_lsn: Lsn(0),
            last_lsn: Lsn(0),
            last_required_lsn: Lsn(0),
            fold_target: FoldTarget::default(),
        }
    }
}

/// The run's durable calls: steps, sleeps and waits for children.
#[derive(Default)]
pub(crate) struct CallTable {
    /// The calls by id.
    entries: Slab<CallState>,
    /// Ids of the calls that wait for their delivery, in the order in which they completed.
    pub(crate) completed: VecDeque<usize>,
    /// Number of awaited calls whose outcome the branch has not taken yet.
    pub(crate) outstanding: u32,
    /// Number of outstanding calls whose outcome is delivered, but was not taken by the call's branch yet.
    pub(crate) unconsumed: u32,
    /// `None` if no call has waited for a timer, a child or a message yet, or written to a stream, as in most runs.
    durable_waits: Option<Box<DurableWaits>>,
}

/// The durable waits of a run's calls, its streams and its races.
#[derive(Default)]
struct DurableWaits {
    /// Number of calls that wait for a timer, a child or a message.
    count: u32,
    /// The ids of the calls that wait for each child.
    by_child: KeyMap<SmallVec<[usize; 1]>>,
    /// Whether a call has begun to wait for a timer since [`CallTable::take_new_timer`].
    has_new_timer: bool,
    gate: SuspensionGate,
    mailbox: Mailbox,
    streams: RunStreams,
    open_races: OpenRaces,
    /// The part of the execution that the code runs: the number of times that it has continued as new.
    part: u32,
    /// Number of calls that end the part. All but the last one were abandoned.
    continuations: u32,
}

impl CallTable {
    /// Adds a call and returns its id.
    pub(crate) fn insert(&mut self, call: CallState) -> usize {
        if self.entries.capacity() == 0 {
            // most executions have one branch
            self.entries.reserve_exact(1);
        }
        self.entries.insert(call)
    }

    pub(crate) fn get(&self, id: usize) -> Option<&CallState> {
        self.entries.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: usize) -> Option<&mut CallState> {
        self.entries.get_mut(id)
    }

    /// Notes what a call waits for. Returns whether the call waited for nothing before.
    pub(crate) fn set_wait(&mut self, id: usize, waiting_for: WaitingFor) -> bool {
        let Some(call) = self.entries.get_mut(id) else { return false };
        if let (Some(WaitingFor::Child(before)), WaitingFor::Child(now)) = (&call.waiting_for, &waiting_for)
            && before == now
        {
            return false;
        }
        let is_new = !self.clear_wait(id);
        let waits = self.durable_waits.get_or_insert_default();
        match &waiting_for {
            WaitingFor::Child(child) => waits.by_child.entry(*child).or_default().push(id),
            other => waits.has_new_timer |= is_new && other.due_at().is_some(),
        }
        waits.count += 1;
        if let Some(call) = self.get_mut(id) {
            call.waiting_for = Some(waiting_for);
        }
        is_new
    }

    /// Notes that a call waits for nothing any more. Returns whether the call waited.
    pub(crate) fn clear_wait(&mut self, id: usize) -> bool {
        let Some(waited_for) = self.get_mut(id).and_then(|call| call.waiting_for.take()) else {
            return false;
        };
        let Some(waits) = &mut self.durable_waits else { return true };
        waits.count -= 1;
        if let WaitingFor::Child(child) = waited_for
            && let Some(ids) = waits.by_child.get_mut(&child)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                waits.by_child.remove(&child);
            }
        }
        true
    }

    /// Takes the wakers of the calls that wait for `child`.
    pub(crate) fn take_child_wakers(&mut self, child: Key) -> SmallVec<[Waker; 1]> {
        let ids = self.durable_waits.as_ref().and_then(|waits| waits.by_child.get(&child));
        ids.into_iter().flatten().filter_map(|id| self.entries.get_mut(*id)?.waker.take()).collect()
    }

    /// Returns whether a call has begun to wait for a timer since the last call of this function.
    pub(crate) fn take_new_timer(&mut self) -> bool {
        self.durable_waits.as_mut().is_some_and(|waits| std::mem::take(&mut waits.has_new_timer))
    }

    /// Returns the messages that the run has loaded.
    pub(crate) fn mailbox(&mut self) -> &mut Mailbox {
        &mut self.durable_waits.get_or_insert_default().mailbox
    }

    /// Returns the streams that the run has written to.
    pub(crate) fn streams(&mut self) -> &mut RunStreams {
        &mut self.durable_waits.get_or_insert_default().streams
    }

    /// Returns the races that are not decided yet; `None` if the run had none so far.
    pub(crate) fn open_races(&self) -> Option<&OpenRaces> {
        self.durable_waits.as_ref().map(|waits| &waits.open_races)
    }

    /// Returns the races that are not decided yet, to change them.
    pub(crate) fn open_races_mut(&mut self) -> &mut OpenRaces {
        &mut self.durable_waits.get_or_insert_default().open_races
    }

    /// Returns the calls of a run that begins with this part of its execution.
    pub(super) fn of_part(part: u32) -> Self {
        let mut calls = Self::default();
        if part > 0 {
            calls.durable_waits.get_or_insert_default().part = part;
        }
        calls
    }

    /// Returns the part of the execution that the code runs: the number of times that it has continued as new.
    pub(crate) fn part(&self) -> u32 {
        self.durable_waits.as_ref().map_or(0, |waits| waits.part)
    }

    /// Counts a call that ends the part of the execution. Returns the number of the part that follows.
    pub(crate) fn count_continuation(&mut self) -> u32 {
        let waits = self.durable_waits.get_or_insert_default();
        waits.continuations += 1;
        waits.part.saturating_add(waits.continuations)
    }

    /// Whether a call waits for a timer, a child or a message.
    pub(crate) fn has_durable_wait(&self) -> bool {
        self.durable_waits.as_ref().is_some_and(|waits| waits.count > 0)
    }

    /// Returns the gate of the suspension, unless no call has waited for a durable event yet.
    fn suspension_gate(&mut self) -> Option<&mut SuspensionGate> {
        self.durable_waits.as_mut().map(|waits| &mut waits.gate)
    }

    /// Notes a delivery, or that the branches cannot be suspended for now.
    /// Most runs have no gate, and do not read the clock.
    pub(crate) fn note_active(&mut self, now: impl FnOnce() -> Timestamp) {
        if let Some(gate) = self.suspension_gate() {
            *gate = SuspensionGate { active_at: Some(now()), not_before: None };
        }
    }

    /// Notes that the run waits, and may be suspended at `at`.
    pub(crate) fn note_suspendable_at(&mut self, at: Timestamp) {
        if let Some(gate) = self.suspension_gate() {
            gate.not_before = Some(at);
        }
    }

    /// Removes a call, whose id becomes vacant.
    pub(crate) fn remove(&mut self, id: usize) -> Option<CallState> {
        self.clear_wait(id);
        self.entries.try_remove(id)
    }

    /// Returns the calls in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CallState> {
        self.entries.iter().map(|(_, call)| call)
    }

    /// Returns the calls in the order of their ids, so that they can be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CallState> {
        self.entries.iter_mut().map(|(_, call)| call)
    }
}

/// The state of the run's deliveries.
pub(crate) struct DeliveryState {
    pub(crate) next_order: u32,
    /// The time of the last delivery. Before the first delivery, this is the time at which the execution was
    /// created.
    pub(crate) delivered_at: Timestamp,
    /// Number of calls that query the database, or wait until their delivered outcome is durable. While the
    /// number is not 0, no delivery is made.
    pub(crate) block_count: u32,
    /// The recorded deliveries that are not repeated yet.
    pub(crate) replay: Option<Box<Replay>>,
    /// Failed attempts of a recovered execution, by path.
    pub(crate) attempts: Option<Box<Attempts>>,
}

/// The activity of a guest: workflow code that a language binding runs.
#[allow(clippy::struct_excessive_bools)] // each flag is independent
pub(crate) struct GuestState {
    /// Whether no code of a guest runs, or can run before a delivery or an external event.
    pub(crate) is_quiescent: bool,
    /// Whether a branch on an event loop has ended, and code that is notified of the end may not have run
    /// yet.
    pub(crate) is_branch_end_unsettled: bool,
    /// The events for which a quiescent guest waits.
    pub(crate) blocked_on: BlockedOn,
    /// Whether the binding watches until the guest is quiescent.
    pub(crate) is_watched: bool,
    /// Number of a guest's calls that were cancelled and whose branches have not continued yet.
    pub(crate) cancelled_calls: u32,
    /// Counter that changes with every activity of the branches.
    pub(crate) activity: u32,
    /// The use of the thread that the code holds while it waits; `None` if the code holds no thread.
    pub(crate) thread_use: Option<ThreadUse>,
}

impl Default for GuestState {
    fn default() -> Self {
        Self {
            is_quiescent: false,
            is_branch_end_unsettled: false,
            blocked_on: BlockedOn::External,
            is_watched: false,
            cancelled_calls: 0,
            activity: 0,
            thread_use: None,
        }
    }
}

/// The use of a thread whose code waits for a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadUse {
    /// The thread runs the child, if the child begins here.
    HostsChild,
    /// The thread is idle: the child does not run on it.
    Idle,
}

/// The last notification that a parent received about a child.
#[derive(Clone, Debug)]
pub(crate) enum ChildState {
    /// The child runs in this process.
    Local,
    /// The child does not run in this process.
    Remote,
    /// The child's end is staged.
    Ended(ChildEnd),
}

#[derive(Clone, Debug)]
pub(crate) struct ChildEnd {
    pub(crate) status: Status,
    pub(crate) outcome: Payload,
    pub(crate) created_at: Timestamp,
    /// The Lsn of the child's end; 0 unless the end was staged on the parent's lane.
    pub(crate) lsn: Lsn,
}

/// Number of outstanding calls from which on a run is wide: its suspension costs so much that the gate limits it.
const WIDE_RUN_CALLS: u32 = 64;
/// The time in memory, per outstanding call, that pays for the suspension of a wide run. A suspension writes and deletes
/// a row for each awaited child, and the replay starts over.
const SUSPENSION_TIME_PER_CALL: Duration = Duration::from_millis(1);

/// The earliest time at which a wide run may be suspended. Until then the run need not look at its calls.
#[derive(Default)]
struct SuspensionGate {
    /// The time of the last delivery in this run; before it, the time of the first look at the gate.
    active_at: Option<Timestamp>,
    /// The time before which a look at the calls is known to be in vain.
    not_before: Option<Timestamp>,
}

impl RunState {
    /// Number of bytes that each step uses, from the first one on.
    #[cfg(test)]
    pub(super) const USED_BY_STEPS: usize =
        std::mem::offset_of!(RunState, staging) + std::mem::offset_of!(RunStaging, start_reserved);

    /// Returns the time until which the run stays in memory, because its suspension would cost too much. Returns `None` if
    /// the run may be suspended.
    pub(crate) fn suspendable_at(&mut self, now: Timestamp) -> Option<Timestamp> {
        let calls = self.calls.outstanding;
        if calls < WIDE_RUN_CALLS || self.guest.thread_use.is_some() {
            return None;
        }
        let gate = self.calls.suspension_gate()?;
        let active_at = *gate.active_at.get_or_insert(now);
        let paid_at = active_at.plus(SUSPENSION_TIME_PER_CALL * calls);
        let at = gate.not_before.map_or(paid_at, |at| at.max(paid_at));
        (at > now).then_some(at)
    }

    /// Takes the interrupt. If there is one, closes the run at the same time, so that nothing is recorded in
    /// between.
    pub(crate) fn take_interrupt(&mut self) -> Option<Interrupt> {
        let interrupt = self.interrupt.take();
        self.is_closed |= interrupt.is_some();
        interrupt
    }
}
