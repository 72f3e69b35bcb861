//! The committer of a lane: takes what is staged, commits it as numbered flushes, publishes outcomes.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Waker;

use tokio::sync::{mpsc, oneshot};

use super::flush_sender::FlushSender;
use super::lane::Lane;
use super::segment::{Entry, Segment};
use super::slow_lane;
use super::staging::{Outcomes, Taken};
use super::{Lsn, Settled, Sink};
use crate::error::Error;
use crate::store::{Outcome, Registration, Store, StoreError, Write};
use crate::thread::spawn_on_thread;

/// So many waiters are woken by the lane's own thread, which takes the shortest way.
const FEW: usize = 16;
/// So many are woken by one task.
const CROWD: usize = 1024;

/// Starts the committer of `lane` on a thread of its own. The receiver hears when it has ended.
///
/// The thread runs its own runtime, so that neither a store that blocks nor a driver's connection ever
/// waits behind workflow code for a turn.
pub(super) fn spawn(
    lane: Lane,
    store: Arc<dyn Store>,
    registration: Registration,
    sink: Arc<dyn Sink>,
) -> Result<oneshot::Receiver<()>, Error> {
    lane.staging().bind(registration);
    let (done, ended) = oneshot::channel();
    let name = format!("stepfast-lane-{}", lane.number());
    spawn_on_thread(name, async move {
        raise_priority();
        let numbered = FlushSender { lane: lane.clone(), number: lane.number(), store, sent: None };
        let mut committer = Committer { lane, sink, numbered, slow: None };
        committer.run().await;
        let _ = done.send(());
    })?;
    Ok(ended)
}

/// How much less nice than other threads a lane's is.
#[cfg(target_os = "linux")]
const PRECEDENCE: i32 = 5;

/// Gives this thread precedence over the threads that run workflow code, which all wait for it. Without the right to do
/// so (`CAP_SYS_NICE`) nothing changes.
fn raise_priority() {
    // elsewhere than on Linux a priority is the whole process's
    #[cfg(target_os = "linux")]
    if let Ok(nice) = rustix::process::getpriority_process(None) {
        let _ = rustix::process::setpriority_process(None, nice - PRECEDENCE);
    }
}

struct Committer {
    lane: Lane,
    sink: Arc<dyn Sink>,
    numbered: FlushSender,
    /// Takes Writes that wait for somebody else's transaction; started when the first one does.
    slow: Option<mpsc::UnboundedSender<(Entry, u32)>>,
}

impl Committer {
    async fn run(&mut self) {
        loop {
            let taken = self.lane.staging().take(&self.lane.0.watermark);
            match taken {
                Taken::Segment(segment, registration, passed) => {
                    crate::crash_point!("flush taken");
                    if !self.flush(segment, registration, passed).await {
                        break;
                    }
                }
                Taken::Nothing => {
                    if self.lane.is_giving_up() {
                        break;
                    }
                    tokio::select! {
                        () = self.lane.0.staged.notified() => {}
                        () = self.lane.gave_up() => {}
                    }
                }
                Taken::Closed => break,
            }
        }
        let left = self.lane.staging().clear();
        self.drop_all(&left);
    }

    /// Commits a segment, in parts if the database does not take it whole; false if the lane must end. What
    /// was taken under a registration never goes out under a later one.
    async fn flush(&mut self, segment: Segment, registration: Registration, passed: Lsn) -> bool {
        let mut parts = vec![segment];
        let mut is_bisecting = false;
        let mut landed = Landed::default();
        while let Some(mut part) = parts.pop() {
            let mut writes = std::mem::take(&mut part.writes);
            let result = self.numbered.commit(registration, &mut writes, is_bisecting).await;
            part.writes = writes;
            match result {
                Ok(outcomes) => {
                    crate::crash_point!("flush durable");
                    self.land(&part, outcomes, &mut landed);
                    landed.parts.push(part);
                }
                Err(error @ (StoreError::Rejected(_) | StoreError::Blocked(_))) => {
                    is_bisecting = true;
                    match part.split().or_else(Segment::split_first) {
                        Ok((first, second)) => parts.extend([second, first]),
                        Err(single) => {
                            // the rest of its tree comes next on the stack, if there is any
                            let rest = parts.pop_if(|next| next.metas[0].tree == single.metas[0].tree);
                            self.set_aside(single.join(rest), &error, &mut landed);
                        }
                    }
                }
                Err(StoreError::Fenced) => {
                    parts.push(part);
                    // a stack: what comes first is on top
                    parts.reverse();
                    let worker = registration.worker;
                    let outcomes = self.lane.staging().fence(worker, parts, &self.lane.0.watermark);
                    landed.outcomes.extend(outcomes);
                    self.publish(passed, landed);
                    self.sink.fenced(worker);
                    return true;
                }
                Err(StoreError::Unavailable(_)) => {
                    // only while giving up: what was sent may or may not land
                    parts.push(part);
                    landed.note_applied();
                    self.publish(Lsn(0), landed);
                    let left: Vec<Entry> = parts.into_iter().flat_map(Segment::into_entries).collect();
                    self.drop_all(&left);
                    return false;
                }
                Err(error) => {
                    parts.push(part);
                    landed.note_applied();
                    self.publish(Lsn(0), landed);
                    self.sink.poisoned(error);
                    let mut left: Vec<Entry> = parts.into_iter().flat_map(Segment::into_entries).collect();
                    left.extend(self.lane.staging().clear());
                    self.drop_all(&left);
                    return false;
                }
            }
        }
        self.publish(passed, landed);
        true
    }

    /// Notes the outcomes of a part that is durable.
    fn land(&self, part: &Segment, outcomes: Vec<(usize, Outcome)>, landed: &mut Landed) {
        let dropped = self.lane.staging().settle(part, &outcomes);
        landed.outcomes.extend(dropped);
        if self.lane.0.watermark.has_held() {
            landed.released.extend(part.metas.iter().flat_map(|meta| meta.lsns.iter().copied()));
        }
        landed.room += part.metas.iter().map(|meta| meta.room as usize).sum::<usize>();
        landed.bytes += part.bytes as u64;
        self.sink.landed(&part.writes);
        for (index, outcome) in outcomes {
            let (write, meta) = (&part.writes[index], &part.metas[index]);
            if matches!(write, Write::Wake(_)) {
                // nobody asks what became of it
                continue;
            }
            if outcome != Outcome::CancelRequested {
                landed.outcomes.extend(meta.lsns.iter().map(|&lsn| (lsn, outcome.clone())));
            }
            self.tell(write, meta.tree, meta.lsns[0], &outcome);
        }
    }

    fn tell(&self, write: &Write, tree: crate::key::Key, lsn: Lsn, outcome: &Outcome) {
        let execution = write.execution();
        self.sink.settled(self.lane.number(), Settled { execution, tree, lsn, write, outcome });
    }

    /// One Write of one tree, and what comes behind it there: the Write is refused, or goes to the slow lane.
    fn set_aside(&mut self, segment: Segment, error: &StoreError, landed: &mut Landed) {
        if let StoreError::Blocked(_) = error {
            let (entry, generation) = {
                let mut staging = self.lane.staging();
                (staging.block(segment, &self.lane.0.watermark), staging.generation())
            };
            let (lane, store, sink) = (&self.lane, &self.numbered.store, &self.sink);
            let slow = self.slow.get_or_insert_with(|| slow_lane::spawn(lane, store.clone(), sink.clone()));
            if let Err(mpsc::error::SendError((entry, _))) = slow.send((entry, generation)) {
                self.drop_all(&[entry]);
            }
            return;
        }
        let (refused, dropped) = self.lane.staging().refuse(segment, &self.lane.0.watermark);
        landed.outcomes.extend(dropped);
        let outcome = Outcome::Rejected(error.to_string().into());
        landed.outcomes.extend(refused.meta.lsns.iter().map(|&lsn| (lsn, outcome.clone())));
        landed.room += refused.meta.room as usize;
        self.tell(&refused.write, refused.meta.tree, refused.meta.lsns[0], &outcome);
    }

    /// Acknowledges.
    fn publish(&self, passed: Lsn, mut landed: Landed) {
        let shared = &self.lane.0;
        {
            let mut staging = self.lane.staging();
            staging.release_collisions();
            landed.room += staging.take_freed();
        }
        let (held, waits) = shared.watermark.take_uncounted();
        self.numbered.store.counters().landed(landed.bytes, held, waits);
        let wake = shared.watermark.settle(Some(passed), landed.released, landed.outcomes);
        shared.room.add_permits(landed.room);
        crate::crash_point!("flush published");
        if wake.len() <= FEW {
            for waker in wake {
                waker.wake();
            }
            return;
        }
        // a crowd is woken from where it runs: the lane's thread has the next flush to write
        let mut parts = Some(landed.parts);
        let mut wake = wake.into_iter();
        loop {
            let some: Vec<Waker> = wake.by_ref().take(CROWD).collect();
            if some.is_empty() {
                break;
            }
            let parts = parts.take();
            shared.runtime.spawn(async move {
                for waker in some {
                    waker.wake();
                }
                drop(parts);
            });
        }
    }

    fn drop_all(&self, entries: &[Entry]) {
        let room = entries.iter().map(|entry| entry.meta.room as usize).sum();
        let lsns = entries.iter().flat_map(|entry| entry.meta.lsns.iter());
        self.lane.0.watermark.publish(None, [], lsns.map(|&lsn| (lsn, Outcome::Dropped)));
        self.lane.0.room.add_permits(room);
    }
}

/// What a flush has brought about so far.
#[derive(Default)]
struct Landed {
    released: Vec<Lsn>,
    outcomes: Outcomes,
    room: usize,
    bytes: u64,
    /// What was written, kept to be freed elsewhere.
    parts: Vec<Segment>,
}

impl Landed {
    /// Settles what has landed although the watermark will not pass it.
    fn note_applied(&mut self) {
        let lsns = self.parts.iter().flat_map(|part| part.metas.iter()).flat_map(|meta| meta.lsns.iter());
        let noted: HashSet<Lsn> = self.outcomes.iter().map(|(lsn, _)| *lsn).collect();
        let applied: Outcomes =
            lsns.filter(|lsn| !noted.contains(lsn)).map(|&lsn| (lsn, Outcome::Applied)).collect();
        self.outcomes.extend(applied);
    }
}
