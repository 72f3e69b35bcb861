//! [`GraphProgress`]: which tasks of a graph have ended, and which may begin.

use std::collections::VecDeque;

use crate::graph::shape::GraphShape;
use crate::graph::shape::condition::ValueCondition;
use crate::graph::state::TaskState;

/// The states of a graph's tasks in one execution. Each task counts its dependencies that have not ended, so the end of
/// a task costs no more than the number of its dependents.
#[derive(Default)]
pub struct GraphProgress {
    states: Vec<TaskState>,
    /// Number of dependencies of each task that have not ended.
    unmet: Vec<usize>,
    /// Tasks that became ready since the last call of [`begin_next`](Self::begin_next).
    ready: VecDeque<usize>,
    /// Ready tasks without a recorded outcome, which begin when the limit allows.
    waiting: VecDeque<usize>,
    max_concurrency: usize,
    /// Number of running tasks that count towards the limit.
    counted: usize,
    /// Whether each task counts towards the limit while it runs.
    is_counted: Vec<bool>,
}

impl GraphProgress {
    /// Returns the progress of an execution in which no task has begun. At most `max_concurrency` tasks run at a time,
    /// and at least one. `value_holds` and `on_skip` are as in [`end`](Self::end).
    pub fn new(
        shape: &GraphShape,
        max_concurrency: usize,
        mut value_holds: impl FnMut(&str, &ValueCondition) -> Option<bool>,
        mut on_skip: impl FnMut(usize),
    ) -> Self {
        let unmet: Vec<usize> = shape.tasks().iter().map(|task| task.dependencies.len()).collect();
        let roots = (0..unmet.len()).filter(|&task| unmet[task] == 0).collect();
        let mut progress = Self {
            states: vec![TaskState::Pending; unmet.len()],
            is_counted: vec![false; unmet.len()],
            unmet,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            max_concurrency: max_concurrency.max(1),
            counted: 0,
        };
        progress.settle(shape, roots, &mut value_holds, &mut on_skip);
        progress
    }

    /// Takes the next task that may begin, and notes that it has begun. `is_recorded` returns whether a replay delivers
    /// the outcome of a task: such a task does not count towards the limit, because its body does not run.
    pub fn begin_next(&mut self, is_recorded: impl Fn(usize) -> bool) -> Option<usize> {
        while let Some(task) = self.ready.pop_front() {
            if is_recorded(task) {
                self.states[task] = TaskState::Running;
                return Some(task);
            }
            self.waiting.push_back(task);
        }
        if self.counted == self.max_concurrency {
            return None;
        }
        let task = self.waiting.pop_front()?;
        self.counted += 1;
        self.is_counted[task] = true;
        self.states[task] = TaskState::Running;
        Some(task)
    }

    /// Notes that a task runs again, because its recorded failure is from before a resume.
    pub fn repeat(&mut self, task: usize) {
        self.counted -= usize::from(std::mem::take(&mut self.is_counted[task]));
        self.states[task] = TaskState::Pending;
        self.ready.push_back(task);
    }

    /// Notes the end of a task. Its dependents become ready or are skipped if it was their last dependency to end.
    /// `value_holds` returns whether a condition of a task's rule holds; `None` if its value cannot be read. A task whose rule
    /// depends on such a value becomes ready. Calls `on_skip` with each task that is skipped.
    pub fn end(
        &mut self,
        shape: &GraphShape,
        task: usize,
        has_succeeded: bool,
        mut value_holds: impl FnMut(&str, &ValueCondition) -> Option<bool>,
        mut on_skip: impl FnMut(usize),
    ) {
        self.counted -= usize::from(std::mem::take(&mut self.is_counted[task]));
        self.states[task] = if has_succeeded { TaskState::Succeeded } else { TaskState::Failed };
        let mut met = VecDeque::new();
        self.end_dependency(shape, task, &mut met);
        self.settle(shape, met, &mut value_holds, &mut on_skip);
    }

    /// Makes the tasks in `met`, whose dependencies have all ended, ready or skipped by their rules; then also the tasks of
    /// which the last dependency was skipped.
    fn settle(
        &mut self,
        shape: &GraphShape,
        mut met: VecDeque<usize>,
        value_holds: &mut dyn FnMut(&str, &ValueCondition) -> Option<bool>,
        on_skip: &mut dyn FnMut(usize),
    ) {
        while let Some(task) = met.pop_front() {
            if self.is_wanted(shape, task, value_holds) {
                self.ready.push_back(task);
            } else {
                self.states[task] = TaskState::Skipped;
                on_skip(task);
                self.end_dependency(shape, task, &mut met);
            }
        }
    }

    /// Counts the end of a dependency for each dependent of a task, and adds those without further dependencies to `met`.
    fn end_dependency(&mut self, shape: &GraphShape, task: usize, met: &mut VecDeque<usize>) {
        for &dependent in shape.dependents(task) {
            self.unmet[dependent] -= 1;
            if self.unmet[dependent] == 0 {
                met.push_back(dependent);
            }
        }
    }

    /// Returns the states of all tasks.
    pub(super) fn into_states(self) -> Vec<TaskState> {
        self.states
    }

    /// Whether the rule of a task holds, or depends on a value that cannot be read.
    fn is_wanted(
        &self,
        shape: &GraphShape,
        task: usize,
        value_holds: &mut dyn FnMut(&str, &ValueCondition) -> Option<bool>,
    ) -> bool {
        let task = &shape.tasks()[task];
        let mut states = task.dependencies.iter().map(|&dependency| self.states[dependency]);
        if task.rule.is_default() {
            return states.all(|state| state == TaskState::Succeeded);
        }
        let states: Vec<TaskState> = states.collect();
        let state_of =
            |name: &str| shape.index_of(name).map_or(TaskState::Skipped, |named| self.states[named]);
        task.rule
            .holds(&states, &state_of, &mut |condition| value_holds(&task.name, condition))
            .unwrap_or(true)
    }
}
