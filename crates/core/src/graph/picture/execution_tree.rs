//! Trees of executions: a line for each task of a graph, with its state in one execution.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::progress::GraphProgress;
use crate::graph::shape::GraphShape;
use crate::graph::shape::condition::ValueCondition;
use crate::graph::state::TaskState;
use crate::store::Status;
use crate::text::{format_duration, list_names};

/// Duration, in milliseconds, from which on a critical path is shown.
const MIN_CRITICAL_PATH_MS: i64 = 1_000;

/// A recorded call of an execution, as its tree shows the call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// The [numbers](crate::path::Path::numbers) of the path.
    pub path: Vec<u32>,
    /// The name of the call; empty for failed attempts.
    pub name: String,
    /// The outcome.
    pub outcome: RecordedOutcome,
    /// The time from the call to the delivery of its outcome, in milliseconds.
    pub duration_ms: i64,
}

/// The outcome of a recorded call.
#[derive(Clone, Debug)]
pub enum RecordedOutcome {
    /// The call has returned a value.
    Succeeded,
    /// The call has failed with this error.
    Failed(String),
    /// The call has ended, and the record does not say how.
    Ended,
    /// An attempt has failed, and the call may be attempted again.
    FailedAttempt,
}

/// The state of a task in one execution, for people.
#[derive(Clone, Debug, Default)]
struct TaskReport {
    /// The outcomes by item; the item 0 for a task that is not mapped.
    outcomes: BTreeMap<u32, (RecordedOutcome, i64)>,
    is_mapped: bool,
    failed_attempts: usize,
}

impl GraphShape {
    /// Returns the graph as a tree of text, in which each line has the state of the task in one execution. A line with the
    /// critical path follows, if the path takes a second or more, and a line with recorded tasks that the graph does not
    /// have. `calls` are the recorded calls of the execution in their order. `value_holds` returns whether a condition of
    /// the rule of the named task holds; `None` if the caller cannot read the value.
    pub fn to_execution_tree(
        &self,
        status: Status,
        calls: impl IntoIterator<Item = RecordedCall>,
        value_holds: impl FnMut(&str, &ValueCondition) -> Option<bool>,
    ) -> String {
        let (reports, others) = self.report_tasks(calls);
        let states = self.task_states(&reports, status, value_holds);
        let mut tree = self.to_tree(|name| match self.index_of(name) {
            Some(task) => reports[task].describe(states[task], status),
            None => String::new(),
        });
        let duration = |name: &str| self.index_of(name).map_or(0, |task| reports[task].duration_ms());
        let mut path = self.critical_path(|name| duration(name) as f64);
        path.retain(|name| duration(name) > 0);
        let total: i64 = path.iter().map(|name| duration(name)).sum();
        if path.len() > 1 && total >= MIN_CRITICAL_PATH_MS {
            tree += &format!("critical path: {} ({})\n", list_names(path), format_duration(total));
        }
        if !others.is_empty() {
            tree += &format!("not in the graph: {}\n", list_names(others.iter().map(String::as_str)));
        }
        tree
    }

    /// Returns a report for each task, and the names of recorded tasks that the graph does not have.
    fn report_tasks(
        &self,
        calls: impl IntoIterator<Item = RecordedCall>,
    ) -> (Vec<TaskReport>, BTreeSet<String>) {
        let by_number: BTreeMap<u32, usize> =
            (0..self.len()).map(|task| (self.place(task).number, task)).collect();
        let mut reports = vec![TaskReport::default(); self.len()];
        let mut others = BTreeSet::new();
        for call in calls {
            let Some((number, item)) = parse_path(&call.path) else { continue };
            match by_number.get(&number) {
                Some(&task) => reports[task].add(item, call),
                None if !call.name.is_empty() => drop(others.insert(call.name)),
                None => {}
            }
        }
        (reports, others)
    }

    /// Returns the state of each task. The tasks end in the order in which they may begin, as in the execution.
    fn task_states(
        &self,
        reports: &[TaskReport],
        status: Status,
        mut value_holds: impl FnMut(&str, &ValueCondition) -> Option<bool>,
    ) -> Vec<TaskState> {
        // tasks whose rules depend on values that the caller cannot read
        let mut undecided: BTreeSet<usize> = BTreeSet::new();
        let mut value_holds = |name: &str, condition: &ValueCondition| {
            let holds = value_holds(name, condition);
            undecided.extend(self.index_of(name).filter(|_| holds.is_none()));
            holds
        };
        let mut progress = GraphProgress::new(self, usize::MAX, &mut value_holds, |_| {});
        let is_begun = |&dependent: &usize| !reports[dependent].outcomes.is_empty();
        while let Some(task) = progress.begin_next(|_| true) {
            let report = &reports[task];
            // the record does not say how many items there are
            let has_all_items =
                !report.is_mapped || status.is_terminal() || self.dependents(task).iter().any(is_begun);
            if !report.outcomes.is_empty() && has_all_items {
                progress.end(self, task, report.failure().is_none(), &mut value_holds, |_| {});
            }
        }
        let mut states = progress.into_states();
        for task in undecided {
            if states[task] == TaskState::Running {
                // without a record, the task may have been skipped
                let is_skipped = status == Status::Completed;
                states[task] = if is_skipped { TaskState::Skipped } else { TaskState::Pending };
            }
        }
        for (state, report) in states.iter_mut().zip(reports) {
            // a recorded task has run, although this program may evaluate its rule in another way
            if *state == TaskState::Skipped && !report.outcomes.is_empty() {
                let has_failed = report.failure().is_some();
                *state = if has_failed { TaskState::Failed } else { TaskState::Succeeded };
            }
        }
        states
    }
}

impl TaskReport {
    fn add(&mut self, item: Option<u32>, call: RecordedCall) {
        self.is_mapped |= item.is_some();
        if matches!(call.outcome, RecordedOutcome::FailedAttempt) {
            self.failed_attempts += 1;
        } else {
            // the last one of repetitions counts
            self.outcomes.insert(item.unwrap_or(0), (call.outcome, call.duration_ms));
        }
    }

    fn failure(&self) -> Option<&str> {
        self.outcomes.values().find_map(|(outcome, _)| match outcome {
            RecordedOutcome::Failed(error) => Some(error.as_str()),
            _ => None,
        })
    }

    /// Returns the duration of the task, of its slowest item if it is mapped, in milliseconds.
    fn duration_ms(&self) -> i64 {
        self.outcomes.values().map(|(_, duration_ms)| *duration_ms).max().unwrap_or(0)
    }

    fn describe(&self, state: TaskState, status: Status) -> String {
        let is_ended_unknown =
            self.outcomes.values().any(|(outcome, _)| matches!(outcome, RecordedOutcome::Ended));
        let word = match state {
            TaskState::Succeeded if is_ended_unknown => "ended",
            TaskState::Succeeded => "succeeded",
            TaskState::Failed => "failed",
            TaskState::Skipped => "skipped",
            TaskState::Pending | TaskState::Running if status.is_terminal() => "not run",
            TaskState::Pending => "pending",
            TaskState::Running if status == Status::Running => "running",
            TaskState::Running => "ready",
        };
        let mut notes = vec![word.to_owned()];
        if self.is_mapped {
            notes.push(count(self.outcomes.len(), "item"));
        }
        if !self.outcomes.is_empty() {
            notes.push(format_duration(self.duration_ms()));
        }
        if self.failed_attempts > 0 {
            notes.push(count(self.failed_attempts, "failed attempt"));
        }
        notes.extend(self.failure().map(str::to_owned));
        notes.join("  ")
    }
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns the number of a task and the index of its item from the path of a call. Returns `None` for the paths of
/// callbacks. Reverses [`TaskPlace::path`](crate::graph::TaskPlace::path).
fn parse_path(path: &[u32]) -> Option<(u32, Option<u32>)> {
    let (&number, rest) = path.split_first()?;
    let (item, rest) = match rest {
        [item, rest @ ..] if *item > 0 => (Some(item - 1), rest),
        rest => (None, rest),
    };
    let is_task = match rest {
        [] => true,
        [0, repetition] => *repetition > 0,
        _ => false,
    };
    is_task.then_some((number, item))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::place::TaskPlace;
    use crate::graph::shape::declaration::TaskDeclaration;
    use crate::graph::shape::rule::Rule;

    fn shape() -> GraphShape {
        let task = |name: &'static str, dependencies: &[&'static str], rule: Rule| TaskDeclaration {
            name: name.into(),
            dependencies: dependencies.iter().map(|name| (*name).into()).collect(),
            rule,
        };
        let declarations = [
            task("list", &[], Rule::default()),
            task("each", &["list"], Rule::default()),
            task("sum", &["each"], Rule::default()),
            task("undo", &["each"], Rule::failed("each")),
            task("alone", &[], Rule::default()),
        ];
        GraphShape::new("sums", &declarations).unwrap()
    }

    fn call(place: TaskPlace, outcome: RecordedOutcome, duration_ms: i64) -> RecordedCall {
        RecordedCall {
            path: place.path().numbers().unwrap(),
            name: "recorded".to_owned(),
            outcome,
            duration_ms,
        }
    }

    fn tree(status: Status, calls: Vec<RecordedCall>) -> String {
        shape().to_execution_tree(status, calls, |_, _| Some(false))
    }

    #[test]
    fn tree_of_a_running_execution_shows_what_runs_and_what_waits() {
        let (list, each) = (shape().place(0), shape().place(1));
        let mut removed = call(shape().place(4), RecordedOutcome::Succeeded, 3);
        removed.path[0] += 1;
        let calls = vec![
            removed,
            call(list, RecordedOutcome::Succeeded, 1_500),
            call(list.callback(true), RecordedOutcome::Failed("of the callback".to_owned()), 1),
            call(each.item(0), RecordedOutcome::Succeeded, 20),
            call(each.item(2), RecordedOutcome::FailedAttempt, 0),
        ];
        let expected = "sums\n\
                        ├─ list        succeeded  1.5 s\n\
                        │  └─ each     running  1 item  20 ms  1 failed attempt\n\
                        │     ├─ sum   pending\n\
                        │     └─ undo  pending\n\
                        └─ alone       running\n\
                        critical path: list, each (1.5 s)\n\
                        not in the graph: recorded\n";
        assert_eq!(tree(Status::Running, calls.clone()), expected);
        assert!(tree(Status::Waiting, calls.clone()).contains("alone       ready"));
        assert!(tree(Status::Cancelled, calls).contains("alone       not run"));
    }

    #[test]
    fn task_with_an_unreadable_condition_is_pending_until_the_execution_ends() {
        let rule = Rule::context_value("rows").gt(0);
        let task = TaskDeclaration { name: "load".into(), dependencies: Vec::new(), rule };
        let shape = GraphShape::new("g", &[task]).unwrap();
        for (status, word) in [(Status::Running, "pending"), (Status::Completed, "skipped")] {
            let tree = shape.to_execution_tree(status, [], |_, _| None);
            assert!(tree.contains(&format!("load  {word}")), "{tree}");
        }
    }

    #[test]
    fn last_repetition_of_a_task_counts() {
        let (list, each) = (shape().place(0), shape().place(1));
        let failed = || RecordedOutcome::Failed("no".to_owned());
        let mut calls = vec![
            call(list, RecordedOutcome::Succeeded, 0),
            call(each.item(0), RecordedOutcome::Succeeded, 5),
            call(each.item(1), failed(), 5),
        ];
        let failed_tree = tree(Status::Failed, calls.clone());
        assert!(failed_tree.contains("failed  2 items  5 ms  no"), "{failed_tree}");
        assert!(failed_tree.contains("sum   skipped"), "{failed_tree}");
        assert!(failed_tree.contains("undo  not run"), "{failed_tree}");
        calls.push(call(each.item(1).repeated(), RecordedOutcome::Succeeded, 7));
        calls.push(call(shape().place(2), RecordedOutcome::Ended, 7));
        let repeated = tree(Status::Completed, calls);
        assert!(repeated.contains("succeeded  2 items  7 ms\n"), "{repeated}");
        assert!(repeated.contains("sum   ended  7 ms\n") && repeated.contains("undo  skipped"), "{repeated}");
    }
}
