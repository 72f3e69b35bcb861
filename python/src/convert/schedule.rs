//! Converts schedules from Python, and to tuples for `stepfast._engine.scheduling`.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use stepfast::clock::Timestamp;
use stepfast::{CatchUp, Error, Overlap, Schedule as CoreSchedule, ScheduleView};

use crate::convert::durations::duration_of;
use crate::convert::signature::Signature;
use crate::convert::value::encode_arguments;
use crate::error::to_exception;

/// A schedule, with its encoded input. Instants are in microseconds since 1970, and other times in seconds. The package has
/// checked all values but the cron expression and the time zone.
#[pyclass(frozen, eq, module = "stepfast._native")]
#[derive(PartialEq)]
pub(crate) struct Schedule(CoreSchedule);

#[pymethods]
impl Schedule {
    #[new]
    #[pyo3(signature = (name, workflow, args, kwargs, signature, *, cron, every, at, timezone, overlap, catch_up, jitter, starts_at, ends_at, pause_after, queue=None, key=None, priority=None, execution_timeout=None, run_timeout=None, attributes=None))]
    #[allow(clippy::too_many_arguments)] // arguments by name
    fn new(
        py: Python<'_>,
        name: &str,
        workflow: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        signature: Option<&Bound<'_, Signature>>,
        cron: Option<String>,
        every: Option<f64>,
        at: Option<i64>,
        timezone: Option<String>,
        overlap: &str,
        catch_up: &str,
        jitter: f64,
        starts_at: Option<i64>,
        ends_at: Option<i64>,
        pause_after: Option<u32>,
        queue: Option<&str>,
        key: Option<&str>,
        priority: Option<i32>,
        execution_timeout: Option<f64>,
        run_timeout: Option<f64>,
        attributes: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        if let Some(signature) = signature {
            signature.get().check(args, kwargs)?;
        }
        let input = encode_arguments(args, Some(kwargs))?;
        let mut schedule = CoreSchedule::of_payload(name.into(), workflow.into(), &input).elsewhere();
        (schedule.cron, schedule.timezone) = (cron, timezone);
        check_cron(&schedule).map_err(|error| to_exception(py, &error))?;
        schedule.every = every.map(duration_of);
        schedule.at = at.map(Timestamp::from_micros);
        schedule.overlap = Overlap::ALL.into_iter().find(|it| it.as_str() == overlap).unwrap_or_default();
        schedule.catch_up = CatchUp::ALL.into_iter().find(|it| it.as_str() == catch_up).unwrap_or_default();
        schedule.jitter = duration_of(jitter);
        schedule.starts_at = starts_at.map(Timestamp::from_micros);
        schedule.ends_at = ends_at.map(Timestamp::from_micros);
        schedule.pause_after = pause_after;
        schedule.queue = queue.map(Into::into);
        schedule.key = key.map(Into::into);
        schedule.priority = priority;
        schedule.execution_timeout = execution_timeout.map(duration_of);
        schedule.run_timeout = run_timeout.map(duration_of);
        let attributes = attributes.unwrap_or_default().into_iter();
        schedule.attributes = attributes.map(|(name, value)| (name.into(), value.into())).collect();
        Ok(Self(schedule))
    }
}

impl Schedule {
    pub(crate) fn to_core(&self) -> CoreSchedule {
        self.0.clone()
    }
}

/// Returns an error for a cron expression or a time zone that cannot be read, and for an expression without any instant.
fn check_cron(schedule: &CoreSchedule) -> Result<(), Error> {
    let Some(cron) = &schedule.cron else { return Ok(()) };
    if schedule.instants_after(Timestamp::default(), 1)?.is_empty() {
        let reason = format!("{cron:?} has no instant: no date has this day of the month");
        return Err(Error::Invalid { input: "cron", reason });
    }
    Ok(())
}

/// Returns the instant of the execution with this workflow_id, in microseconds since 1970; `None` if no schedule has started
/// the execution for an instant.
#[pyfunction]
pub(crate) fn scheduled_at(workflow_id: &str) -> Option<i64> {
    stepfast::schedule::instant_of(workflow_id).map(Timestamp::as_micros)
}

pub(crate) fn schedule_tuples(py: Python<'_>, views: &[ScheduleView]) -> PyResult<Py<PyAny>> {
    let tuples: PyResult<Vec<_>> = views.iter().map(|view| schedule_tuple(py, view)).collect();
    Ok(tuples?.into_pyobject(py)?.unbind())
}

/// Returns three tuples with the values of `stepfast.ScheduleInfo`: those of the schedule, those of its executions, and its
/// state. Instants are in microseconds since 1970, intervals in microseconds, and time limits in seconds.
pub(crate) fn schedule_tuple(py: Python<'_>, view: &ScheduleView) -> PyResult<Py<PyAny>> {
    let schedule = &view.schedule;
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    let input = schedule.input();
    let declared = (
        &*schedule.name,
        &*schedule.workflow,
        PyBytes::new(py, input.as_message_pack().unwrap_or_default()),
        schedule.cron.as_deref(),
        schedule.every.map(micros),
        schedule.at.map(Timestamp::as_micros),
        schedule.cron.is_some().then(|| schedule.timezone_name()),
        (schedule.overlap.as_str(), schedule.catch_up.as_str()),
        micros(schedule.jitter),
        schedule.starts_at.map(Timestamp::as_micros),
        schedule.ends_at.map(Timestamp::as_micros),
        schedule.pause_after,
    );
    let attributes = schedule.attributes.iter().map(|(name, value)| (&**name, &**value));
    let options = (
        schedule.queue.as_deref(),
        schedule.key.as_deref(),
        schedule.priority.unwrap_or_default(),
        schedule.execution_timeout.map(|it| it.as_secs_f64()),
        schedule.run_timeout.map(|it| it.as_secs_f64()),
        attributes.collect::<BTreeMap<&str, &str>>(),
    );
    let state = (
        view.pause.as_ref().map(|pause| (&*pause.reason, pause.is_automatic)),
        view.next.map(Timestamp::as_micros),
        view.last_started.map(Timestamp::as_micros),
        view.started,
        view.skipped,
        view.skips.iter().map(|instant| instant.as_micros()).collect::<Vec<_>>(),
        view.buffered,
        view.backfills,
        view.failures,
        view.error.as_deref(),
        &*view.workflow_id,
        (view.stopped.as_deref(), view.is_late),
    );
    Ok((declared, options, state).into_pyobject(py)?.into_any().unbind())
}
