//! Dead letters, as plain tuples for `stepfast.dead_letters`.

use pyo3::prelude::*;
use stepfast::store::DeadLetter;

/// In the order of the fields of `stepfast.dead_letters.DeadLetter`; instants in microseconds.
pub(crate) fn dead_letters(py: Python<'_>, letters: &[DeadLetter]) -> PyResult<Py<PyAny>> {
    let rows = letters.iter().map(|letter| {
        let times = (letter.created_at.as_micros(), letter.rejected_at.as_micros());
        (letter.id, letter.requested_id(), &letter.workflow, &letter.queue, &letter.reason, times.0, times.1)
    });
    Ok(rows.collect::<Vec<_>>().into_pyobject(py)?.into_any().unbind())
}
