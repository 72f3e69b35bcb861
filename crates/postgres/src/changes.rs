//! [`Changes`]: the changes that a hint announces to other processes.

use std::collections::HashSet;
use std::fmt;

use stepfast_core::Key;
use stepfast_core::store::{
    CheckpointKind, ClaimHint, EndedExecutions, Flush, Hint, Outcome, State, WorkerId, Write,
};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of names of one kind in a hint. A payload of the server may have 7,999 bytes.
const MAX_NAMES: usize = 100;
/// Maximum number of ended executions in a hint.
const MAX_ENDED: usize = 500;

/// The number of workers that claim because of a hint of ready executions or free slots. Among more workers that are registered
/// with the same workflows, version and queues, each draws lots. Workers that differ in any of these draw apart, because the
/// others may not be able to run the executions.
pub(crate) const WOKEN_WORKERS: u32 = 10;

/// Returns a number by which hints name a workflow.
pub(crate) fn workflow_tag(workflow: &str) -> u32 {
    xxh3_64(workflow.as_bytes()) as u32
}

/// Returns a number by which hints name a worker.
fn worker_tag(worker: WorkerId) -> u32 {
    worker.0 as u32
}

/// The changes that a hint announces to other processes, for the workers that can act on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The tags of the workflows of executions that may be ready.
    ready: Subjects,
    /// The maximum number of these executions; `u32::MAX` if unknown.
    ready_count: u32,
    /// The tags of the workflows of executions with a new due time or deadline.
    due: Subjects,
    /// The tags of executions that have ended or are parked.
    ended: Subjects,
    /// The tags of the workers that run executions with new or withdrawn requests.
    requests: Subjects,
    /// Whether slots of queues may have become free.
    has_free_slots: bool,
}

/// The subjects of a change, by their tags. A flush adds thousands of them, so repeated tags are removed only when the list
/// has twice the maximum length, and before a hint is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subjects {
    Some(Vec<u32>),
    Any,
}

impl Default for Subjects {
    fn default() -> Self {
        Self::Some(Vec::new())
    }
}

impl Subjects {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Some(all) if all.is_empty())
    }

    fn add(&mut self, subject: u32, max: usize) {
        if let Self::Some(all) = self
            && all.last() != Some(&subject)
        {
            all.push(subject);
            if all.len() > max.saturating_mul(2) {
                self.remove_repeated(max);
            }
        }
    }

    /// Removes repeated subjects. More than `max` others become any.
    fn remove_repeated(&mut self, max: usize) {
        if let Self::Some(all) = self {
            all.sort_unstable();
            all.dedup();
            if all.len() > max {
                *self = Self::Any;
            }
        }
    }

    /// Adds a subject that is rarely added twice.
    fn add_new(&mut self, subject: u32, max: usize) {
        match self {
            Self::Some(all) if all.len() < max => all.push(subject),
            _ => *self = Self::Any,
        }
    }

    fn merge(&mut self, other: Self, add: impl Fn(&mut Self, u32)) {
        match (&mut *self, other) {
            (Self::Any, _) => {}
            (Self::Some(_), Self::Some(more)) => more.into_iter().for_each(|subject| add(self, subject)),
            (Self::Some(_), Self::Any) => *self = Self::Any,
        }
    }

    fn contains_any(&self, wanted: impl FnOnce(&[u32]) -> bool) -> bool {
        match self {
            Self::Some(all) => wanted(all),
            Self::Any => true,
        }
    }
}

impl Changes {
    /// Returns the changes that anything may have changed.
    pub(crate) fn any() -> Self {
        let [ready, due, ended, requests] = [const { Subjects::Any }; 4];
        Self { ready, ready_count: u32::MAX, due, ended, requests, has_free_slots: true }
    }

    /// Returns the change that an unknown number of executions of any workflow may be ready.
    pub(crate) fn any_ready() -> Self {
        Self { ready: Subjects::Any, ready_count: u32::MAX, ..Self::default() }
    }

    /// Returns the change that this number of executions of any workflow may be ready.
    pub(crate) fn ready(count: u64) -> Self {
        Self { ready_count: saturate(count), ..Self::any_ready() }
    }

    /// Returns the change that an unknown number of executions of any workflow may be ready, or have new due times.
    pub(crate) fn any_ready_or_due() -> Self {
        Self { due: Subjects::Any, ..Self::any_ready() }
    }

    /// Returns the changes by a flush that concern other processes: they may claim its executions, or wait for them. The
    /// effects of its Wakes and requests are not included. `is_client`: whether the flush's worker runs no executions, so
    /// that others have to wait for due times. A worker itself waits for the due times of executions that it suspends.
    pub(crate) fn of_flush(flush: &Flush, outcomes: &[(usize, Outcome)], is_client: bool) -> Self {
        let mut changes = Self::default();
        // a self-claiming Start has this outcome if its execution was queued instead of begun
        for (i, _) in outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Queued) {
            match flush.writes.get(*i) {
                Some(Write::Start(start)) => changes.add_ready(Some(&start.workflow)),
                _ => changes.add_ready(None),
            }
        }
        let mut written = HashSet::new();
        for write in &flush.writes {
            match write {
                Write::Start(start) => {
                    let tag = || workflow_tag(&start.workflow);
                    match &start.state {
                        State::Queued { .. } => changes.add_ready(Some(&start.workflow)),
                        State::Ended { .. } | State::Parked { .. } => changes.add_ended(start.key),
                        State::Running { .. } => continue,
                        State::Waiting { .. } if !is_client => {}
                        // perhaps no execution for this worker
                        State::Scheduled { .. } | State::Waiting { .. } => changes.due.add(tag(), MAX_NAMES),
                    }
                    if is_client && start.deadline_at.is_some() {
                        changes.due.add(tag(), MAX_NAMES);
                    }
                }
                Write::Transition(change) => {
                    match &change.state {
                        // another worker may take it
                        State::Queued { .. } => changes.add_ready(None),
                        State::Ended { .. } | State::Parked { .. } => changes.add_ended(change.key),
                        State::Running { .. } => continue,
                        State::Scheduled { .. } | State::Waiting { .. } => {}
                    }
                    changes.has_free_slots |= change.placement.is_some();
                }
                // its receiver may run in another process
                Write::Send(message) if message.execution.is_address() => {}
                Write::Send(_) | Write::Forward(_) => changes.add_ended(write.execution()),
                // executions in other processes may wait for it
                Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::Event => {
                    changes.add_ended(checkpoint.execution);
                }
                // readers in other processes may wait for the entries of its streams
                Write::Append(_) => {
                    written.insert(write.execution());
                }
                Write::Checkpoint(checkpoint) if checkpoint.kind == CheckpointKind::StreamWrite => {
                    written.insert(checkpoint.execution);
                }
                Write::Wake(_)
                | Write::Request(_)
                | Write::Checkpoint(_)
                | Write::Attempt(_)
                | Write::ClearRequests(_)
                | Write::Chunk(_)
                | Write::DeleteChunks(_)
                | Write::Pack(_)
                | Write::CloseBatch(_) => {}
            }
        }
        for execution in written {
            changes.add_ended(execution);
        }
        changes
    }

    /// Adds an execution that may be ready; without a workflow, of any.
    pub(crate) fn add_ready(&mut self, workflow: Option<&str>) {
        match workflow {
            Some(workflow) => self.ready.add(workflow_tag(workflow), MAX_NAMES),
            None => self.ready = Subjects::Any,
        }
        self.ready_count = self.ready_count.saturating_add(1);
    }

    /// Adds executions of these workflows that may be ready, `count` in all.
    pub(crate) fn add_all_ready<'a>(&mut self, workflows: impl IntoIterator<Item = &'a str>, count: u64) {
        for workflow in workflows {
            self.ready.add(workflow_tag(workflow), MAX_NAMES);
        }
        self.ready_count = self.ready_count.saturating_add(saturate(count));
    }

    /// Adds an execution that has ended, is parked, or has a new message.
    pub(crate) fn add_ended(&mut self, key: Key) {
        self.ended.add_new(key.tag(), MAX_ENDED);
    }

    /// Adds a worker that runs an execution with a new or withdrawn request.
    pub(crate) fn add_requested(&mut self, worker: WorkerId) {
        self.requests.add(worker_tag(worker), MAX_NAMES);
    }

    /// Adds that slots of queues may have become free.
    pub(crate) fn add_free_slots(&mut self) {
        self.has_free_slots = true;
    }

    /// Whether nothing has changed for other processes.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds other changes to these.
    pub(crate) fn merge(&mut self, other: Self) {
        self.ready.merge(other.ready, |all, tag| all.add(tag, MAX_NAMES));
        self.ready_count = self.ready_count.saturating_add(other.ready_count);
        self.due.merge(other.due, |all, tag| all.add(tag, MAX_NAMES));
        self.ended.merge(other.ended, |all, tag| all.add_new(tag, MAX_ENDED));
        self.requests.merge(other.requests, |all, tag| all.add(tag, MAX_NAMES));
        self.has_free_slots |= other.has_free_slots;
    }

    /// Returns these changes without repeated subjects, so that their text fits into a hint.
    pub(crate) fn without_repeated(mut self) -> Self {
        for subjects in [&mut self.ready, &mut self.due, &mut self.requests] {
            subjects.remove_repeated(MAX_NAMES);
        }
        self
    }

    /// Returns the maximum number of executions that may be ready; `u32::MAX` if unknown.
    pub(crate) fn ready_count(&self) -> u32 {
        self.ready_count
    }

    /// Returns the hint for a worker with workflows of these tags.
    pub(crate) fn hint_for(&self, worker: WorkerId, workflows: &HashSet<u32>) -> Hint {
        let concerns = |tags: &[u32]| tags.iter().any(|tag| workflows.contains(tag));
        let claim = if workflows.is_empty() {
            ClaimHint::None
        } else if self.ready.contains_any(concerns) {
            ClaimHint::AtOnce
        } else if self.has_free_slots {
            ClaimHint::IfLimited
        } else {
            ClaimHint::None
        };
        Hint {
            claim,
            has_free_slots: self.has_free_slots,
            has_other: self.requests.contains_any(|tags| tags.contains(&worker_tag(worker)))
                || self.due.contains_any(concerns),
            ended: match &self.ended {
                Subjects::Some(tags) => EndedExecutions::Tagged(tags.clone()),
                Subjects::Any => EndedExecutions::Any,
            },
        }
    }

    /// Parses the text of a hint. An unknown word means that anything may have changed, because other programs and other
    /// versions may send hints.
    pub(crate) fn parse(text: &str) -> Self {
        let mut changes = Self::default();
        for word in text.split_ascii_whitespace() {
            let (kind, names) =
                word.split_once('=').map_or((word, None), |(kind, names)| (kind, Some(names)));
            let Some(subjects) = parse_subjects(names) else { return Self::any() };
            let add = |all: &mut Subjects, tag| all.add(tag, usize::MAX);
            match (kind, names) {
                ("ready", _) => {
                    changes.ready.merge(subjects, add);
                    changes.ready_count = u32::MAX;
                }
                // after `ready`
                ("count", Some(_)) if let Subjects::Some(count) = subjects => {
                    changes.ready_count = count.first().copied().unwrap_or(u32::MAX);
                }
                ("due", _) => changes.due.merge(subjects, add),
                ("ended", _) => changes.ended.merge(subjects, add),
                ("requests", _) => changes.requests.merge(subjects, add),
                ("slots", None) => changes.has_free_slots = true,
                _ => return Self::any(),
            }
        }
        changes
    }
}

/// Returns a count of executions as hints carry it.
fn saturate(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Parses names in a hint; without names, the subjects are any. Returns `None` for malformed names.
fn parse_subjects(names: Option<&str>) -> Option<Subjects> {
    let Some(names) = names else { return Some(Subjects::Any) };
    let tags: Result<Vec<u32>, _> = names.split(',').map(|name| u32::from_str_radix(name, 16)).collect();
    tags.ok().map(Subjects::Some)
}

/// Writes the text of a hint, which follows the sender's name in the payload.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let Self { ready, due, ended, requests, .. } = self;
        for (kind, subjects) in [("ready", ready), ("due", due), ("ended", ended), ("requests", requests)] {
            if subjects.is_empty() {
                continue;
            }
            write!(f, "{separator}{kind}")?;
            separator = " ";
            if let Subjects::Some(tags) = subjects {
                for (i, tag) in tags.iter().enumerate() {
                    write!(f, "{}{tag:x}", if i == 0 { '=' } else { ',' })?;
                }
            }
        }
        if self.ready_count != u32::MAX && self.ready_count > 0 {
            write!(f, "{separator}count={:x}", self.ready_count)?;
            separator = " ";
        }
        if self.has_free_slots {
            write!(f, "{separator}slots")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(changes: &Changes) -> Changes {
        let text = changes.to_string();
        assert!(text.len() < 7_900, "{} bytes", text.len());
        Changes::parse(&text)
    }

    #[test]
    fn text_of_changes_is_parsed_back() {
        let mut changes = Changes::default();
        assert_eq!(tagged(&changes), changes);
        for name in ["a", "b", "a workflow with a long name"] {
            changes.add_ready(Some(name));
        }
        changes = changes.without_repeated();
        assert_eq!(changes.ready_count(), 3);
        changes.due.add(u32::MAX, MAX_NAMES);
        assert_eq!(tagged(&changes), changes);
        for _ in 0..MAX_ENDED {
            changes.add_ended(Key::mint(0));
        }
        changes.has_free_slots = true;
        assert_eq!(tagged(&changes), changes);
        assert!(matches!(changes.ended, Subjects::Some(_)));
        changes.add_ended(Key::mint(0));
        assert_eq!((&changes.ended, tagged(&changes)), (&Subjects::Any, changes.clone()));
        let mut repeated = Changes::default();
        for n in 0..10_000 {
            repeated.add_ready(Some(["a", "b", "c"][n % 3]));
        }
        let repeated = repeated.without_repeated();
        assert!(matches!(&repeated.ready, Subjects::Some(tags) if tags.len() == 3), "{repeated:?}");
        for (count, is_any) in [(MAX_NAMES, false), (MAX_NAMES + 1, true)] {
            let mut full = Changes::default();
            for n in 0..count {
                full.add_ready(Some(&n.to_string()));
                full.due.add(n as u32, MAX_NAMES);
                full.add_requested(WorkerId(n as i64));
            }
            (0..MAX_ENDED).for_each(|_| full.add_ended(Key::mint(0)));
            let full = full.without_repeated();
            assert_eq!((full.ready == Subjects::Any, tagged(&full)), (is_any, full));
        }
        changes.merge(Changes::any());
        assert_eq!((tagged(&changes), changes), (Changes::any(), Changes::any()));
    }

    #[test]
    fn unknown_text_means_that_anything_may_have_changed() {
        assert_eq!(Changes::parse("ready"), Changes::any_ready());
        for text in ["more", "ready=", "ready=x", "slots=1", "ready=1,,2", "slots ready=1 later", "count"] {
            assert_eq!(Changes::parse(text), Changes::any(), "{text}");
        }
        assert_eq!(Changes::parse(""), Changes::default());
    }

    #[test]
    fn hints_wake_only_workers_that_can_act() {
        let (worker, own) = (WorkerId(7), HashSet::from([workflow_tag("own")]));
        let of = |name: &str| {
            let mut changes = Changes::default();
            changes.add_ready(Some(name));
            changes.due.add(workflow_tag(name), MAX_NAMES);
            changes.hint_for(worker, &own)
        };
        assert!(of("foreign").is_empty());
        assert!(of("own").claim == ClaimHint::AtOnce && of("own").has_other);
        let client = HashSet::new();
        let slots = Changes { has_free_slots: true, ..Changes::default() };
        assert_eq!(slots.hint_for(worker, &own).claim, ClaimHint::IfLimited);
        for changes in [Changes::any_ready(), slots] {
            let hint = changes.hint_for(worker, &client);
            assert_eq!(hint.claim, ClaimHint::None, "a client claims nothing");
        }
        let mut requests = Changes::default();
        requests.add_requested(WorkerId(6));
        assert!(tagged(&requests).hint_for(worker, &own).is_empty());
        requests.add_requested(worker);
        assert!(tagged(&requests).hint_for(worker, &client).has_other);
        let drained = tagged(&Changes::any_ready_or_due()).hint_for(worker, &own);
        assert!(drained.claim == ClaimHint::AtOnce && drained.has_other);
    }
}
