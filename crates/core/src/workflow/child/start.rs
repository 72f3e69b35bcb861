//! Starts of children: as calls of their own, or within the calls that await them.

use std::future::poll_fn;
use std::sync::Arc;

use smallvec::SmallVec;

use super::wait::recorded_key;
use crate::commit::{DurableFuture, FoldTarget, Lsn};
use crate::error::Error;
use crate::failure::Failure;
use crate::key::Key;
use crate::path::Path;
use crate::payload::Payload;
use crate::queue::{OnDuplicate, Placement};
use crate::runtime::definition::Definition;
use crate::runtime::run::call::Call;
use crate::runtime::run::chunks::{self, ChunkTarget};
use crate::runtime::run::replay::CallKind;
use crate::runtime::run::task::RunTask;
use crate::runtime::run::{ChildState, Interrupt, NewRun, Run};
use crate::runtime::runs::ExpectedRun;
use crate::runtime::start::options::StartOptions;
use crate::store::{self, CheckpointKind, DeleteChunks, ExistingExecution, Outcome, Parent, Write};

/// A child to be started.
pub(crate) struct NewChild {
    pub(crate) definition: Arc<Definition>,
    pub(crate) input: Payload,
    /// The fingerprint of the input.
    pub(crate) fingerprint: u64,
    /// The options of the start; `None` for the defaults.
    pub(crate) options: Option<Box<StartOptions>>,
    pub(crate) kind: ChildKind,
}

/// The relation of a child to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildKind {
    /// Cancelling the parent cancels the child. The call identifies the child.
    Awaited,
    /// Cancelling the parent does not cancel the child.
    Detached,
    /// Like an awaited child, but with a workflow_id. Any worker runs the child, with any version of the code.
    Scheduled,
}

/// The reason of the conflict with an execution that has the id of a scheduled child.
const STARTED_BEFORE: &str = "an execution was started with it before";

/// Starts a child as a call of its own and records the start. Every replay continues with the same child, even in a
/// later run of the execution.
pub(crate) async fn start_recorded(run: &Arc<Run>, path: Path, child: NewChild) -> Result<Key, Failure> {
    // read first: until the call has begun, no delivery can change this time
    let last_delivery_at = run.state().delivery.delivered_at;
    let call = begin_start_call(run, path, &child.definition, child.fingerprint);
    if let Some(recorded) = recorded_start(&call, child.kind == ChildKind::Detached).await {
        return recorded;
    }
    let key = Key::derive_at(run.key, run.run_no, &call.path, last_delivery_at);
    let started = start_or_attach(&call, child, key).await;
    record_start(&call, started).await
}

/// Begins the call that starts a child or a batch. `fingerprint` is that of the input.
pub(super) fn begin_start_call(
    run: &Arc<Run>,
    path: Path,
    definition: &Definition,
    fingerprint: u64,
) -> Call {
    Call::begin(run, path, &definition.name.clone().into(), CallKind::ChildStart, Some(fingerprint))
}

/// Returns the key or the failure that a start has recorded; `None` if the start is not recorded.
pub(super) async fn recorded_start(call: &Call, is_detached: bool) -> Option<Result<Key, Failure>> {
    let delivery = call.wait_recorded().await?;
    if delivery.kind == CheckpointKind::Failed {
        return Some(Err(delivery.outcome.to_failure()));
    }
    let run = &call.run;
    let key = recorded_key(call, &delivery.outcome).await;
    if !is_detached {
        let state = if run.engine.runs.get(key).is_some() { ChildState::Local } else { ChildState::Remote };
        run.state().children.insert(key, state);
    }
    Some(Ok(key))
}

/// Records a start, and returns its result.
pub(super) async fn record_start(call: &Call, started: Result<Key, Failure>) -> Result<Key, Failure> {
    match &started {
        Ok(key) => {
            crate::crash_point!("child started and not recorded");
            call.deliver(CheckpointKind::Started, Payload::encode(&key.to_string())?, 0).await;
        }
        Err(failure) => {
            call.deliver_failure(failure).await;
        }
    }
    started
}

/// Starts the child of a call, or attaches to an existing execution. That execution was started by an earlier run of
/// the parent, or by an earlier start with the same workflow, id and input.
pub(super) async fn start_or_attach(call: &Call, child: NewChild, key: Key) -> Result<Key, Failure> {
    let NewChild { definition, input, fingerprint, options, kind } = child;
    let (is_detached, is_scheduled) = (kind == ChildKind::Detached, kind == ChildKind::Scheduled);
    let run = &call.run;
    let engine = &run.engine;
    if !is_scheduled {
        check_registered(call, &definition)?;
    }
    let limit = engine.options.value_limit;
    if input.len() > limit {
        let value = format!("the input of child {:?}", &*definition.name);
        return Err(Error::TooLarge { value, size: input.len(), limit }.to_failure());
    }
    let options = options.as_deref().unwrap_or(StartOptions::DEFAULTS);
    if run.is_replayed
        && !is_detached
        && !options.has_id()
        && engine.runs.get(key).is_some_and(|child| child.is_started_child_of(run.key))
    {
        // the child's row decides whether the child has ended
        run.state().children.insert(key, ChildState::Remote);
        return Ok(key);
    }
    let placement = resolve_placement(call, options, kind).await?;
    run.stage_row();
    let attributes = options.attributes.size();
    let (stored, mut reserved) =
        chunks::store(ChunkTarget::for_run(run, key), input.clone(), attributes).await;
    loop {
        let is_local = placement.is_none() && options.due.is_none() && !is_scheduled && engine.take_slot();
        if !is_detached {
            let state = if is_local { ChildState::Local } else { ChildState::Remote };
            run.state().children.insert(key, state);
        }
        let parent = Parent { key: run.key, is_detached };
        let created_at = engine.now();
        let (deadline_at, run_timeout) = options.time_limits(created_at, is_local);
        // an earlier run of this execution may have started the child, and another execution may have the id of the
        // child
        let is_guarded = run.is_replayed || options.has_id();
        let new = store::Start {
            key,
            root: run.root,
            parent: Some(parent.clone()),
            workflow_id: options.workflow_id.clone(),
            workflow: definition.name.clone(),
            app_version: engine.info.app_version.clone().filter(|_| !options.is_unversioned),
            placement: placement.clone(),
            fingerprint: options.workflow_id.is_some().then_some(fingerprint),
            input: stored.clone(),
            created_at,
            deadline_at,
            item_count: None,
            is_guarded,
            has_begun: false,
            self_claims: false,
            dedup_id: options.dedup_id.clone(),
            debounce_window: None,
            run_timeout,
            attributes: options.attributes.clone(),
            state: options.initial_state(created_at, is_local),
        };
        let child = is_local.then(|| new_child_run(run, &new, &definition, parent));
        let outcome = if is_guarded {
            start_guarded(run, new, reserved, child, input.clone()).await
        } else {
            start_new(run, new, reserved, child, &input)
        };
        if outcome == Outcome::Deduplicated(None) {
            // the execution with the same dedup_id has ended in the meantime: reserve budget and try again
            reserved = chunks::reserve_row(run.lane(), &stored, attributes).await;
            continue;
        }
        let is_other = match &outcome {
            Outcome::Duplicate(existing) => existing.key != key,
            outcome => matches!(outcome, Outcome::Deduplicated(_)),
        };
        if is_other && stored.chunk_ref().is_some() {
            let discarded = DeleteChunks { execution: key, keep: SmallVec::new() };
            engine.stage_unowned(key, Write::DeleteChunks(discarded));
        }
        return match outcome {
            Outcome::Applied => Ok(key),
            Outcome::Duplicate(existing) if existing.key != key => {
                let id = options.workflow_id.as_deref();
                if is_scheduled {
                    let (workflow_id, reason) =
                        (id.unwrap_or_default().to_owned(), STARTED_BEFORE.to_owned());
                    return Err(Error::Conflict { workflow_id, reason }.to_failure());
                }
                let checked = definition.check_same_start(&existing, id, Some(fingerprint));
                checked.map(|()| existing.key).map_err(|error| error.to_failure())
            }
            Outcome::Duplicate(existing) if existing.parent == Some(run.key) => {
                // the child may run here, or may have ended a moment ago: the child's row decides
                if let Some(child @ ChildState::Local) = run.state().children.get_mut(&key) {
                    *child = ChildState::Remote;
                }
                Ok(key)
            }
            Outcome::Duplicate(existing) => Err(Failure::new(format!(
                "the child's key {key} belongs to an execution of {:?} that this execution has not started",
                &*existing.workflow
            ))
            .permanent()),
            Outcome::Deduplicated(Some(existing)) => resolve_deduplicated(options, &definition, &existing),
            Outcome::Rejected(reason) => Err(rejected_start(&reason)),
            // the run is closed or disowned: its task stops the code
            _ => std::future::pending().await,
        };
    }
}

/// Returns an error if the workflow of a child is not registered.
pub(super) fn check_registered(call: &Call, definition: &Definition) -> Result<(), Failure> {
    let definitions = &call.run.engine.definitions;
    if definitions.get(&definition.name).is_some() {
        return Ok(());
    }
    let mut failure = definitions.unknown_error(&definition.name).to_failure();
    let parent = &*call.run.definition.name;
    failure.message = format!("workflow {parent:?} cannot start a child: {}", failure.message);
    Err(failure)
}

/// Returns the failure of a start that the store has rejected.
pub(super) fn rejected_start(reason: &str) -> Failure {
    let message = format!("the child could not be started: {reason}");
    Failure::with_kind(crate::failure::OUTCOME_REJECTED, message).permanent()
}

/// Returns the key of the unfinished execution that has the dedup_id of a start, if the start accepts it.
fn resolve_deduplicated(
    options: &StartOptions,
    definition: &Definition,
    existing: &ExistingExecution,
) -> Result<Key, Failure> {
    if options.on_duplicate == OnDuplicate::ReturnExisting && existing.workflow == definition.name {
        return Ok(existing.key);
    }
    let text = |option: &Option<Arc<str>>| option.as_deref().unwrap_or_default().to_owned();
    let error = Error::Deduplicated {
        queue: text(&options.queue),
        dedup_id: text(&options.dedup_id),
        workflow_id: existing.workflow_id(),
    };
    Err(error.to_failure())
}

/// Starts a child that cannot exist yet, because its parent was never claimed. The child runs at once, but its bodies
/// wait until its Start is durable.
fn start_new(
    run: &Run,
    new: store::Start,
    reserved: u32,
    child: Option<Arc<Run>>,
    input: &Payload,
) -> Outcome {
    if let Some(child) = &child {
        // the run is registered before its row exists
        child.register();
    }
    let staged = run.stage_child(Box::new(new), reserved);
    match (staged, child) {
        (Some((lsn, fold_target)), Some(child)) => dispatch(child, input, lsn, fold_target),
        (None, Some(child)) => {
            run.engine.runs.remove(&child);
            run.engine.release_slot();
        }
        _ => {}
    }
    if staged.is_some() { Outcome::Applied } else { Outcome::Fenced }
}

/// Starts a child that may exist already, because an earlier run of its parent has started it, or because another
/// execution has its id. The child runs here only if its Start creates a new execution.
async fn start_guarded(
    run: &Arc<Run>,
    new: store::Start,
    reserved: u32,
    child: Option<Arc<Run>>,
    input: Payload,
) -> Outcome {
    // this worker owns the child's row before the child's run is registered
    let expected = child.is_some().then(|| ExpectedRun::new(&run.engine, new.key));
    let staged = run.stage_child(Box::new(new), reserved);
    let Some((lsn, _)) = staged else {
        if child.is_some() {
            run.engine.release_slot();
        }
        return Outcome::Fenced;
    };
    if let Some(child) = child {
        // in a task of its own, because the awaiting branch may be abandoned before the outcome is known
        let started = DurableFuture::new(run.clone(), lsn);
        run.engine.runtime.spawn(async move {
            let _expected = expected;
            match started.await {
                Outcome::Applied => {
                    child.register();
                    dispatch(child, &input, lsn, FoldTarget::default());
                }
                _ => child.engine.release_slot(),
            }
        });
    }
    run.lane().wait_durable(lsn).await
}

/// Returns the placement that the child's options ask for; `None` for no queue.
pub(super) async fn resolve_placement(
    call: &Call,
    options: &StartOptions,
    kind: ChildKind,
) -> Result<Option<Arc<Placement>>, Failure> {
    options
        .check_child(kind != ChildKind::Awaited)
        .and_then(|()| options.attributes.check())
        .map_err(|error| error.to_failure())?;
    let Some(placement) = options.placement().map_err(|error| error.to_failure())? else { return Ok(None) };
    let engine = &call.run.engine;
    let unknown =
        call.query(async || match engine.known_queues.check(&*engine.store, &placement.queue).await {
            Err(error @ (Error::UnknownQueue { .. } | Error::Invalid { .. })) => Ok(Some(error)),
            checked => checked.map(|()| None),
        });
    match unknown.await {
        None => Ok(Some(placement)),
        Some(error) => Err(error.to_failure()),
    }
}

/// Creates the run of a child that begins in this process.
fn new_child_run(
    parent_run: &Arc<Run>,
    start: &store::Start,
    definition: &Arc<Definition>,
    parent: Parent,
) -> Arc<Run> {
    if let Some(fate) = &parent_run.fate {
        fate.add_child();
    }
    let first = NewRun::for_first_run(start.key, parent_run.root, start.created_at, parent_run.generation);
    let (parent, fate) = (Some(parent), parent_run.fate.clone());
    let given_id = start.workflow_id.clone();
    let new = NewRun { parent, fate, given_id, deadline_at: start.deadline_at, ..first };
    Run::new(parent_run.engine.clone(), definition.clone(), new)
}

/// Runs a child, whose Start was staged as `lsn`, in a task of its own.
fn dispatch(child: Arc<Run>, input: &Payload, lsn: Lsn, fold_target: FoldTarget) {
    child.add_dependency(lsn);
    child.set_staged_start(lsn, fold_target);
    if child.is_disowned() {
        // a fence that interrupted the tree of this run may have missed this child
        child.interrupt(Interrupt::Disowned);
    }
    let runtime = child.engine.runtime.clone();
    let mut task = RunTask::begin_executing(child, input);
    let input = Payload::empty();
    runtime.spawn(async move { poll_fn(|cx| task.poll_conclusion(cx, &input)).await });
}
