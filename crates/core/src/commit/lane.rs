//! [`Lane`]: an ordered log of staged Writes, with a committer of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::ThreadId;

use tokio::runtime;
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::committer;
use super::durable::Durable;
use super::staging::{Slot, Staged, Staging};
use super::watermark::Watermark;
use super::{Lsn, Sink};
use crate::error::Error;
use crate::key::Key;
use crate::queue::Placement;
use crate::store::{StoreInfo, Registration, Store, WorkerId, Write};

/// An ordered log of staged Writes with its own committer thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Lane(pub(super) Arc<Shared>);

/// Apart from the count of its references, which changes all the time.
#[repr(align(128))]
pub(super) struct Shared {
    pub(super) number: u16,
    /// Number of its slow lane in the registration.
    pub(super) slow_number: u16,
    pub(super) staging: std::sync::Mutex<Staging>,
    pub(super) generation: Arc<AtomicU32>,
    pub(super) watermark: Watermark,
    /// Wakes the committer.
    pub(super) staged: Notify,
    /// Room for staged bytes; given back when they are settled.
    pub(super) room: Semaphore,
    /// All of the room there is.
    pub(super) bound: usize,
    /// Where those who wait run.
    pub(super) runtime: runtime::Handle,
    /// True when the committer may give up on a database that does not answer.
    pub(super) give_up: watch::Sender<bool>,
}

/// How much may be staged, in bytes, before callers wait.
pub(crate) const DEFAULT_STAGED_BYTES: usize = 64 * 1024 * 1024;

impl Lane {
    /// Starts lane `number` of the registration, with a committer thread of its own. Writes that wait for
    /// somebody else's transaction go through the registration's lane `slow_number`.
    pub(crate) fn open(
        number: u16,
        slow_number: u16,
        store: Arc<dyn Store>,
        registration: Registration,
        staged_bytes: usize,
        runtime: runtime::Handle,
        sink: Arc<dyn Sink>,
    ) -> Result<(Self, oneshot::Receiver<()>), Error> {
        let StoreInfo { flush_writes, flush_bytes, .. } = *store.info();
        let staging = Staging::new(flush_writes, flush_bytes);
        let bound = staged_bytes.min(Semaphore::MAX_PERMITS);
        let lane = Self(Arc::new(Shared {
            number,
            slow_number,
            generation: staging.shared_generation(),
            staging: staging.into(),
            watermark: Watermark::default(),
            staged: Notify::new(),
            room: Semaphore::new(bound),
            bound,
            runtime,
            give_up: watch::Sender::new(false),
        }));
        let done = committer::spawn(lane.clone(), store, registration, sink)?;
        Ok((lane, done))
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.0.number
    }

    /// The generation that owned Writes must be staged under; a fence ends it.
    pub(crate) fn generation(&self) -> u32 {
        self.0.generation.load(SeqCst)
    }

    /// Stages a Write; its effect is durable when its [`Lsn`] is. Never blocks.
    ///
    /// `slot` is where the caller's last Write to the same `executions` row went: while it has not left,
    /// a Move folds into it. `None` if the lane is closed or, for an owned Write, the generation is over.
    pub(crate) fn stage(&self, staged: Staged, slot: &mut Slot) -> Option<Lsn> {
        let (lsn, is_idle) = self.stage_and(staged, slot, Staging::note_staged)?;
        if is_idle {
            self.0.staged.notify_one();
        }
        Some(lsn)
    }

    /// Stages a Write that more will follow at once; also whether [`Lane::wake`] must come after the last.
    pub(crate) fn stage_quietly(&self, staged: Staged, slot: &mut Slot) -> Option<(Lsn, bool)> {
        self.stage_and(staged, slot, |staging| staging.is_idle())
    }

    /// Lets an idle committer see what was staged quietly.
    pub(crate) fn wake(&self) {
        if self.staging().note_staged() {
            self.0.staged.notify_one();
        }
    }

    /// What this thread stages from now on waits for [`Lane::end_burst`]; false if it does already.
    pub(crate) fn begin_burst(&self) -> bool {
        self.staging().begin_burst()
    }

    /// What the thread has staged in its burst goes out.
    pub(crate) fn end_burst(&self, thread: ThreadId) {
        if self.staging().end_burst(thread) {
            self.0.staged.notify_one();
        }
    }

    fn stage_and(
        &self,
        staged: Staged,
        slot: &mut Slot,
        is_idle: impl FnOnce(&mut Staging) -> bool,
    ) -> Option<(Lsn, bool)> {
        let room = staged.room;
        let staged = {
            let mut staging = self.staging();
            match staging.stage(staged, slot, &self.0.watermark) {
                Some(lsn) => (lsn, is_idle(&mut staging)),
                None => {
                    drop(staging);
                    self.give_back(room);
                    return None;
                }
            }
        };
        crate::crash_point!("lane staged");
        Some(staged)
    }

    /// Waits for room for a Write of `bytes` bytes under the bound on staged bytes; one that is larger than
    /// the bound takes all of it. The room belongs to the Write that is staged with it.
    pub(crate) async fn room(&self, bytes: usize) -> u32 {
        let bytes = self.within_bound(bytes);
        if let Ok(permit) = self.0.room.try_acquire_many(bytes) {
            permit.forget();
            return bytes;
        }
        match self.0.room.acquire_many(bytes).await {
            Ok(permit) => {
                permit.forget();
                bytes
            }
            Err(_) => 0,
        }
    }

    /// Room that can be had without waiting; 0 bytes of it if there is none, for Writes that cannot wait.
    pub(crate) fn room_now(&self, bytes: usize) -> u32 {
        let bytes = self.within_bound(bytes);
        self.0.room.try_acquire_many(bytes).map_or(0, |permit| {
            permit.forget();
            bytes
        })
    }

    fn within_bound(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.0.bound)).unwrap_or(u32::MAX)
    }

    /// Gives back room that no Write has taken with it.
    pub(crate) fn give_back(&self, room: u32) {
        self.0.room.add_permits(room as usize);
    }

    /// True if `lsn` is settled.
    pub(crate) fn is_settled(&self, lsn: Lsn) -> bool {
        self.0.watermark.is_settled(lsn)
    }

    /// A future that resolves when `lsn` is durable, or settled otherwise, with its outcome.
    pub(crate) fn durable(&self, lsn: Lsn) -> Durable<&Lane> {
        Durable::new(self, lsn)
    }

    /// Stages `write` in the place of the refused Write `lsn`, and lets its tree go on. Writes that the execution
    /// had staged behind the refused one are dropped; returns the ticket of a dropped Move, whose slot the next
    /// Move has to free.
    pub(crate) fn replace(
        &self,
        tree: Key,
        refused: Lsn,
        execution: Key,
        write: Option<Write>,
    ) -> Option<Arc<Placement>> {
        let ((ticket, dropped), freed) = {
            let mut staging = self.staging();
            (staging.replace(tree, refused, execution, write), staging.take_freed())
        };
        self.0.room.add_permits(freed);
        self.0.watermark.publish(None, [], dropped);
        self.0.staged.notify_one();
        ticket
    }

    /// Ends the generation of a registration that is over, whether the lane has noticed or not.
    pub(crate) fn end_generation(&self, worker: WorkerId) {
        let (outcomes, freed) = {
            let mut staging = self.staging();
            (staging.fence(worker, Vec::new(), &self.0.watermark), staging.take_freed())
        };
        self.0.room.add_permits(freed);
        self.0.watermark.publish(None, [], outcomes);
    }

    /// Goes on under a new registration after a fence.
    pub(crate) fn rebind(&self, registration: Registration) {
        self.staging().bind(registration);
        self.0.staged.notify_one();
    }

    /// Refuses further Writes and ends the committer when all that is staged has been flushed.
    pub(crate) fn close(&self) {
        self.staging().close();
        self.0.staged.notify_one();
    }

    /// Lets a closed lane end although the database does not answer; what is staged is refused.
    pub(crate) fn give_up(&self) {
        self.0.give_up.send_replace(true);
    }

    pub(super) fn is_giving_up(&self) -> bool {
        *self.0.give_up.borrow()
    }

    /// Resolves when the lane gives up.
    pub(super) async fn gave_up(&self) {
        let _ = self.0.give_up.subscribe().wait_for(|is_giving_up| *is_giving_up).await;
    }

    /// Writes held aside at the moment, and waiters.
    pub(crate) fn load(&self) -> LaneLoad {
        let (staged, held) = self.staging().counts();
        LaneLoad { staged, held, waiters: self.0.watermark.waiters() }
    }

    pub(super) fn staging(&self) -> std::sync::MutexGuard<'_, Staging> {
        // a panic while it was held would be a bug in plain data handling; the data is still whole
        self.0.staging.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What a lane holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLoad {
    /// Writes staged and not yet taken by a flush.
    pub staged: usize,
    /// Writes held aside.
    pub held: usize,
    /// Callers that wait for an Lsn.
    pub waiters: usize,
}
