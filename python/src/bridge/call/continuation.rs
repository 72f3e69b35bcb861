//! The call by which the code of a workflow continues as new.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::Call;
use crate::bridge::branch::Branch;
use crate::bridge::engine::Engine;
use crate::bridge::reply::Reply;

/// Ends this part of the execution; the next one begins with these arguments of the workflow. The call never returns.
#[pyfunction]
pub(crate) fn continue_as_new(
    branch: &Bound<'_, Branch>,
    engine: &Engine,
    workflow: usize,
    args: &Bound<'_, PyTuple>,
    kwargs: &Bound<'_, PyDict>,
) -> PyResult<Call> {
    let (_, input) = engine.workflow_and_input(workflow, args, kwargs, false)?;
    Branch::awaitable_call(branch, |branch| match branch.continue_as_new(input.payload) {
        Ok(continued) => Box::pin(async move { match continued.await {} }),
        Err(error) => Box::pin(std::future::ready(Reply::Error(error))),
    })
}
