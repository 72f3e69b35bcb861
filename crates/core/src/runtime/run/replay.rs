//! Replay: the recorded deliveries of an execution, handed out again in their order.

use std::collections::HashMap;

use crate::path::Path;
use crate::store::{Attempt, Checkpoint, CheckpointKind, Record};

/// Failed attempts by path.
pub(crate) type Attempts = HashMap<Path, Vec<Attempt>>;

/// What is recorded and not delivered again yet.
pub(crate) struct Replay {
    /// By order; `None` once delivered.
    recorded: Vec<Option<Checkpoint>>,
    by_path: HashMap<Path, usize>,
    /// First that is not delivered.
    next: usize,
    /// Calls that have been made and wait for their delivery, by path.
    pub(crate) calls: HashMap<Path, usize>,
}

/// What a call is, to be compared with what was recorded at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Step,
    Sleep,
    Child,
    ChildStart,
}

impl CallKind {
    fn matches(self, kind: CheckpointKind) -> bool {
        match kind {
            CheckpointKind::Abandoned => true,
            CheckpointKind::Step => self == CallKind::Step,
            // a child that could not be started is recorded as a failure at its place
            CheckpointKind::Failed => self != CallKind::Sleep,
            CheckpointKind::Timer => self == CallKind::Sleep,
            CheckpointKind::Child => self == CallKind::Child,
            CheckpointKind::Started => self == CallKind::ChildStart,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            CallKind::Step => "step",
            CallKind::Sleep => "sleep",
            CallKind::Child => "child",
            CallKind::ChildStart => "start of child",
        }
    }
}

impl Replay {
    /// The replay of a record; `None` if nothing was recorded. Also the failed attempts by path.
    pub(crate) fn of(record: &mut Record) -> (Option<Self>, Option<Box<Attempts>>) {
        let mut attempts: Option<Box<Attempts>> = None;
        for attempt in record.attempts.drain(..) {
            let attempts = attempts.get_or_insert_default();
            attempts.entry(attempt.path.clone()).or_default().push(attempt);
        }
        let mut checkpoints = std::mem::take(&mut record.checkpoints);
        if checkpoints.is_empty() {
            return (None, attempts);
        }
        checkpoints.sort_by_key(|checkpoint| checkpoint.order);
        let by_path =
            checkpoints.iter().enumerate().map(|(i, checkpoint)| (checkpoint.path.clone(), i)).collect();
        let recorded = checkpoints.into_iter().map(Some).collect();
        (Some(Self { recorded, by_path, next: 0, calls: HashMap::new() }), attempts)
    }

    /// The largest recorded order.
    pub(crate) fn last_order(&self) -> u32 {
        self.recorded.iter().flatten().map(|checkpoint| checkpoint.order).max().unwrap_or(0)
    }

    /// What is recorded at `path`; an error in plain words if it is not what the code calls there now.
    pub(crate) fn find(
        &self,
        path: &Path,
        kind: CallKind,
        name: &str,
        fingerprint: Option<u64>,
    ) -> Result<Option<&Checkpoint>, String> {
        let Some(checkpoint) = self.by_path.get(path).and_then(|&i| self.recorded[i].as_ref()) else {
            return Ok(None);
        };
        if *checkpoint.name != *name || !kind.matches(checkpoint.kind) {
            let nearest = self
                .recorded
                .iter()
                .flatten()
                .filter(|other| *other.name == *name)
                .min_by_key(|other| other.order.abs_diff(checkpoint.order));
            let hint = nearest.map_or(String::new(), |other| {
                format!(" (the nearest recorded {name:?} is at position {})", other.path)
            });
            return Err(format!(
                "at position {path} the record has {} {:?}, the code now calls {} {name:?}{hint}",
                described(checkpoint.kind),
                &*checkpoint.name,
                kind.word(),
            ));
        }
        match (checkpoint.fingerprint, fingerprint) {
            (Some(recorded), Some(now)) if recorded != now => Err(format!(
                "at position {path} {} {name:?} was recorded with other arguments than the code passes now",
                kind.word()
            )),
            _ => Ok(Some(checkpoint)),
        }
    }

    /// True if something is recorded at `path` and has yet to be delivered.
    pub(crate) fn records(&self, path: &Path) -> bool {
        self.by_path.get(path).is_some_and(|&i| self.recorded[i].is_some())
    }

    /// The next delivery to be made.
    pub(crate) fn peek(&self) -> Option<&Checkpoint> {
        self.recorded.get(self.next).and_then(Option::as_ref)
    }

    /// True if something was delivered after what has been repeated: the rest may be calls that were given up
    /// together, which come in no certain order.
    pub(crate) fn delivers_more(&self) -> bool {
        let left = self.recorded.get(self.next..).unwrap_or_default();
        left.iter().flatten().any(|checkpoint| checkpoint.kind != CheckpointKind::Abandoned)
    }

    /// Takes the next delivery out.
    pub(crate) fn pop(&mut self) -> Option<Checkpoint> {
        let checkpoint = self.recorded.get_mut(self.next)?.take();
        self.skip_taken();
        checkpoint
    }

    /// Takes out that the call at `path` was given up, if that comes next. Of calls that are given up one
    /// after the other, any may come first: collections of futures drop them in no certain order.
    pub(crate) fn give_up(&mut self, path: &Path) -> bool {
        let Some(&i) = self.by_path.get(path) else { return false };
        let is_next = self.recorded.get(self.next..=i).is_some_and(|until| {
            until.iter().flatten().all(|checkpoint| checkpoint.kind == CheckpointKind::Abandoned)
        });
        if is_next {
            self.recorded[i] = None;
            self.skip_taken();
        }
        is_next
    }

    fn skip_taken(&mut self) {
        while self.recorded.get(self.next).is_some_and(Option::is_none) {
            self.next += 1;
        }
    }
}

/// The words for what a checkpoint records.
pub(crate) fn described(kind: CheckpointKind) -> &'static str {
    match kind {
        CheckpointKind::Step => "step",
        CheckpointKind::Failed => "failed step",
        CheckpointKind::Abandoned => "abandoned call",
        CheckpointKind::Timer => "sleep",
        CheckpointKind::Child => "child",
        CheckpointKind::Started => "start of child",
    }
}
