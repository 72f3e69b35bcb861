//! [`Schedules`]: the schedules of a store, as an engine or a client changes and shows them.

use pyo3::prelude::*;
use stepfast::clock::Timestamp;
use stepfast::{Engine, Error, OnConflict, Payload};

use crate::bridge::call::Call;
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::convert::queue::on_conflict;
use crate::convert::schedule::Schedule;
use crate::fork::Process;

/// A schedule that an engine or a client declares, and what to do if it is stored with other values.
pub(crate) type DeclaredSchedule = (Py<Schedule>, String);

/// The schedules of the store of an open engine or client.
#[pyclass(frozen)]
pub(crate) struct Schedules {
    /// `None` in a forked child, whose parent has the engine.
    engine: Option<Engine>,
    process: Process,
}

impl Drop for Schedules {
    fn drop(&mut self) {
        self.process.drop_if_current(self.engine.take());
    }
}

#[pymethods]
impl Schedules {
    /// Creates a schedule, or changes the one of its name.
    fn set(&self, py: Python<'_>, schedule: &Schedule, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let schedule = schedule.to_core();
        let query = |engine: Engine| async move { engine.set_schedule(&schedule).await };
        self.query(py, port, query, |()| Reply::Nothing)
    }

    /// Returns the schedule with this name.
    fn get(&self, py: Python<'_>, name: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine: Engine| async move { engine.schedule(&name).await };
        self.query(py, port, query, |view| Reply::Schedule(Box::new(view)))
    }

    /// Returns all schedules.
    fn list(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        self.query(py, port, |engine| async move { engine.schedules().await }, Reply::Schedules)
    }

    fn pause(
        &self,
        py: Python<'_>,
        name: String,
        reason: String,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let query = |engine: Engine| async move { engine.pause_schedule(&name, &reason).await };
        self.query(py, port, query, |()| Reply::Nothing)
    }

    fn resume(&self, py: Python<'_>, name: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine: Engine| async move { engine.resume_schedule(&name).await };
        self.query(py, port, query, |()| Reply::Nothing)
    }

    fn delete(&self, py: Python<'_>, name: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine: Engine| async move { engine.delete_schedule(&name).await };
        self.query(py, port, query, |()| Reply::Nothing)
    }

    /// Starts an execution now. The call returns its handle.
    fn trigger(&self, py: Python<'_>, name: String, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let query = |engine: Engine| async move { engine.trigger_schedule::<Payload>(&name).await };
        self.query(py, port, query, Reply::Handle)
    }

    /// Starts the executions of a range of instants, which is in microseconds since 1970. The call returns the number of
    /// instants.
    fn backfill(
        &self,
        py: Python<'_>,
        name: String,
        start: i64,
        end: i64,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<Call> {
        let (start, end) = (Timestamp::from_micros(start), Timestamp::from_micros(end));
        let query = move |engine: Engine| async move { engine.backfill_schedule(&name, start, end).await };
        self.query(py, port, query, |count| Reply::Count(count as u64))
    }
}

impl Schedules {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine: Some(engine), process: Process::current() }
    }

    fn query<T, F>(
        &self,
        py: Python<'_>,
        port: Option<&Bound<'_, Port>>,
        query: impl FnOnce(Engine) -> F,
        reply: impl FnOnce(T) -> Reply + Send + 'static,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.process.check(py)?;
        let Some(engine) = self.engine.clone() else {
            return Err(crate::error::to_exception(py, &Error::Shutdown));
        };
        let queried = query(engine);
        let future: ReplyFuture = Box::pin(async move { queried.await.map_or_else(Reply::Error, reply) });
        Ok(Call::awaitable(port, future))
    }
}

/// Returns the declared schedules, with what to do about each that is stored with other values.
pub(crate) fn declared(schedules: Vec<DeclaredSchedule>) -> Vec<(stepfast::Schedule, OnConflict)> {
    let to_core = |(schedule, policy): DeclaredSchedule| (schedule.get().to_core(), on_conflict(&policy));
    schedules.into_iter().map(to_core).collect()
}
