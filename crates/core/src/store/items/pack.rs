//! [`Pack`]: the outcomes of items without rows of their own, encoded in one row.

use super::EndedItems;
use crate::key::Key;
use crate::payload::Payload;
use crate::store::Status;

/// The Write that records the outcomes of items of a bundle. A flush inserts the row and never changes it; its guard is
/// the lane's fence.
#[derive(Clone, Debug, PartialEq)]
pub struct Pack {
    /// The key of the bundle.
    pub bundle: Key,
    /// The outcomes by index, in ascending order; at least one.
    pub outcomes: Vec<ItemOutcome>,
}

/// The end of an item without a row of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemOutcome {
    /// The index of the item in its batch.
    pub index: u32,
    /// The final status: `completed`, `failed` or `cancelled`.
    pub status: Status,
    /// The output, or an encoded [`Failure`](crate::Failure).
    pub outcome: Payload,
}

/// The length of an encoded run of equal outcomes without the payload: first index, number of items, status, length.
const RUN_HEAD_BYTES: usize = 13;

impl Pack {
    /// Returns the number of the pack in its bundle: the index of the first outcome.
    pub fn number(&self) -> u32 {
        self.outcomes.first().map_or(0, |first| first.index)
    }

    /// Returns the numbers of outcomes by status.
    pub fn ended(&self) -> EndedItems {
        let mut ended = EndedItems::default();
        for outcome in &self.outcomes {
            ended.add(outcome.status, 1);
        }
        ended
    }

    /// Encodes the outcomes for the column `outcomes`. Equal outcomes of neighbouring items are encoded once, as a run.
    /// Each run consists of its first index, its number of items (4 bytes each), the number of the status (1 byte), the
    /// length of the payload (4 bytes), and the payload. All numbers are big-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size().min(self.outcomes.len() * 32));
        let mut rest = self.outcomes.as_slice();
        while let Some(first) = rest.first() {
            let is_next = |(offset, it): (usize, &ItemOutcome)| {
                it.index as usize == first.index as usize + offset
                    && it.status == first.status
                    && it.outcome == first.outcome
            };
            let count = rest.iter().enumerate().take_while(|next| is_next(*next)).count();
            bytes.extend_from_slice(&first.index.to_be_bytes());
            bytes.extend_from_slice(&(count as u32).to_be_bytes());
            bytes.push(first.status as u8);
            bytes.extend_from_slice(&(first.outcome.len() as u32).to_be_bytes());
            bytes.extend_from_slice(first.outcome.as_bytes());
            rest = &rest[count..];
        }
        bytes
    }

    /// Returns the size that counts towards the limits of a flush, in bytes.
    pub(in crate::store) fn size(&self) -> usize {
        self.outcomes.iter().map(|it| it.outcome.len() + RUN_HEAD_BYTES).sum()
    }
}

/// A run of equal outcomes in an encoded pack.
struct EncodedRun<'p> {
    first: u32,
    count: u32,
    status: Status,
    outcome: &'p [u8],
}

/// Splits the first run from an encoded pack; `None` if it is damaged.
fn split_run(bytes: &[u8]) -> Option<(EncodedRun<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<RUN_HEAD_BYTES>()?;
    let number = |at: usize| head[at..].first_chunk().map(|it| u32::from_be_bytes(*it));
    let (first, count, len) = (number(0)?, number(4)?, number(9)?);
    let status = Status::from_number(i64::from(head[8])).filter(|status| status.is_terminal())?;
    let (outcome, rest) = rest.split_at_checked(len as usize)?;
    first.checked_add(count)?;
    Some((EncodedRun { first, count, status, outcome }, rest))
}

/// Decodes a column `outcomes`; `None` if it is damaged.
pub fn decode_pack(mut bytes: &[u8]) -> Option<Vec<ItemOutcome>> {
    let mut outcomes = Vec::new();
    while !bytes.is_empty() {
        let (run, rest) = split_run(bytes)?;
        let outcome = Payload::from_slice(run.outcome);
        for index in run.first..run.first + run.count {
            outcomes.push(ItemOutcome { index, status: run.status, outcome: outcome.clone() });
        }
        bytes = rest;
    }
    Some(outcomes)
}

/// Decodes the outcomes of these items from a column `outcomes`, and no others. `indexes` are in ascending order; `found`
/// has a place for each. A place that has an outcome stays as it is. Returns `None` if the column is damaged.
pub(super) fn search_pack(
    mut bytes: &[u8],
    indexes: &[u32],
    found: &mut [Option<ItemOutcome>],
) -> Option<()> {
    while !bytes.is_empty() {
        let (run, rest) = split_run(bytes)?;
        let begin = indexes.partition_point(|index| *index < run.first);
        for at in begin..indexes.len() {
            let index = indexes[at];
            if index - run.first >= run.count {
                break;
            }
            let outcome = || {
                let outcome = Payload::from_slice(run.outcome);
                ItemOutcome { index, status: run.status, outcome }
            };
            found[at].get_or_insert_with(outcome);
        }
        bytes = rest;
    }
    Some(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::store::items) fn outcome(index: u32, status: Status, value: &str) -> ItemOutcome {
        ItemOutcome { index, status, outcome: Payload::encode(value).unwrap() }
    }

    pub(in crate::store::items) fn pack(outcomes: Vec<ItemOutcome>) -> Pack {
        Pack { bundle: Key::mint_batch(0).bundle(99), outcomes }
    }

    #[test]
    fn packs_round_trip_and_damage_is_detected() {
        let outcomes = vec![
            outcome(3, Status::Completed, "a"),
            outcome(4, Status::Completed, "a"),
            outcome(6, Status::Completed, "a"),
            outcome(7, Status::Failed, "a"),
            outcome(8, Status::Failed, &"b".repeat(100)),
            ItemOutcome { index: 9, status: Status::Cancelled, outcome: Payload::empty() },
        ];
        let pack = pack(outcomes.clone());
        let bytes = pack.encode();
        assert_eq!(decode_pack(&bytes), Some(outcomes));
        assert_eq!(pack.number(), 3);
        assert_eq!(pack.ended(), EndedItems { completed: 3, failed: 2, cancelled: 1 });
        assert_eq!(decode_pack(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_pack(&[&bytes[..], &[0]].concat()), None);
        let mut unknown = bytes;
        unknown[8] = Status::Running as u8;
        assert_eq!(decode_pack(&unknown), None, "a status that is not final");
        assert_eq!(decode_pack(&[]), Some(Vec::new()));
    }

    #[test]
    fn equal_outcomes_take_the_space_of_one() {
        let equal = pack((0..1000).map(|index| outcome(index, Status::Completed, "x")).collect());
        let one = pack(vec![outcome(0, Status::Completed, "x")]);
        assert_eq!(equal.encode().len(), one.encode().len());
    }
}
