//! The promises, checked against a database and the acknowledgements that child processes printed.
//!
//! [`Promises`] reads the lines of [`child`](crate::crash::child), and keeps the facts that must hold from then on. A
//! check is possible at any moment, even while children run. Only a check of a finished database demands all ends.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use stepfast::clock::{Clock, SystemClock};
use stepfast::store::{Checkpoint, CheckpointKind, Detail, Execution, ExecutionId, Filter, Record};
use stepfast::{Key, Status, Store};

use crate::chaos::load;
use crate::chaos::neighbour::NEIGHBOUR_PREFIX;
use crate::crash::child::{
    BATCH_PREFIX, CHILDREN, counter_output, item_output, root_output, submitter_output, talker_output,
};
use crate::crash::leftovers;

/// Maximum number of records that are loaded together.
const RECORDS_PER_LOAD: usize = 1000;
/// Maximum number of executions of a list.
const MAX_LISTED: usize = 1_000_000;

/// The acknowledgements of all children of a database, and the violations found.
#[derive(Clone, Default)]
pub struct Promises {
    started: BTreeSet<String>,
    ended: BTreeMap<String, String>,
    cancelled: BTreeSet<String>,
    pending_cancels: BTreeSet<String>,
    /// Steps on which later bodies relied, as (execution, step). They must be recorded.
    relied_on_steps: HashSet<(String, String)>,
    /// Steps whose outcome was found in the database, and when.
    recorded_steps: BTreeMap<(String, String), i64>,
    /// Children that were recorded but not listed, as (parent, child).
    unlisted_children: Vec<(Key, Key)>,
    /// Number of step bodies that began.
    pub bodies: u64,
    /// Broken promises.
    pub violations: Vec<String>,
}

impl Promises {
    /// Adds a line of a child.
    pub fn add_line(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("started"), Some(id), None) => {
                self.started.insert(id.to_owned());
            }
            (Some("cancelled"), Some(id), None) => {
                self.cancelled.insert(id.to_owned());
            }
            (Some("pending"), Some(id), None) => {
                self.pending_cancels.insert(id.to_owned());
            }
            (Some("ended"), Some(id), Some(output)) => {
                let before = self.ended.insert(id.to_owned(), output.to_owned());
                if before.is_some_and(|before| before != output) {
                    self.violations.push(format!("{id} ended twice, with different outputs"));
                }
            }
            (Some("body"), Some(at), Some(rest)) => self.add_body(at, rest),
            (Some("done" | "shut-down"), None, None) => {}
            _ => self.violations.push(format!("a child printed {line:?}")),
        }
    }

    /// Returns whether the start of this workflow_id was acknowledged.
    pub fn has_started(&self, id: &str) -> bool {
        self.started.contains(id)
    }

    /// Adds the beginning of a body.
    fn add_body(&mut self, at: &str, rest: &str) {
        self.bodies += 1;
        let words: Vec<&str> = rest.split(' ').collect();
        let (Ok(at), [execution, step, cause]) = (at.parse::<i64>(), words.as_slice()) else {
            self.violations.push(format!("a child printed a body {rest:?}"));
            return;
        };
        let step = ((*execution).to_owned(), (*step).to_owned());
        if self.recorded_steps.get(&step).is_some_and(|recorded_at| at > *recorded_at) {
            self.violations.push(format!("the body of {step:?} ran although its outcome was recorded"));
        }
        if *cause != "-" {
            self.relied_on_steps.insert((step.0, (*cause).to_owned()));
        }
    }

    fn expect(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(violation());
        }
    }

    /// Compares the acknowledgements with the database. `is_done`: every child has printed `done`. Returns the number
    /// of executions.
    pub async fn check(&mut self, store: &Arc<dyn Store>, is_done: bool) -> u64 {
        let all = store.list(&Filter { limit: MAX_LISTED, ..Filter::default() }).await.unwrap().executions;
        self.check_listed(store, all, is_done).await
    }

    /// Compares the acknowledgements with the executions of these workflows, as [`check`](Self::check) does.
    pub async fn check_workflows(
        &mut self,
        store: &Arc<dyn Store>,
        workflows: &[String],
        is_done: bool,
    ) -> u64 {
        let mut all = Vec::new();
        for workflow in workflows {
            let workflow = Some(workflow.as_str().into());
            let filter = Filter { workflow, limit: MAX_LISTED, ..Filter::default() };
            all.extend(store.list(&filter).await.unwrap().executions);
        }
        self.check_listed(store, all, is_done).await
    }

    async fn check_listed(&mut self, store: &Arc<dyn Store>, all: Vec<Execution>, is_done: bool) -> u64 {
        let ids: HashSet<String> = all.iter().map(Execution::workflow_id).collect();
        for id in self.started.clone() {
            self.expect(ids.contains(&id), || format!("{id} was acknowledged and is gone"));
        }
        let mut children: BTreeMap<Key, BTreeSet<Key>> = BTreeMap::new();
        for row in &all {
            if let Some(parent) = &row.parent {
                children.entry(parent.key).or_default().insert(row.key);
            }
        }
        let mut recorded = HashSet::new();
        for rows in all.chunks(RECORDS_PER_LOAD) {
            let keys: Vec<ExecutionId> = rows.iter().map(|row| ExecutionId::Key(row.key)).collect();
            let records = store.load(&keys, Detail::Full).await.unwrap();
            let records: Vec<Record> = records.into_iter().flatten().collect();
            self.expect(records.len() == keys.len(), || "an execution is listed and not found".into());
            for record in &records {
                let own = children.remove(&record.execution.key).unwrap_or_default();
                if record.execution.key.is_batch() {
                    self.check_batch(store, &record.execution, is_done, &mut recorded).await;
                    continue;
                }
                self.check_record(record, &own, is_done);
                for step in recorded_steps(record) {
                    recorded.insert((record.execution.key.to_string(), step));
                }
            }
        }
        // a body that begins from now on must not belong to one of these steps
        let now = SystemClock.now().as_micros();
        for (parent, child) in std::mem::take(&mut self.unlisted_children) {
            let found =
                store.load(&[ExecutionId::Key(child)], Detail::Outcome).await.unwrap().pop().flatten();
            let is_there = found.and_then(|it| it.execution.parent).is_some_and(|it| it.key == parent);
            self.expect(is_there, || format!("{parent} recorded a child {child} that is not there"));
        }
        self.expect(children.is_empty(), || format!("children without a parent: {children:?}"));
        for cause in std::mem::take(&mut self.relied_on_steps) {
            self.expect(recorded.contains(&cause), || {
                format!("a body began although {cause:?}, which came before it, was not durable")
            });
        }
        for step in recorded {
            self.recorded_steps.entry(step).or_insert(now);
        }
        all.len() as u64
    }

    /// Checks a batch: its bundles are complete, each item has at most one outcome, and the record of each item without a
    /// row of its own is consistent. Adds the recorded steps of these items to `recorded`.
    async fn check_batch(
        &mut self,
        store: &Arc<dyn Store>,
        batch: &Execution,
        is_done: bool,
        recorded: &mut HashSet<(String, String)>,
    ) {
        let id = batch.workflow_id();
        let expected = if is_done { Status::Completed } else { batch.status };
        self.expect(batch.status == expected, || format!("{id} is {:?} in the end", batch.status));
        let bundles = store.bundles(batch.key, 0, MAX_LISTED as u64).await.unwrap();
        let ids: Vec<ExecutionId> = bundles.into_iter().map(ExecutionId::Key).collect();
        let (mut next, mut finished) = (0, 0);
        for record in store.load(&ids, Detail::Full).await.unwrap().into_iter().flatten() {
            let (Some(last), Some(bundle)) = (record.execution.key.last_index(), &record.bundle) else {
                continue;
            };
            let first = (u64::from(last) + 1 - bundle.item_count) as u32;
            self.expect(first == next, || format!("{id} has a bundle from {first}, not from {next}"));
            next = last + 1;
            let outcomes = bundle.outcomes().unwrap();
            let is_single = outcomes.windows(2).all(|pair| pair[0].index < pair[1].index);
            self.expect(is_single, || format!("{id} has two outcomes of an item"));
            for item in &outcomes {
                let output = item.outcome.decode::<String>().unwrap_or_default();
                let is_expected = item.status == Status::Completed && output == item_output(item.index);
                self.expect(is_expected, || format!("{id}#{} ended with {output:?}", item.index));
            }
            finished += outcomes.len() + bundle.promoted.len();
            self.check_items(&record, recorded);
        }
        if batch.status.is_terminal() {
            // the number of items is in the id; the submitter of a batch without an id has counted them
            let id = batch
                .given_id
                .as_deref()
                .and_then(|id| id.trim_start_matches(BATCH_PREFIX).split('-').next());
            let items = id.map_or(Some(finished), |items| items.parse().ok());
            self.expect(items == Some(finished), || format!("{id:?} has {finished} items with an end"));
        }
    }

    /// Checks the calls of a bundle's items without rows of their own.
    fn check_items(&mut self, bundle: &Record, recorded: &mut HashSet<(String, String)>) {
        let mut items: BTreeMap<Key, Record> = BTreeMap::new();
        for checkpoint in &bundle.checkpoints {
            let item = || {
                Record::without_details(Execution { key: checkpoint.execution, ..bundle.execution.clone() })
            };
            items.entry(checkpoint.execution).or_insert_with(item).checkpoints.push(checkpoint.clone());
        }
        for (key, item) in items {
            self.check_calls(&item, &BTreeSet::new());
            recorded.extend(recorded_steps(&item).into_iter().map(|step| (key.to_string(), step)));
        }
    }

    /// Checks a finished database by SQL; see [`leftovers`].
    pub async fn check_leftovers(&mut self, url: &str) {
        self.violations.extend(leftovers::find_leftovers(url).await);
    }

    fn check_record(&mut self, record: &Record, children: &BTreeSet<Key>, is_done: bool) {
        let row = &record.execution;
        let (id, status) = (row.workflow_id(), row.status);
        self.expect(!row.is_parked, || format!("{id} is parked: {:?}", row.outcome));
        let is_cancelled = self.cancelled.contains(&id);
        self.expect(!is_cancelled || status == Status::Cancelled, || {
            format!("{id} was acknowledged as cancelled and is {status:?}")
        });
        let has_pending_cancel = self.pending_cancels.contains(&id);
        let is_cancel_kept = status == Status::Cancelled || !record.requests.is_empty();
        self.expect(!has_pending_cancel || is_cancel_kept, || {
            format!("{id} forgot its cancel, and is {status:?}")
        });
        if let Some(output) = self.ended.get(&id).cloned() {
            let found = row.outcome.decode::<String>().unwrap_or_default();
            self.expect(status == Status::Completed && found == output, || {
                format!("{id} was acknowledged with {output:?} and is {status:?} with {found:?}")
            });
        }
        let workflow = load_workflow(row);
        let output: Option<fn(u32) -> String> = match workflow {
            "root" => Some(root_output),
            "submitter" => Some(submitter_output),
            "talker" => Some(talker_output),
            "counter" => Some(counter_output),
            "batch_item" => Some(item_output),
            "order" => Some(load::order_output),
            "gated" => Some(load::gated_output),
            _ => None,
        };
        if let Some(output) = output.filter(|_| status.is_terminal()) {
            let n = match workflow {
                "batch_item" => row.input.decode::<(u32, String)>().unwrap_or_default().0,
                _ => row.input.decode::<u32>().unwrap_or_default(),
            };
            let (found, expected) = (row.outcome.decode::<String>().unwrap_or_default(), output(n));
            self.expect(found == expected, || format!("{id} returned {found:?} instead of {expected:?}"));
        }
        let expected = match workflow {
            "long_parent" | "long_child" => Status::Cancelled,
            "poison" => Status::Failed,
            _ => Status::Completed,
        };
        self.expect(!is_done || status == expected, || {
            format!("{id} ({}) is {status:?} in the end", row.workflow)
        });
        self.expect(!status.is_terminal() || row.owner.is_none(), || format!("{id} ended and has an owner"));
        self.expect(status != Status::Running || row.owner.is_some(), || {
            format!("{id} runs without an owner")
        });
        self.check_calls(record, children);
    }

    /// Checks the checkpoints, attempts and children of one execution.
    fn check_calls(&mut self, record: &Record, children: &BTreeSet<Key>) {
        let id = record.execution.workflow_id();
        let mut orders: Vec<u32> = record.checkpoints.iter().map(|checkpoint| checkpoint.order).collect();
        orders.sort_unstable();
        let is_dense = orders.iter().copied().eq(1..=orders.len() as u32);
        self.expect(is_dense, || format!("{id} has deliveries {orders:?}"));
        let paths: HashSet<_> = record.checkpoints.iter().map(|checkpoint| &checkpoint.path).collect();
        self.expect(paths.len() == record.checkpoints.len(), || format!("{id} has a path twice"));
        let names = recorded_steps(record);
        let distinct: HashSet<_> = names.iter().collect();
        self.expect(distinct.len() == names.len(), || format!("{id} recorded a step twice: {names:?}"));
        let mut attempts: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for attempt in &record.attempts {
            attempts.entry(&attempt.path).or_default().push(attempt.attempt);
        }
        for numbers in attempts.values_mut() {
            numbers.sort_unstable();
            let is_dense = numbers.iter().copied().eq(1..=numbers.len() as u32);
            self.expect(is_dense, || format!("{id} has attempts {numbers:?}"));
        }
        let limit = match load_workflow(&record.execution) {
            "root" => CHILDREN,
            "order" => load::CHILDREN,
            "long_parent" | "batch_item" | "submitter" | "talker" => 1,
            _ => 0,
        };
        self.expect(children.len() <= limit, || format!("{id} has {} children, not {limit}", children.len()));
        let is_child = |checkpoint: &&Checkpoint| {
            matches!(checkpoint.kind, CheckpointKind::Child | CheckpointKind::Started)
        };
        for checkpoint in record.checkpoints.iter().filter(is_child) {
            match checkpoint.outcome.decode::<String>().ok().and_then(|text| Key::from_text(&text)) {
                Some(key) if children.contains(&key) => {}
                // started after the others were listed, if it exists
                Some(key) => self.unlisted_children.push((record.execution.key, key)),
                None => self.violations.push(format!("{id} recorded a child that is no key")),
            }
        }
    }
}

/// Returns the name of the execution's workflow without that of the service.
fn load_workflow(execution: &Execution) -> &str {
    execution.workflow.strip_prefix(NEIGHBOUR_PREFIX).unwrap_or(&execution.workflow)
}

/// Returns the steps that have a recorded outcome and whose bodies print lines.
fn recorded_steps(record: &Record) -> Vec<String> {
    let steps = record.checkpoints.iter().filter(|it| it.kind == CheckpointKind::Step);
    steps
        .filter(|it| it.outcome.chunk_ref().is_none())
        .filter_map(|it| it.outcome.decode::<String>().ok())
        .filter_map(|outcome| outcome.strip_suffix(" done").map(ToOwned::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn broken_promises_are_found() {
        let store: Arc<dyn Store> = Arc::new(stepfast::MemoryStore::new());
        let mut promises = Promises::default();
        for line in ["started w-1", "ended w-1 x", "ended w-1 y", "body 5 e row1 row0", "nonsense"] {
            promises.add_line(line);
        }
        assert_eq!(promises.violations.len(), 2, "{:?}", promises.violations);
        promises.check(&store, false).await;
        assert_eq!(
            promises.violations.len(),
            4,
            "a missing start and a missing step: {:?}",
            promises.violations
        );
        promises.recorded_steps.insert(("e".into(), "row1".into()), 6);
        promises.add_line("body 6 e row1 -");
        assert_eq!(promises.violations.len(), 4);
        promises.add_line("body 7 e row1 -");
        assert_eq!(promises.violations.len(), 5, "a body after its outcome");
    }
}
