//! The call by which the code of a sync workflow waits for the winner of a race.

use pyo3::prelude::*;

use super::Call;
use crate::bridge::branch::Branch;
use crate::bridge::reply::Reply;

/// Begins a race between `count` branches, each of which runs in a thread of its own. The call returns the number of the
/// branch that ends first; the others have to unwind from then on. The code then waits for the ends of all branches.
#[pyfunction]
pub(crate) fn begin_race(branch: &Bound<'_, Branch>, count: u32) -> PyResult<(Call, Vec<Branch>)> {
    let mut branches = Vec::new();
    let call = Branch::awaitable_call(branch, |branch| {
        let (race, racing) = branch.race(count);
        branches = racing;
        Box::pin(async move { Reply::Count(race.await.into()) })
    })?;
    let branches = branches.into_iter().map(|racing| branch.get().beside(branch.py(), racing)).collect();
    Ok((call, branches))
}
