//! The items of batches: their packed inputs and outcomes, and the counts of a batch.
//!
//! A batch is an execution without code, which waits until its items have ended. Its items are in *bundles*, which are
//! executions too: a bundle is claimed, owned, taken over and cancelled as a whole. An item has no row of its own, unless
//! it is [promoted](crate::store::Record::bundle). Its checkpoints, attempts and chunks are stored under its own key.

use bytes::Bytes;

use super::Status;
use crate::key::Key;
use crate::payload::Payload;

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

/// The numbers of items that have ended, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedItems {
    /// The number of `completed` items.
    pub completed: u64,
    /// The number of `failed` items.
    pub failed: u64,
    /// The number of `cancelled` items.
    pub cancelled: u64,
}

impl EndedItems {
    /// Returns the number of items with this final status; `None` for other statuses.
    fn with_status(&mut self, status: Status) -> Option<&mut u64> {
        match status {
            Status::Completed => Some(&mut self.completed),
            Status::Failed => Some(&mut self.failed),
            Status::Cancelled => Some(&mut self.cancelled),
            _ => None,
        }
    }

    /// Counts items with this status. Statuses that are not final change nothing.
    pub fn add(&mut self, status: Status, items: u64) {
        if let Some(count) = self.with_status(status) {
            *count += items;
        }
    }

    /// Returns the number of all items that have ended.
    pub fn total(&self) -> u64 {
        self.completed + self.failed + self.cancelled
    }
}

/// The memory that an item of a claimed bundle takes beside its input, in bytes.
pub const CLAIMED_ITEM_BYTES: usize = 1_000;

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
    pub(super) fn size(&self) -> usize {
        self.outcomes.iter().map(|it| it.outcome.len() + RUN_HEAD_BYTES).sum()
    }
}

/// Decodes a column `outcomes`; `None` if it is damaged.
pub fn decode_pack(mut bytes: &[u8]) -> Option<Vec<ItemOutcome>> {
    let mut outcomes = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<RUN_HEAD_BYTES>() {
        let number = |at: usize| head[at..].first_chunk().map(|it| u32::from_be_bytes(*it));
        let (first, count, len) = (number(0)?, number(4)?, number(9)?);
        let status = Status::from_number(i64::from(head[8])).filter(|status| status.is_terminal())?;
        let (outcome, rest) = rest.split_at_checked(len as usize)?;
        let outcome = Payload::from_slice(outcome);
        for index in first..first.checked_add(count)? {
            outcomes.push(ItemOutcome { index, status, outcome: outcome.clone() });
        }
        bytes = rest;
    }
    bytes.is_empty().then_some(outcomes)
}

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

/// The recorded state of a bundle's items, as a part of the bundle's [record](crate::store::Record::bundle).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BundleRecord {
    /// The columns `outcomes` of the packs, by number. [`decode_pack`] decodes them.
    pub packs: Vec<Bytes>,
    /// The indexes of the items that have a row of their own, in ascending order. Such a row overrides a packed outcome.
    pub promoted: Vec<u32>,
    /// The number of items in the bundle.
    pub item_count: u64,
    /// Whether the bundle's queue limited its executions when the bundle was claimed; false in other records.
    pub has_queue_limits: bool,
}

impl BundleRecord {
    /// Returns the memory that the items of a claimed bundle take beside their inputs, in bytes.
    pub(super) fn claim_bytes(&self) -> usize {
        self.item_count as usize * CLAIMED_ITEM_BYTES + self.packs.iter().map(Bytes::len).sum::<usize>()
    }

    /// Returns the packed outcomes by index, without those of promoted items; `None` if a pack is damaged.
    pub fn outcomes(&self) -> Option<Vec<ItemOutcome>> {
        let mut outcomes = Vec::new();
        for pack in &self.packs {
            outcomes.extend(decode_pack(pack)?);
        }
        outcomes.retain(|it| self.promoted.binary_search(&it.index).is_err());
        outcomes.sort_by_key(|it| it.index);
        Some(outcomes)
    }
}

/// The state of a batch in numbers of items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchItems {
    /// The number of items with which the batch was closed; `None` for an open batch, or one that has ended.
    pub closed_with: Option<u64>,
    /// The bundles of the batch by status, with their numbers of items.
    pub bundles: Vec<(Status, BundledItems)>,
    /// The numbers of promoted items by status.
    pub promoted: Vec<(Status, u64)>,
}

/// The items of the bundles with one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BundledItems {
    /// The number of items in the bundles.
    pub items: u64,
    /// The numbers of items with a packed outcome.
    pub packed: EndedItems,
}

/// The numbers of a batch's items by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// The number of items that are submitted so far.
    pub submitted: u64,
    /// The number of items that wait for a worker.
    pub queued: u64,
    /// The number of items in bundles that a worker runs, and of promoted items that run.
    pub running: u64,
    /// The number of promoted items that are suspended.
    pub waiting: u64,
    /// The numbers of items that have ended.
    pub ended: EndedItems,
}

impl BatchItems {
    /// Returns the numbers of items by state. Their sum is the number of submitted items.
    pub fn counts(&self) -> BatchCounts {
        let mut counts = BatchCounts::default();
        // items without an outcome, by the status of their bundle; promoted ones are still among them
        let (mut queued, mut running, mut cancelled, mut promoted_of_ended) = (0, 0, 0, 0);
        for (status, BundledItems { items, packed }) in &self.bundles {
            counts.submitted += items;
            counts.ended.completed += packed.completed;
            counts.ended.failed += packed.failed;
            counts.ended.cancelled += packed.cancelled;
            let rest = items.saturating_sub(packed.total());
            *match status {
                Status::Running => &mut running,
                Status::Cancelled => &mut cancelled,
                // a bundle ends as completed when each item has an outcome or is promoted
                Status::Completed => &mut promoted_of_ended,
                _ => &mut queued,
            } += rest;
        }
        let promoted: u64 = self.promoted.iter().map(|(_, items)| items).sum();
        let mut promoted_of_others = promoted.saturating_sub(promoted_of_ended);
        for rest in [&mut running, &mut queued, &mut cancelled] {
            let of_these = promoted_of_others.min(*rest);
            *rest -= of_these;
            promoted_of_others -= of_these;
        }
        counts.queued += queued;
        counts.running += running;
        counts.ended.cancelled += cancelled;
        for (status, items) in &self.promoted {
            match status {
                Status::Scheduled | Status::Queued => counts.queued += items,
                Status::Running => counts.running += items,
                Status::Waiting => counts.waiting += items,
                ended => counts.ended.add(*ended, *items),
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(index: u32, status: Status, value: &str) -> ItemOutcome {
        ItemOutcome { index, status, outcome: Payload::encode(value).unwrap() }
    }

    fn pack(outcomes: Vec<ItemOutcome>) -> Pack {
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

    #[test]
    fn promoted_items_override_their_packed_outcomes() {
        let packs = [3, 1].map(|first| {
            pack(vec![outcome(first, Status::Failed, "x"), outcome(first + 1, Status::Completed, "y")])
                .encode()
                .into()
        });
        let bundle = BundleRecord { packs: packs.into(), promoted: vec![2, 4], ..BundleRecord::default() };
        let indexes: Vec<u32> = bundle.outcomes().unwrap().iter().map(|it| it.index).collect();
        assert_eq!(indexes, [1, 3]);
    }

    #[test]
    fn counts_add_up_to_the_submitted_items() {
        let packed = |completed, failed| EndedItems { completed, failed, cancelled: 0 };
        let items = BatchItems {
            closed_with: None,
            bundles: vec![
                (Status::Completed, BundledItems { items: 100, packed: packed(90, 7) }),
                (Status::Running, BundledItems { items: 50, packed: packed(10, 0) }),
                (Status::Queued, BundledItems { items: 1000, packed: packed(0, 0) }),
                (Status::Cancelled, BundledItems { items: 20, packed: packed(5, 0) }),
            ],
            promoted: vec![(Status::Waiting, 2), (Status::Failed, 1), (Status::Running, 4)],
        };
        let counts = items.counts();
        assert_eq!(
            counts,
            BatchCounts {
                submitted: 1170,
                queued: 1000,
                running: 40,
                waiting: 2,
                ended: EndedItems { completed: 105, failed: 8, cancelled: 15 },
            }
        );
        assert_eq!(counts.queued + counts.running + counts.waiting + counts.ended.total(), counts.submitted);
    }
}
