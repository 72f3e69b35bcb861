//! Launching: a claimed execution begins to run in this process, from its record.

use std::future::poll_fn;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit::Lane;
use crate::error::Error;
use crate::failure::{Failure, KILLS_WORKERS, UNREADABLE};
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::replay::{LastPart, Replay};
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{Interrupt, NewRun, Run};
use crate::store::{DeleteChunks, QUARANTINE_STRIKES, Record, RequestKind, Write};
use crate::worker::bundle::ClaimedBundle;
use crate::worker::quarantine::exceeds_max_recoveries;

/// Returns the generations of all lanes. Callers read the generations before they request executions from the store, so
/// that a reply never counts as ownership under a later registration.
pub(crate) fn lane_generations(engine: &EngineInner) -> Vec<u32> {
    engine.lanes().iter().map(Lane::generation).collect()
}

/// Runs an execution from its record. The worker owned the execution under `generations`. Returns `None` if the worker
/// no longer owns it.
pub(crate) fn launch(engine: &Arc<EngineInner>, mut record: Record, generations: &[u32]) -> Option<Arc<Run>> {
    let execution = record.execution.clone();
    let lane = engine.lane_of(execution.root);
    let generation = generations.get(usize::from(lane.number())).copied().unwrap_or_default();
    if generation != lane.generation() {
        // this worker was taken over in the meantime
        engine.release_slot();
        return None;
    }
    let Some(mut definition) = engine.definitions.get(&execution.workflow).cloned() else {
        // this cannot happen: a claim names the registered workflows
        engine.release_slot();
        return None;
    };
    let mut chunk_deletions = Vec::new();
    let bundle = ClaimedBundle::take(engine, &mut record, &definition);
    let is_bundle = bundle.is_some();
    if let Some(bundle) = bundle {
        (definition, chunk_deletions) = (bundle.definition, bundle.chunk_deletions);
    }
    let mut part = LastPart::take(&mut record);
    // a disowned run may have left chunks to which no row refers; the rows of earlier parts were not loaded
    if execution.recoveries > 0 && part.part == 0 {
        let keep = chunk_values_in(&record);
        chunk_deletions.push(Write::DeleteChunks(DeleteChunks { execution: execution.key, keep }));
    }
    let input = part.input.take().unwrap_or_else(|| execution.input.clone());
    let (replay, attempts) = Replay::from_record(&mut record);
    let run = Run::new(
        engine.clone(),
        definition,
        NewRun {
            key: execution.key,
            root: execution.root,
            parent: execution.parent.clone(),
            given_id: execution.given_id.clone(),
            run_no: execution.run_no,
            created_at: execution.created_at,
            deadline_at: execution.deadline_at,
            placement: execution.placement.clone(),
            start: None,
            start_reserved: 0,
            item: None,
            replay,
            attempts,
            part,
            pending_sleeps: execution.pending_sleeps.clone(),
            is_replayed: true,
            generation,
            fate: None,
        },
    );
    run.register();
    if run.definition.holds_thread() {
        engine.read_ahead.note_claimed();
    }
    if record.requests.contains(&RequestKind::Cancel) {
        run.interrupt(Interrupt::Cancel(Failure::cancelled().into()));
    } else if run.deadline_at.is_some_and(|deadline_at| deadline_at <= engine.now()) {
        run.interrupt(Interrupt::Cancel(Failure::deadline_reached().into()));
    } else if !is_bundle && exceeds_max_recoveries(execution.strikes, engine.options.max_recoveries) {
        run.interrupt(Interrupt::Fail(kills_workers_failure(execution.strikes).into()));
    } else if let Some(reason) = &execution.unreadable {
        run.interrupt(Interrupt::Park(Failure::unreadable_record(reason).into()));
    } else if record.requests.contains(&RequestKind::Pause) {
        run.interrupt(Interrupt::Pause);
    } else if engine.is_draining() {
        // the claim was under way when the draining began
        run.interrupt(Interrupt::Requeue);
    }
    let launched = run.clone();
    let engine = engine.clone();
    let runtime = engine.runtime.clone();
    runtime.spawn(async move {
        let deletions = chunk_deletions.into_iter().filter_map(|deletion| run.stage(deletion, 0));
        if let Some(last) = deletions.last() {
            run.lane().wait_durable(last).await;
        }
        let input = engine
            .query_with_retry(|| crate::runtime::run::chunks::fetch(&engine, run.key, input.clone()))
            .await;
        let input = input.unwrap_or_else(|error| {
            let failure = Failure::with_kind(UNREADABLE, format!("the input cannot be read: {error}"));
            run.interrupt(match error {
                Error::Unavailable(_) => Interrupt::Requeue,
                _ => Interrupt::Park(failure.permanent().into()),
            });
            Payload::empty()
        });
        let mut task = RunTask::begin_executing(run, &input);
        poll_fn(|cx| task.poll_conclusion(cx, &input)).await;
    });
    Some(launched)
}

/// Returns the failure of an execution that has killed its worker too often.
fn kills_workers_failure(strikes: u32) -> Failure {
    let times = strikes - QUARANTINE_STRIKES;
    let message = format!(
        "its worker died {QUARANTINE_STRIKES} times in a row without a new checkpoint or attempt, and then {times} \
         times while the execution was tried alone; find out what kills the process (memory, a crash in native code), \
         then resume the execution"
    );
    Failure::with_kind(KILLS_WORKERS, message).permanent()
}

/// Returns the numbers of the chunked values to which a record refers.
fn chunk_values_in(record: &Record) -> SmallVec<[u64; 4]> {
    let Record { execution, checkpoints, .. } = record;
    // failures of attempts are never chunked
    [&execution.input, &execution.outcome]
        .into_iter()
        .chain(checkpoints.iter().map(|checkpoint| &checkpoint.outcome))
        .filter_map(|payload| payload.chunk_ref().map(|chunks| chunks.value))
        .collect()
}
