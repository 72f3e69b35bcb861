//! [`PackedInputs`]: the inputs of a bundle's items, in one payload.

use crate::key::Key;
use crate::payload::Payload;

/// Packs the inputs of a bundle into its input. Each input is preceded by its length (4 bytes, big-endian).
#[derive(Debug, Default)]
pub struct PackedInputs {
    bytes: Vec<u8>,
    /// The position of the last input in the bytes.
    last_start: usize,
    count: u32,
}

/// The length that precedes each packed input, in bytes.
const INPUT_HEAD_BYTES: usize = 4;

impl PackedInputs {
    /// Adds an input.
    pub fn push(&mut self, input: &Payload) {
        self.push_bytes(input.as_bytes());
    }

    fn push_bytes(&mut self, input: &[u8]) {
        let Ok(()) = self.push_with(|bytes| {
            bytes.extend_from_slice(input);
            Ok::<_, std::convert::Infallible>(())
        });
    }

    /// Adds the input whose bytes `append` appends. After an error, no input is added.
    pub(crate) fn push_with<E>(
        &mut self,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = &mut self.bytes;
        if bytes.is_empty() {
            bytes.push(Payload::PACKED_INPUTS);
        }
        let head = bytes.len();
        bytes.extend_from_slice(&[0; INPUT_HEAD_BYTES]);
        let start = bytes.len();
        if let Err(error) = append(bytes) {
            bytes.truncate(head);
            return Err(error);
        }
        let len = (bytes.len() - start) as u32;
        bytes[head..start].copy_from_slice(&len.to_be_bytes());
        self.last_start = start;
        self.count += 1;
        Ok(())
    }

    /// Returns the number of inputs.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the length of the packed inputs, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of the last input; none if there is no input.
    pub(crate) fn last(&self) -> &[u8] {
        &self.bytes[self.last_start..]
    }

    /// Takes the last input, which must exist, and leaves those before it.
    pub(crate) fn take_last(&mut self) -> Self {
        let mut last = Self::default();
        last.push_bytes(self.last());
        self.bytes.truncate(self.last_start - INPUT_HEAD_BYTES);
        self.count -= 1;
        last
    }

    /// Takes the packed inputs, and leaves none.
    pub fn take(&mut self) -> Payload {
        // the next inputs are probably as large
        let next = Vec::with_capacity(self.bytes.len() + self.bytes.len() / 8);
        (self.last_start, self.count) = (0, 0);
        Payload::from_bytes(std::mem::replace(&mut self.bytes, next).into())
    }
}

/// Returns the inputs of a bundle, which share its bytes; `None` if they are damaged.
pub fn unpack_inputs(packed: &Payload) -> Option<Vec<Payload>> {
    let bytes = packed.to_bytes();
    let (mut at, mut inputs) = (1, Vec::new());
    if *bytes.first()? != Payload::PACKED_INPUTS {
        return None;
    }
    while let Some(head) = bytes[at..].first_chunk() {
        let start = at + INPUT_HEAD_BYTES;
        let end = start.checked_add(u32::from_be_bytes(*head) as usize)?;
        if end > bytes.len() {
            return None;
        }
        inputs.push(Payload::from_bytes(bytes.slice(start..end)));
        at = end;
    }
    (at == bytes.len()).then_some(inputs)
}

/// Returns the input of the item with this index from the unpacked inputs of its bundle. An input that is missing from
/// damaged inputs is empty.
pub(crate) fn input_of_item(inputs: &[Payload], bundle: Key, index: u32) -> Payload {
    // the last input is that of the last index
    let from_end = bundle.last_index().unwrap_or_default().saturating_sub(index);
    inputs.iter().rev().nth(from_end as usize).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_round_trip_and_damage_is_detected() {
        let inputs: Vec<Payload> =
            ["", "a", &"b".repeat(10_000)].into_iter().map(|it| Payload::encode(it).unwrap()).collect();
        let mut packed = PackedInputs::default();
        for input in &inputs {
            packed.push(input);
            assert_eq!(packed.last(), input.as_bytes());
        }
        assert_eq!(packed.count(), 3);
        let payload = packed.take();
        assert_eq!((packed.count(), packed.bytes.len()), (0, 0));
        assert_eq!(unpack_inputs(&payload), Some(inputs));
        let bytes = payload.as_bytes();
        assert_eq!(unpack_inputs(&Payload::from_slice(&bytes[..bytes.len() - 1])), None);
        assert_eq!(unpack_inputs(&Payload::from_slice(&[bytes, &[0]].concat())), None);
        assert_eq!(unpack_inputs(&Payload::encode(&1).unwrap()), None, "another encoding");
        assert_eq!(unpack_inputs(&Payload::empty()), None);
    }

    #[test]
    fn last_input_is_taken_alone() {
        let [a, b] = ["a", "b"].map(|it| Payload::encode(it).unwrap());
        let mut packed = PackedInputs::default();
        packed.push(&a);
        packed.push_with(|bytes| Payload::encode_to(bytes, "b")).unwrap();
        let mut last = packed.take_last();
        assert_eq!((packed.count(), last.count()), (1, 1));
        assert_eq!(unpack_inputs(&packed.take()), Some(vec![a.clone()]));
        last.push(&a);
        assert_eq!(unpack_inputs(&last.take()), Some(vec![b, a]));
    }

    #[test]
    fn input_that_cannot_be_encoded_is_not_added() {
        let value = Payload::encode("a").unwrap();
        let mut packed = PackedInputs::default();
        packed.push(&value);
        let result = packed.push_with(|bytes| {
            bytes.push(7);
            Err(())
        });
        assert_eq!((result, packed.count()), (Err(()), 1));
        packed.push(&value);
        assert_eq!(unpack_inputs(&packed.take()), Some(vec![value.clone(), value]));
    }
}
