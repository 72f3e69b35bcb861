//! [`RunState`]: what a run's lock guards.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use super::{Interrupt, Stopped};
use crate::clock::Timestamp;
use crate::commit::{Lsn, FoldTarget};
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::run::call::CallState;
use crate::runtime::run::quiescence::Waits;
use crate::runtime::run::replay::{Attempts, Replay};
use crate::store::{PendingSleep, Start, Status};

#[allow(clippy::struct_excessive_bools)] // each says something of its own
pub(crate) struct RunState {
    pub(crate) is_closed: bool,
    pub(crate) interrupt: Option<Interrupt>,
    /// The Start while it is not staged, and the room taken for it.
    pub(crate) start: Option<Box<Start>>,
    pub(crate) start_room: u32,
    /// Where the Start was staged; 0 while it was not.
    pub(crate) start_lsn: Lsn,
    pub(crate) next_order: u32,
    /// When the last delivery was recorded; when the execution was accepted, before the first one.
    pub(crate) delivered_at: Timestamp,
    /// Largest Lsn of its own Writes and of everything it was handed.
    pub(crate) last: Lsn,
    /// The same without checkpoints: what a speculative step waits for.
    pub(crate) last_solid: Lsn,
    pub(crate) slot: FoldTarget,
    pub(crate) replay: Option<Box<Replay>>,
    /// Failed attempts of a recovered execution, by path.
    pub(crate) attempts: Option<Box<Attempts>>,
    pub(crate) calls: Vec<Option<CallState>>,
    pub(crate) vacant: Vec<usize>,
    /// Calls that wait for their delivery, in the order in which they completed.
    pub(crate) completed: VecDeque<usize>,
    /// Branches that are not waiting for branches of their own.
    pub(crate) leaves: u32,
    /// Calls whose outcome their branch waits for.
    pub(crate) outstanding: u32,
    /// Of these, delivered.
    pub(crate) unheard: u32,
    /// Calls in a durable wait: for a timer or a child.
    pub(crate) waiting: u32,
    /// Of code that somebody else polls: nothing of it has run for long enough, or can.
    pub(crate) is_quiet: bool,
    /// A branch on a loop has ended, and what hears of that may not have run yet.
    pub(crate) is_unsettled: bool,
    /// What it waits for while it is quiet.
    pub(crate) waits: Waits,
    /// Somebody watches for its rest.
    pub(crate) is_watched: bool,
    /// Calls of a guest that were cancelled, and whose branches have not gone on yet.
    pub(crate) cancelled: u32,
    /// Counts what branches do.
    pub(crate) activity: u32,
    /// Its code holds a thread while it waits.
    pub(crate) thread: Option<InThread>,
    /// Why the gate was closed before the code had returned.
    pub(crate) stopped: Option<Stopped>,
    /// It is put off: there is no code any more, and what stops it still counts.
    pub(crate) is_put_off: bool,
    /// Who waits for calls of a guest, and has to hear when it is stopped.
    pub(crate) stop_wakers: Vec<Waker>,
    /// Deliveries whose values are still being fetched or made durable: nothing else is delivered.
    pub(crate) busy: u32,
    /// Due times kept in the row.
    pub(crate) armed: Vec<PendingSleep>,
    /// Children that have been started, are awaited, and have not ended.
    pub(crate) children: BTreeMap<Key, ChildState>,
    /// Branches spawned and not yet taken up by the task.
    pub(crate) spawned: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// What code that holds a thread does while it waits for a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InThread {
    /// The thread runs the child, if that begins here.
    Hosting,
    /// Whatever the child runs on, it is not this thread.
    Idle,
}

/// What is known of a child.
#[derive(Clone, Debug)]
pub(crate) enum ChildState {
    /// It runs in this process.
    Local,
    /// It does not run in this process.
    Elsewhere,
    /// Its end has been staged.
    Ended(ChildEnd),
}

#[derive(Clone, Debug)]
pub(crate) struct ChildEnd {
    pub(crate) status: Status,
    pub(crate) outcome: Payload,
    /// Where its end was staged, if on our lane.
    pub(crate) lsn: Lsn,
}

impl RunState {
    /// Why the run is to stop. The gate is closed with it: nothing is recorded in between.
    pub(crate) fn take_interrupt(&mut self) -> Option<Interrupt> {
        let interrupt = self.interrupt.take();
        self.is_closed |= interrupt.is_some();
        interrupt
    }
}
