//! [`BundleChains`]: the bundles of a flush, in chains by which one statement checks that all of them fit.

use std::collections::HashMap;

use stepfast_core::Key;
use stepfast_core::store::Start;

use crate::conn::pipeline::{Param, column};
use crate::rows::types::to_uuid;

/// The predecessor of the first bundle of a batch.
const NO_BUNDLE: Key = Key::from_bytes([0; 16]);

/// The bundles of a flush in chains. In a chain, the first item of each bundle follows the last item of the bundle before it.
/// So one look at the database decides for a whole chain.
#[derive(Default)]
pub(super) struct BundleChains {
    /// The batch of each chain.
    batches: Vec<Key>,
    /// For each bundle, the number of its chain, from 1.
    numbers: Vec<i32>,
    /// For each bundle, the key of the bundle before it in its batch.
    predecessors: Vec<Key>,
}

impl BundleChains {
    /// Sorts bundles into chains. Each bundle continues the first chain of its batch that it can continue.
    fn new(bundles: &[(usize, &Start)]) -> Self {
        let mut chains = Self::default();
        // the numbers of the chains, by the batch and by the index of the item that would follow
        let mut open: HashMap<(Key, u64), i32> = HashMap::new();
        for (_, bundle) in bundles {
            let batch = bundle.key.batch().unwrap_or_default();
            // a bundle without a valid number of items follows only itself, so it never fits
            let (first, predecessor) = match bundle.first_item() {
                Some(0) => (Some(0), NO_BUNDLE),
                Some(first) => (Some(u64::from(first)), batch.bundle(first - 1)),
                None => (None, bundle.key),
            };
            let continued = first.and_then(|first| open.remove(&(batch, first)));
            let number = continued.unwrap_or_else(|| {
                chains.batches.push(batch);
                chains.batches.len() as i32
            });
            open.entry((batch, last_item(bundle) + 1)).or_insert(number);
            chains.numbers.push(number);
            chains.predecessors.push(predecessor);
        }
        chains
    }

    /// Returns the parameters of start_bundles.sql that are not columns of `executions`.
    pub(super) fn params<'a>(bundles: &[(usize, &'a Start)]) -> Vec<Param<'a>> {
        let chains = Self::new(bundles);
        vec![
            column(bundles, |(_, start)| start.item_count.map(stored_count)),
            column(bundles, |(_, start)| last_item(start).cast_signed()),
            column(&chains.predecessors, |key| to_uuid(*key)),
            column(&chains.numbers, |number| *number),
            column(&chains.batches, |key| to_uuid(*key)),
            column(&chains.batches, |key| to_uuid(key.bundle(0))),
        ]
    }
}

/// Returns a number of items for a column.
pub(super) fn stored_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn last_item(bundle: &Start) -> u64 {
    bundle.key.last_index().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use stepfast_core::Payload;
    use stepfast_core::attributes::Attributes;
    use stepfast_core::clock::Timestamp;
    use stepfast_core::store::State;

    use super::*;

    fn bundle(batch: Key, first: u32, last: u32) -> Start {
        Start {
            key: batch.bundle(last),
            root: batch,
            parent: None,
            workflow_id: None,
            workflow: "w".into(),
            fingerprint: None,
            app_version: None,
            placement: None,
            dedup_id: None,
            debounce_window: None,
            input: Payload::empty(),
            created_at: Timestamp::from_micros(0),
            deadline_at: None,
            run_timeout: None,
            attributes: Attributes::NONE,
            item_count: Some(u64::from(last - first) + 1),
            is_guarded: false,
            has_begun: false,
            self_claims: false,
            state: State::Queued { pending_sleeps: Vec::new() },
        }
    }

    #[test]
    fn bundles_form_one_chain_per_batch_and_conflict() {
        let (a, b) = (Key::mint_batch(0), Key::mint_batch(0));
        let bundles = [
            bundle(a, 0, 9),
            bundle(b, 5, 9),
            bundle(a, 0, 4),
            bundle(a, 10, 10),
            bundle(b, 10, 19),
            bundle(a, 20, 29),
            bundle(a, 11, 30),
        ];
        let bundles: Vec<(usize, &Start)> = bundles.iter().enumerate().collect();
        let chains = BundleChains::new(&bundles);
        assert_eq!(chains.batches, [a, b, a, a]);
        assert_eq!(chains.numbers, [1, 2, 3, 1, 2, 4, 1]);
        assert_eq!(chains.predecessors[..4], [NO_BUNDLE, b.bundle(4), NO_BUNDLE, a.bundle(9)]);
    }
}
