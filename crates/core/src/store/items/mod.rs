//! The items of batches: their packed inputs and outcomes, and the counts of a batch.
//!
//! A batch is an execution without code, which waits until its items have ended. Its items are in *bundles*, which are
//! executions too: a bundle is claimed, owned, taken over and cancelled as a whole. An item has no row of its own, unless
//! it is [promoted](crate::store::Record::bundle). Its checkpoints, attempts and chunks are stored under its own key.

mod counts;
mod inputs;
mod lookup;
mod pack;
mod template;

use bytes::Bytes;

pub use counts::{BatchCounts, BatchItems, BundledItems, EndedItems};
pub(crate) use inputs::input_of_item;
pub use inputs::{PackedInputs, unpack_inputs};
pub use lookup::load_items_by_bundle;
pub use pack::{ItemOutcome, Pack, PackBytes, decode_pack, search_pack};
pub use template::virtual_item;
pub(crate) use template::{ItemTemplate, bundle_placement};

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

    /// Returns the packed outcomes of the items with these indexes, which are in ascending order: `None` for each item that
    /// has no outcome yet or is promoted. A damaged pack contains no outcomes.
    pub fn outcomes_of(&self, indexes: &[u32]) -> Vec<Option<ItemOutcome>> {
        let mut found = vec![None; indexes.len()];
        if !self.packs.iter().all(|pack| search_pack(&mut &pack[..], indexes, &mut found) == Ok(true)) {
            found.fill(None);
        }
        for (index, place) in indexes.iter().zip(&mut found) {
            if self.promoted.binary_search(index).is_ok() {
                *place = None;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::pack::tests::{outcome, pack};
    use super::*;
    use crate::store::Status;

    #[test]
    fn damaged_pack_contains_no_outcomes() {
        let encoded = pack((0..10).map(|index| outcome(index, Status::Completed, "x")).collect()).encode();
        let packs = vec![encoded[..encoded.len() - 1].to_vec().into()];
        let bundle = BundleRecord { packs, ..BundleRecord::default() };
        assert_eq!((bundle.outcomes(), bundle.outcomes_of(&[3])), (None, vec![None]));
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
        let searched = bundle.outcomes_of(&[0, 1, 1, 2, 3, 4, 9]);
        let found: Vec<Option<u32>> = searched.iter().map(|it| it.as_ref().map(|it| it.index)).collect();
        assert_eq!(found, [None, Some(1), Some(1), None, Some(3), None, None]);
        assert_eq!(searched[1], Some(outcome(1, Status::Failed, "x")));
    }
}
