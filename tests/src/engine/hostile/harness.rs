//! [`HostileHarness`]: an engine on a store, the values that enter it, and unrelated executions beside them.

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

/// The longest time of an entry point for one value. An entry point that takes longer hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest message, in bytes. A longer one shows more of a value than a reader needs.
const MAX_MESSAGE_BYTES: usize = 4_000;
/// The queue of the hostile executions.
pub(super) const QUEUE: &str = "hostile";

/// An engine on a store, to whose entry points values are passed.
pub(super) struct HostileHarness<'f> {
    pub(super) fixture: &'f dyn StoreFixture,
    pub(super) engine: Engine,
    pub(super) unrelated: Workflow<i64, i64>,
    number: Cell<usize>,
    violations: RefCell<Vec<String>>,
}

impl<'f> HostileHarness<'f> {
    /// Opens an engine that has `noop` and the workflows that `with` registers.
    pub(super) async fn with(
        fixture: &'f dyn StoreFixture,
        with: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let unrelated = noop();
        let engine = open(fixture.store(), |b| with(b.register(&unrelated).queue(Queue::new(QUEUE)))).await;
        Self { fixture, engine, unrelated, number: Cell::new(0), violations: RefCell::default() }
    }

    /// Opens an engine that has only `noop`.
    pub(super) async fn on(fixture: &'f dyn StoreFixture) -> Self {
        Self::with(fixture, |b| b).await
    }

    /// Returns a name that is used once.
    pub(super) fn fresh_name(&self) -> String {
        self.number.set(self.number.get() + 1);
        format!("fresh-{}", self.number.get())
    }

    /// Passes each value to an entry point. An error of the entry point must name one of `names`. Unrelated executions
    /// must complete after all of the values.
    pub(super) async fn check<T: Debug>(
        &self,
        entry_point: &str,
        names: &[&str],
        values: impl IntoIterator<Item = T>,
        enter: impl AsyncFn(&T) -> Result<(), Error>,
    ) {
        for value in values {
            let shown: String = format!("{entry_point} = {value:?}").chars().take(100).collect();
            let entered = AssertUnwindSafe(enter(&value)).catch_unwind();
            let violation = match tokio::time::timeout(HANG_TIMEOUT, entered).await {
                Err(_) => Some("hangs".to_owned()),
                Ok(Err(panic)) => Some(format!("panics: {}", crate::engine::panic_message(&*panic))),
                Ok(Ok(Err(error))) => message_violation(&error, names),
                Ok(Ok(Ok(()))) => None,
            };
            self.violations.borrow_mut().extend(violation.map(|violation| format!("{shown}: {violation}")));
        }
        if tokio::time::timeout(HANG_TIMEOUT, self.check_unrelated_executions()).await.is_err() {
            self.violations
                .borrow_mut()
                .push(format!("after {entry_point}: an unrelated execution does not complete"));
        }
    }

    /// Asserts that unrelated executions complete: run by their caller, started, with an id, in a queue, and delayed.
    async fn check_unrelated_executions(&self) {
        let (engine, noop) = (&self.engine, &self.unrelated);
        assert_eq!(engine.run(noop, 1).await.unwrap(), 1);
        let handles = [
            engine.start(noop, 2).await.unwrap(),
            engine.start(noop, 3).workflow_id(format!("unrelated-{}", self.fresh_name())).await.unwrap(),
            engine.start(noop, 4).queue(QUEUE).key("k").await.unwrap(),
            engine.start(noop, 5).queue(QUEUE).delay(Duration::ZERO).await.unwrap(),
        ];
        for (handle, expected) in handles.iter().zip(2..) {
            assert_eq!(handle.result().await.unwrap(), expected);
        }
    }

    /// Returns the row of an execution that an entry point has started.
    pub(super) async fn row(&self, workflow_id: &str) -> Execution {
        row(&self.engine, workflow_id).await
    }

    /// Ends the engine. Panics if a check failed.
    pub(super) async fn end(self) {
        shut_down(self.engine).await;
        let violations = self.violations.take();
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    }
}

/// Returns the violation of an error message, `None` if the message is correct.
pub(super) fn message_violation(error: &Error, names: &[&str]) -> Option<String> {
    let message = error.to_string();
    let short: String = message.chars().take(300).collect();
    if message.len() > MAX_MESSAGE_BYTES {
        return Some(format!("is rejected in {} bytes: {short}", message.len()));
    }
    if message.contains(char::is_control) {
        return Some(format!("is rejected with a control character: {short:?}"));
    }
    let is_rejection = match error {
        Error::Failed(failure) => failure.code() == Some("SF-0001"),
        error => error.kind() == ErrorKind::Invalid,
    };
    match error.kind() {
        // documented outcomes that are independent of the value
        ErrorKind::Conflict | ErrorKind::NotFound => None,
        _ if !is_rejection => Some(format!("ends with {}: {short}", error.code())),
        _ if names.iter().any(|name| message.contains(name)) => None,
        _ => Some(format!("is rejected without the name: {short}")),
    }
}
