//! [`Lane`]: an ordered log of staged Writes with its own committer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::ThreadId;

use tokio::runtime;
use tokio::sync::{Notify, Semaphore, watch};

use super::lsn::Lsn;
use super::segment::{Room, Segment};
use super::staging::{FoldTarget, RejectedExecutions, Staged, Staging};
use super::watermark::Watermark;
use crate::key::Key;
use crate::queue::Placement;
use crate::store::{Registration, StoreInfo, WorkerId, Write};

/// An ordered log of staged Writes with its own committer thread. A clone only copies a reference.
#[derive(Clone)]
pub(crate) struct Lane(pub(super) Arc<LaneInner>);

/// State shared by a lane's clones. The alignment of 128 bytes keeps the reference count and the fields in
/// different cache lines.
#[repr(align(128))]
pub(super) struct LaneInner {
    pub(super) number: u16,
    /// Number of the slow lane in the registration.
    pub(super) slow_lane_number: u16,
    pub(super) staging: std::sync::Mutex<Staging>,
    pub(super) generation: Arc<AtomicU32>,
    pub(super) watermark: Watermark,
    /// Wakes the committer.
    pub(super) committer_wakeup: Notify,
    /// Remaining budget for staged bytes. Bytes return to the budget when their Writes are settled.
    pub(super) budget: Semaphore,
    /// The whole budget, in bytes.
    pub(super) capacity: usize,
    /// The runtime on which waiters run.
    pub(super) runtime: runtime::Handle,
    /// Whether the committer may stop while the database is unreachable.
    pub(super) is_abandoned: watch::Sender<bool>,
}

/// Default budget for staged bytes of a lane. Callers wait while the budget is exhausted.
pub(crate) const DEFAULT_STAGED_BYTES: usize = 64 * 1024 * 1024;

impl Lane {
    /// Returns lane `number` of a registration, without a committer.
    pub(super) fn new(
        number: u16,
        slow_lane_number: u16,
        info: &StoreInfo,
        staged_bytes: usize,
        runtime: runtime::Handle,
    ) -> Self {
        let staging = Staging::new(info.max_flush_writes, info.max_flush_bytes);
        let capacity = staged_bytes.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(LaneInner {
            number,
            slow_lane_number,
            generation: staging.shared_generation(),
            staging: staging.into(),
            watermark: Watermark::default(),
            committer_wakeup: Notify::new(),
            budget: Semaphore::new(capacity),
            capacity,
            runtime,
            is_abandoned: watch::Sender::new(false),
        }))
    }

    /// Returns the lane's number in the registration.
    pub(crate) fn number(&self) -> u16 {
        self.0.number
    }

    /// Returns the generation under which owned Writes must be staged. A fence ends the generation.
    pub(crate) fn generation(&self) -> u32 {
        self.0.generation.load(SeqCst)
    }

    /// Stages a Write without blocking. The Write is durable when its [`Lsn`] is.
    ///
    /// `fold_target` is where the caller staged its last Write to the same `executions` row. While the last
    /// segment contains that Write, a Transition folds into it.
    ///
    /// Returns `None` if the lane is closed, if the Write is owned and its generation has ended, or if the
    /// Start of the tree's root has failed.
    pub(crate) fn stage(&self, staged: Staged, fold_target: &mut FoldTarget) -> Option<Lsn> {
        let (lsn, needs_wake) = self.stage_with(staged, fold_target, Staging::note_staged)?;
        if needs_wake {
            self.0.committer_wakeup.notify_one();
        }
        Some(lsn)
    }

    /// Stages a Write without waking the committer, for a caller that stages more Writes right after it. Also
    /// returns whether the caller must call [`Lane::wake_committer`] after the last Write.
    pub(crate) fn stage_without_wake(
        &self,
        staged: Staged,
        fold_target: &mut FoldTarget,
    ) -> Option<(Lsn, bool)> {
        self.stage_with(staged, fold_target, |staging| staging.is_committer_idle())
    }

    /// Wakes an idle committer after [`Lane::stage_without_wake`].
    pub(crate) fn wake_committer(&self) {
        if self.staging().note_staged() {
            self.0.committer_wakeup.notify_one();
        }
    }

    /// Begins a burst: Writes that this thread stages wait for [`Lane::end_burst`]. Returns false if the
    /// thread is already in a burst.
    pub(crate) fn begin_burst(&self) -> bool {
        self.staging().begin_burst()
    }

    /// Ends the burst of `thread`, and flushes the Writes staged in it.
    pub(crate) fn end_burst(&self, thread: ThreadId) {
        if self.staging().end_burst(thread) {
            self.0.committer_wakeup.notify_one();
        }
    }

    /// Whether the committer has nothing to write, and waits.
    pub(crate) fn is_committer_idle(&self) -> bool {
        self.staging().is_committer_idle()
    }

    fn stage_with(
        &self,
        mut staged: Staged,
        fold_target: &mut FoldTarget,
        needs_wake: impl FnOnce(&mut Staging) -> bool,
    ) -> Option<(Lsn, bool)> {
        if staged.reserved == 0 {
            // most Writes without a reservation are small; they still leave less budget for payloads
            staged.reserved = self.try_reserve(staged.write.size());
        }
        let reserved = staged.reserved;
        let staged = {
            let mut staging = self.staging();
            match staging.stage(staged, fold_target, &self.0.watermark) {
                Some(lsn) => (lsn, needs_wake(&mut staging)),
                None => {
                    drop(staging);
                    self.release(reserved);
                    return None;
                }
            }
        };
        crate::crash_point!("lane staged");
        Some(staged)
    }

    /// Waits until budget for a Write of `bytes` bytes is free, and reserves it. A Write larger than the
    /// whole budget reserves the whole budget. Returns the reserved bytes, for `Staged::reserved` of the
    /// Write.
    pub(crate) async fn reserve(&self, bytes: usize) -> u32 {
        let bytes = self.limit_to_capacity(bytes);
        if let Ok(permit) = self.0.budget.try_acquire_many(bytes) {
            permit.forget();
            return bytes;
        }
        match self.0.budget.acquire_many(bytes).await {
            Ok(permit) => {
                permit.forget();
                bytes
            }
            Err(_) => 0,
        }
    }

    /// Reserves budget for a Write that cannot wait. Returns the reserved bytes, or 0 if not enough budget is
    /// free.
    pub(crate) fn try_reserve(&self, bytes: usize) -> u32 {
        let bytes = self.limit_to_capacity(bytes);
        self.0.budget.try_acquire_many(bytes).map_or(0, |permit| {
            permit.forget();
            bytes
        })
    }

    fn limit_to_capacity(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.0.capacity)).unwrap_or(u32::MAX)
    }

    /// Releases budget, in bytes, that was reserved and not staged with a Write.
    pub(crate) fn release(&self, reserved: u32) {
        self.0.budget.add_permits(reserved as usize);
    }

    /// Whether `lsn` is settled.
    pub(crate) fn is_settled(&self, lsn: Lsn) -> bool {
        self.0.watermark.is_settled(lsn)
    }

    /// Stages `write` in place of the Write at `rejected`, and releases the tree. Drops the Writes that `executions`
    /// staged behind the rejected one. Returns the placement of a dropped Transition of the continued execution, whose
    /// queue slot the next Transition must free.
    pub(crate) fn replace_rejected(
        &self,
        tree: Key,
        rejected: Lsn,
        executions: &RejectedExecutions,
        write: Option<Write>,
    ) -> Option<Arc<Placement>> {
        let ((placement, dropped), freed) = {
            let mut staging = self.staging();
            (staging.replace_rejected(tree, rejected, executions, write), staging.take_freed())
        };
        self.0.budget.add_permits(freed);
        self.0.watermark.publish(None, [], dropped);
        self.0.committer_wakeup.notify_one();
        placement
    }

    /// Drops the Writes of settled segments, and keeps memory of one of them for the next segment.
    pub(super) fn recycle(&self, segments: Vec<Segment>) {
        for segment in segments {
            // the Writes are dropped without the lock
            let room = Room::of_settled(segment);
            self.staging().spare_room.keep_larger(room);
        }
    }

    /// Ends the generation of a registration that is over, whether or not a flush was rejected by the fence.
    pub(crate) fn end_generation(&self, worker: WorkerId) {
        let (outcomes, freed) = {
            let mut staging = self.staging();
            (staging.fence(worker, Vec::new(), &self.0.watermark), staging.take_freed())
        };
        self.0.budget.add_permits(freed);
        self.0.watermark.publish(None, [], outcomes);
    }

    /// Continues under a new registration after a fence.
    pub(crate) fn rebind(&self, registration: Registration) {
        self.staging().bind(registration);
        self.0.committer_wakeup.notify_one();
    }

    /// Closes the lane: it accepts no more Writes. The committer ends when all staged Writes are flushed.
    pub(crate) fn close(&self) {
        self.staging().close();
        self.0.committer_wakeup.notify_one();
    }

    /// Abandons a closed lane: it ends even while the database is unreachable, and drops its staged Writes.
    pub(crate) fn abandon(&self) {
        self.0.is_abandoned.send_replace(true);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        *self.0.is_abandoned.borrow()
    }

    /// Waits until the lane is abandoned.
    pub(super) async fn wait_abandoned(&self) {
        let _ = self.0.is_abandoned.subscribe().wait_for(|is_abandoned| *is_abandoned).await;
    }

    /// Returns the numbers of staged Writes, held Writes and waiters.
    pub(crate) fn load(&self) -> LaneLoad {
        let (staged, held) = self.staging().counts();
        LaneLoad { staged, held, waiters: self.0.watermark.waiter_count() }
    }

    pub(super) fn staging(&self) -> std::sync::MutexGuard<'_, Staging> {
        // a panic with this lock held would be a bug, but would leave the data consistent
        self.0.staging.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The contents of a lane at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLoad {
    /// Writes that are staged and not yet taken by a flush.
    pub staged: usize,
    /// Writes that are held.
    pub held: usize,
    /// Callers that wait for an Lsn.
    pub waiters: usize,
}
