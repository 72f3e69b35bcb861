//! A plain evaluation of random graphs, one task after the other: the reference for what an engine records.

use std::collections::BTreeMap;

/// How the attempts of a task, or of an item, end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempts {
    Succeed,
    Fail,
    /// The first attempt in each process fails, and the next one succeeds.
    FailOnce,
    /// All attempts fail until the execution has been resumed this number of times.
    FailUntil(u32),
}

/// A rule about the dependencies of a random task. Numbers select a dependency.
#[derive(Clone, Debug)]
pub(super) enum RandomRule {
    AllSuccess,
    AllDone,
    AnySuccess,
    OneFailed,
    NoneFailed,
    Succeeded(usize),
    Failed(usize),
    Skipped(usize),
    And(Box<RandomRule>, Box<RandomRule>),
    Or(Box<RandomRule>, Box<RandomRule>),
    Not(Box<RandomRule>),
}

/// The state in which a task ends, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeded(Vec<u64>),
    /// The message of the failure.
    Failed(String),
    Skipped,
}

/// A task of a random graph. The value of each task is a list of numbers.
#[derive(Clone, Debug)]
pub(super) struct RandomTask {
    /// Selects dependencies among the earlier tasks.
    pub(super) dependencies: Vec<usize>,
    pub(super) rule: RandomRule,
    /// The attempts of the task, or of an item; an item's number selects one of them.
    pub(super) attempts: Vec<Attempts>,
    pub(super) may_fail: bool,
    /// The length of the value, unless the task is mapped.
    pub(super) len: usize,
    /// The maximum number of items at a time, if the task is mapped over its first dependency.
    pub(super) max_items: Option<usize>,
}

/// A random graph. Its tasks depend on earlier ones.
#[derive(Clone, Debug)]
pub struct RandomGraph {
    pub(super) tasks: Vec<RandomTask>,
    pub(super) max_concurrency: usize,
    /// Whether there is a pause between two attempts, longer than the sleeps for which an execution is suspended.
    pub(super) has_pauses: bool,
    /// The number of bodies of a run after which the execution is cancelled once.
    pub(super) cancelled_after: Option<usize>,
}

/// The work of one step: a task, or an item of a mapped task by its index.
pub(super) type Unit = (usize, Option<usize>);

/// Whether each repetition of a unit has succeeded.
pub(super) type Repetitions = BTreeMap<Unit, Vec<bool>>;

/// The evaluation of a graph in one run of the execution.
#[derive(Debug)]
pub(super) struct Evaluation {
    pub(super) ends: Vec<End>,
    /// The units that run, each with its attempts and the name that the gate knows.
    pub(super) begun: BTreeMap<Unit, (Attempts, String)>,
    /// The record after the run.
    pub(super) repetitions: Repetitions,
}

impl Attempts {
    /// Whether an attempt fails. `number` is its number in the process; `resumes` counts the resumes so far.
    pub(super) fn fails(self, number: usize, resumes: u32) -> bool {
        match self {
            Attempts::Succeed => false,
            Attempts::Fail => true,
            Attempts::FailOnce => number == 1,
            Attempts::FailUntil(needed) => resumes < needed,
        }
    }

    /// Whether the last attempt fails.
    pub(super) fn fails_finally(self, resumes: u32) -> bool {
        self != Attempts::FailOnce && self.fails(1, resumes)
    }
}

impl RandomTask {
    /// Returns the attempts of the task, or of an item.
    pub(super) fn attempts_of(&self, item: Option<u64>) -> Attempts {
        self.attempts[item.unwrap_or_default() as usize % self.attempts.len()]
    }
}

impl RandomGraph {
    /// Returns the dependencies of a task, without repetitions.
    pub(super) fn dependencies(&self, task: usize) -> Vec<usize> {
        let mut dependencies = Vec::new();
        for dependency in &self.tasks[task].dependencies {
            if task > 0 && !dependencies.contains(&(dependency % task)) {
                dependencies.push(dependency % task);
            }
        }
        dependencies
    }

    /// Returns the maximum number of items at a time of a mapped task, and `None` for another one.
    pub(super) fn max_items(&self, task: usize) -> Option<usize> {
        self.tasks[task].max_items.filter(|_| !self.dependencies(task).is_empty())
    }

    /// Whether `task` depends on `other`, directly or through other tasks.
    fn depends_on(&self, task: usize, other: usize) -> bool {
        self.dependencies(task)
            .into_iter()
            .any(|dependency| dependency == other || self.depends_on(dependency, other))
    }

    fn level(&self, task: usize) -> usize {
        self.dependencies(task).iter().map(|&dependency| self.level(dependency) + 1).max().unwrap_or_default()
    }

    /// Evaluates the tasks one after the other. `kept` is the record at the beginning of the run.
    pub(super) fn evaluate(&self, kept: &Repetitions, resumes: u32) -> Evaluation {
        let is_recorded = |task: usize| kept.keys().any(|unit| unit.0 == task);
        // a failure is kept if a task ran on account of it
        let is_kept: Vec<bool> = (0..self.tasks.len())
            .map(|task| {
                (task..self.tasks.len()).any(|other| is_recorded(other) && self.depends_on(other, task))
            })
            .collect();
        let mut evaluation =
            Evaluation { ends: Vec::new(), begun: BTreeMap::new(), repetitions: kept.clone() };
        for (n, task) in self.tasks.iter().enumerate() {
            let dependencies = self.dependencies(n);
            let ends: Vec<End> =
                dependencies.iter().map(|&dependency| evaluation.ends[dependency].clone()).collect();
            let values = values_of(&ends);
            let mut succeeds = |unit: Unit, item: Option<u64>| {
                let attempts = task.attempts_of(item);
                let repetitions = evaluation.repetitions.entry(unit).or_default();
                if repetitions.last().is_none_or(|has_succeeded| !has_succeeded && !is_kept[n]) {
                    evaluation.begun.insert(unit, (attempts, name_of(n, item)));
                    repetitions.push(!attempts.fails_finally(resumes));
                }
                repetitions.last() == Some(&true)
            };
            let has_items = self.max_items(n).is_none() || matches!(ends[0], End::Succeeded(_));
            let runs = dependencies.is_empty() || has_items && task.rule.holds(&ends);
            let end = if !runs {
                End::Skipped
            } else if self.max_items(n).is_some() {
                let items = values[0].clone().unwrap_or_default();
                let failed: Vec<usize> = (0..items.len())
                    .filter(|&index| !succeeds((n, Some(index)), Some(items[index])))
                    .collect();
                match failed.first() {
                    Some(index) => End::Failed(format!("item {} of {} failed: no", index + 1, items.len())),
                    None => {
                        End::Succeeded(items.iter().map(|item| value_of(n, *item, &values[1..])).collect())
                    }
                }
            } else if succeeds((n, None), None) {
                End::Succeeded(list_of(n, task.len, &values))
            } else {
                End::Failed("no".to_owned())
            };
            evaluation.ends.push(end);
        }
        evaluation
    }

    /// Returns the message of the graph's failure; `None` if the graph completes.
    pub(super) fn failure(&self, ends: &[End]) -> Option<String> {
        let failed = ends.iter().enumerate().filter_map(|(n, end)| match end {
            End::Failed(message) if !self.tasks[n].may_fail => Some((self.level(n), n, message)),
            _ => None,
        });
        let (_, first, message) = failed.min()?;
        Some(format!("task {:?} of graph \"graph\" failed: {message}", name_of(first, None)))
    }
}

impl RandomRule {
    fn holds(&self, ends: &[End]) -> bool {
        let has_succeeded = |end: &End| matches!(end, End::Succeeded(_));
        let has_failed = |end: &End| matches!(end, End::Failed(_));
        match self {
            RandomRule::AllSuccess => ends.iter().all(has_succeeded),
            RandomRule::AllDone => true,
            RandomRule::AnySuccess => ends.iter().any(has_succeeded),
            RandomRule::OneFailed => ends.iter().any(has_failed),
            RandomRule::NoneFailed => !ends.iter().any(has_failed),
            RandomRule::Succeeded(n) => has_succeeded(&ends[n % ends.len()]),
            RandomRule::Failed(n) => has_failed(&ends[n % ends.len()]),
            RandomRule::Skipped(n) => ends[n % ends.len()] == End::Skipped,
            RandomRule::And(a, b) => a.holds(ends) && b.holds(ends),
            RandomRule::Or(a, b) => a.holds(ends) || b.holds(ends),
            RandomRule::Not(rule) => !rule.holds(ends),
        }
    }
}

/// Returns the name of a task, or the name by which the gate knows an item.
pub(super) fn name_of(task: usize, item: Option<u64>) -> String {
    match item {
        None => format!("task {task}"),
        Some(item) => format!("task {task}, item {item}"),
    }
}

/// Returns the values of the tasks that have succeeded.
pub(super) fn values_of(ends: &[End]) -> Vec<Option<Vec<u64>>> {
    let value = |end: &End| if let End::Succeeded(value) = end { Some(value.clone()) } else { None };
    ends.iter().map(value).collect()
}

/// Returns the value of an item, which depends on the values of all other dependencies.
pub(super) fn value_of(task: usize, item: u64, values: &[Option<Vec<u64>>]) -> u64 {
    let mut hash = item ^ (task as u64 + 1);
    for value in values {
        for number in value.as_deref().unwrap_or(&[7]) {
            hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(*number);
        }
    }
    // the lower bits select the attempts of items
    hash.wrapping_mul(6_364_136_223_846_793_005).rotate_left(32)
}

/// Returns the value of a task that is not mapped, which depends on the values of all its dependencies.
pub(super) fn list_of(task: usize, len: usize, values: &[Option<Vec<u64>>]) -> Vec<u64> {
    (0..len as u64).map(|index| value_of(task, index, values)).collect()
}
