//! The forms in which people see the names and values of tokens and questions.

use crate::error::Error;
use crate::key::Key;
use crate::payload::Payload;
use crate::runtime::messaging::answer::decode_answer;
use crate::runtime::messaging::private_names::{is_private, without_mark};
use crate::runtime::messaging::questions::decode_question;
use crate::store::{Checkpoint, CheckpointKind, Record, Store, Wait};

/// Returns a name for people. The secret of a token is not part of it.
pub(crate) fn shown_name(name: &str) -> &str {
    let Some(text) = without_mark(name) else { return name };
    match text.strip_prefix("token ").and_then(|rest| rest.find(' ')) {
        Some(end) => &text[.."token ".len() + end],
        None => text,
    }
}

/// Makes a record fit for people: the names and the inline values of tokens and questions.
pub(crate) fn show_record(record: &mut Record) {
    for checkpoint in record.checkpoints.iter_mut().filter(|it| is_private(&it.name)) {
        if let Some(value) = shown_value(checkpoint) {
            checkpoint.outcome = value;
        }
        checkpoint.name = shown_name(&checkpoint.name).to_owned().into();
    }
    for wait in &mut record.waits {
        if let Wait::Message(name) | Wait::Event(_, name) = wait
            && is_private(name)
        {
            *name = shown_name(name).into();
        }
    }
}

/// Returns the topics of an execution's pending messages, fit for people, each with the number of its messages.
///
/// # Errors
///
/// The error of the store.
pub async fn find_pending_topics(store: &dyn Store, execution: Key) -> Result<Vec<(String, u64)>, Error> {
    let topics = store.pending_topics(execution).await?;
    Ok(topics.into_iter().map(|(topic, count)| (shown_name(&topic).to_owned(), count)).collect())
}

/// Returns the value to show in place of an encoded secret, answer or question; `None` for any other value.
fn shown_value(checkpoint: &Checkpoint) -> Option<Payload> {
    let (name, value) = (shown_name(&checkpoint.name), &checkpoint.outcome);
    match checkpoint.kind {
        CheckpointKind::Event if name.starts_with("token ") => Some(Payload::default()),
        CheckpointKind::Message if name.starts_with("question ") => Some(decode_question(value).ok()?.1),
        CheckpointKind::Message | CheckpointKind::Event | CheckpointKind::EventRead => {
            let answer = decode_answer(value).ok()?;
            Some(answer.unwrap_or_else(|failure| Payload::from_failure(&failure)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::messaging::private_names::private_name;

    #[test]
    fn names_are_shown_without_marks_and_secrets() {
        for (name, shown) in [
            ("token 3.1", "token 3.1"),
            ("token 3.1 0123456789abcdef", "token 3.1"),
            ("question the approvals", "question the approvals"),
        ] {
            assert_eq!(shown_name(&private_name(name)), shown);
        }
        assert_eq!(shown_name("token 3 of the caller"), "token 3 of the caller");
    }
}
