//! The present state of a schedule, from its record and its pending requests. A program reads it without a worker.

use std::collections::VecDeque;

use crate::error::Error;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::messaging::questions::{decode_question, question_topic};
use crate::schedule::code::DECISION;
use crate::schedule::decision::Decision;
use crate::schedule::declaration::instant_id;
use crate::schedule::state::{REQUEST_TOPIC, ScheduleRequest, ScheduleState, StartedExecution};
use crate::store::{CheckpointKind, Record};

/// The recorded part of a schedule's execution, with all values in place.
pub(crate) struct RecordedPart {
    /// The input of the part.
    pub(crate) input: Payload,
    /// The outcomes of its calls in their order: kind, name and value.
    pub(crate) outcomes: Vec<(CheckpointKind, String, Payload)>,
}

impl RecordedPart {
    /// Returns the last part of a record.
    pub(crate) fn last_of(record: Record) -> Self {
        let mut checkpoints = record.checkpoints;
        checkpoints.sort_by_key(|it| it.order);
        let begin = checkpoints.iter().rposition(|it| it.kind == CheckpointKind::Continued);
        let input = begin.map_or(record.execution.input, |begin| checkpoints[begin].outcome.clone());
        let outcomes = checkpoints.into_iter().skip(begin.map_or(0, |begin| begin + 1));
        let outcomes = outcomes.map(|it| (it.kind, it.name.to_string(), it.outcome)).collect();
        Self { input, outcomes }
    }

    /// Returns the values of the part.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Payload> {
        std::iter::once(&mut self.input).chain(self.outcomes.iter_mut().map(|(_, _, value)| value))
    }
}

/// Returns the state after a recorded part and these pending requests.
pub(crate) fn fold_part(part: &RecordedPart, pending: &[Payload]) -> Result<ScheduleState, Error> {
    let mut state: ScheduleState = part.input.decode()?;
    let topic = question_topic(REQUEST_TOPIC)?;
    // the ids of the executions whose starts follow in the record
    let mut starting = VecDeque::new();
    for (kind, name, value) in &part.outcomes {
        match kind {
            CheckpointKind::Message if **name == *topic => {
                starting.extend(apply_request(&mut state, value)?);
            }
            CheckpointKind::Step if name == DECISION => {
                let decision: Decision = value.decode()?;
                let actions = state.apply_decision(&decision);
                let name = state.name().unwrap_or_default();
                starting.extend(actions.starts.iter().map(|instant| instant_id(&name, *instant)));
            }
            CheckpointKind::Started | CheckpointKind::Failed if !starting.is_empty() => {
                let Some(workflow_id) = starting.pop_front() else { continue };
                match kind {
                    CheckpointKind::Started => {
                        let key = value.decode::<String>()?;
                        state.note_started(StartedExecution { workflow_id, key });
                    }
                    _ => state.note_failed_start(&workflow_id, &value.to_failure()),
                }
            }
            _ => {}
        }
    }
    for value in pending {
        apply_request(&mut state, value)?;
    }
    Ok(state)
}

/// Applies a request to a state. Returns the id of the execution that the schedule starts for the request.
fn apply_request(state: &mut ScheduleState, question: &Payload) -> Result<Option<String>, Error> {
    let (_, value) = decode_question(question)?;
    // a schedule refuses what is not a request
    let Ok(request) = value.decode::<ScheduleRequest>() else { return Ok(None) };
    let is_accepted = state.apply_request(&request).is_ok();
    Ok(match request {
        ScheduleRequest::Trigger { workflow_id } if is_accepted => Some(workflow_id),
        _ => None,
    })
}

impl StartedExecution {
    /// Returns the key of the execution.
    pub(crate) fn key(&self) -> Option<Key> {
        Key::from_text(&self.key)
    }
}
