//! [`PackedInputs`]: the inputs of a bundle's items, in one payload.

use crate::key::Key;
use crate::payload::Payload;

/// Packs the inputs of a bundle into its input. Each input is preceded by its length (4 bytes, big-endian).
#[derive(Debug, Default)]
pub struct PackedInputs {
    bytes: Vec<u8>,
    count: u32,
}

/// The length that precedes each packed input, in bytes.
const INPUT_HEAD_BYTES: usize = 4;

impl PackedInputs {
    /// Adds an input.
    pub fn push(&mut self, input: &Payload) {
        if self.bytes.is_empty() {
            self.bytes.push(Payload::PACKED_INPUTS);
        }
        self.bytes.extend_from_slice(&(input.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(input.as_bytes());
        self.count += 1;
    }

    /// Returns the number of inputs.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the length of the packed inputs after another one of `len` bytes, in bytes.
    pub fn len_with(&self, len: usize) -> usize {
        self.bytes.len().max(1) + INPUT_HEAD_BYTES + len
    }

    /// Takes the packed inputs, and leaves none.
    pub fn take(&mut self) -> Payload {
        self.count = 0;
        Payload::from_bytes(std::mem::take(&mut self.bytes).into())
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
            let len = packed.len_with(input.len());
            packed.push(input);
            assert_eq!(packed.bytes.len(), len);
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
}
