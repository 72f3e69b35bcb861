//! The slow lane: commits Writes that wait for locks of other transactions, one at a time, in parallel with
//! the lane's flushes.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::flush_sender::{FlushSender, RESEND_BACKOFF};
use super::lane::Lane;
use super::observer::{CommitObserver, SettledWrite};
use super::segment::Entry;
use crate::store::{Outcome, Store, StoreError};
use crate::thread::spawn_on_thread;

/// Starts the slow lane of `lane`. Returns the channel for its Writes, each with the generation in which `lane`
/// sends it. The slow lane commits one Write at a time, however long each one waits for another transaction.
/// `lane` itself continues.
pub(super) fn spawn(
    lane: &Lane,
    store: Arc<dyn Store>,
    observer: Arc<dyn CommitObserver>,
) -> mpsc::UnboundedSender<(Entry, u32)> {
    let (send, mut entries) = mpsc::unbounded_channel::<(Entry, u32)>();
    let lane = lane.clone();
    let name = format!("stepfast-slow-{}", lane.number());
    let lane_number = lane.0.slow_lane_number;
    let run = async move {
        let mut sender = FlushSender { lane: lane.clone(), lane_number, store, last_sent: None };
        let mut waiting = VecDeque::new();
        let (mut pause, mut blocked) = (RESEND_BACKOFF.0, 0);
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
                Some(registration) => match sender.commit(registration, &mut writes, false).await {
                    Ok(mut outcomes) => outcomes.pop().map_or(Outcome::Applied, |(_, outcome)| outcome),
                    Err(StoreError::Blocked(_) | StoreError::TableLocked(_)) if !lane.is_abandoned() => {
                        // try the other Writes first: each may wait for a different lock
                        waiting.extend(writes.pop().map(|write| (Entry { write, meta }, generation)));
                        blocked += 1;
                        if blocked >= waiting.len() {
                            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                            (pause, blocked) = ((pause * 2).min(RESEND_BACKOFF.1), 0);
                        }
                        continue;
                    }
                    Err(StoreError::Rejected(reason)) => Outcome::Rejected(reason.into()),
                    Err(StoreError::Fenced) => {
                        observer.on_fenced(registration.worker);
                        Outcome::Fenced
                    }
                    Err(error @ (StoreError::Corrupt(_) | StoreError::NewerSchema { .. })) => {
                        observer.on_poisoned(error);
                        Outcome::Dropped
                    }
                    Err(_) => Outcome::Dropped,
                },
            };
            (pause, blocked) = (RESEND_BACKOFF.0, 0);
            let Some(write) = writes.pop() else { continue };
            let entry = Entry { write, meta };
            if outcome == Outcome::Fenced && !entry.write.is_owned() {
                let outcomes = lane.staging().restage(entry, &lane.0.watermark);
                lane.0.watermark.publish(None, [], outcomes);
                lane.0.committer_wakeup.notify_one();
                continue;
            }
            let is_applied = matches!(outcome, Outcome::Applied | Outcome::CancelRequested);
            let mut outcomes = lane.staging().unblock(&entry, &outcome);
            let lsns = entry.meta.lsns.iter().copied();
            let (execution, tree, lsn) = (entry.write.execution(), entry.meta.tree, entry.meta.lsns[0]);
            let settled = SettledWrite { execution, tree, lsn, write: &entry.write, outcome: &outcome };
            if is_applied {
                if outcome == Outcome::CancelRequested {
                    observer.on_settled(lane.number(), settled);
                }
                lane.0.watermark.publish(None, lsns, outcomes);
            } else {
                outcomes.extend(lsns.map(|lsn| (lsn, outcome.clone())));
                lane.0.watermark.publish(None, [], outcomes);
                observer.on_settled(lane.number(), settled);
            }
            let freed = lane.staging().take_freed();
            lane.0.budget.add_permits(entry.meta.reserved as usize + freed);
            observer.on_committed(std::slice::from_ref(&entry.write), &[]);
            lane.0.committer_wakeup.notify_one();
        }
    };
    if let Err(error) = spawn_on_thread(name, run) {
        tracing::error!(%error, "cannot start the slow lane");
    }
    send
}
