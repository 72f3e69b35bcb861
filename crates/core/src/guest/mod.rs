//! Guests: workflows in another language, for bindings. Their values are payloads already, and their code is polled by
//! the driver of that language: an event loop, or a thread.
//!
//! The engine provides a [`Context`](crate::Context) and keeps a future that resolves when the code has returned. The code makes
//! durable calls through [`GuestBranch`]es. Each call's future owns what it needs, and may be polled anywhere.
//!
//! An outcome is delivered only when all branches are blocked: otherwise a replay could not repeat what followed from
//! the delivery. The engine detects this quiescence by itself while every branch is in a durable call. If some branches
//! wait for something else, the binding reports when code of a branch starts and blocks ([`RunControl::code_started`],
//! [`RunControl::code_blocked`]). The binding also reports when all branches are quiescent
//! ([`RunControl::set_quiescent`]).

mod branch;
mod input;
mod race;
mod run_control;
mod step;

pub use crate::path::Path;
pub use crate::runtime::run::StopReason;
pub use crate::runtime::run::quiescence::BlockedOn;
pub use crate::runtime::start::options::StartOptions;
pub use crate::workflow::messaging::StepScope;
pub use branch::{BranchJoin, GuestBranch};
pub use input::{GuestInput, GuestWorkflow};
pub use race::GuestRace;
pub use run_control::RunControl;
pub use step::{GuestStep, StepAction};

use std::sync::Arc;
use std::thread::ThreadId;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, StreamExt};

use crate::engine::Engine;
use crate::engine::batch::{self, BatchHandle, BatchInput, ItemResult};
use crate::engine::handle::Handle;
use crate::engine::start_future::{RunFuture, StartFuture};
use crate::engine::submission::{ArcRef, Submission};
use crate::error::Error;
use crate::failure::Failure;
use crate::graph::GraphDeclaration;
use crate::payload::Payload;
use crate::runtime::definition::BodyFuture;
use crate::runtime::run::Run;

impl GuestWorkflow {
    /// Returns the workflow `name`. `body` is called once per run, with the branch in which the code begins and with
    /// the input. The future that `body` returns resolves when the code has returned. If the engine drops that future
    /// earlier, the code has to unwind: [`RunControl::stop_reason`] says why.
    ///
    /// Code that is not `is_eager` receives a step's outcome only when the outcome is durable. Code that `holds_thread`
    /// holds one of the [`max_threads`](crate::EngineBuilder::max_threads) while it runs. `time_limit_hint` names the
    /// language's way to limit durable calls in time, for messages about code that uses another way.
    pub fn new_guest<F, Fut>(
        name: &str,
        is_eager: bool,
        holds_thread: bool,
        time_limit_hint: &'static str,
        body: F,
    ) -> Self
    where
        F: Fn(GuestBranch, Payload) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Payload, Failure>> + Send + 'static,
    {
        let body = move |run: Arc<Run>, input: &Payload| -> Result<BodyFuture, Failure> {
            Ok(Box::pin(body(GuestBranch::root(run), input.clone())))
        };
        Self::from_guest_body(name, is_eager, holds_thread, time_limit_hint, Box::new(body))
    }

    /// Returns the same workflow as a graph with this declaration, which engines store.
    pub fn with_graph(self, declaration: &GraphDeclaration) -> Result<Self, Error> {
        Ok(self.declared(declaration.to_json()?))
    }
}

impl Engine {
    /// Starts an execution, like [`Engine::start`].
    pub fn start_guest(
        &self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> StartFuture<'static, Payload> {
        StartFuture::new(self.submission(workflow, input, options))
    }

    /// Starts one execution per input, like [`Engine::start_many`]. The options must not include an option that only a
    /// single start can have.
    pub fn start_many_guest(
        &self,
        workflow: &GuestWorkflow,
        inputs: Vec<GuestInput>,
        options: Option<&StartOptions>,
    ) -> BoxFuture<'static, Result<Vec<Handle<Payload>>, Error>> {
        let submission = |input| self.submission(workflow, input, options.cloned().map(Box::new));
        crate::engine::start::start_all(inputs.into_iter().map(submission).collect())
    }

    /// Submits one item per input of a stream as a batch, like [`Engine::submit_batch_stream`]. The options must not
    /// include an option that a batch cannot have. Their workflow_id is the id of the batch.
    pub fn submit_batch_guest(
        &self,
        workflow: &GuestWorkflow,
        inputs: impl Stream<Item = Result<GuestInput, Error>> + Send + 'static,
        options: Option<Box<StartOptions>>,
    ) -> BoxFuture<'static, Result<BatchHandle<Payload>, Error>> {
        let submission = self.submission(workflow, Payload::empty().into(), options);
        let inputs = inputs.map(|input| input.map(BatchInput::from));
        Box::pin(batch::submit(submission, inputs, false))
    }

    /// Runs an execution to its output, like [`Engine::run`].
    pub fn run_guest(
        &self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> RunFuture<'static, Payload> {
        RunFuture::new(self.submission(workflow, input, options))
    }

    fn submission(
        &self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> Submission<'static> {
        let (engine, definition) =
            (ArcRef::Owned(self.inner.clone()), ArcRef::Owned(workflow.definition.clone()));
        let mut submission = Submission::new(engine, definition, input.payload, options);
        submission.fingerprint = input.fingerprint;
        submission
    }
}

/// A burst: the Writes that one thread stages wait until this value is dropped. So one turn of an event loop needs one
/// flush. A Write of a thread that has no burst flushes the burst too. Drop the burst before the thread waits for
/// anything.
pub struct FlushBurst {
    engine: Engine,
    thread: ThreadId,
}

impl FlushBurst {
    /// Begins a burst. Returns `None` if the thread is already in a burst of this engine.
    pub fn begin(engine: &Engine) -> Option<Self> {
        let mut is_new = false;
        for lane in engine.inner.lanes() {
            is_new = lane.begin_burst();
        }
        is_new.then(|| Self { engine: engine.clone(), thread: std::thread::current().id() })
    }
}

impl Drop for FlushBurst {
    fn drop(&mut self) {
        for lane in self.engine.inner.lanes() {
            lane.end_burst(self.thread);
        }
    }
}

impl From<GuestInput> for BatchInput {
    fn from(input: GuestInput) -> Self {
        Self { payload: input.payload, fingerprint: input.fingerprint }
    }
}

impl BatchHandle<Payload> {
    /// Returns the results of all items, like [`BatchHandle::results`].
    pub fn payloads(&self) -> BoxStream<'static, Result<ItemResult<Payload>, Error>> {
        batch::results_of(self).boxed()
    }
}

impl Handle<Payload> {
    /// Waits for the output, like [`Handle::result`].
    pub fn payload(&self) -> impl Future<Output = Result<Payload, Error>> + Send + use<> {
        let handle = self.clone();
        async move { handle.output().await }
    }
}
