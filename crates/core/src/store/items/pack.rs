//! [`Pack`]: the outcomes of items without rows of their own, encoded in one row.

use std::convert::Infallible;
use std::ops::Range;

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

/// The length of the head of an encoded group of outcomes: first index, number of items, status, length.
const HEAD_BYTES: usize = 13;
/// The bit of the status in the head of a group in which each item has a payload of its own.
const OWN_PAYLOADS: u8 = 0x80;

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

    /// Encodes the outcomes for the column `outcomes`, in groups: outcomes of neighbouring items with one status, whose
    /// payloads have one length. Each group consists of its first index, its number of items (4 bytes each), the number of
    /// the status (1 byte), the length of a payload (4 bytes), and the payloads. All numbers are big-endian. Equal payloads
    /// are encoded once; otherwise the highest bit of the status is set, and each item has its payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size().min(self.outcomes.len() * 32));
        let mut rest = self.outcomes.as_slice();
        while let Some(first) = rest.first() {
            let (group, others) = rest.split_at(group_len(rest));
            let has_equal_payloads = group.iter().all(|it| it.outcome == first.outcome);
            let (own_payloads, payloads) =
                if has_equal_payloads { (0, &group[..1]) } else { (OWN_PAYLOADS, group) };
            bytes.extend_from_slice(&first.index.to_be_bytes());
            bytes.extend_from_slice(&(group.len() as u32).to_be_bytes());
            bytes.push(first.status as u8 | own_payloads);
            bytes.extend_from_slice(&(first.outcome.len() as u32).to_be_bytes());
            for it in payloads {
                bytes.extend_from_slice(it.outcome.as_bytes());
            }
            rest = others;
        }
        bytes
    }

    /// Returns the size that counts towards the limits of a flush, in bytes.
    pub(in crate::store) fn size(&self) -> usize {
        self.outcomes.iter().map(|it| it.outcome.len() + HEAD_BYTES).sum()
    }
}

/// Returns the number of outcomes in the first group of these outcomes.
fn group_len(outcomes: &[ItemOutcome]) -> usize {
    let is_next = |a: &ItemOutcome, b: &ItemOutcome| {
        b.index == a.index + 1 && b.status == a.status && b.outcome.len() == a.outcome.len()
    };
    let Some(similar) = outcomes.chunk_by(is_next).next() else { return 0 };
    let mut len = 0;
    for equal in similar.chunk_by(|a, b| a.outcome == b.outcome) {
        // a group of its own saves the payloads but one, and takes its head and that of the next group
        let is_apart = (equal.len() - 1) * equal[0].outcome.len() > 2 * HEAD_BYTES;
        if is_apart {
            return if len == 0 { equal.len() } else { len };
        }
        len += equal.len();
    }
    len
}

/// The head of a group of outcomes in an encoded pack.
struct GroupHead {
    first: u32,
    /// The index after that of the last item.
    end: u32,
    /// The status and the bit [`OWN_PAYLOADS`].
    status: u8,
    payload_len: usize,
    /// The length of all payloads of the group, in bytes.
    payload_bytes: usize,
}

impl GroupHead {
    /// Parses an encoded head; `None` if it is damaged.
    #[inline]
    fn parse(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| head[at..].first_chunk().map(|it| u32::from_be_bytes(*it));
        let (first, count, payload_len) = (number(0)?, number(4)?, number(9)? as usize);
        let status = head[8];
        let payload_count = if status & OWN_PAYLOADS != 0 { count as usize } else { 1 };
        let payload_bytes = payload_len.checked_mul(payload_count)?;
        Some(Self { first, end: first.checked_add(count)?, status, payload_len, payload_bytes })
    }

    fn has_own_payloads(&self) -> bool {
        self.status & OWN_PAYLOADS != 0
    }

    /// Returns the final status of the items; `None` if the number is not one.
    fn status(&self) -> Option<Status> {
        let number = i64::from(self.status & !OWN_PAYLOADS);
        Status::from_number(number).filter(|status| status.is_terminal())
    }

    /// Returns the place of the payload of the item at this offset in the group, among the payloads of the group.
    fn payload(&self, offset: u32) -> Range<usize> {
        let begin = if self.has_own_payloads() { offset as usize * self.payload_len } else { 0 };
        begin..begin + self.payload_len
    }
}

/// Decodes a column `outcomes`; `None` if it is damaged.
pub fn decode_pack(mut bytes: &[u8]) -> Option<Vec<ItemOutcome>> {
    let mut outcomes = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let group = GroupHead::parse(head)?;
        let (payloads, rest) = rest.split_at_checked(group.payload_bytes)?;
        let status = group.status()?;
        let equal = (!group.has_own_payloads()).then(|| Payload::from_slice(payloads));
        for index in group.first..group.end {
            let outcome = match &equal {
                Some(payload) => payload.clone(),
                None => Payload::from_slice(&payloads[group.payload(index - group.first)]),
            };
            outcomes.push(ItemOutcome { index, status, outcome });
        }
        bytes = rest;
    }
    Some(outcomes)
}

/// The bytes of a column `outcomes`, of which a search reads as few as it can.
pub trait PackBytes {
    /// The error of a read.
    type Error;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a part of the bytes; `None` if bytes of this part are missing.
    fn read(&mut self, part: Range<usize>) -> Result<Option<&[u8]>, Self::Error>;
}

impl PackBytes for &[u8] {
    type Error = Infallible;

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read(&mut self, part: Range<usize>) -> Result<Option<&[u8]>, Infallible> {
        Ok(self.get(part))
    }
}

/// Decodes the outcomes of these items from a column `outcomes`, and no others. Reads the heads of the groups before them,
/// and their payloads. `indexes` are in ascending order; `found` has a place for each. A place that has an outcome stays
/// as it is. Returns false if the column is damaged before the last outcome that is searched for.
pub fn search_pack<B: PackBytes>(
    bytes: &mut B,
    indexes: &[u32],
    found: &mut [Option<ItemOutcome>],
) -> Result<bool, B::Error> {
    let (mut at, mut begin) = (0, 0);
    while at < indexes.len() && begin < bytes.len() {
        let Some(group) = bytes.read(begin..begin + HEAD_BYTES)?.and_then(GroupHead::parse) else {
            return Ok(false);
        };
        let payloads = begin + HEAD_BYTES;
        while let Some(&index) = indexes.get(at).filter(|index| **index < group.end) {
            if index >= group.first && found[at].is_none() {
                let part = group.payload(index - group.first);
                let payload = bytes.read(payloads + part.start..payloads + part.end)?;
                let (Some(payload), Some(status)) = (payload, group.status()) else { return Ok(false) };
                found[at] = Some(ItemOutcome { index, status, outcome: Payload::from_slice(payload) });
            }
            at += 1;
        }
        begin = payloads.saturating_add(group.payload_bytes);
    }
    Ok(begin <= bytes.len())
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

    #[test]
    fn outcomes_of_one_length_share_a_head() {
        let value = |index: u32| format!("{index:04}");
        let outcomes: Vec<ItemOutcome> =
            (0..1000).map(|index| outcome(index, Status::Completed, &value(index))).collect();
        let payload_len = outcomes[0].outcome.len();
        let pack = pack(outcomes);
        let bytes = pack.encode();
        assert_eq!(bytes.len(), HEAD_BYTES + 1000 * payload_len);
        assert_eq!(decode_pack(&bytes), Some(pack.outcomes.clone()));
        let mut found = vec![None; 3];
        assert_eq!(search_pack(&mut &bytes[..], &[0, 999, 1000], &mut found), Ok(true));
        assert_eq!(found, [Some(pack.outcomes[0].clone()), Some(pack.outcomes[999].clone()), None]);
    }

    #[test]
    fn random_packs_round_trip_and_are_searched() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let mut index = random.u32(..5);
            let outcomes = (0..random.usize(1..60)).map(|_| {
                index += if random.u8(..4) == 0 { random.u32(1..4) } else { 1 };
                let status = [Status::Completed, Status::Failed][usize::from(random.u8(..8) == 0)];
                // few values, so that neighbours are often equal or have one length
                outcome(index, status, &"ab"[random.usize(..2)..].repeat(random.usize(1..3) * 20))
            });
            let pack = pack(outcomes.collect());
            let bytes = pack.encode();
            assert!(bytes.len() <= pack.size(), "seed {seed}");
            assert_eq!(decode_pack(&bytes).as_ref(), Some(&pack.outcomes), "seed {seed}");
            let indexes: Vec<u32> = (0..index + 3).filter(|_| random.bool()).collect();
            let mut found = vec![None; indexes.len()];
            assert_eq!(search_pack(&mut &bytes[..], &indexes, &mut found), Ok(true), "seed {seed}");
            for (index, found) in indexes.iter().zip(found) {
                let expected = pack.outcomes.iter().find(|it| it.index == *index);
                assert_eq!(found.as_ref(), expected, "seed {seed}");
            }
        }
    }
}
