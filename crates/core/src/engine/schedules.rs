//! Schedules of a store: how an engine sets, pauses, triggers and lists them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use uuid::Uuid;

use crate::attributes::Attributes;
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::engine::submission::{ArcRef, Submission};
use crate::error::Error;
use crate::payload::Payload;
use crate::queue::OnConflict;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::questions::question_topic;
use crate::runtime::run::chunks::fetch;
use crate::runtime::start::options::StartOptions;
use crate::schedule::{
    Instants, REQUEST_TOPIC, RecordedPart, SCHEDULE_WORKFLOW, Schedule, ScheduleRequest, ScheduleState,
    ScheduleView, check_schedule_name, fold_part, schedule_id,
};
use crate::store::{Detail, Execution, ExecutionId, Filter, Record};
use crate::workflow::Workflow;

/// The attribute of the executions that are schedules, and its value.
const KIND: (&str, &str) = ("stepfast", "schedule");

/// Maximum number of instants of one backfill.
const MAX_BACKFILLED: usize = 10_000;

/// Lateness from which a schedule seems to have no worker.
const MAX_LATENESS: Duration = Duration::from_secs(60);

/// Number of schedules on a page.
const PAGE: usize = 100;

/// Number of schedules of a page that are loaded at the same time.
const LOADS: usize = 16;

impl Engine {
    /// Creates a schedule, or changes the one that has its name. When the call returns, the change is durable. A worker
    /// applies it before it starts another execution of the schedule. The present instants of a changed timing count from
    /// then on.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`] for a schedule without a timing or without a future instant, for a cron expression or time zone
    ///   that cannot be read, and for options that do not go together.
    /// - [`Error::UnknownWorkflow`] if this engine has not registered the workflow. A client accepts any workflow.
    /// - [`Error::UnknownQueue`] if its queue does not exist.
    pub async fn set_schedule(&self, schedule: &Schedule) -> Result<(), Error> {
        self.declare_schedule(schedule, OnConflict::Update).await
    }

    /// Creates a schedule. `on_conflict` decides if the schedule is stored with other values.
    #[doc(hidden)]
    pub async fn declare_schedule(&self, schedule: &Schedule, on_conflict: OnConflict) -> Result<(), Error> {
        let engine = &self.inner;
        engine.check_open()?;
        check_schedule_name(&schedule.name)?;
        let stored = load_state(engine, &schedule.name).await?.and_then(|(state, _)| state.schedule);
        let is_stored = stored.as_ref().is_some_and(|stored| schedule.is_stored_as(stored));
        // instants after this time count, however long the setting takes
        let now = engine.now();
        if !is_stored {
            schedule.check(now)?;
        }
        let is_known = engine.info.is_client
            || schedule.is_elsewhere()
            || engine.definitions.get(&schedule.workflow).is_some();
        if !is_known {
            return Err(engine.definitions.unknown_error(&schedule.workflow));
        }
        if is_stored {
            // the declaration of a program stays valid after its last instant
            return Ok(());
        }
        if let Some(queue) = &schedule.queue {
            engine.check_queue(queue).await?;
        }
        match stored {
            Some(_) => match on_conflict {
                OnConflict::Update => {}
                OnConflict::Keep => {
                    tracing::info!(
                        schedule = &*schedule.name,
                        "the schedule in the database differs from the one in the code"
                    );
                    return Ok(());
                }
                OnConflict::Reject => {
                    return Err(Error::ScheduleConflict { name: schedule.name.to_string() });
                }
            },
            None => start_schedule(engine, &schedule.name).await?,
        }
        let request = ScheduleRequest::Set { schedule: Box::new(schedule.clone()), at: now };
        self.request_change(&schedule.name, &request).await
    }

    /// Returns the schedule with this name, and its present state.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSchedule`] if there is none.
    pub async fn schedule(&self, name: &str) -> Result<ScheduleView, Error> {
        check_schedule_name(name)?;
        view(&self.inner, name).await?.ok_or_else(|| unknown(name))
    }

    /// Returns all schedules, ordered by name.
    pub async fn schedules(&self) -> Result<Vec<ScheduleView>, Error> {
        let mut attributes = Attributes::NONE;
        attributes.set(KIND.0, KIND.1);
        let mut filter =
            Filter { attributes, workflow: Some(SCHEDULE_WORKFLOW.into()), limit: PAGE, ..Filter::default() };
        let mut views = Vec::new();
        loop {
            let page = self.list(&filter).await?.executions;
            let names = page.iter().filter_map(|it| it.given_id.as_deref()?.strip_prefix("schedule:"));
            let names: Vec<String> = names.map(str::to_owned).collect();
            let load = |name: String| {
                let engine = self.inner.clone();
                async move { view(&engine, &name).await }
            };
            let loads = stream::iter(names.into_iter().map(load)).buffered(LOADS);
            views.extend(loads.try_collect::<Vec<_>>().await?.into_iter().flatten());
            filter.after = page.last().map(|it| it.key);
            if page.len() < PAGE {
                break;
            }
        }
        views.sort_by(|a: &ScheduleView, b| a.schedule.name.cmp(&b.schedule.name));
        Ok(views)
    }

    /// Pauses a schedule: it starts no further executions until it is [resumed](Self::resume_schedule), except those that are
    /// [triggered](Self::trigger_schedule). Executions that run continue. `reason` is for people.
    pub async fn pause_schedule(&self, name: &str, reason: &str) -> Result<(), Error> {
        self.require_schedule(name).await?;
        self.request_change(name, &ScheduleRequest::Pause { reason: reason.to_owned() }).await
    }

    /// Resumes a paused schedule, from its next instant on. The instants of the pause are not caught up; a
    /// [backfill](Self::backfill_schedule) starts their executions.
    pub async fn resume_schedule(&self, name: &str) -> Result<(), Error> {
        self.require_schedule(name).await?;
        self.request_change(name, &ScheduleRequest::Resume { at: self.inner.now() }).await
    }

    /// Deletes a schedule. Executions that it has started continue.
    pub async fn delete_schedule(&self, name: &str) -> Result<(), Error> {
        self.require_schedule(name).await?;
        self.request_change(name, &ScheduleRequest::Delete).await
    }

    /// Starts an execution of a schedule now, whatever its overlap policy, and even if it is paused. Waits until a worker
    /// has started the execution.
    pub async fn trigger_schedule<O>(&self, name: &str) -> Result<Handle<O>, Error> {
        self.require_schedule(name).await?;
        let workflow_id = format!("{name}@trigger-{}", Uuid::now_v7().simple());
        let request = Payload::encode(&ScheduleRequest::Trigger { workflow_id: workflow_id.clone() })?;
        self.ask_payload(schedule_id(name), request).topic(REQUEST_TOPIC).payload().await?;
        self.get(&workflow_id).await
    }

    /// Starts the executions of all instants from `from` to `until`, both included, that have none. With the overlap policy
    /// [`Allow`](crate::Overlap::Allow) they start at once, with any other policy one after the other. Returns the number of
    /// instants.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range has no instant or more than 10,000, or does not end in the past.
    pub async fn backfill_schedule(
        &self,
        name: &str,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<usize, Error> {
        let schedule = self.require_schedule(name).await?.schedule;
        let after = Timestamp::from_micros(from.as_micros().saturating_sub(1));
        let refuse = |reason: String| Err(Error::Invalid { input: "range", reason });
        if from > until {
            return refuse(format!("begins at {from}, after its end {until}"));
        }
        if until > self.inner.now() {
            return refuse("ends in the future; the schedule itself starts those executions".to_owned());
        }
        let instants = Instants::new(&schedule)?;
        let next = |after| instants.next_after(after).filter(|instant| *instant <= until);
        let count = std::iter::successors(next(after), |last| next(*last)).take(MAX_BACKFILLED + 1).count();
        if count == 0 || count > MAX_BACKFILLED {
            let found = if count == 0 {
                "no instant".to_owned()
            } else {
                format!("more than {MAX_BACKFILLED} instants")
            };
            return refuse(format!("has {found} of schedule {name:?}; choose another range"));
        }
        self.request_change(name, &ScheduleRequest::Backfill { after, until }).await?;
        Ok(count)
    }

    /// Returns a schedule that can still handle requests.
    async fn require_schedule(&self, name: &str) -> Result<ScheduleView, Error> {
        self.inner.check_open()?;
        let view = self.schedule(name).await?;
        match &view.stopped {
            None => Ok(view),
            Some(reason) => Err(Error::Invalid { input: "schedule", reason: reason.clone() }),
        }
    }

    /// Asks a schedule for a change, without waiting until a worker has applied it.
    async fn request_change(&self, name: &str, request: &ScheduleRequest) -> Result<(), Error> {
        let request = Payload::encode(request)?;
        let asking = self.ask_payload(schedule_id(name), request).topic(REQUEST_TOPIC);
        asking.timeout(Duration::ZERO).payload().await?;
        Ok(())
    }
}

fn unknown(name: &str) -> Error {
    Error::UnknownSchedule { name: name.to_owned() }
}

/// Starts the execution of a schedule, unless it exists.
async fn start_schedule(engine: &Arc<EngineInner>, name: &str) -> Result<(), Error> {
    let workflow_id = Some(schedule_id(name).into());
    let mut options = StartOptions { workflow_id, is_unversioned: true, ..StartOptions::default() };
    options.attributes.set(KIND.0, KIND.1);
    let input = Payload::encode(&ScheduleState::default())?;
    // a worker may have registered it, in this program or in another one
    let definition = ArcRef::Owned(Workflow::<ScheduleState, ()>::named(SCHEDULE_WORKFLOW).definition);
    let submission = Submission::new(ArcRef::Borrowed(engine), definition, input, Some(Box::new(options)));
    submission.start::<()>().await.map(|_| ())
}

/// Returns the view of a schedule; `None` if it does not exist.
async fn view(engine: &Arc<EngineInner>, name: &str) -> Result<Option<ScheduleView>, Error> {
    let id = schedule_id(name);
    let Some((state, execution)) = load_state(engine, name).await? else { return Ok(None) };
    let Some(mut view) = state.view(id.clone()) else { return Ok(None) };
    // this system may lack the time zone
    let instants = Instants::new(&view.schedule).ok();
    if let Some(time) = state.changed_at.filter(|_| state.pause.is_none()) {
        // no worker has applied the change yet
        view.next = instants.as_ref().and_then(|instants| instants.next_after(time));
    }
    let due_at = view.next.zip(instants).map(|(next, instants)| instants.due_at(next));
    view.is_late = due_at.is_some_and(|due_at| engine.now().since(due_at) > MAX_LATENESS);
    let end = execution.status.is_terminal().then(|| execution.status.as_str());
    view.stopped = end
        .or(execution.is_parked.then_some("parked"))
        .map(|status| format!("its execution {id:?} is {status}; resume it to continue"));
    Ok(Some(view))
}

/// Returns the present state of a schedule, pending requests included, and its execution; `None` if that does not exist.
async fn load_state(
    engine: &Arc<EngineInner>,
    name: &str,
) -> Result<Option<(ScheduleState, Execution)>, Error> {
    let id = ExecutionId::Given(schedule_id(name).into());
    let topic = question_topic(REQUEST_TOPIC)?;
    let load = || engine.load(id.clone(), Detail::LastPart);
    loop {
        let Some(before) = load().await? else { return Ok(None) };
        let key = before.execution.key;
        let pending = engine.message_loads.load((key, topic.clone())).await?;
        let Some(record) = load().await? else { return Ok(None) };
        let last_order = |record: &Record| record.checkpoints.iter().map(|it| it.order).max();
        if last_order(&record) != last_order(&before) {
            // a request that was pending may be in the record, too
            continue;
        }
        let execution = record.execution.clone();
        let mut part = RecordedPart::last_of(record);
        for value in part.values_mut() {
            *value = fetch(engine, key, value.clone()).await?;
        }
        let pending: Vec<Payload> = pending.into_iter().map(|message| message.value).collect();
        return fold_part(&part, &pending).map(|state| Some((state, execution)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::memory::MemoryStore;
    use crate::queue::OnConflict::Update;
    use crate::schedule::Overlap;
    use crate::store::CheckpointKind;
    use crate::workflow::context::Context;

    /// The view of a schedule and its code apply the same changes: the state that each part of the record leaves is the input of
    /// the next part.
    #[test]
    fn view_of_a_part_is_the_input_of_the_next_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let workflow = Workflow::new("w", |_: Context, n: i64| async move {
                if n == 7 { Ok(n) } else { Err(Failure::new("no")) }
            });
            let builder = Engine::builder(Arc::new(MemoryStore::new())).register(&workflow);
            let engine = builder.open().await.unwrap();
            let hour = Duration::from_secs(3_600);
            let now = engine.inner.now();
            // the next instant is half an hour away
            let origin = now.minus(1_000 * hour + hour / 2);
            let schedule = |n: i64| Schedule::new("s", &workflow, &n).unwrap().every(hour).starts_at(origin);
            engine.declare_schedule(&schedule(8).pause_after(3), Update).await.unwrap();
            engine.backfill_schedule("s", now.minus(10 * hour), now).await.unwrap();
            while engine.schedule("s").await.unwrap().pause.is_none() {
                tokio::task::yield_now().await;
            }
            for overlap in [Overlap::Allow, Overlap::BufferAll] {
                engine.declare_schedule(&schedule(7).overlap(overlap), Update).await.unwrap();
                engine.resume_schedule("s").await.unwrap();
                let from = now.minus(if overlap == Overlap::Allow { 250 * hour } else { 500 * hour });
                engine.backfill_schedule("s", from, now).await.unwrap();
                engine.trigger_schedule::<i64>("s").await.unwrap();
                while engine.schedule("s").await.unwrap().backfills > 0 {
                    tokio::task::yield_now().await;
                }
            }
            let id = ExecutionId::Given(schedule_id("s").into());
            let record = engine.inner.load(id, Detail::Full).await.unwrap().unwrap();
            let mut ends = record.checkpoints.iter().enumerate();
            let ends: Vec<usize> = ends
                .by_ref()
                .filter(|(_, it)| it.kind == CheckpointKind::Continued)
                .map(|(at, _)| at)
                .collect();
            assert!(ends.len() >= 3, "{}", ends.len());
            for end in &ends {
                let mut part = record.clone();
                let next = part.checkpoints.split_off(*end).swap_remove(0);
                let state = fold_part(&RecordedPart::last_of(part), &[]).unwrap();
                assert_eq!(state, next.outcome.decode::<ScheduleState>().unwrap());
            }
            let view = engine.schedule("s").await.unwrap();
            assert_eq!((view.started, view.failures), (502, 0));
            engine.shutdown(Duration::from_secs(5)).await.unwrap();
        });
    }
}
