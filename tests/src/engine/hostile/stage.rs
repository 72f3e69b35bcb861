//! [`Stage`]: an engine on a store, its doors, and innocent executions beside them.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use stepfast_core::queue::Queue;
use stepfast_core::store::Execution;
use stepfast_core::{Engine, EngineBuilder, Error, ErrorKind, Workflow};

use crate::StoreFixture;
use crate::engine::support::{noop, open, row, shut_down};

/// Longest time of a door for one value: a door that takes longer hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest message, in bytes: a longer one shows more of a value than people read.
const MAX_MESSAGE_BYTES: usize = 4_000;
/// The queue in which hostile executions stand.
pub(super) const QUEUE: &str = "hostile";

/// An engine on a store, before which values are brought to doors.
pub(super) struct HostileHarness<'f> {
    pub(super) fixture: &'f dyn StoreFixture,
    pub(super) engine: Engine,
    pub(super) innocent: Workflow<i64, i64>,
    number: Cell<usize>,
    violations: RefCell<Vec<String>>,
}

impl<'f> HostileHarness<'f> {
    /// An engine that has `noop` and the workflows that `with` registers.
    pub(super) async fn with(
        fixture: &'f dyn StoreFixture,
        with: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let innocent = noop();
        let engine = open(fixture.store(), |it| with(it.register(&innocent).queue(Queue::new(QUEUE)))).await;
        Self { fixture, engine, innocent, number: Cell::new(0), violations: RefCell::default() }
    }

    /// An engine that has `noop` alone.
    pub(super) async fn on(fixture: &'f dyn StoreFixture) -> Self {
        Self::with(fixture, |it| it).await
    }

    /// Returns a name that is used once.
    pub(super) fn fresh_name(&self) -> String {
        self.number.set(self.number.get() + 1);
        format!("fresh-{}", self.number.get())
    }

    /// Brings each value to a door. An error of the door must name one of `names`; and after all of the values, innocent
    /// executions complete.
    pub(super) async fn check<T: Debug>(
        &self,
        door: &str,
        names: &[&str],
        values: impl IntoIterator<Item = T>,
        enter: impl AsyncFn(&T) -> Result<(), Error>,
    ) {
        for value in values {
            let shown: String = format!("{door} = {value:?}").chars().take(100).collect();
            let entered = AssertUnwindSafe(enter(&value)).catch_unwind();
            let fault = match tokio::time::timeout(HANG_TIMEOUT, entered).await {
                Err(_) => Some("hangs".to_owned()),
                Ok(Err(panic)) => Some(format!("panics: {}", crate::engine::panic_message(&*panic))),
                Ok(Ok(Err(error))) => fault_of_message(&error, names),
                Ok(Ok(Ok(()))) => None,
            };
            self.violations.borrow_mut().extend(fault.map(|fault| format!("{shown}: {fault}")));
        }
        if tokio::time::timeout(HANG_TIMEOUT, self.check_innocents()).await.is_err() {
            self.violations.borrow_mut().push(format!("after {door}: an innocent execution does not complete"));
        }
    }

    /// Innocent executions complete: run by their caller, started, with an id, in a queue, and after a delay.
    async fn check_innocents(&self) {
        let (engine, noop) = (&self.engine, &self.innocent);
        assert_eq!(engine.run(noop, 1).await.unwrap(), 1);
        let handles = [
            engine.start(noop, 2).await.unwrap(),
            engine.start(noop, 3).workflow_id(format!("innocent-{}", self.fresh_name())).await.unwrap(),
            engine.start(noop, 4).queue(QUEUE).key("k").await.unwrap(),
            engine.start(noop, 5).queue(QUEUE).delay(Duration::ZERO).await.unwrap(),
        ];
        for (handle, expected) in handles.iter().zip(2..) {
            assert_eq!(handle.result().await.unwrap(), expected);
        }
    }

    /// Returns the row of an execution that a door has started.
    pub(super) async fn row(&self, workflow_id: &str) -> Execution {
        row(&self.engine, workflow_id).await
    }

    /// Ends the engine. Panics if something was wrong.
    pub(super) async fn end(self) {
        shut_down(self.engine).await;
        let wrong = self.violations.take();
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Returns the fault of an error message; `None` if there is none.
pub(super) fn fault_of_message(error: &Error, names: &[&str]) -> Option<String> {
    let said = error.to_string();
    let short: String = said.chars().take(300).collect();
    if said.len() > MAX_MESSAGE_BYTES {
        return Some(format!("is refused in {} bytes: {short}", said.len()));
    }
    if said.contains(char::is_control) {
        return Some(format!("is refused with a control character: {short:?}"));
    }
    let is_refusal = match error {
        Error::Failed(failure) => failure.code() == Some("SF-0001"),
        error => error.kind() == ErrorKind::Invalid,
    };
    match error.kind() {
        // documented outcomes that are no faults of the value
        ErrorKind::Conflict | ErrorKind::NotFound => None,
        _ if !is_refusal => Some(format!("ends with {}: {short}", error.code())),
        _ if names.iter().any(|name| said.contains(name)) => None,
        _ => Some(format!("is refused without the name: {short}")),
    }
}
