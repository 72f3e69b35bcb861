//! The committer of a lane: takes staged Writes, commits them as numbered flushes, and publishes their outcomes.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Waker;

use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use super::flush_sender::{FlushSender, RESEND_BACKOFF};
use super::lane::Lane;
use super::lsn::Lsn;
use super::observer::{CommitObserver, SettledWrite};
use super::segment::{Entry, Segment};
use super::slow_lane;
use super::staging::{NextFlush, Outcomes};
use crate::error::Error;
use crate::store::{Outcome, Registration, Store, StoreError, Write};
use crate::thread::spawn_on_thread;

/// Maximum number of waiters that the lane's thread wakes itself: for few waiters this is faster than a task.
const MAX_INLINE_WAKES: usize = 16;
/// Number of waiters that one task wakes, when there are more than [`MAX_INLINE_WAKES`].
const WAKES_PER_TASK: usize = 1024;
/// Number of parts of a flush that locks on tables block in a row, with none that passes, from which on the whole flush
/// waits.
const MAX_BLOCKED_NEIGHBOURS: usize = 8;

impl Lane {
    /// Opens lane `number` of the registration and starts its committer. The receiver resolves when the committer has
    /// ended. Writes that wait for another transaction go through the registration's lane `slow_lane_number`.
    ///
    /// The committer has a thread and a runtime of its own. So neither a store that blocks nor a driver's connection
    /// waits for workflow code to yield.
    pub(crate) fn open(
        number: u16,
        slow_lane_number: u16,
        store: Arc<dyn Store>,
        registration: Registration,
        staged_bytes: usize,
        runtime: runtime::Handle,
        observer: Arc<dyn CommitObserver>,
    ) -> Result<(Self, oneshot::Receiver<()>), Error> {
        let lane = Self::new(number, slow_lane_number, store.info(), staged_bytes, runtime);
        lane.staging().bind(registration);
        let (done, receiver) = oneshot::channel();
        let sender = FlushSender { lane: lane.clone(), lane_number: number, store, last_sent: None };
        let mut committer = Committer { lane: lane.clone(), observer, sender, slow_lane: None };
        spawn_on_thread(format!("stepfast-lane-{number}"), async move {
            raise_priority();
            committer.run().await;
            let _ = done.send(());
        })?;
        Ok((lane, receiver))
    }
}

/// Difference in niceness between a lane's thread and other threads.
#[cfg(target_os = "linux")]
const NICE_DECREMENT: i32 = 5;

/// Gives this thread precedence over the threads that run workflow code, because all of them wait for this thread.
/// Without the privilege (`CAP_SYS_NICE`) nothing changes.
fn raise_priority() {
    // on systems other than Linux the priority is that of the whole process
    #[cfg(target_os = "linux")]
    if let Ok(nice) = rustix::process::getpriority_process(None) {
        let _ = rustix::process::setpriority_process(None, nice - NICE_DECREMENT);
    }
}

struct Committer {
    lane: Lane,
    observer: Arc<dyn CommitObserver>,
    sender: FlushSender,
    /// The channel of Writes that wait for other transactions. The slow lane starts with the first of these Writes.
    slow_lane: Option<mpsc::UnboundedSender<(Entry, u32)>>,
}

impl Committer {
    async fn run(&mut self) {
        loop {
            let next = self.lane.staging().take_flush(&self.lane.0.watermark);
            match next {
                NextFlush::Segment(segment, registration, watermark) => {
                    crate::crash_point!("flush taken");
                    if !self.flush(segment, registration, watermark).await {
                        break;
                    }
                }
                NextFlush::NothingReady => {
                    if self.lane.is_abandoned() {
                        break;
                    }
                    tokio::select! {
                        () = self.lane.0.committer_wakeup.notified() => {}
                        () = self.lane.wait_abandoned() => {}
                    }
                }
                NextFlush::Closed => break,
            }
        }
        let remaining = self.lane.staging().close_and_take_all();
        self.drop_all(&remaining);
    }

    /// Commits a segment. If the database rejects the whole segment, or a lock blocks it, commits it in parts. Returns
    /// false if the lane must end. A segment taken under one registration is never sent under a later one.
    async fn flush(&mut self, segment: Segment, registration: Registration, watermark: Lsn) -> bool {
        let mut parts = vec![segment];
        let mut is_bisecting = false;
        let mut progress = FlushProgress::default();
        // parts whose first Write a lock on a table blocks, of one tree each, since the last commit
        let mut blocked: Vec<Segment> = Vec::new();
        let mut pause = RESEND_BACKOFF.0;
        loop {
            if blocked.len() >= MAX_BLOCKED_NEIGHBOURS {
                // no Write passes, and each would wait in the slow lane by itself. The parts that were tried come last,
                // so that other parts are tried if they do not use the locked table
                parts.splice(0..0, blocked.drain(..).rev());
                parts = parts
                    .into_iter()
                    .rev()
                    .reduce(|joined, part| joined.join(Some(part)))
                    .into_iter()
                    .collect();
                is_bisecting = false;
                progress.add_applied_outcomes();
                self.publish(Lsn(0), std::mem::take(&mut progress));
                tokio::select! {
                    () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())) => {}
                    () = self.lane.wait_abandoned() => {}
                }
                pause = (pause * 2).min(RESEND_BACKOFF.1);
            }
            let Some(mut part) = parts.pop() else { break };
            let mut writes = std::mem::take(&mut part.writes);
            let result = self.sender.commit(registration, &mut writes, is_bisecting).await;
            part.writes = writes;
            match result {
                Ok(outcomes) => {
                    crate::crash_point!("flush durable");
                    self.record_committed(&part, outcomes, &mut progress);
                    progress.parts.push(part);
                    // neighbours pass: the locked table is not used by all
                    for part in blocked.drain(..) {
                        self.block(part);
                    }
                }
                Err(
                    error @ (StoreError::Rejected(_) | StoreError::Blocked(_) | StoreError::TableLocked(_)),
                ) => {
                    is_bisecting = true;
                    match part.split().or_else(Segment::split_first) {
                        Ok((first, second)) => parts.extend([second, first]),
                        Err(single) => {
                            // if the Write's tree has more Writes, they are next on the stack
                            let rest = parts.pop_if(|next| next.metas[0].tree == single.metas[0].tree);
                            match error {
                                StoreError::Blocked(_) => self.block(single.join(rest)),
                                StoreError::TableLocked(_) => blocked.push(single.join(rest)),
                                _ => self.reject(single.join(rest), &error, &mut progress),
                            }
                        }
                    }
                }
                Err(StoreError::Fenced) => {
                    parts.push(part);
                    parts.extend(blocked.drain(..).rev());
                    // the parts are a stack: the first part is on top
                    parts.reverse();
                    let worker = registration.worker;
                    let outcomes = self.lane.staging().fence(worker, parts, &self.lane.0.watermark);
                    progress.outcomes.extend(outcomes);
                    self.publish(watermark, progress);
                    self.observer.on_fenced(worker);
                    return true;
                }
                Err(StoreError::Unavailable(_)) => {
                    // this happens only in an abandoned lane: the last flush may or may not have been committed
                    parts.push(part);
                    parts.append(&mut blocked);
                    progress.add_applied_outcomes();
                    self.publish(Lsn(0), progress);
                    let remaining: Vec<Entry> = parts.into_iter().flat_map(Segment::into_entries).collect();
                    self.drop_all(&remaining);
                    return false;
                }
                Err(error) => {
                    parts.push(part);
                    parts.append(&mut blocked);
                    progress.add_applied_outcomes();
                    self.publish(Lsn(0), progress);
                    self.observer.on_poisoned(error);
                    let mut remaining: Vec<Entry> =
                        parts.into_iter().flat_map(Segment::into_entries).collect();
                    remaining.extend(self.lane.staging().close_and_take_all());
                    self.drop_all(&remaining);
                    return false;
                }
            }
        }
        for part in blocked {
            self.block(part);
        }
        self.publish(watermark, progress);
        true
    }

    /// Records the outcomes of a part that is durable.
    fn record_committed(
        &self,
        part: &Segment,
        outcomes: Vec<(usize, Outcome)>,
        progress: &mut FlushProgress,
    ) {
        let dropped = self.lane.staging().settle(part, &outcomes);
        progress.outcomes.extend(dropped);
        if self.lane.0.watermark.has_held() {
            progress.released.extend(part.metas.iter().flat_map(|meta| meta.lsns.iter().copied()));
        }
        progress.reserved += part.metas.iter().map(|meta| meta.reserved as usize).sum::<usize>();
        progress.bytes += part.bytes as u64;
        self.observer.on_committed(&part.writes, &outcomes);
        for (index, outcome) in outcomes {
            let (write, meta) = (&part.writes[index], &part.metas[index]);
            if matches!(write, Write::Wake(_)) {
                // no caller waits for the outcome of a Wake
                continue;
            }
            if outcome != Outcome::CancelRequested {
                progress.outcomes.extend(meta.lsns.iter().map(|&lsn| (lsn, outcome.clone())));
            }
            self.notify_settled(write, meta.tree, meta.lsns[0], &outcome);
        }
    }

    fn notify_settled(&self, write: &Write, tree: crate::key::Key, lsn: Lsn, outcome: &Outcome) {
        let execution = write.execution();
        self.observer.on_settled(self.lane.number(), SettledWrite { execution, tree, lsn, write, outcome });
    }

    /// Sends the first Write of `segment` to the slow lane, because it waits for another transaction. Holds the rest of
    /// its tree.
    fn block(&mut self, segment: Segment) {
        let (entry, generation) = {
            let mut staging = self.lane.staging();
            (staging.block(segment, &self.lane.0.watermark), staging.generation())
        };
        let (lane, store, observer) = (&self.lane, &self.sender.store, &self.observer);
        let slow_lane =
            self.slow_lane.get_or_insert_with(|| slow_lane::spawn(lane, store.clone(), observer.clone()));
        if let Err(mpsc::error::SendError((entry, _))) = slow_lane.send((entry, generation)) {
            self.drop_all(&[entry]);
        }
    }

    /// Rejects the first Write of `segment`, and holds the rest of its tree.
    fn reject(&mut self, segment: Segment, error: &StoreError, progress: &mut FlushProgress) {
        let (rejected, dropped) = self.lane.staging().reject(segment, &self.lane.0.watermark);
        progress.outcomes.extend(dropped);
        let outcome = Outcome::Rejected(error.to_string().into());
        progress.outcomes.extend(rejected.meta.lsns.iter().map(|&lsn| (lsn, outcome.clone())));
        progress.reserved += rejected.meta.reserved as usize;
        self.notify_settled(&rejected.write, rejected.meta.tree, rejected.meta.lsns[0], &outcome);
    }

    /// Acknowledges a flush: publishes its outcomes, releases its budget, and wakes its waiters.
    fn publish(&self, watermark: Lsn, mut progress: FlushProgress) {
        let lane = &self.lane.0;
        {
            let mut staging = self.lane.staging();
            staging.release_collisions();
            progress.reserved += staging.take_freed();
        }
        let (held, waits) = lane.watermark.take_counts();
        self.sender.store.counters().add_lane_totals(progress.bytes, held, waits);
        let wakers = lane.watermark.settle(Some(watermark), progress.released, progress.outcomes);
        lane.budget.add_permits(progress.reserved);
        crate::crash_point!("flush published");
        if wakers.len() <= MAX_INLINE_WAKES {
            for waker in wakers {
                waker.wake();
            }
            return;
        }
        // if there are many waiters, tasks of the runtime wake them: the lane's thread has the next flush to write
        let mut parts = Some(progress.parts);
        let mut wakers = wakers.into_iter();
        loop {
            let batch = WakeOnDrop(wakers.by_ref().take(WAKES_PER_TASK).collect());
            if batch.0.is_empty() {
                break;
            }
            let parts = parts.take().map(|parts| (self.lane.clone(), parts));
            lane.runtime.spawn(async move {
                drop(batch);
                if let Some((lane, parts)) = parts {
                    lane.recycle(parts);
                }
            });
        }
    }

    fn drop_all(&self, entries: &[Entry]) {
        let reserved = entries.iter().map(|entry| entry.meta.reserved as usize).sum();
        let lsns = entries.iter().flat_map(|entry| entry.meta.lsns.iter());
        self.lane.0.watermark.publish(None, [], lsns.map(|&lsn| (lsn, Outcome::Dropped)));
        self.lane.0.budget.add_permits(reserved);
    }
}

/// Waiters that are woken even if the runtime of their task has ended.
struct WakeOnDrop(Vec<Waker>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        for waker in self.0.drain(..) {
            waker.wake();
        }
    }
}

/// The results of a flush so far.
#[derive(Default)]
struct FlushProgress {
    released: Vec<Lsn>,
    outcomes: Outcomes,
    reserved: usize,
    bytes: u64,
    /// The committed parts, kept to be freed on another thread.
    parts: Vec<Segment>,
}

impl FlushProgress {
    /// Adds `Applied` for all committed Writes without another outcome, because the watermark will not move past them.
    fn add_applied_outcomes(&mut self) {
        let lsns = self.parts.iter().flat_map(|part| part.metas.iter()).flat_map(|meta| meta.lsns.iter());
        let known: HashSet<Lsn> = self.outcomes.iter().map(|(lsn, _)| *lsn).collect();
        let applied: Outcomes =
            lsns.filter(|lsn| !known.contains(lsn)).map(|&lsn| (lsn, Outcome::Applied)).collect();
        self.outcomes.extend(applied);
    }
}
