//! [`Ear`]: what an engine does when it hears from its lanes: of Writes that came to something else than
//! `Applied`, of fences, of a database that cannot be trusted.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use smallvec::SmallVec;

use crate::clock::Timestamp;
use crate::commit::{Lsn, SettledWrite, CommitObserver, FoldTarget, Staged};
use crate::failure::{Failure, OUTCOME_REJECTED};
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::Core;
use crate::runtime::run::Interrupt;
use crate::store::{
    RequestResult, Checkpoint, CheckpointKind, DeleteChunks, Move, Outcome, RequestKind, Start, State, Status,
    StoreError, WorkerId, Write,
};

/// The engine's ear on its lanes.
pub(crate) struct EngineObserver(pub(crate) std::sync::Weak<Core>);

impl CommitObserver for EngineObserver {
    fn on_settled(&self, lane: u16, settled: SettledWrite<'_>) {
        let Some(core) = self.0.upgrade() else { return };
        let SettledWrite { execution, tree, lsn, write, outcome } = settled;
        match outcome {
            Outcome::Rejected(_) if !write.is_owned() => {
                if let Write::Start(start) = write {
                    core.discard_start(start);
                }
            }
            Outcome::Rejected(reason) => core.replace_rejected_write(lane, execution, tree, lsn, write, reason),
            // a Start that lost, a row that is not ours any more: the run must stop. But a child whose Start
            // met an earlier one of the same parent may be running here.
            Outcome::Duplicate(existing) if existing.key == execution => {}
            // before the Lsn that the next body waits for is settled
            Outcome::CancelRequested => {
                if let Some(run) = core.runs.get(execution) {
                    run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
                }
            }
            Outcome::RequestHandled(RequestResult::Done, parent) => {
                core.watch.notify(execution);
                core.queues.has_left();
                if let Some(parent) = parent {
                    core.stage_free(*parent, Write::Wake(*parent));
                }
            }
            Outcome::Duplicate(_) | Outcome::Deduplicated(_) | Outcome::Full | Outcome::NotFound => {
                match write {
                    Write::Start(start) => core.discard_start(start),
                    Write::Transition(_) => core.disown(execution),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn on_committed(&self, writes: &[Write]) {
        let Some(core) = self.0.upgrade() else { return };
        let watches = core.watch.has_watchers();
        let (mut is_ready, mut is_slot_free) = (false, false);
        let (mut due_at, mut deadline_at) = (i64::MAX, i64::MAX);
        for write in writes {
            let (key, state) = match write {
                Write::Start(start) => (start.key, &start.state),
                Write::Transition(change) => {
                    is_slot_free |= change.ticket.is_some() && !matches!(change.state, State::Running { .. });
                    (change.key, &change.state)
                }
                Write::Request(request) => {
                    is_ready |= request.kind == RequestKind::Resume;
                    continue;
                }
                Write::Wake(_) => {
                    is_ready = true;
                    continue;
                }
                _ => continue,
            };
            if let Write::Start(start) = write
                && let Some(at) = start.deadline_at
                && !matches!(state, State::Running { .. } | State::Ended { .. })
            {
                deadline_at = deadline_at.min(at.as_micros());
            }
            match state {
                State::Queued { .. } => is_ready = true,
                State::Scheduled { due_at: at } | State::Waiting { wake_at: Some(at), .. } => {
                    due_at = due_at.min(at.as_micros());
                }
                State::Ended { .. } | State::Parked { .. } if watches => core.watch.notify(key),
                _ => {}
            }
        }
        if due_at != i64::MAX {
            core.worker.due_at.fetch_min(due_at, SeqCst);
            core.wake_worker(false);
        }
        if deadline_at < core.worker.deadline_at.fetch_min(deadline_at, SeqCst) {
            core.worker.look.notify_one();
        }
        if is_ready {
            core.wake_worker(true);
        }
        if is_slot_free {
            core.slots_freed();
        }
    }

    fn on_fenced(&self, worker: WorkerId) {
        let Some(core) = self.0.upgrade() else { return };
        if core.registration().worker != worker {
            return;
        }
        core.fenced();
    }

    fn on_poisoned(&self, error: StoreError) {
        let Some(core) = self.0.upgrade() else { return };
        if let Some(error) = core.end_by(error) {
            core.poison(&error.to_string());
        }
    }
}

impl Core {
    /// A Start was not applied: its run stops, and what was stored for it is deleted.
    fn discard_start(&self, start: &Start) {
        self.disown(start.key);
        if start.parent.is_none() && start.input.chunk_ref().is_some() {
            self.stage_free(
                start.key,
                Write::DeleteChunks(DeleteChunks { execution: start.key, keep: SmallVec::new() }),
            );
        }
    }

    /// An execution is not there, or not ours any more: its run stops. So do those of its tree, if they rest on
    /// its Start.
    fn disown(&self, execution: Key) {
        let Some(run) = self.runs.get(execution) else { return };
        run.interrupt(Interrupt::Lost);
        if run.fate.as_ref().is_some_and(|fate| fate.has_failed() && fate.has_children()) {
            for other in self.runs.all().iter().filter(|other| other.root == execution) {
                other.interrupt(Interrupt::Lost);
            }
        }
    }

    /// The database does not accept a Write of a run: the run is given up, what takes the Write's place is
    /// staged, and the execution continues from its record.
    fn replace_rejected_write(&self, lane: u16, execution: Key, tree: Key, lsn: Lsn, write: &Write, reason: &Arc<str>) {
        tracing::error!(%execution, %reason, "the database refuses a Write");
        let run = self.runs.get(execution);
        if let Some(run) = &run {
            run.interrupt(Interrupt::Lost);
        }
        let ticket = match write {
            Write::Transition(change) => change.ticket.clone(),
            _ => run.and_then(|run| run.ticket.clone()),
        };
        let failure = Failure::with_kind(OUTCOME_REJECTED, format!("the outcome could not be recorded: {reason}"));
        let failure = Payload::from_failure(&failure.permanent());
        let instead = match write {
            Write::Checkpoint(checkpoint) if is_rejection_checkpoint(checkpoint) => None,
            Write::Checkpoint(checkpoint) => {
                let mut checkpoint = checkpoint.clone();
                checkpoint.kind = CheckpointKind::Failed;
                checkpoint.outcome = failure.clone();
                Some(Write::Checkpoint(checkpoint))
            }
            Write::Transition(change) => {
                let state = replacement_state(&change.state, &failure, self.now());
                if state.is_none() {
                    tracing::error!(%execution, "it cannot even be parked; the next engine tries again");
                }
                state.map(|state| Write::Transition(Move { key: change.key, ticket: ticket.clone(), state }))
            }
            _ => None,
        };
        let Some(lane) = self.lanes().get(usize::from(lane)) else { return };
        let ticket = lane.replace_rejected(tree, lsn, execution, instead).or(ticket);
        // back to the queue, to be replayed with the error in its place; but what would be refused again,
        // whatever it says, waits for somebody to look
        let armed = Vec::new();
        let state = match write {
            // a child's Start: its parent hears of it
            Write::Transition(_) | Write::Start(_) => return,
            Write::Checkpoint(checkpoint) if is_rejection_checkpoint(checkpoint) => {
                State::Parked { reason: checkpoint.outcome.clone(), armed }
            }
            Write::Checkpoint(_) => State::Queued { armed },
            _ => State::Parked { reason: failure, armed },
        };
        let write = Write::Transition(Move { key: execution, ticket, state });
        let staged = Staged { generation: lane.generation(), tree, write, reserved: 0, fate: None };
        lane.stage(staged, &mut FoldTarget::default());
    }
}

/// The state that takes the place of a refused one: failed; if that is refused, parked; then nothing is left.
fn replacement_state(refused: &State, failure: &Payload, at: Timestamp) -> Option<State> {
    match refused {
        State::Ended { outcome, .. } if is_rejection_failure(outcome) => {
            Some(State::Parked { reason: outcome.clone(), armed: Vec::new() })
        }
        State::Parked { reason, .. } if is_rejection_failure(reason) => None,
        _ => Some(State::Ended { status: Status::Failed, outcome: failure.clone(), at }),
    }
}

/// True if the checkpoint took the place of one that was refused.
fn is_rejection_checkpoint(checkpoint: &Checkpoint) -> bool {
    checkpoint.kind == CheckpointKind::Failed && is_rejection_failure(&checkpoint.outcome)
}

/// True if it is the failure that a refusal has led to.
fn is_rejection_failure(failure: &Payload) -> bool {
    failure.decode::<Failure>().is_ok_and(|failure| failure.kind == OUTCOME_REJECTED)
}
