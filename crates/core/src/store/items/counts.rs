//! [`BatchCounts`]: the numbers of a batch's items by state.

use std::ops::AddAssign;

use crate::store::Status;

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

impl AddAssign for EndedItems {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
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
    /// The number of promoted items that are retried: each has a packed failure, which its row overrides.
    pub retried: u64,
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
            counts.ended += *packed;
            let rest = items.saturating_sub(packed.total());
            *match status {
                Status::Running => &mut running,
                Status::Cancelled => &mut cancelled,
                // a bundle ends as completed when each item has an outcome or is promoted
                Status::Completed => &mut promoted_of_ended,
                _ => &mut queued,
            } += rest;
        }
        counts.ended.failed = counts.ended.failed.saturating_sub(self.retried);
        let promoted: u64 = self.promoted.iter().map(|(_, items)| items).sum();
        let mut promoted_of_others = promoted.saturating_sub(self.retried + promoted_of_ended);
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
            promoted: vec![
                (Status::Waiting, 2),
                (Status::Failed, 1),
                (Status::Running, 4),
                (Status::Queued, 5),
            ],
            retried: 5,
        };
        let counts = items.counts();
        assert_eq!(
            counts,
            BatchCounts {
                submitted: 1170,
                queued: 1005,
                running: 40,
                waiting: 2,
                ended: EndedItems { completed: 105, failed: 3, cancelled: 15 },
            }
        );
        assert_eq!(counts.queued + counts.running + counts.waiting + counts.ended.total(), counts.submitted);
    }
}
