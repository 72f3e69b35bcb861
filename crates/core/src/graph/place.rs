//! [`TaskPlace`]: where the outcome of a task is in the record of its execution.

use std::sync::Arc;

use crate::failure::Failure;
use crate::name::Name;
use crate::name_checks::check_name;
use crate::path::Path;
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::workflow::retry::StepOptions;

/// The place of a task's outcome in the record of an execution, and the fingerprint that is recorded with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPlace {
    /// The task's number in the paths of its checkpoints. Derived from the name, so that it is independent of other
    /// tasks.
    pub(super) number: u32,
    /// The fingerprint of the dependencies' names and the rule.
    pub(super) fingerprint: u64,
    /// The index of an item, if the task is mapped over items.
    pub(super) item: Option<u32>,
    /// How often the task was repeated after resumes of the execution.
    pub(super) repetition: u32,
}

impl TaskPlace {
    /// Returns the place of an item, if the task is mapped over items.
    #[must_use]
    pub fn item(self, index: u32) -> Self {
        Self { item: Some(index), ..self }
    }

    /// Returns the place of the next repetition.
    #[must_use]
    pub fn repeated(self) -> Self {
        Self { repetition: self.repetition + 1, ..self }
    }

    /// Returns the path of the task's checkpoint.
    pub fn path(self) -> Path {
        let path = Path::root().child(self.number);
        let path = match self.item {
            None => path,
            // 0 is left to repetitions
            Some(item) => path.child(item.saturating_add(1)),
        };
        if self.repetition == 0 { path } else { path.child(0).child(self.repetition) }
    }
}

/// Whether a task that has failed is repeated, because the execution was resumed since. Call this before the task's
/// call begins.
///
/// A task is not repeated if a task that depends on it, directly or through others, is recorded: that one ran on
/// account of the failure. `dependents` are the places of these tasks. A task that was repeated before is repeated again, since
/// what is recorded of its dependents may be later.
pub(crate) fn is_repeated(
    run: &Run,
    place: TaskPlace,
    mut dependents: impl Iterator<Item = TaskPlace>,
) -> bool {
    run.is_replaying()
        && run.has_failed_before_resume(&place.path())
        && (run.has_recorded(&place.repeated().path())
            || !dependents.any(|dependent| run.has_recorded_in_branch(dependent.number)))
}

/// Begins the call of a task, unless its name or its options are invalid.
pub(crate) fn begin_task_call(
    run: &Arc<Run>,
    place: TaskPlace,
    name: &Name,
    options: Option<&StepOptions>,
) -> Result<Call, Failure> {
    let check_options = || options.map_or(Ok(()), |options| options.retry.check());
    match check_name("task name", name).and_then(|()| check_options()) {
        Ok(()) => Ok(Call::begin(run, place.path(), name, CallKind::Task, Some(place.fingerprint))),
        Err(error) => Err(error.to_failure()),
    }
}
