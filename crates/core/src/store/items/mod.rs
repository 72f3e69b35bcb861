//! The items of batches: their packed inputs and outcomes, and the counts of a batch.
//!
//! A batch is an execution without code, which waits until its items have ended. Its items are in *bundles*, which are
//! executions too: a bundle is claimed, owned, taken over and cancelled as a whole. An item has no row of its own, unless
//! it is [promoted](crate::store::Record::bundle). Its checkpoints, attempts and chunks are stored under its own key.

mod counts;
mod inputs;
mod pack;

use bytes::Bytes;

pub use counts::{BatchCounts, BatchItems, BundledItems, EndedItems};
pub use inputs::{PackedInputs, unpack_inputs};
pub use pack::{ItemOutcome, Pack, decode_pack};

/// The memory that an item of a claimed bundle takes beside its input, in bytes.
pub const CLAIMED_ITEM_BYTES: usize = 1_000;

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
    pub(in crate::store) fn claim_bytes(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::payload::Payload;
    use crate::store::Status;

    fn outcome(index: u32, status: Status, value: &str) -> ItemOutcome {
        ItemOutcome { index, status, outcome: Payload::encode(value).unwrap() }
    }

    fn pack(outcomes: Vec<ItemOutcome>) -> Pack {
        Pack { bundle: Key::mint_batch(0).bundle(99), outcomes }
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
}
