//! Replay: delivers the recorded outcomes of an execution again, in their order.

use std::collections::{HashMap, HashSet};

use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::messaging::shown::shown_name;
use crate::store::{Attempt, Checkpoint, CheckpointKind, Record};

/// Failed attempts by path.
pub(crate) type Attempts = HashMap<Path, Vec<Attempt>>;

/// The recorded checkpoints, until their deliveries are repeated.
pub(crate) struct Replay {
    /// The checkpoints by order; `None` in place of a checkpoint whose delivery was repeated.
    recorded: Vec<Option<Checkpoint>>,
    by_path: HashMap<Path, usize>,
    /// The first numbers of all recorded paths; `None` until they are needed.
    first_numbers: Option<HashSet<u32>>,
    /// Index of the checkpoint whose delivery is next.
    next: usize,
    /// Ids of the calls that wait for their delivery, by path.
    pub(crate) calls: HashMap<Path, usize>,
}

/// The kind of a call, which is compared with the checkpoint at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Step,
    /// A step that is a task of a graph. Its fingerprint is that of its dependencies and rule.
    Task,
    Sleep,
    Child,
    ChildStart,
    /// The receipt of a message.
    Receive,
    /// The sending of a message.
    Send,
    /// The setting of an event.
    SetEvent,
    /// The wait for an event of another execution.
    GetEvent,
    /// The writing of a value to a stream, or of its end.
    WriteStream,
    /// The end of a part of the execution.
    Continue,
}

impl CallKind {
    fn matches(self, kind: CheckpointKind) -> bool {
        match kind {
            CheckpointKind::Abandoned => true,
            CheckpointKind::Step => matches!(self, CallKind::Step | CallKind::Task),
            // a child that could not be started is recorded as a failure at its path
            CheckpointKind::Failed => self != CallKind::Sleep,
            // the wait for a message or an event may end without one
            CheckpointKind::Timer => matches!(self, CallKind::Sleep | CallKind::Receive | CallKind::GetEvent),
            CheckpointKind::Child => self == CallKind::Child,
            CheckpointKind::Started => self == CallKind::ChildStart,
            CheckpointKind::Message => self == CallKind::Receive,
            CheckpointKind::Sent => self == CallKind::Send,
            CheckpointKind::Event => self == CallKind::SetEvent,
            CheckpointKind::EventRead => self == CallKind::GetEvent,
            CheckpointKind::StreamWrite => self == CallKind::WriteStream,
            CheckpointKind::Continued => self == CallKind::Continue,
        }
    }

    pub(crate) fn noun(self) -> &'static str {
        match self {
            CallKind::Step => "step",
            CallKind::Task => "task",
            CallKind::Sleep => "sleep",
            CallKind::Child => "child",
            CallKind::ChildStart => "start of child",
            CallKind::Receive => "receipt of a message of topic",
            CallKind::Send => "message of topic",
            CallKind::SetEvent => "event",
            CallKind::WriteStream => "write to stream",
            CallKind::Continue => "continuation",
            CallKind::GetEvent => "wait for event",
        }
    }
}

/// The last part of an execution that continued as new.
#[derive(Default)]
pub(crate) struct LastPart {
    /// The number of the part; 0 if the execution has not continued as new.
    pub(crate) part: u32,
    /// The order of the checkpoint that ended the part before.
    pub(crate) last_order: u32,
    /// The input of the part; `None` for the input of the execution.
    pub(crate) input: Option<Payload>,
}

impl LastPart {
    /// Takes the checkpoint of the last continuation from a claimed record, which contains no earlier part.
    pub(crate) fn take(record: &mut Record) -> Self {
        let Some(index) = record.checkpoints.iter().position(|it| it.kind == CheckpointKind::Continued)
        else {
            return Self::default();
        };
        let continued = record.checkpoints.remove(index);
        Self { part: continued.path.part(), last_order: continued.order, input: Some(continued.outcome) }
    }
}

impl Replay {
    /// Returns the replay of a record, and its failed attempts by path. The replay is `None` if the record
    /// has no checkpoints.
    pub(crate) fn from_record(record: &mut Record) -> (Option<Self>, Option<Box<Attempts>>) {
        Self::from_rows(std::mem::take(&mut record.checkpoints), std::mem::take(&mut record.attempts))
    }

    /// Does the same as [`from_record`](Self::from_record) for the checkpoints and failed attempts of one execution.
    pub(crate) fn from_rows(
        mut checkpoints: Vec<Checkpoint>,
        failed: Vec<Attempt>,
    ) -> (Option<Self>, Option<Box<Attempts>>) {
        let mut attempts: Option<Box<Attempts>> = None;
        for attempt in failed {
            let attempts = attempts.get_or_insert_default();
            attempts.entry(attempt.path.clone()).or_default().push(attempt);
        }
        if checkpoints.is_empty() {
            return (None, attempts);
        }
        checkpoints.sort_by_key(|checkpoint| checkpoint.order);
        let by_path =
            checkpoints.iter().enumerate().map(|(i, checkpoint)| (checkpoint.path.clone(), i)).collect();
        let recorded = checkpoints.into_iter().map(Some).collect();
        (Some(Self { recorded, by_path, first_numbers: None, next: 0, calls: HashMap::new() }), attempts)
    }

    /// Returns the largest recorded order.
    pub(crate) fn last_order(&self) -> u32 {
        self.recorded.iter().flatten().map(|checkpoint| checkpoint.order).max().unwrap_or(0)
    }

    /// Returns the checkpoint at `path`. If it disagrees with the call that the code makes there, returns a
    /// description of the disagreement.
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
        let shown = shown_name(name);
        if *checkpoint.name != *name || !kind.matches(checkpoint.kind) {
            let nearest = self
                .recorded
                .iter()
                .flatten()
                .filter(|other| *other.name == *name)
                .min_by_key(|other| other.order.abs_diff(checkpoint.order));
            let hint = nearest.map_or(String::new(), |other| {
                format!(" (the nearest recorded {shown:?} is at position {})", other.path)
            });
            return Err(format!(
                "at position {path} the record has {} {:?}, but the code calls {} {shown:?}{hint}",
                describe(checkpoint.kind),
                shown_name(&checkpoint.name),
                kind.noun(),
            ));
        }
        match (checkpoint.fingerprint, fingerprint) {
            (Some(recorded), Some(now)) if recorded != now && kind == CallKind::Task => Err(format!(
                "task {shown:?} was recorded with other dependencies, or with another rule, than it has now"
            )),
            (Some(recorded), Some(now)) if recorded != now => Err(format!(
                "at position {path} {} {shown:?} was recorded with other arguments than the code passes now",
                kind.noun()
            )),
            _ => Ok(Some(checkpoint)),
        }
    }

    /// Whether the outcome of the call at `path` is recorded and not delivered again yet.
    pub(crate) fn has_recorded(&self, path: &Path) -> bool {
        self.checkpoint(path).is_some()
    }

    /// Whether an outcome is recorded at the root's call with this number, or below, delivered again or not.
    pub(crate) fn has_recorded_in_branch(&mut self, number: u32) -> bool {
        let first_number = |path: &Path| path.numbers()?.first().copied();
        let by_path = &self.by_path;
        self.first_numbers
            .get_or_insert_with(|| by_path.keys().filter_map(first_number).collect())
            .contains(&number)
    }

    /// Returns the checkpoint at `path`, unless its delivery was repeated.
    pub(crate) fn checkpoint(&self, path: &Path) -> Option<&Checkpoint> {
        self.recorded[*self.by_path.get(path)?].as_ref()
    }

    /// Returns the checkpoint whose delivery is next.
    pub(crate) fn peek(&self) -> Option<&Checkpoint> {
        self.recorded.get(self.next).and_then(Option::as_ref)
    }

    /// Whether checkpoints of other kinds than abandoned calls remain. Calls that were abandoned together
    /// have no certain order.
    pub(crate) fn has_more_deliveries(&self) -> bool {
        let remaining = self.recorded.get(self.next..).unwrap_or_default();
        remaining.iter().flatten().any(|checkpoint| checkpoint.kind != CheckpointKind::Abandoned)
    }

    /// Takes the checkpoint whose delivery is next.
    pub(crate) fn pop(&mut self) -> Option<Checkpoint> {
        let checkpoint = self.recorded.get_mut(self.next)?.take();
        self.skip_taken();
        checkpoint
    }

    /// Takes the checkpoint of the abandoned call at `path`. Returns false if this checkpoint, or a
    /// remaining one before it, has another kind. Calls abandoned in succession may come in any order:
    /// collections of futures drop them in no certain order.
    pub(crate) fn abandon(&mut self, path: &Path) -> bool {
        let Some(&i) = self.by_path.get(path) else { return false };
        let is_next = self.recorded.get(self.next..=i).is_some_and(|preceding| {
            preceding.iter().flatten().all(|checkpoint| checkpoint.kind == CheckpointKind::Abandoned)
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

/// Returns the words for a checkpoint's kind.
pub(crate) fn describe(kind: CheckpointKind) -> &'static str {
    match kind {
        CheckpointKind::Step => "step",
        CheckpointKind::Failed => "failed step",
        CheckpointKind::Abandoned => "abandoned call",
        CheckpointKind::Timer => "sleep",
        CheckpointKind::Child => "child",
        CheckpointKind::Started => "start of child",
        CheckpointKind::Message => "received message of topic",
        CheckpointKind::Sent => "sent message of topic",
        CheckpointKind::Event => "event",
        CheckpointKind::EventRead => "read event",
        CheckpointKind::StreamWrite => "write to stream",
        CheckpointKind::Continued => "continuation",
    }
}
