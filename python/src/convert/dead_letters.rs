//! Converts dead letters to plain tuples for `stepfast._engine.dead_letters`.

use pyo3::prelude::*;
use stepfast::store::DeadLetter;

/// Returns tuples in the order of the fields of `stepfast.DeadLetter`. Instants are in microseconds since 1970.
pub(crate) fn dead_letters(py: Python<'_>, letters: &[DeadLetter]) -> PyResult<Py<PyAny>> {
    let tuples = letters.iter().map(|letter| {
        let times = (letter.created_at.as_micros(), letter.rejected_at.as_micros());
        (letter.id, letter.requested_id(), &letter.workflow, &letter.queue, &letter.reason, times.0, times.1)
    });
    Ok(tuples.collect::<Vec<_>>().into_pyobject(py)?.into_any().unbind())
}
