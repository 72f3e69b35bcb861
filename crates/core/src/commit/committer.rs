//! The committer of a lane: takes what is staged, commits it as numbered flushes, publishes outcomes.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use super::segment::{Entry, Segment};
use super::staging::{Outcomes, Taken};
use super::{Lane, Lsn, Settled, Sink};
use crate::error::Error;
use crate::failure::Failure;
use crate::store::{Registration, Store, StoreError};
use crate::thread::spawn_on_thread;
use crate::write::{Flush, Outcome, Write};

/// Pause before an unanswered flush is sent again: doubles from the first to the second, with jitter.
const RESEND_AFTER: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

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
        let numbered = Numbered { lane: lane.clone(), number: lane.number(), store, sent: None };
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
    numbered: Numbered,
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
            if outcome != Outcome::CancelAsked {
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
            let slow = self.slow.get_or_insert_with(|| slow_lane(lane, store.clone(), sink.clone()));
            if let Err(mpsc::error::SendError((entry, _))) = slow.send((entry, generation)) {
                self.drop_all(&[entry]);
            }
            return;
        }
        let (refused, dropped) = self.lane.staging().refuse(segment, &self.lane.0.watermark);
        landed.outcomes.extend(dropped);
        let outcome = Outcome::Refused(error.to_string().into());
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

/// Numbers the flushes of a lane of a registration, and finds out what becomes of each.
struct Numbered {
    lane: Lane,
    /// The lane's number in the registration.
    number: u16,
    store: Arc<dyn Store>,
    /// The registration whose flushes are being numbered, and the last number.
    sent: Option<(Registration, i64)>,
}

impl Numbered {
    /// Commits `writes` as the next flush. Returns `Unavailable` only when the lane is giving up.
    async fn commit(
        &mut self,
        registration: Registration,
        writes: &mut Vec<Write>,
        is_bisecting: bool,
    ) -> Result<Vec<(usize, Outcome)>, StoreError> {
        let last = match self.sent {
            Some((sent, last)) if sent.worker == registration.worker => last,
            _ => 0,
        };
        let mut flush = Flush {
            worker: registration.worker,
            lane: self.number,
            epoch: registration.epoch,
            number: last + 1,
            is_resent: false,
            is_bisecting,
            writes: std::mem::take(writes),
        };
        let mut pause = RESEND_AFTER.0;
        let result = loop {
            let result = tokio::select! {
                biased;
                answer = AssertUnwindSafe(self.store.commit(&flush)).catch_unwind() => {
                    // nobody knows what a store that panics has left behind
                    answer.unwrap_or_else(|panic| {
                        Err(StoreError::Corrupt(format!("the store failed: {}", Failure::from_panic(&*panic).message)))
                    })
                }
                () = self.lane.gave_up() => Err(StoreError::Unavailable("the database does not answer".into())),
            };
            match result {
                Err(StoreError::Unavailable(reason)) => {
                    if self.lane.is_giving_up() {
                        break Err(StoreError::Unavailable(reason));
                    }
                    if !flush.is_resent {
                        tracing::warn!(
                            lane = self.number,
                            reason,
                            "the database does not answer; trying again"
                        );
                    }
                    flush.is_resent = true;
                    tokio::select! {
                        () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())) => {}
                        () = self.lane.gave_up() => {}
                    }
                    pause = (pause * 2).min(RESEND_AFTER.1);
                }
                result => {
                    if flush.is_resent {
                        tracing::info!(lane = self.number, "the database answers again");
                    }
                    break result;
                }
            }
        };
        *writes = flush.writes;
        self.sent = Some((registration, if result.is_ok() { last + 1 } else { last }));
        result
    }
}

/// Starts the lane's slow lane: it commits Writes that wait for somebody else's transaction, each alone and in turn,
/// for as long as it takes, while the lane itself goes on.
fn slow_lane(lane: &Lane, store: Arc<dyn Store>, sink: Arc<dyn Sink>) -> mpsc::UnboundedSender<(Entry, u32)> {
    let (send, mut entries) = mpsc::unbounded_channel::<(Entry, u32)>();
    let lane = lane.clone();
    let name = format!("stepfast-slow-{}", lane.number());
    let number = lane.0.slow_number;
    let run = async move {
        let mut numbered = Numbered { lane: lane.clone(), number, store, sent: None };
        let mut waiting = VecDeque::new();
        let (mut pause, mut blocked) = (RESEND_AFTER.0, 0);
        loop {
            if waiting.is_empty() {
                waiting.extend(entries.recv().await);
            }
            while let Ok(entry) = entries.try_recv() {
                waiting.push_back(entry);
            }
            let Some((Entry { write, meta }, generation)) = waiting.pop_front() else { break };
            let mut writes = vec![write];
            let registration = {
                let staging = lane.staging();
                staging.registration().filter(|_| staging.generation() == generation)
            };
            let outcome = match registration {
                None => Outcome::Fenced,
                Some(registration) => match numbered.commit(registration, &mut writes, false).await {
                    Ok(mut outcomes) => outcomes.pop().map_or(Outcome::Applied, |(_, outcome)| outcome),
                    Err(StoreError::Blocked(_)) if !lane.is_giving_up() => {
                        // the others first: none waits for what another one waits for
                        waiting.extend(writes.pop().map(|write| (Entry { write, meta }, generation)));
                        blocked += 1;
                        if blocked >= waiting.len() {
                            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                            (pause, blocked) = ((pause * 2).min(RESEND_AFTER.1), 0);
                        }
                        continue;
                    }
                    Err(StoreError::Rejected(reason)) => Outcome::Refused(reason.into()),
                    Err(StoreError::Fenced) => {
                        sink.fenced(registration.worker);
                        Outcome::Fenced
                    }
                    Err(error @ (StoreError::Corrupt(_) | StoreError::NewerSchema { .. })) => {
                        sink.poisoned(error);
                        Outcome::Dropped
                    }
                    Err(_) => Outcome::Dropped,
                },
            };
            (pause, blocked) = (RESEND_AFTER.0, 0);
            let Some(write) = writes.pop() else { continue };
            let entry = Entry { write, meta };
            if outcome == Outcome::Fenced && !entry.write.is_owned() {
                let outcomes = lane.staging().stage_again(entry, &lane.0.watermark);
                lane.0.watermark.publish(None, [], outcomes);
                lane.0.staged.notify_one();
                continue;
            }
            let is_applied = matches!(outcome, Outcome::Applied | Outcome::CancelAsked);
            let mut outcomes = lane.staging().unblock(&entry, &outcome);
            let lsns = entry.meta.lsns.iter().copied();
            let (execution, tree, lsn) = (entry.write.execution(), entry.meta.tree, entry.meta.lsns[0]);
            let settled = Settled { execution, tree, lsn, write: &entry.write, outcome: &outcome };
            if is_applied {
                if outcome == Outcome::CancelAsked {
                    sink.settled(lane.number(), settled);
                }
                lane.0.watermark.publish(None, lsns, outcomes);
            } else {
                outcomes.extend(lsns.map(|lsn| (lsn, outcome.clone())));
                lane.0.watermark.publish(None, [], outcomes);
                sink.settled(lane.number(), settled);
            }
            let freed = lane.staging().take_freed();
            lane.0.room.add_permits(entry.meta.room as usize + freed);
            sink.landed(std::slice::from_ref(&entry.write));
            lane.0.staged.notify_one();
        }
    };
    if let Err(error) = spawn_on_thread(name, run) {
        tracing::error!(%error, "cannot start the slow lane");
    }
    send
}
