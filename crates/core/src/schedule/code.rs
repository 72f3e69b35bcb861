//! The code of the built-in workflow whose executions are schedules.
//!
//! The code waits for the next instant, for a request, and if it matters for the end of an execution that it has started. Then a
//! step decides what has passed, and the code starts the executions of these instants as children. Each has an id that contains
//! the instant, so an instant has one execution, even if its backfill is requested later.

use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::join_all;

use crate::failure::Failure;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::questions::question_topic;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::schedule::decision::{Decision, End, decide};
use crate::schedule::declaration::{SCHEDULE_WORKFLOW, Schedule, instant_id};
use crate::schedule::state::{Actions, REQUEST_TOPIC, ScheduleRequest, ScheduleState, StartedExecution};
use crate::schedule::timing::Instants;
use crate::store::{RequestKind, Status};
use crate::workflow::Workflow;
use crate::workflow::branch::Either;
use crate::workflow::child::{ChildKind, NewChild, begin_result_call, start_recorded, wait_for_result};
use crate::workflow::context::Context;
use crate::workflow::messaging::{QuestionId, answer, receive_question};

/// The name of the step that decides. Views of schedules find its outcomes by this name.
pub(crate) const DECISION: &str = "decide";

/// Number of durable calls after which a schedule continues as new.
const MAX_CALLS_PER_PART: u32 = 200;

/// Pause before a schedule tries again to compute its instants.
const UNDECIDED_PAUSE: Duration = Duration::from_secs(60);

/// The end of a schedule's wait.
enum Waited {
    Request(QuestionId, Payload),
    /// An instant has passed, an execution has ended, or there was nothing to wait for.
    Nothing,
}

/// Returns the built-in workflow whose executions are schedules.
pub(crate) fn schedule_workflow() -> &'static Workflow<ScheduleState, ()> {
    static WORKFLOW: OnceLock<Workflow<ScheduleState, ()>> = OnceLock::new();
    WORKFLOW.get_or_init(|| Workflow::new(SCHEDULE_WORKFLOW, run_schedule))
}

/// Runs a part of a schedule.
async fn run_schedule(mut cx: Context, mut state: ScheduleState) -> Result<(), Failure> {
    let mut calls = 0;
    loop {
        if calls >= MAX_CALLS_PER_PART {
            return cx.continue_as_new(&state).await;
        }
        if let Waited::Request(question, request) = wait(&mut cx, &state).await? {
            calls += handle_request(&mut cx, &mut state, &question, &request).await;
        }
        let decision = make_decision(&mut cx, &state).await?;
        let actions = state.apply_decision(&decision);
        calls += 4 + act(&mut cx, &mut state, actions).await;
    }
}

/// Waits until there is something to do.
async fn wait(cx: &mut Context, state: &ScheduleState) -> Result<Waited, Failure> {
    let awaited = if state.awaits_ends() { state.running.first() } else { None };
    match awaited.filter(|_| !state.has_work()) {
        None => wait_for_request(cx, state).await,
        Some(execution) => {
            let ended = |mut cx: Context| async move { wait_for_end(&mut cx, execution).await };
            let request = |mut cx: Context| async move { wait_for_request(&mut cx, state).await };
            match cx.race(request, ended).await {
                Either::First(waited) => waited,
                Either::Second(()) => Ok(Waited::Nothing),
            }
        }
    }
}

/// Waits for a request until the next instant has passed.
async fn wait_for_request(cx: &mut Context, state: &ScheduleState) -> Result<Waited, Failure> {
    let path = cx.next_path();
    let topic = question_topic(REQUEST_TOPIC).map_err(|error| error.to_failure())?;
    let call = Call::begin(&cx.run, path, &topic.into(), CallKind::Receive, None);
    let timeout = time_to_wait(&cx.run.engine, state);
    Ok(match receive_question(&call, timeout).await? {
        Some((question, value)) => Waited::Request(question, value),
        None => Waited::Nothing,
    })
}

/// Returns the time until the next instant, with its jitter; `None` if there is none to wait for.
fn time_to_wait(engine: &EngineInner, state: &ScheduleState) -> Option<Duration> {
    if state.has_work() {
        return Some(Duration::ZERO);
    }
    if state.is_undecided && state.pause.is_none() {
        return Some(UNDECIDED_PAUSE);
    }
    let next = state.next.filter(|_| state.pause.is_none())?;
    let due_at = Instants::new(state.schedule.as_ref()?).ok()?.due_at(next);
    Some(due_at.since(engine.now()))
}

/// Waits for the end of an execution that the schedule has started.
async fn wait_for_end(cx: &mut Context, execution: &StartedExecution) {
    let path = cx.next_path();
    let Some(key) = execution.key() else { return };
    let call = begin_result_call(&cx.run, path, &execution.workflow_id.as_str().into());
    // the decision reads how the execution has ended
    let _ = wait_for_result::<Payload>(&call, key).await;
}

/// Applies a request and answers it. Returns the number of calls.
async fn handle_request(
    cx: &mut Context,
    state: &mut ScheduleState,
    question: &QuestionId,
    request: &Payload,
) -> u32 {
    let mut result = match request.decode::<ScheduleRequest>() {
        Ok(request) => {
            let applied = state.apply_request(&request).map_err(|reason| Failure::new(reason).permanent());
            match (request, applied) {
                (ScheduleRequest::Trigger { workflow_id }, Ok(())) => start(cx, state, workflow_id).await,
                (_, applied) => applied,
            }
        }
        Err(error) => Err(error.to_failure()),
    };
    if let Err(failure) = &mut result {
        failure.message = format!("the schedule refuses the request: {}", failure.message);
    }
    let answered = async {
        let value = match result {
            Ok(()) => Ok(Payload::encode(&()).map_err(|error| error.to_failure())?),
            Err(failure) => Err(failure),
        };
        let call = cx.begin_answer(question).map_err(|error| error.to_failure())?;
        answer(&call, value).await
    };
    if let Err(failure) = answered.await {
        tracing::warn!(%failure, "a schedule could not answer a request");
    }
    2
}

/// Decides which instants have passed, and which executions have ended.
async fn make_decision(cx: &mut Context, state: &ScheduleState) -> Result<Decision, Failure> {
    let engine = cx.run.engine.clone();
    cx.step(DECISION, async || {
        let ended = find_ends(&engine, state).await?;
        Ok::<_, Failure>(decide(state, engine.now(), ended))
    })
    .await
}

/// Returns the ends of the executions that the schedule has started. An execution that is not in the database any more counts as
/// cancelled.
async fn find_ends(engine: &EngineInner, state: &ScheduleState) -> Result<Vec<End>, Failure> {
    let status_of = |execution: &StartedExecution| {
        let key = execution.key();
        async move {
            let Some(key) = key else { return Ok(Some(Status::Cancelled)) };
            let load = || engine.load_execution(key);
            let found = engine.query_with_retry(load).await.map_err(|error| error.to_failure())?;
            Ok::<_, Failure>(
                found.map_or(Some(Status::Cancelled), |it| it.status.is_terminal().then_some(it.status)),
            )
        }
    };
    let statuses = join_all(state.running.iter().map(status_of)).await;
    let mut ends = Vec::new();
    for (execution, status) in state.running.iter().zip(statuses) {
        let has_failed = match status? {
            Some(Status::Completed) => Some(false),
            Some(Status::Failed) => Some(true),
            Some(_) => None,
            None => continue,
        };
        ends.push(End { workflow_id: execution.workflow_id.clone(), has_failed });
    }
    Ok(ends)
}

/// Starts and cancels executions. Returns the number of calls.
async fn act(cx: &mut Context, state: &mut ScheduleState, actions: Actions) -> u32 {
    if actions.cancels_running {
        let engine = cx.run.engine.clone();
        let keys: Vec<Key> = state.running.iter().filter_map(StartedExecution::key).collect();
        let cancelled = cx.step("cancel", async || {
            for key in &keys {
                engine.request_by_key(*key, RequestKind::Cancel).await.map_err(|error| error.to_failure())?;
            }
            Ok::<_, Failure>(())
        });
        if let Err(failure) = cancelled.await {
            state.error = Some(failure.to_string());
        }
    }
    let count = actions.starts.len() as u32;
    for instant in actions.starts {
        let Some(name) = state.name() else { break };
        // a failed start is in the state
        let _ = start(cx, state, instant_id(&name, instant)).await;
    }
    count + u32::from(actions.cancels_running)
}

/// Starts an execution with this id, and notes the result in the state.
async fn start(cx: &mut Context, state: &mut ScheduleState, workflow_id: String) -> Result<(), Failure> {
    let Some(schedule) = &state.schedule else { return Ok(()) };
    let started = start_child(cx, schedule, workflow_id.clone()).await;
    match &started {
        Ok(key) => state.note_started(StartedExecution { workflow_id, key: key.to_string() }),
        Err(failure) => state.note_failed_start(&workflow_id, failure),
    }
    started.map(|_| ())
}

async fn start_child(cx: &mut Context, schedule: &Schedule, workflow_id: String) -> Result<Key, Failure> {
    let path = cx.next_path();
    let definition = Workflow::<(), ()>::named(&schedule.workflow).definition;
    let input = schedule.input();
    let fingerprint = input.fingerprint();
    let options = Some(Box::new(schedule.start_options(workflow_id)));
    start_recorded(
        &cx.run,
        path,
        NewChild { definition, input, fingerprint, options, kind: ChildKind::Scheduled },
    )
    .await
}
