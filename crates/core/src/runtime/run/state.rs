//! [`RunState`]: the state that a run's lock guards.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use super::{Interrupt, StopReason};
use crate::clock::Timestamp;
use crate::commit::{FoldTarget, Lsn};
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::run::call::CallState;
use crate::runtime::run::quiescence::BlockedOn;
use crate::runtime::run::replay::{Attempts, Replay};
use crate::store::{PendingSleep, Start, Status};

#[allow(clippy::struct_excessive_bools)] // each flag is independent
pub(crate) struct RunState {
    pub(crate) is_closed: bool,
    pub(crate) interrupt: Option<Interrupt>,
    /// The Start while it is not staged, and the budget reserved for it.
    pub(crate) start: Option<Box<Start>>,
    pub(crate) start_reserved: u32,
    /// Where the Start was staged; 0 while it is not staged.
    pub(crate) start_lsn: Lsn,
    pub(crate) next_order: u32,
    /// When the last delivery was recorded. Before the first delivery: when the execution was accepted.
    pub(crate) delivered_at: Timestamp,
    /// Largest Lsn of the run's own Writes and of all values that it received.
    pub(crate) last_lsn: Lsn,
    /// The same without checkpoints: the Lsn that a speculative step waits for.
    pub(crate) last_required_lsn: Lsn,
    pub(crate) fold_target: FoldTarget,
    pub(crate) replay: Option<Box<Replay>>,
    /// Failed attempts of a recovered execution, by path.
    pub(crate) attempts: Option<Box<Attempts>>,
    pub(crate) calls: Vec<Option<CallState>>,
    pub(crate) vacant_ids: Vec<usize>,
    /// Calls that wait for their delivery, in the order in which they completed.
    pub(crate) completed: VecDeque<usize>,
    /// Number of active branches: those that do not wait for branches of their own.
    pub(crate) active_branches: u32,
    /// Number of calls whose outcome their branch waits for.
    pub(crate) outstanding: u32,
    /// Number of outstanding calls that are delivered and not consumed.
    pub(crate) unconsumed: u32,
    /// Number of calls in a durable wait: for a timer or a child.
    pub(crate) durable_wait_count: u32,
    /// Whether no code of a guest runs, or can run before a delivery or an external event.
    pub(crate) is_quiescent: bool,
    /// Whether a branch on an event loop has ended and the code that is notified of its end may not have run
    /// yet.
    pub(crate) is_branch_end_unsettled: bool,
    /// The events for which a quiescent guest waits.
    pub(crate) blocked_on: BlockedOn,
    /// Whether the binding watches until the guest is quiescent.
    pub(crate) is_watched: bool,
    /// Number of a guest's calls that were cancelled and whose branches have not continued yet.
    pub(crate) cancelled_calls: u32,
    /// Counter of the branches' activity.
    pub(crate) activity: u32,
    /// How the code uses the thread that it holds while it waits; `None` if it holds none.
    pub(crate) thread_use: Option<ThreadUse>,
    /// The reason for which the run was closed before its code had returned.
    pub(crate) stop_reason: Option<StopReason>,
    /// Whether the run is deferred: its code is gone, but an interrupt still counts.
    pub(crate) is_deferred: bool,
    /// Wakers of waiters for a guest's calls, to be woken when the run is stopped.
    pub(crate) stop_wakers: Vec<Waker>,
    /// Number of deliveries whose values are being fetched or made durable. Nothing else is delivered while
    /// it is not 0.
    pub(crate) delivery_blocks: u32,
    /// Due times that the execution's row contains.
    pub(crate) pending_sleeps: Vec<PendingSleep>,
    /// Awaited children that were started.
    pub(crate) children: BTreeMap<Key, ChildState>,
    /// Spawned branches that the task has not taken yet.
    pub(crate) spawned: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// How code uses its thread while it waits for a child.
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
    /// Where the child's end was staged; 0 unless it was staged on the parent's lane.
    pub(crate) lsn: Lsn,
}

impl RunState {
    /// Takes the reason to stop, and closes the run with it so that nothing is recorded in between.
    pub(crate) fn take_interrupt(&mut self) -> Option<Interrupt> {
        let interrupt = self.interrupt.take();
        self.is_closed |= interrupt.is_some();
        interrupt
    }
}
