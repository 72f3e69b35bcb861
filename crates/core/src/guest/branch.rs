//! [`GuestBranch`]: a branch of a guest's code.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::input::{GuestInput, GuestWorkflow};
use super::race::Racing;
use super::run_control::RunControl;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::failure::Failure;
use crate::graph::{TaskPlace, begin_task_call, is_repeated};
use crate::guest::step::GuestStep;
use crate::key::Key;
use crate::name::Name;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::batch::results::ItemResult;
use crate::runtime::batch::submission::BatchInput;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::start::options::StartOptions;
use crate::store::BatchCounts;
use crate::workflow::branch::ActiveBranch;
use crate::workflow::child::{ChildKind, NewBatch, NewChild};
use crate::workflow::context::Context;
use crate::workflow::continuation::continue_as_new;
use crate::workflow::messaging::{
    OutgoingMessage, QuestionId, TokenAnswer, answer, create_token, get_event, receive, receive_question,
    send, set_event, write_stream,
};
use crate::workflow::retry::StepOptions;
use crate::workflow::sleep::{sleep_for, sleep_until};
use crate::workflow::step::begin_step_call;

/// A branch of a guest's code. Calls are numbered in the order in which they are made.
pub struct GuestBranch {
    /// The races of the branch; `None` outside of races. Dropped before `active`, because a branch that has ended a race
    /// is active until the race knows.
    pub(super) racing: Option<Box<Racing>>,
    pub(super) cx: Context,
    /// The branch's share in the count of active branches; `None` for the first branch, which is always counted, and
    /// for a branch that is only reserved.
    pub(super) active: Option<ActiveBranch>,
}

impl GuestBranch {
    /// Returns the first branch of a run.
    pub(super) fn root(run: Arc<Run>) -> Self {
        Self { racing: None, cx: Context::root(run), active: None }
    }

    /// Forks a branch that runs beside this one. The branch ends when the returned value is dropped.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let path = self.cx.next_path();
        let cx = self.cx.for_branch(&path, 0);
        let active = ActiveBranch::new(&cx.run);
        Self { racing: self.inherited_race(), cx, active: Some(active) }
    }

    /// Reserves the path of a branch that is to begin later. The branch does not count as active yet.
    #[must_use]
    pub fn reserve(&mut self) -> Self {
        let path = self.cx.next_path();
        let cx = self.cx.for_branch(&path, 0);
        Self { racing: self.inherited_race(), cx, active: None }
    }

    /// Begins a branch that was reserved.
    pub fn begin(&mut self) {
        self.active = Some(ActiveBranch::new(&self.cx.run));
    }

    /// Marks this branch as waiting for branches of its own, for as long as the returned value lives.
    #[must_use]
    pub fn join(&self) -> BranchJoin {
        self.cx.run.adjust_active_branches(-1);
        BranchJoin(self.cx.run.clone())
    }

    /// Returns the path of the next call, which has not begun yet.
    pub fn upcoming_path(&self) -> Path {
        self.cx.upcoming_path()
    }

    /// Returns the key of the child that the branch's next call runs, if that call is [`child`](GuestBranch::child); with
    /// a place, the key of the child that is the task at this place.
    pub fn next_child_key(&self, place: Option<TaskPlace>) -> Key {
        let path = place.map_or_else(|| self.cx.upcoming_path(), TaskPlace::path);
        Key::derive(self.cx.run.key, self.cx.run.run_no, &path)
    }

    /// Waits for the output of a child that was started; see [`ChildHandle::result`](crate::ChildHandle::result).
    pub fn child_result(
        &mut self,
        workflow: &GuestWorkflow,
        key: Key,
    ) -> impl Future<Output = Result<Payload, Failure>> + Send + use<> {
        let call = self.begin_result_call(workflow);
        async move { crate::workflow::child::wait_for_result(&call, key).await }
    }

    /// Begins a step; see [`Context::step`]. The task that polls the step runs its body.
    pub fn step(
        &mut self,
        name: &Name,
        options: Option<Box<StepOptions>>,
        fingerprint: Option<u64>,
    ) -> GuestStep {
        let path = self.cx.next_path();
        let begun_call = begin_step_call(&self.cx.run, path, name, fingerprint.map(Ok), options.as_deref());
        GuestStep::new(begun_call, options)
    }

    /// Begins a step that is a task of a graph, at the task's place in the record. That place is independent of the
    /// calls that the branch has made.
    pub fn task(&mut self, place: TaskPlace, name: &Name, options: Option<Box<StepOptions>>) -> GuestStep {
        let begun_call = begin_task_call(&self.cx.run, place, name, options.as_deref());
        GuestStep::new(begun_call, options)
    }

    /// Whether a task that has failed is repeated at [the next place](TaskPlace::repeated), because the execution was
    /// resumed since. `dependents` are the places of all tasks that depend on the task, directly or through others. Call
    /// this before [`task`](Self::task).
    pub fn is_repeated_task(&self, place: TaskPlace, dependents: impl Iterator<Item = TaskPlace>) -> bool {
        is_repeated(&self.cx.run, place, dependents)
    }

    /// Whether a replay delivers the outcome of the task at this place.
    pub fn has_recorded_task(&self, place: TaskPlace) -> bool {
        self.cx.run.is_replaying() && self.cx.run.has_recorded(&place.path())
    }

    /// Begins a durable sleep; see [`Context::sleep`].
    pub fn sleep(&mut self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        let call = self.cx.begin_sleep();
        async move { sleep_for(&call, duration).await }
    }

    /// Begins a durable sleep until a time by the database's clock.
    pub fn sleep_until(&mut self, due_at: Timestamp) -> impl Future<Output = ()> + Send + use<> {
        let call = self.cx.begin_sleep();
        async move { sleep_until(&call, due_at).await }
    }

    /// Begins to wait for a message; see [`Context::receive`]. The result is `None` after the timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no message can have this topic.
    pub fn receive(
        &mut self,
        topic: &str,
        timeout: Option<Duration>,
    ) -> Result<impl Future<Output = Result<Option<Payload>, Failure>> + Send + use<>, Error> {
        let (call, topic) = self.cx.begin_receive(topic.into())?;
        Ok(async move { receive(&call, &topic, timeout).await })
    }

    /// Begins to send a message to another execution; see [`Context::send`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no message can have this topic.
    pub fn send(
        &mut self,
        workflow_id: String,
        value: Payload,
        topic: &str,
        keeps: bool,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + use<>, Error> {
        let message =
            OutgoingMessage { topic: topic.into(), keeps, ..OutgoingMessage::new(workflow_id, Ok(value)) };
        let call = self.cx.begin_send(&message.topic)?;
        Ok(async move { send(&call, message).await })
    }

    /// Begins to set an event; see [`Context::set_event`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no event can have this name.
    pub fn set_event(
        &mut self,
        name: &str,
        value: Payload,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + use<>, Error> {
        let call = self.cx.begin_set_event(name.into())?;
        Ok(async move { set_event(&call, Ok(value)).await })
    }

    /// Begins to wait for an event of another execution; see [`Context::get_event`]. The call returns `None` after the
    /// timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no event can have this name.
    pub fn get_event(
        &mut self,
        workflow_id: String,
        name: &str,
        timeout: Option<Duration>,
    ) -> Result<impl Future<Output = Result<Option<Payload>, Failure>> + Send + use<>, Error> {
        let call = self.cx.begin_get_event(name.into())?;
        Ok(async move { get_event(&call, &workflow_id, timeout).await })
    }

    /// Begins to create a token; see [`Context::create_token`]. The result is the id of the token, and its answer.
    pub fn create_token(
        &mut self,
    ) -> impl Future<Output = Result<(String, TokenAnswer), Failure>> + Send + use<> {
        let call = self.cx.begin_create_token();
        async move { create_token(&call).await }
    }

    /// Begins to wait for the answer to a token; see [`Token::result`](crate::Token::result). The call returns `None` after
    /// the timeout.
    ///
    /// # Errors
    ///
    /// Returns the answer, in place of a call, if it was received before.
    pub fn token_result(
        &mut self,
        answer: &TokenAnswer,
        timeout: Option<Duration>,
    ) -> Result<impl Future<Output = Result<Option<Payload>, Failure>> + Send + use<>, Result<Payload, Failure>>
    {
        let wait = self.cx.begin_token_result(answer)?;
        Ok(async move { wait.run(timeout).await })
    }

    /// Begins to receive a question; see [`Context::receive_question`]. The call returns `None` after the timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no question can have this topic.
    pub fn receive_question(
        &mut self,
        topic: &str,
        timeout: Option<Duration>,
    ) -> Result<impl Future<Output = Result<Option<(QuestionId, Payload)>, Failure>> + Send + use<>, Error>
    {
        let call = self.cx.begin_receive_question(topic)?;
        Ok(async move { receive_question(&call, timeout).await })
    }

    /// Begins to answer a question; see [`Context::answer`] and [`Context::refuse`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the question was answered before.
    pub fn answer(
        &mut self,
        question: &QuestionId,
        value: Result<Payload, Failure>,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + use<>, Error> {
        let call = self.cx.begin_answer(question)?;
        Ok(async move { answer(&call, value).await })
    }

    /// Begins to ask another execution a question; see [`Context::ask`]. The call returns `None` after the timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no question can have this topic.
    pub fn ask(
        &mut self,
        workflow_id: String,
        value: Payload,
        topic: &str,
        timeout: Option<Duration>,
    ) -> Result<impl Future<Output = Result<Option<Payload>, Failure>> + Send + use<>, Error> {
        let calls = self.cx.begin_ask(topic)?;
        Ok(async move { calls.run(&workflow_id, Ok(value), timeout).await })
    }

    /// Begins to write a value to a stream, or to close it without one; see [`Context::write_stream`] and
    /// [`Context::close_stream`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no stream can have this name.
    pub fn write_stream(
        &mut self,
        stream: &str,
        value: Option<Payload>,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + use<>, Error> {
        let call = self.cx.begin_write_stream(stream.into())?;
        Ok(async move { write_stream(&call, value.map(Ok)).await })
    }

    /// Begins to continue as new; see [`Context::continue_as_new`]. The call never returns.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if the input is too large, and [`Error::Invalid`] after eight million parts.
    pub fn continue_as_new(
        &mut self,
        input: Payload,
    ) -> Result<impl Future<Output = Infallible> + Send + use<>, Error> {
        let call = self.cx.begin_continuation(&input)?;
        Ok(async move { continue_as_new(&call, input).await })
    }

    /// Runs a child to its output; see [`Context::child`]. With a place, the child is a task of a graph at this place of
    /// the record.
    pub fn child(
        &mut self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
        place: Option<TaskPlace>,
    ) -> impl Future<Output = Result<Payload, Failure>> + Send + use<> {
        let path = place.map_or_else(|| self.cx.next_path(), TaskPlace::path);
        let definition = workflow.definition.clone();
        let fingerprint = input.fingerprint();
        let call = crate::workflow::child::begin_child_call(&self.cx.run, path, &definition, fingerprint);
        let input = input.payload;
        crate::workflow::child::run_child(
            call,
            NewChild { definition, input, fingerprint, options, kind: ChildKind::Awaited },
        )
    }

    /// Starts a child; see [`Context::start_child`] and [`Context::start_detached`].
    pub fn start_child(
        &mut self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
        is_detached: bool,
    ) -> impl Future<Output = Result<Key, Failure>> + Send + use<> {
        let path = self.cx.next_path();
        let (run, definition) = (self.cx.run.clone(), workflow.definition.clone());
        let (fingerprint, input) = (input.fingerprint(), input.payload);
        let kind = if is_detached { ChildKind::Detached } else { ChildKind::Awaited };
        let child = NewChild { definition, input, fingerprint, options, kind };
        async move { crate::workflow::child::start_recorded(&run, path, child).await }
    }

    /// Submits a batch; see [`Context::submit_batch`]. The options must not include an option that a batch cannot have.
    pub fn submit_batch(
        &mut self,
        workflow: &GuestWorkflow,
        inputs: Vec<GuestInput>,
        options: Option<Box<StartOptions>>,
    ) -> impl Future<Output = Result<Key, Failure>> + Send + use<> {
        let path = self.cx.next_path();
        let (run, definition) = (self.cx.run.clone(), workflow.definition.clone());
        let inputs = inputs.into_iter().map(BatchInput::from).collect();
        let batch = NewBatch { definition, inputs, options };
        async move { crate::workflow::child::submit_recorded(&run, path, batch).await }
    }

    /// Waits until a batch that was submitted has ended, and counts its items; see
    /// [`ChildBatch::wait`](crate::ChildBatch::wait).
    pub fn batch_counts(
        &mut self,
        workflow: &GuestWorkflow,
        key: Key,
    ) -> impl Future<Output = Result<BatchCounts, Failure>> + Send + use<> {
        crate::workflow::child::wait_for_counts(self.begin_result_call(workflow), key)
    }

    /// Waits until a batch that was submitted has ended, and reads the results of its items; see
    /// [`ChildBatch::results`](crate::ChildBatch::results).
    pub fn batch_results(
        &mut self,
        workflow: &GuestWorkflow,
        key: Key,
    ) -> impl Future<Output = Result<Vec<ItemResult<Payload>>, Failure>> + Send + use<> {
        crate::workflow::child::wait_for_results(self.begin_result_call(workflow), key)
    }

    /// Begins a call that waits for a child or a batch which was started before.
    fn begin_result_call(&mut self, workflow: &GuestWorkflow) -> Call {
        let path = self.cx.next_path();
        crate::workflow::child::begin_result_call(&self.cx.run, path, &workflow.definition.name)
    }

    /// Returns the object with which code outside of the run queries and stops the run.
    pub fn run_control(&self) -> RunControl {
        RunControl::new(&self.cx.run, self.place())
    }

    /// Returns the execution's key.
    pub fn key(&self) -> Key {
        self.cx.run.key
    }

    /// Returns the branch's path as text.
    pub fn path(&self) -> String {
        self.cx.path.to_string()
    }

    /// Whether an earlier run of the execution may have progressed further than this one.
    pub fn is_replaying(&self) -> bool {
        self.cx.run.state().delivery.replay.is_some()
    }
}

/// A guard: while this value lives, a branch waits for branches of its own.
pub struct BranchJoin(Arc<Run>);

impl Drop for BranchJoin {
    fn drop(&mut self) {
        self.0.adjust_active_branches(1);
    }
}
