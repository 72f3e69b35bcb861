//! [`Progress`]: which tasks of a graph have ended, and which may begin.

use std::collections::VecDeque;

use crate::graph::shape::GraphShape;
use crate::graph::state::TaskState;

/// The states of a graph's tasks in one execution. Each task counts its dependencies that have not ended, so the end of
/// a task costs no more than the number of its dependents.
pub(super) struct Progress {
    states: Vec<TaskState>,
    /// Number of dependencies of each task that have not ended.
    unmet: Vec<usize>,
    /// Tasks that may begin, in the order in which they became ready.
    ready: VecDeque<usize>,
    /// Ready tasks without a recorded outcome, during a replay.
    deferred: VecDeque<usize>,
}

impl Progress {
    pub(super) fn new(shape: &GraphShape) -> Self {
        let unmet: Vec<usize> = shape.tasks().iter().map(|task| task.dependencies.len()).collect();
        let ready = (0..unmet.len()).filter(|&task| unmet[task] == 0).collect();
        Self { states: vec![TaskState::Pending; unmet.len()], unmet, ready, deferred: VecDeque::new() }
    }

    /// Takes the first ready task, and notes that it has begun.
    pub(super) fn begin_next(&mut self) -> Option<usize> {
        let task = self.ready.pop_front()?;
        self.states[task] = TaskState::Running;
        Some(task)
    }

    /// Takes the first ready task that may begin in a replay, and notes that it has begun. Ready tasks before it are
    /// deferred until [`end_replay`](Self::end_replay).
    pub(super) fn begin_next_recorded(&mut self, is_recorded: impl Fn(usize) -> bool) -> Option<usize> {
        while let Some(task) = self.ready.pop_front() {
            if is_recorded(task) {
                self.states[task] = TaskState::Running;
                return Some(task);
            }
            self.deferred.push_back(task);
        }
        None
    }

    /// Makes the deferred tasks ready again.
    pub(super) fn end_replay(&mut self) {
        self.deferred.append(&mut self.ready);
        std::mem::swap(&mut self.ready, &mut self.deferred);
    }

    /// Whether a task may begin now or at the end of the replay.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.deferred.is_empty()
    }

    /// Notes the end of a task. Its dependents become ready or are skipped if it was their last dependency to end.
    /// Calls `on_end` with the task and with each task that is skipped.
    pub(super) fn end(
        &mut self,
        shape: &GraphShape,
        task: usize,
        state: TaskState,
        mut on_end: impl FnMut(usize, TaskState),
    ) {
        let mut ended = VecDeque::from([(task, state)]);
        while let Some((task, state)) = ended.pop_front() {
            self.states[task] = state;
            on_end(task, state);
            for &dependent in shape.dependents(task) {
                self.unmet[dependent] -= 1;
                if self.unmet[dependent] > 0 {
                    continue;
                }
                if self.is_wanted(shape, dependent) {
                    self.ready.push_back(dependent);
                } else {
                    ended.push_back((dependent, TaskState::Skipped));
                }
            }
        }
    }

    /// Whether the rule of a task holds. All dependencies of the task have ended.
    fn is_wanted(&self, shape: &GraphShape, task: usize) -> bool {
        let task = &shape.tasks()[task];
        let mut states = task.dependencies.iter().map(|&dependency| self.states[dependency]);
        if task.rule.is_default() {
            return states.all(|state| state == TaskState::Succeeded);
        }
        let states: Vec<TaskState> = states.collect();
        task.rule.holds(&states, &|name| {
            shape.index_of(name).map_or(TaskState::Skipped, |named| self.states[named])
        })
    }
}
