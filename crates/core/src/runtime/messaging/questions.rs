//! The parts of questions: messages that wait for their answers.
//!
//! A question is a message of a private topic; its value contains the id of the question. The answer is an event with a
//! private name, which contains that id, of the execution that received the question.

use std::sync::Arc;

use crate::error::Error;
use crate::payload::Payload;
use crate::runtime::messaging::check_topic;
use crate::runtime::messaging::private_names::private_name;

/// The head of a question in MessagePack: an array of a text of [`ID_BYTES`] bytes and the value.
const HEAD: [u8; 3] = [0x92, 0xd9, ID_BYTES as u8];
/// The length of a question's id.
const ID_BYTES: usize = 32;

/// Returns the topic of the questions that are asked under this topic.
pub(crate) fn question_topic(topic: &str) -> Result<Arc<str>, Error> {
    check_topic(topic)?;
    Ok(private_name(&format!("question {topic}")).into())
}

/// Returns the name of the event that contains the answer to the question with this id.
pub(crate) fn answer_event(question: u128) -> Arc<str> {
    private_name(&format!("answer {question:032x}")).into()
}

/// Encodes the value of the message of a question.
pub(crate) fn encode_question(id: u128, value: &Payload) -> Payload {
    let mut encoded = HEAD.to_vec();
    encoded.extend_from_slice(format!("{id:032x}").as_bytes());
    // an absent value is nil
    encoded.extend_from_slice(value.as_message_pack().unwrap_or(&[0xc0]));
    Payload::from_message_pack(&encoded)
}

/// Decodes the value of the message of a question: its id and its value.
pub(crate) fn decode_question(encoded: &Payload) -> Result<(u128, Payload), Error> {
    let parse = || {
        let rest = encoded.as_message_pack()?.strip_prefix(&HEAD)?;
        let (id, value) = rest.split_at_checked(ID_BYTES)?;
        let id = u128::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()?;
        Some((id, Payload::from_message_pack(value)))
    };
    parse().ok_or_else(|| Error::Decode {
        value: "a question".to_owned(),
        type_name: "question",
        reason: "its bytes are damaged".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_decoded() {
        let value = Payload::encode(&("a", 7)).unwrap();
        assert_eq!(decode_question(&encode_question(0xab, &value)).unwrap(), (0xab, value));
        assert!(decode_question(&Payload::encode(&("a", 7)).unwrap()).is_err());
    }
}
