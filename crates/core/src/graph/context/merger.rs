//! [`ContextMerger`]: merges the context that a task reads of the changes of the tasks before it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::failure::Failure;
use crate::graph::context::ContextValues;
use crate::graph::context::changes::ContextChanges;
use crate::graph::context::merge::Merge;
use crate::graph::shape::GraphShape;
use crate::payload::Payload;

/// The value of a key, with the task that has written it.
#[derive(Clone)]
struct WrittenValue {
    /// The value; `None` if the task has removed the key.
    value: Option<Payload>,
    /// The index of the task; `None` for the input of the graph.
    writer: Option<usize>,
}

/// The values of one key: several if tasks have written them that do not depend on each other.
type ParallelValues = SmallVec<[WrittenValue; 1]>;

/// The values by key before or after a task.
type WrittenValues = Arc<BTreeMap<String, ParallelValues>>;

/// The context of one execution of a graph. A task reads the values of the tasks on which it depends, directly or
/// through others. If tasks that do not depend on each other have written one key, the policy of the graph decides when
/// a task reads the context. Such values are in the topological order of their tasks, so each replay has the same order.
pub(in crate::graph) struct ContextMerger<'g> {
    shape: &'g GraphShape,
    policy: &'g Merge,
    initial: WrittenValues,
    before: HashMap<usize, WrittenValues>,
    after: HashMap<usize, WrittenValues>,
    /// The direct and indirect dependencies of tasks that have written a key beside others.
    ancestors: HashMap<usize, HashSet<usize>>,
}

impl<'g> ContextMerger<'g> {
    /// Returns the context of an execution in which no task has ended. `initial` are the values of the input.
    pub(in crate::graph) fn new(shape: &'g GraphShape, policy: &'g Merge, initial: ContextValues) -> Self {
        let written = |value| smallvec![WrittenValue { value: Some(value), writer: None }];
        let initial = initial.into_iter().map(|(key, value)| (key, written(value))).collect();
        Self {
            shape,
            policy,
            initial: Arc::new(initial),
            before: HashMap::new(),
            after: HashMap::new(),
            ancestors: HashMap::new(),
        }
    }

    /// Returns the values that a task reads. All its dependencies have ended. Fails if parallel tasks have written one
    /// key, and the policy does not merge their values.
    pub(in crate::graph) fn read(&mut self, task: usize) -> Result<ContextValues, Failure> {
        let values = self.values_before(task);
        self.resolve(&values)
    }

    /// Returns the value of a key that a task reads; `None` if there is no such key. Fails like [`read`](Self::read).
    pub(in crate::graph) fn read_key(&mut self, task: usize, key: &str) -> Result<Option<Payload>, Failure> {
        let values = self.values_before(task);
        values.get(key).map_or(Ok(None), |values| self.resolve_key(key, values))
    }

    /// Returns the values at the end of the graph. Fails like [`read`](Self::read).
    pub(in crate::graph) fn read_final(&mut self) -> Result<ContextValues, Failure> {
        let leaves: Vec<usize> = self.shape.leaf_indexes().collect();
        let values = self.merge(&leaves);
        self.resolve(&values)
    }

    /// Notes the changes of a task that has succeeded.
    pub(in crate::graph) fn apply(&mut self, task: usize, changes: ContextChanges) {
        let ContextChanges { set, removed, .. } = changes;
        let mut values = self.values_before(task);
        if !set.is_empty() || !removed.is_empty() {
            let values = Arc::make_mut(&mut values);
            let set = set.into_iter().map(|(key, value)| (key, Some(value)));
            for (key, value) in set.chain(removed.into_iter().map(|key| (key, None))) {
                values.insert(key, smallvec![WrittenValue { value, writer: Some(task) }]);
            }
        }
        self.after.insert(task, values);
    }

    fn values_before(&mut self, task: usize) -> WrittenValues {
        if let Some(values) = self.before.get(&task) {
            return values.clone();
        }
        let values = self.merge(self.dependencies(task));
        self.before.insert(task, values.clone());
        values
    }

    /// Returns the values after a task. A task that does not change the context, has failed or was skipped passes the
    /// values on.
    fn values_after(&mut self, task: usize) -> WrittenValues {
        let mut waiting = vec![task];
        loop {
            let Some(&next) = waiting.last() else { return self.after[&task].clone() };
            let missing = |dependency: &usize| !self.after.contains_key(dependency);
            let missing: Vec<usize> = self.dependencies(next).iter().copied().filter(missing).collect();
            if self.after.contains_key(&next) {
                waiting.pop();
            } else if missing.is_empty() {
                let values = self.values_before(next);
                self.after.insert(next, values);
            } else {
                waiting.extend(missing);
            }
        }
    }

    fn dependencies(&self, task: usize) -> &'g [usize] {
        &self.shape.tasks()[task].dependencies
    }

    /// Returns the values after several tasks.
    fn merge(&mut self, tasks: &[usize]) -> WrittenValues {
        let mut views: Vec<WrittenValues> = Vec::new();
        for &task in tasks {
            let view = self.values_after(task);
            if !views.iter().any(|other| Arc::ptr_eq(other, &view)) {
                views.push(view);
            }
        }
        let Some((first, others)) = views.split_first() else { return self.initial.clone() };
        let mut merged = first.clone();
        let mut parallel: BTreeSet<&str> = BTreeSet::new();
        for (key, values) in others.iter().flat_map(|view| view.iter()) {
            let known: &[WrittenValue] = merged.get(key).map_or(&[], |known| known);
            let is_new = |value: &&WrittenValue| known.iter().all(|known| known.writer != value.writer);
            let new: Vec<WrittenValue> = values.iter().filter(is_new).cloned().collect();
            if !new.is_empty() {
                Arc::make_mut(&mut merged).entry(key.clone()).or_default().extend(new);
                parallel.insert(key);
            }
        }
        for key in parallel {
            if let Some(values) = Arc::make_mut(&mut merged).get_mut(key) {
                self.retain_parallel(values);
            }
        }
        merged
    }

    /// Removes the values whose tasks come before the task of another value, and sorts the others.
    fn retain_parallel(&mut self, values: &mut ParallelValues) {
        let writers: Vec<usize> = values.iter().filter_map(|value| value.writer).collect();
        values.retain(|value| match value.writer {
            Some(task) => !writers.iter().any(|&other| self.is_before(task, other)),
            // the input comes before all tasks
            None => writers.is_empty(),
        });
        values.sort_by_key(|value| value.writer.map(|task| self.shape.position(task)));
    }

    /// Whether a task is among the direct and indirect dependencies of another one.
    fn is_before(&mut self, task: usize, other: usize) -> bool {
        let shape = self.shape;
        let ancestors = self.ancestors.entry(other).or_insert_with(|| {
            let mut ancestors = HashSet::new();
            let mut waiting = vec![other];
            while let Some(task) = waiting.pop() {
                for &dependency in &shape.tasks()[task].dependencies {
                    if ancestors.insert(dependency) {
                        waiting.push(dependency);
                    }
                }
            }
            ancestors
        });
        ancestors.contains(&task)
    }

    /// Returns one value for each key that exists.
    fn resolve(&self, values: &WrittenValues) -> Result<ContextValues, Failure> {
        let mut resolved = ContextValues::new();
        for (key, values) in &**values {
            if let Some(value) = self.resolve_key(key, values)? {
                resolved.insert(key.clone(), value);
            }
        }
        Ok(resolved)
    }

    fn resolve_key(&self, key: &str, values: &[WrittenValue]) -> Result<Option<Payload>, Failure> {
        if let (Merge::Last, [.., value]) | (_, [value]) = (self.policy, values) {
            return Ok(value.value.clone());
        }
        let tasks = values.iter().filter_map(|value| value.writer);
        let names: Vec<String> = tasks.map(|task| format!("{:?}", &*self.shape.tasks()[task].name)).collect();
        let names = names.join(" and ");
        if matches!(self.policy, Merge::Error) {
            let message = format!(
                "the tasks {names} of graph {:?} have written the context key {key:?}, and none of them depends on \
                 another one; write different keys, or give the graph a merge policy",
                self.shape.name()
            );
            return Err(Failure::new(message).permanent());
        }
        let existing: Vec<Payload> = values.iter().filter_map(|value| value.value.clone()).collect();
        if existing.is_empty() { Ok(None) } else { self.policy.apply(key, &existing, &names).map(Some) }
    }
}
