//! The answer to a token or a request: a value or a failure, encoded as one value.

use crate::error::Error;
use crate::failure::Failure;
use crate::payload::Payload;

/// The head of an array of two elements in MessagePack.
const PAIR: u8 = 0x92;
/// The first element of an answer that is a value.
const VALUE: u8 = 0;
/// The first element of an answer that is a failure.
const FAILURE: u8 = 1;

/// Encodes an answer.
pub(crate) fn encode_answer(answer: Result<Payload, Failure>) -> Payload {
    let (kind, inner) = match answer {
        Ok(value) => (VALUE, value),
        Err(failure) => (FAILURE, Payload::from_failure(&failure)),
    };
    let mut encoded = vec![PAIR, kind];
    // an absent value is nil
    encoded.extend_from_slice(inner.as_message_pack().unwrap_or(&[0xc0]));
    Payload::from_message_pack(&encoded)
}

/// Decodes an answer.
pub(crate) fn decode_answer(encoded: &Payload) -> Result<Result<Payload, Failure>, Error> {
    match encoded.as_message_pack() {
        Some([PAIR, VALUE, inner @ ..]) => Ok(Ok(Payload::from_message_pack(inner))),
        Some([PAIR, FAILURE, inner @ ..]) => Ok(Err(Payload::from_message_pack(inner).to_failure())),
        _ => Err(Error::Decode {
            value: "an answer".to_owned(),
            type_name: "answer",
            reason: "its bytes are damaged".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_decoded() {
        let value = Payload::encode(&("a", 7)).unwrap();
        assert_eq!(decode_answer(&encode_answer(Ok(value.clone()))).unwrap(), Ok(value));
        let failure = Failure::with_kind("Refused", "no").permanent();
        assert_eq!(decode_answer(&encode_answer(Err(failure.clone()))).unwrap(), Err(failure));
        assert!(decode_answer(&Payload::encode(&7).unwrap()).is_err());
    }
}
