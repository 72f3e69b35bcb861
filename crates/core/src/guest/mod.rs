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

mod step;

use std::sync::Arc;
use std::task::Waker;
use std::thread::ThreadId;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::engine::start::{Running, Starting};
use crate::engine::submission::{Held, Order};
use crate::error::Error;
use crate::failure::{Failure, UNREADABLE};
pub use crate::guest::step::{StepCall, StepTurn};
use crate::key::Key;
use crate::name::Name;
pub use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::definition::BodyFuture;
pub use crate::runtime::run::Stopped;
pub use crate::runtime::run::quiescence::Waits;
use crate::runtime::run::{InThread, Interrupt, Run};
pub use crate::runtime::start_options::StartOptions;
use crate::workflow::Workflow;
use crate::workflow::branch::Leaf;
use crate::workflow::child::NewChild;
use crate::workflow::context::{Context, sleep_for};
use crate::workflow::step::{StepOptions, begin};

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

/// The gate of an execution that runs: once it is closed, no call is delivered any more.
#[derive(Clone)]
pub struct Gate(Arc<Run>);

impl Gate {
    /// Wakes `waker` when the code has to unwind; false if it has to already.
    pub fn on_stop(&self, waker: &Waker) -> bool {
        self.0.on_stop(waker)
    }

    /// Takes back one [`Gate::on_stop`].
    pub fn off_stop(&self, waker: &Waker) {
        self.0.off_stop(waker);
    }

    /// Why the code has to unwind, once it has to.
    pub fn stopped(&self) -> Option<Stopped> {
        self.0.state().stopped
    }

    /// Returns true if a body that had leave to begin may still begin. To be read right before the body, by the thread
    /// that runs it: between the leave and the body the thread may have waited for its language.
    pub fn lets_begin(&self) -> bool {
        self.0.lets_begin()
    }

    /// Hands the execution back at the next turn of its task: whoever claims it goes on from the record. From
    /// here on nothing of what the code does is recorded.
    pub fn hand_back(&self) {
        if self.0.is_open() {
            self.0.interrupt(Interrupt::HandBack);
        }
    }

    /// The code wants the program to end. It records nothing more from here on, and the execution is handed back
    /// when the engine is; if that goes on, after a while: 1 s, longer every time. So code that does it each time
    /// keeps nobody busy, and does not begin anew in a program that is about to end.
    pub fn put_off(&self) {
        self.0.interrupt(Interrupt::PutOff);
    }

    /// The execution's key.
    pub fn key(&self) -> Key {
        self.0.key
    }

    /// The execution's workflow_id.
    pub fn workflow_id(&self) -> String {
        self.0.key.workflow_id(self.0.given_id.as_deref())
    }

    /// Adds to the number of calls that have been cancelled, and whose branches have not gone on yet: until then
    /// nothing is delivered.
    pub fn add_cancelled(&self, by: i32) {
        let minds_rest = {
            let mut state = self.0.state();
            state.cancelled = state.cancelled.saturating_add_signed(by);
            state.cancelled == 0 && state.minds_rest()
        };
        if minds_rest {
            self.0.poke();
        }
    }

    /// The name of its workflow.
    pub fn workflow(&self) -> Arc<str> {
        self.0.definition.name.clone()
    }

    /// Says that the code holds a thread. While it waits for a child, it is suspended at once: unless the thread
    /// hosts the child, and that begins here.
    pub fn set_in_thread(&self, is_hosting: bool) {
        self.0.state().thread = Some(if is_hosting { InThread::Hosting } else { InThread::Idle });
    }

    /// Tells the runs of this process apart: another run of the same execution has another one.
    pub fn run_id(&self) -> u64 {
        Arc::as_ptr(&self.0) as u64
    }

    /// True once nothing is recorded any more: the code has to unwind, or will have to in a moment.
    pub fn is_closing(&self) -> bool {
        let state = self.0.state();
        state.is_closed || state.interrupt.is_some()
    }

    /// Parks the execution: something that is recorded cannot be read.
    pub fn park(&self, reason: &str) {
        let text = format!("workflow {:?}: {reason}", &*self.0.definition.name);
        let failure = Failure::of_kind(UNREADABLE, text).permanent();
        self.0.interrupt(Interrupt::Park(failure.into()));
    }

    /// Code of a branch runs, until it waits for something.
    pub fn code_runs(&self) {
        self.0.code_runs();
    }

    /// Code of a branch waits now, or has ended. True if from now on somebody has to watch [`Gate::activity`], turn
    /// by turn, and say when all of them have come to rest.
    pub fn code_waits(&self) -> bool {
        self.0.code_waits()
    }

    /// Changes with everything that branches do; `None` when there is nothing more to watch.
    pub fn activity(&self) -> Option<u32> {
        self.0.activity()
    }

    /// True if it matters what [`Gate::set_quiet`] is told about branches that are at rest now.
    pub fn minds_waits(&self) -> bool {
        self.0.minds_waits()
    }

    /// Says that no branch of the execution runs any more, and none can before something is delivered, or comes
    /// from outside. There is nothing more to watch.
    pub fn set_quiet(&self, waits: Waits) {
        self.0.set_quiet(waits);
    }

    /// How many branches have not ended.
    pub fn branches(&self) -> u32 {
        self.0.state().leaves
    }
}

/// A branch of a guest's code. Calls are numbered when they are made, one after the other.
pub struct Branch {
    cx: Context,
    /// The first branch counts without one.
    leaf: Option<Leaf>,
}

impl Branch {
    /// A branch that goes on beside this one, until it is dropped.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let path = self.cx.next_path();
        let cx = self.cx.branch(&path, 0);
        let leaf = Leaf::new(&cx.run);
        Self { cx, leaf: Some(leaf) }
    }

    /// A branch that is to begin: it has its place, and does not count yet.
    #[must_use]
    pub fn reserve(&mut self) -> Self {
        let path = self.cx.next_path();
        Self { cx: self.cx.branch(&path, 0), leaf: None }
    }

    /// Begins a branch that was reserved.
    pub fn begin(&mut self) {
        self.leaf = Some(Leaf::new(&self.cx.run));
    }

    /// While it lives, this branch only waits for branches of its own.
    #[must_use]
    pub fn join(&self) -> Join {
        self.cx.run.add_leaves(-1);
        Join(self.cx.run.clone())
    }

    /// The path that the next call will have.
    pub fn coming_path(&self) -> Path {
        self.cx.coming_path()
    }

    /// The key that the next child of this branch gets.
    pub fn next_child_key(&self) -> Key {
        Key::derived(self.cx.run.key, self.cx.run.run_no, &self.cx.coming_path())
    }

    /// The output of a child that was started; see [`ChildHandle::result`](crate::ChildHandle::result).
    pub fn child_result(
        &mut self,
        workflow: &GuestWorkflow,
        key: Key,
    ) -> impl Future<Output = Result<Payload, Failure>> + Send + use<> {
        let path = self.cx.next_path();
        let call = crate::workflow::child::begin_result(&self.cx.run, path, &workflow.definition.name);
        crate::workflow::child::result(call, key)
    }

    /// A step; see [`Context::step`]. Whoever polls it runs its body.
    pub fn step(
        &mut self,
        name: &Name,
        options: Option<Box<StepOptions>>,
        fingerprint: Option<u64>,
    ) -> StepCall {
        let path = self.cx.next_path();
        let begun = begin(&self.cx.run, path, name, fingerprint.map(Ok), options.as_deref());
        StepCall::new(begun, options)
    }

    /// A durable sleep; see [`Context::sleep`].
    pub fn sleep(&mut self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        let call = self.cx.begin_sleep();
        async move { sleep_for(&call, duration).await }
    }

    /// A child, run to its output; see [`Context::child`].
    pub fn child(
        &mut self,
        workflow: &GuestWorkflow,
        input: GuestInput,
        options: Option<Box<StartOptions>>,
    ) -> impl Future<Output = Result<Payload, Failure>> + Send + use<> {
        let path = self.cx.next_path();
        let definition = workflow.definition.clone();
        let fingerprint = input.fingerprint();
        let call = crate::workflow::child::begin(&self.cx.run, path, &definition, fingerprint);
        let input = input.payload;
        crate::workflow::child::run_to_end(
            call,
            NewChild { definition, input, fingerprint, options, is_detached: false },
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
        let child = NewChild { definition, input, fingerprint, options, is_detached };
        async move { crate::workflow::child::start_recorded(&run, path, child).await }
    }

    /// What tells whether the code has to unwind.
    pub fn gate(&self) -> Gate {
        Gate(self.cx.run.clone())
    }

    /// The execution's key.
    pub fn key(&self) -> Key {
        self.cx.run.key
    }

    /// The path of the branch, as people write it.
    pub fn path(&self) -> String {
        self.cx.path.to_string()
    }

    /// True if an earlier run of the execution may have come further than this one has yet.
    pub fn is_replaying(&self) -> bool {
        self.cx.run.state().replay.is_some()
    }
}

/// A branch that waits for branches of its own.
pub struct Join(Arc<Run>);

impl Drop for Join {
    fn drop(&mut self) {
        self.0.add_leaves(1);
    }
}
