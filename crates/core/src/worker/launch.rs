//! Launching: a claimed execution begins to run in this process, from its record.

use std::future::poll_fn;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit::Lane;
use crate::error::Error;
use crate::failure::{Failure, KILLS_WORKERS, UNREADABLE};
use crate::payload::Payload;
use crate::runtime::inner::Core;
use crate::runtime::run::replay::Replay;
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{Interrupt, NewRun, Run};
use crate::store::{DeleteChunks, QUARANTINE_STRIKES, Record, RequestKind, Write};
use crate::worker::quarantine::exceeds_max_recoveries;

/// Returns the generations of all lanes. To be read before the store is asked for executions, so that a reply is not
/// taken for ownership under a later registration.
pub(crate) fn lane_generations(core: &Core) -> Vec<u32> {
    core.lanes().iter().map(Lane::generation).collect()
}

/// Runs an execution from its record. The worker owned it under `generations`; returns `None` if it no longer does.
pub(crate) fn launch(core: &Arc<Core>, mut record: Record, generations: &[u32]) -> Option<Arc<Run>> {
    let execution = record.execution.clone();
    let lane = core.lane_of(execution.root);
    let generation = generations.get(usize::from(lane.number())).copied().unwrap_or_default();
    if generation != lane.generation() {
        // taken over in the meantime
        core.release_slot();
        return None;
    }
    let Some(definition) = core.definitions.get(&execution.workflow).cloned() else {
        // cannot happen: a claim names the registered workflows
        core.release_slot();
        return None;
    };
    // a disowned run may have left chunks behind that nothing refers to
    let swept = (execution.recoveries > 0).then(|| values_in(&record));
    let (replay, attempts) = Replay::of(&mut record);
    let run = Run::new(
        core.clone(),
        definition,
        NewRun {
            key: execution.key,
            root: execution.root,
            parent: execution.parent.clone(),
            given_id: execution.given_id.clone(),
            run_no: execution.run_no,
            created_at: execution.created_at,
            deadline_at: execution.deadline_at,
            ticket: execution.placement.clone(),
            start: None,
            start_room: 0,
            replay,
            attempts,
            armed: execution.pending_sleeps.clone(),
            is_replayed: true,
            generation,
            fate: None,
        },
    );
    run.register();
    if run.definition.holds_thread() {
        core.read_ahead.begun();
    }
    if record.requests.contains(&RequestKind::Cancel) {
        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
    } else if run.deadline_at.is_some_and(|deadline_at| deadline_at <= core.now()) {
        run.interrupt(Interrupt::Cancel(Failure::deadline_reached().into()));
    } else if exceeds_max_recoveries(execution.strikes, core.options.max_recoveries) {
        run.interrupt(Interrupt::Fail(killer_failure(execution.strikes).into()));
    } else if let Some(reason) = &execution.unreadable {
        run.interrupt(Interrupt::Park(Failure::unreadable_record(reason).into()));
    } else if core.is_draining() {
        // the claim was under way when the draining began
        run.interrupt(Interrupt::HandBack);
    }
    let adopted = run.clone();
    let core = core.clone();
    let runtime = core.runtime.clone();
    runtime.spawn(async move {
        if let Some(keep) = swept
            && let Some(lsn) = run.stage(Write::DeleteChunks(DeleteChunks { execution: run.key, keep }), 0)
        {
            run.lane().wait_durable(lsn).await;
        }
        let input =
            core.ask(|| crate::runtime::run::chunks::fetch(&core, run.key, execution.input.clone())).await;
        let input = input.unwrap_or_else(|error| {
            let failure = Failure::with_kind(UNREADABLE, format!("the input cannot be read: {error}"));
            run.interrupt(match error {
                Error::Unavailable(_) => Interrupt::HandBack,
                _ => Interrupt::Park(failure.permanent().into()),
            });
            Payload::empty()
        });
        let mut task = RunTask::executing(run, &input);
        poll_fn(|cx| task.poll_conclusion(cx, &input)).await;
    });
    Some(adopted)
}

/// Returns the failure of an execution that has killed its worker too often.
fn killer_failure(strikes: u32) -> Failure {
    let times = strikes - QUARANTINE_STRIKES;
    let message = format!(
        "its worker died {QUARANTINE_STRIKES} times in a row without a new checkpoint of it, and then {times} times while \
         it was tried alone; find out what kills the process (memory, a crash in native code), then resume it"
    );
    Failure::with_kind(KILLS_WORKERS, message).permanent()
}

/// Returns the values stored in chunks that a record refers to.
fn values_in(record: &Record) -> SmallVec<[u64; 4]> {
    let Record { execution, checkpoints, attempts, .. } = record;
    [&execution.input, &execution.outcome]
        .into_iter()
        .chain(checkpoints.iter().map(|checkpoint| &checkpoint.outcome))
        .chain(attempts.iter().map(|attempt| &attempt.failure))
        .filter_map(|payload| payload.chunk_ref().map(|chunks| chunks.value))
        .collect()
}
