//! Guests: workflows in another language. Their values are payloads already, and their code is polled by
//! whoever runs that language: an event loop, a thread. A binding builds on this.
//!
//! The engine hands out a [`Context`] and keeps a future that resolves when the code has returned. Code makes
//! durable calls through [`Branch`]es; each call's future owns what it needs, and may be polled anywhere.
//!
//! An outcome is delivered only when all branches are at rest, for otherwise a replay could not repeat what
//! came of it. The engine knows that by itself while every branch is in a durable call. If some wait for
//! something else, the binding says when their code runs and waits ([`Gate::code_runs`], [`Gate::code_waits`]), and
//! when they have come to rest ([`Gate::set_quiet`]).

mod branch;
mod run_control;
mod step;

pub use crate::path::Path;
pub use crate::runtime::run::Stopped;
pub use crate::runtime::run::quiescence::Waits;
pub use crate::runtime::start_options::StartOptions;
pub use branch::{Branch, Join};
pub use run_control::Gate;
pub use step::{StepCall, StepTurn};

use std::sync::Arc;
use std::thread::ThreadId;

use futures_util::future::BoxFuture;

use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::engine::start_future::{Running, Starting};
use crate::engine::submission::{Held, Order};
use crate::error::Error;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::definition::BodyFuture;
use crate::runtime::run::Run;
use crate::workflow::Workflow;
use crate::workflow::context::Context;

/// The input of a guest's workflow.
#[derive(Clone, Debug)]
pub struct GuestInput {
    /// The input as it is recorded.
    pub payload: Payload,
    /// What tells the input apart; `None` for the fingerprint of the payload. A language in which one call has several
    /// spellings gives them all the same.
    pub fingerprint: Option<u64>,
}

impl From<Payload> for GuestInput {
    fn from(payload: Payload) -> Self {
        Self { payload, fingerprint: None }
    }
}

impl GuestInput {
    fn fingerprint(&self) -> u64 {
        self.fingerprint.unwrap_or_else(|| self.payload.fingerprint())
    }
}

/// A workflow of a guest.
pub type GuestWorkflow = Workflow<Payload, Payload>;

impl GuestWorkflow {
    /// The workflow `name`. `body` is called once per run with the branch that its code begins in, and its
    /// input; the future it returns resolves when the code has returned. If that future is dropped before, the
    /// code has to unwind: [`Gate::stopped`] says why.
    ///
    /// If it is not `is_eager`, its code sees a step's outcome only when that is durable. If it `is_in_thread`, its code
    /// holds one of the [`threads`](crate::EngineBuilder::threads) while it runs. `time_limit` tells people how durable
    /// calls are limited in time, where code has done that in another way.
    pub fn of_guest<F, Fut>(
        name: &str,
        is_eager: bool,
        is_in_thread: bool,
        time_limit: &'static str,
        body: F,
    ) -> Self
    where
        F: Fn(Branch, Payload) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Payload, Failure>> + Send + 'static,
    {
        let body = move |run: Arc<Run>, input: &Payload| -> Result<BodyFuture, Failure> {
            Ok(Box::pin(body(Branch { cx: Context::root(run), leaf: None }, input.clone())))
        };
        Self::guest(name, is_eager, is_in_thread, time_limit, Box::new(body))
    }
}

impl Engine {
    /// Like [`Engine::start`].
    pub fn start_guest(
        &self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> Starting<'static, Payload> {
        Starting::of(self.order(workflow, input, options))
    }

    /// Like [`Engine::start_many`]. What only one of them can have must not be among the options.
    pub fn start_guests(
        &self,
        workflow: &GuestWorkflow,
        inputs: Vec<GuestInput>,
        options: Option<&StartOptions>,
    ) -> BoxFuture<'static, Result<Vec<Handle<Payload>>, Error>> {
        let order = |input| self.order(workflow, input, options.cloned().map(Box::new));
        crate::engine::start::start_all(inputs.into_iter().map(order).collect())
    }

    /// Like [`Engine::run`].
    pub fn run_guest(
        &self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> Running<'static, Payload> {
        Running::of(self.order(workflow, input, options))
    }

    fn order(
        &self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> Order<'static> {
        let (core, definition) = (Held::Own(self.core.clone()), Held::Own(workflow.definition.clone()));
        let mut order = Order::new(core, definition, input.payload, options);
        order.fingerprint = input.fingerprint;
        order
    }
}

/// While it lives, what its thread stages waits for its end: one flush for what an event loop does in one turn.
/// Something that another thread stages takes all of it along. To be ended before the thread waits for anything.
pub struct Burst {
    engine: Engine,
    thread: ThreadId,
}

impl Burst {
    /// `None` if the thread is in a burst of this engine.
    pub fn begin(engine: &Engine) -> Option<Self> {
        let mut is_new = false;
        for lane in engine.core.lanes() {
            is_new = lane.begin_burst();
        }
        is_new.then(|| Self { engine: engine.clone(), thread: std::thread::current().id() })
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        for lane in self.engine.core.lanes() {
            lane.end_burst(self.thread);
        }
    }
}

impl Handle<Payload> {
    /// Like [`Handle::result`].
    pub fn payload(&self) -> impl Future<Output = Result<Payload, Error>> + Send + use<> {
        let handle = self.clone();
        async move { handle.output().await }
    }
}
