//! The slow lane: Writes that wait for locks of other transactions, one at a time, beside the lane's flushes.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::flush_sender::{FlushSender, RESEND_AFTER};
use super::lane::Lane;
use super::segment::Entry;
use super::{Settled, Sink};
use crate::store::{Outcome, Store, StoreError};
use crate::thread::spawn_on_thread;

/// Starts the lane's slow lane: it commits Writes that wait for somebody else's transaction, each alone and in turn,
/// for as long as it takes, while the lane itself goes on.
pub(super) fn spawn(
    lane: &Lane,
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
) -> mpsc::UnboundedSender<(Entry, u32)> {
    let (send, mut entries) = mpsc::unbounded_channel::<(Entry, u32)>();
    let lane = lane.clone();
    let name = format!("stepfast-slow-{}", lane.number());
    let number = lane.0.slow_number;
    let run = async move {
        let mut numbered = FlushSender { lane: lane.clone(), number, store, sent: None };
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
                    Err(StoreError::Rejected(reason)) => Outcome::Rejected(reason.into()),
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
            let is_applied = matches!(outcome, Outcome::Applied | Outcome::CancelRequested);
            let mut outcomes = lane.staging().unblock(&entry, &outcome);
            let lsns = entry.meta.lsns.iter().copied();
            let (execution, tree, lsn) = (entry.write.execution(), entry.meta.tree, entry.meta.lsns[0]);
            let settled = Settled { execution, tree, lsn, write: &entry.write, outcome: &outcome };
            if is_applied {
                if outcome == Outcome::CancelRequested {
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
