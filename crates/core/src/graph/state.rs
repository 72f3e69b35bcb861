//! [`TaskState`]: how far a task of a graph is.

/// The state of a task in one execution of its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// A dependency has not ended, or the task has not begun.
    Pending,
    /// The task has begun and has not ended.
    Running,
    /// The task has returned a value.
    Succeeded,
    /// The task has failed, and no attempt is left.
    Failed,
    /// The task does not run, because its rule does not hold.
    Skipped,
}

impl TaskState {
    /// Whether the task has ended.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Skipped)
    }
}
