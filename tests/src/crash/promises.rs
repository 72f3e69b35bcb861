//! The promises, as questions to a database and to what victims of crashes have told.
//!
//! [`Told`] hears the lines of [`victim`](crate::crash::child) and keeps what must be true from then on. A check
//! may come at any moment, also while victims run; only one of a finished database asks for everything.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use stepfast::clock::{Clock, SystemClock};
use stepfast::store::{Checkpoint, CheckpointKind, Detail, ExecutionId, Filter, Record};
use stepfast::{Key, Status, Store};

use crate::chaos::load;
use crate::crash::child::{CHILDREN, root_output};
use crate::crash::leftovers;

/// How many records are looked at together.
const PORTION: usize = 1000;

/// What was acknowledged, by all victims of a database, and what was found wrong.
#[derive(Clone, Default)]
pub struct Told {
    started: BTreeSet<String>,
    ended: BTreeMap<String, String>,
    cancelled: BTreeSet<String>,
    asked: BTreeSet<String>,
    /// Steps that bodies have relied on: (execution, step). They are recorded.
    causes: HashSet<(String, String)>,
    /// Steps whose outcome was seen in the database, and when.
    seen: BTreeMap<(String, String), i64>,
    /// Children that were recorded and not listed: (parent, child).
    unlisted: Vec<(Key, Key)>,
    /// Step bodies that have begun.
    pub bodies: u64,
    /// What is not as promised.
    pub violations: Vec<String>,
}

impl Told {
    /// Takes in a line of a victim.
    pub fn hear(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("started"), Some(id), None) => {
                self.started.insert(id.to_owned());
            }
            (Some("cancelled"), Some(id), None) => {
                self.cancelled.insert(id.to_owned());
            }
            (Some("asked"), Some(id), None) => {
                self.asked.insert(id.to_owned());
            }
            (Some("ended"), Some(id), Some(output)) => {
                let before = self.ended.insert(id.to_owned(), output.to_owned());
                if before.is_some_and(|before| before != output) {
                    self.violations.push(format!("{id} ended twice, with other outputs"));
                }
            }
            (Some("body"), Some(at), Some(rest)) => self.begin(at, rest),
            (Some("all" | "left"), None, None) => {}
            _ => self.violations.push(format!("a victim told {line:?}")),
        }
    }

    /// True if the start of this id was acknowledged.
    pub fn has_started(&self, id: &str) -> bool {
        self.started.contains(id)
    }

    /// A body begins.
    fn begin(&mut self, at: &str, rest: &str) {
        self.bodies += 1;
        let words: Vec<&str> = rest.split(' ').collect();
        let (Ok(at), [execution, step, cause]) = (at.parse::<i64>(), words.as_slice()) else {
            self.violations.push(format!("a victim told of a body {rest:?}"));
            return;
        };
        let step = ((*execution).to_owned(), (*step).to_owned());
        if self.seen.get(&step).is_some_and(|seen| at > *seen) {
            self.violations.push(format!("the body of {step:?} ran although its outcome was recorded"));
        }
        if *cause != "-" {
            self.causes.insert((step.0, (*cause).to_owned()));
        }
    }

    fn expect(&mut self, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            self.violations.push(what());
        }
    }

    /// Compares what was told with what the database has. `is_done`: every victim has told `all`.
    pub async fn check(&mut self, store: &Arc<dyn Store>, is_done: bool) -> u64 {
        let filter = Filter { limit: 1_000_000, ..Filter::default() };
        let all = store.list(&filter).await.unwrap().executions;
        let ids: HashSet<String> = all.iter().map(stepfast::store::Execution::workflow_id).collect();
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
        for rows in all.chunks(PORTION) {
            let keys: Vec<ExecutionId> = rows.iter().map(|row| ExecutionId::Key(row.key)).collect();
            let records = store.load(&keys, Detail::Full).await.unwrap();
            let records: Vec<Record> = records.into_iter().flatten().collect();
            self.expect(records.len() == keys.len(), || "an execution is listed and not found".into());
            for record in &records {
                let own = children.remove(&record.execution.key).unwrap_or_default();
                self.check_record(record, &own, is_done);
                for step in steps(record) {
                    recorded.insert((record.execution.key.to_string(), step));
                }
            }
        }
        // a body that begins from here on must not be one of these
        let now = SystemClock.now().as_micros();
        for (parent, child) in std::mem::take(&mut self.unlisted) {
            let found =
                store.load(&[ExecutionId::Key(child)], Detail::Outcome).await.unwrap().pop().flatten();
            let is_there = found.and_then(|it| it.execution.parent).is_some_and(|it| it.key == parent);
            self.expect(is_there, || format!("{parent} recorded a child {child} that is not there"));
        }
        self.expect(children.is_empty(), || format!("children without a parent: {children:?}"));
        for cause in std::mem::take(&mut self.causes) {
            self.expect(recorded.contains(&cause), || {
                format!("a body began although {cause:?}, which came before it, was not durable")
            });
        }
        for step in recorded {
            self.seen.entry(step).or_insert(now);
        }
        all.len() as u64
    }

    /// What is asked of a finished database in its own language; see [`leftovers`].
    pub async fn check_leftovers(&mut self, url: &str) {
        self.violations.extend(leftovers::of(url).await);
    }

    fn check_record(&mut self, record: &Record, children: &BTreeSet<Key>, is_done: bool) {
        let row = &record.execution;
        let (id, status) = (row.workflow_id(), row.status);
        self.expect(!row.is_parked, || format!("{id} is parked: {:?}", row.outcome));
        let is_cancelled = self.cancelled.contains(&id);
        self.expect(!is_cancelled || status == Status::Cancelled, || {
            format!("{id} was acknowledged as cancelled and is {status:?}")
        });
        let is_asked = self.asked.contains(&id);
        let is_heard = status == Status::Cancelled || !record.requests.is_empty();
        self.expect(!is_asked || is_heard, || format!("{id} forgot its cancel, and is {status:?}"));
        if let Some(output) = self.ended.get(&id).cloned() {
            let found = row.outcome.decode::<String>().unwrap_or_default();
            self.expect(status == Status::Completed && found == output, || {
                format!("{id} was acknowledged with {output:?} and is {status:?} with {found:?}")
            });
        }
        let output: Option<fn(u32) -> String> = match &*row.workflow {
            "root" => Some(root_output),
            "order" => Some(load::expected),
            "pass" => Some(load::passed),
            _ => None,
        };
        if let Some(output) = output.filter(|_| status.is_terminal()) {
            let n = row.input.decode::<u32>().unwrap_or_default();
            let (found, wanted) = (row.outcome.decode::<String>().unwrap_or_default(), output(n));
            self.expect(found == wanted, || format!("{id} came to {found:?} instead of {wanted:?}"));
        }
        let wanted = match &*row.workflow {
            "patient" | "hour" => Status::Cancelled,
            "culprit" => Status::Failed,
            _ => Status::Completed,
        };
        self.expect(!is_done || status == wanted, || {
            format!("{id} ({}) is {status:?} in the end", row.workflow)
        });
        self.expect(!status.is_terminal() || row.owner.is_none(), || format!("{id} ended and has an owner"));
        self.expect(status != Status::Running || row.owner.is_some(), || format!("nobody runs {id}"));
        self.check_calls(record, children);
    }

    /// Checkpoints, attempts and children of one execution.
    fn check_calls(&mut self, record: &Record, children: &BTreeSet<Key>) {
        let id = record.execution.workflow_id();
        let mut orders: Vec<u32> = record.checkpoints.iter().map(|checkpoint| checkpoint.order).collect();
        orders.sort_unstable();
        let is_dense = orders.iter().copied().eq(1..=orders.len() as u32);
        self.expect(is_dense, || format!("{id} has deliveries {orders:?}"));
        let paths: HashSet<_> = record.checkpoints.iter().map(|checkpoint| &checkpoint.path).collect();
        self.expect(paths.len() == record.checkpoints.len(), || format!("{id} has a path twice"));
        let names = steps(record);
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
        let most = match &*record.execution.workflow {
            "root" => CHILDREN,
            "order" => load::CHILDREN,
            "patient" => 1,
            _ => 0,
        };
        self.expect(children.len() <= most, || format!("{id} has {} children, not {most}", children.len()));
        let is_child = |checkpoint: &&Checkpoint| {
            matches!(checkpoint.kind, CheckpointKind::Child | CheckpointKind::Started)
        };
        for checkpoint in record.checkpoints.iter().filter(is_child) {
            match checkpoint.outcome.decode::<String>().ok().and_then(|text| Key::from_text(&text)) {
                Some(key) if children.contains(&key) => {}
                // started since the others were listed, if it is there
                Some(key) => self.unlisted.push((record.execution.key, key)),
                None => self.violations.push(format!("{id} recorded a child that is no key")),
            }
        }
    }
}

/// The steps whose bodies tell, by what they have recorded.
fn steps(record: &Record) -> Vec<String> {
    let told = record.checkpoints.iter().filter(|it| it.kind == CheckpointKind::Step);
    told.filter(|it| it.outcome.chunk_ref().is_none())
        .filter_map(|it| it.outcome.decode::<String>().ok())
        .filter_map(|outcome| outcome.strip_suffix(" done").map(ToOwned::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_as_told_is_found() {
        let store: Arc<dyn Store> = Arc::new(stepfast::MemoryStore::new());
        let mut told = Told::default();
        for line in ["started w-1", "ended w-1 x", "ended w-1 y", "body 5 e row1 row0", "nonsense"] {
            told.hear(line);
        }
        assert_eq!(told.violations.len(), 2, "{:?}", told.violations);
        told.check(&store, false).await;
        assert_eq!(told.violations.len(), 4, "a lost start and a lost cause: {:?}", told.violations);
        told.seen.insert(("e".into(), "row1".into()), 6);
        told.hear("body 6 e row1 -");
        assert_eq!(told.violations.len(), 4);
        told.hear("body 7 e row1 -");
        assert_eq!(told.violations.len(), 5, "a body after its outcome");
    }
}
