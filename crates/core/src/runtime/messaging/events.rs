//! The search for events, which clients and workflows share, and the waking of those that wait for them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::time::Instant;

use crate::error::Error;
use crate::key::Key;
use crate::name_checks::check_name;
use crate::runtime::completion_watch::RETRY_DELAY;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::private_names::is_private;
use crate::store::{Detail, Event, EventQuery, Status, Write};

/// The result of a search for an event.
pub(crate) enum FoundEvent {
    /// The event that was set last.
    Set(Event),
    /// The execution has ended, and has not set the event.
    Ended(Status),
    /// The execution may still set the event.
    Pending,
}

/// Returns an error for a name that no event can have.
pub(crate) fn check_event_name(name: &str) -> Result<(), Error> {
    check_name("event", name)
}

impl EngineInner {
    /// Returns the key of the execution with this workflow_id, which may set events.
    pub(crate) async fn find_setter(&self, workflow_id: &str) -> Result<Key, Error> {
        Ok(self.find(workflow_id, Detail::Outcome).await?.execution.key)
    }

    /// Searches for an event of an execution.
    pub(crate) async fn find_event(&self, setter: Key, name: &Arc<str>) -> Result<FoundEvent, Error> {
        if let Some(event) = self.last_event(setter, name).await? {
            return Ok(FoundEvent::Set(event));
        }
        let Some(execution) = self.load_execution(setter).await? else {
            return Err(Error::NotFound { workflow_id: setter.to_string() });
        };
        if !execution.status.is_terminal() {
            return Ok(FoundEvent::Pending);
        }
        // the event may have been set between the two queries
        Ok(match self.last_event(setter, name).await? {
            Some(event) => FoundEvent::Set(event),
            None => FoundEvent::Ended(execution.status),
        })
    }

    /// Waits until an execution has set an event; `None` if that does not happen within `timeout`. Searches at least once.
    pub(crate) async fn wait_for_event(
        &self,
        setter: Key,
        workflow_id: &str,
        name: &Arc<str>,
        timeout: Option<Duration>,
    ) -> Result<Option<Event>, Error> {
        // a time beyond the range of the clock is no limit
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (changes, ends) = (self.change_watch.watch(setter), self.completion_watch.watch(setter));
        self.leave_idleness();
        loop {
            let (change, end) = (changes.next_change(), ends.next_change());
            // a search may hang, which must not delay the engine's end
            let found = tokio::select! {
                biased;
                found = self.find_event(setter, name) => found,
                () = self.wait_stopped() => return Err(self.closed_error()),
            };
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            let mut retry_at = None;
            match found {
                Ok(FoundEvent::Set(event)) => return Ok(Some(event)),
                Ok(FoundEvent::Ended(status)) => {
                    return Err(Self::unset_event_error(workflow_id, name, status));
                }
                Ok(FoundEvent::Pending) if is_over => return Ok(None),
                Ok(FoundEvent::Pending) => {}
                Err(error @ (Error::Unavailable(_) | Error::PermissionDenied(_))) if !is_over => {
                    tracing::debug!(%error, "cannot search for an event; retrying");
                    retry_at = Some(Instant::now() + RETRY_DELAY);
                }
                Err(error) => return Err(error),
            }
            if self.is_poisoned() || *self.wakeups.is_stopped.borrow() {
                return Err(self.closed_error());
            }
            let until = OptionFuture::from(until.map(tokio::time::sleep_until));
            let retry = OptionFuture::from(retry_at.map(tokio::time::sleep_until));
            tokio::select! {
                () = change => {}
                () = end => {}
                Some(()) = until => {}
                Some(()) = retry => {}
            }
        }
    }

    async fn last_event(&self, setter: Key, name: &Arc<str>) -> Result<Option<Event>, Error> {
        let query = EventQuery { execution: setter, name: Some(name.clone()) };
        Ok(self.event_loads.load(query).await?.pop())
    }

    /// Notifies the watchers of an event, which is durable, and wakes the suspended executions that wait for it.
    pub(crate) fn announce_event(self: &Arc<Self>, setter: Key, name: Arc<str>) {
        crate::crash_point!("event durable");
        self.change_watch.notify(setter);
        let engine = self.clone();
        self.runtime.spawn(async move {
            let load = || engine.waiter_loads.load((setter, name.clone()));
            // without a reply, a sweep finds the waiters
            for waiter in engine.query_with_retry(load).await.unwrap_or_default() {
                engine.stage_unowned(waiter, Write::Wake(waiter));
            }
        });
    }

    /// Returns the error of a wait for an event of an execution that has ended without it.
    pub(crate) fn unset_event_error(workflow_id: &str, name: &str, status: Status) -> Error {
        let consequence = if is_private(name) {
            "has not answered the question".to_owned()
        } else {
            format!("has not set the event {name:?}")
        };
        Error::HasEnded { workflow_id: workflow_id.to_owned(), status: status.as_str(), consequence }
    }
}
