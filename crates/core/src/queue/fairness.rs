//! [`FairShare`]: divides the capacity of a claim among queues, and among the keys of each queue.

use std::collections::HashMap;
use std::sync::Arc;

use crate::queue::weights::Weights;

/// A queue with ready executions, as a claim finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyQueue {
    /// The name of the queue.
    pub queue: Arc<str>,
    /// Maximum number of executions that the claim may take from the queue.
    pub capacity: usize,
    /// The keys with ready executions, in the order of their turns, each with the maximum number of executions that the
    /// claim may take from it.
    pub keys: Vec<(Arc<str>, usize)>,
    /// Whether the queue has further keys with ready executions.
    pub has_more_keys: bool,
    /// The number of turns of each key in a round.
    pub weights: Weights,
}

/// The part of a claim's capacity that one key of a queue gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The name of the queue.
    pub queue: Arc<str>,
    /// The queue key.
    pub key: Arc<str>,
    /// Maximum number of executions to take.
    pub limit: usize,
    /// Whether the claim's capacity, and not a limit of the queue or key, determined `limit`.
    pub is_truncated: bool,
}

/// A weighted round robin over queues and keys, with a position that a claimer keeps from claim to claim.
///
/// All queues get equal shares of a claim's capacity. Within a queue, keys get shares in proportion to their weights.
/// A share that one key cannot use goes to the other keys. If a claim has less capacity than a round has turns, the
/// next claim continues at the same position, even between two turns of one key. So a million executions of one key
/// delay the executions of another key by at most one round.
#[derive(Clone, Debug, Default)]
pub struct FairShare {
    /// The queue that had the last turn; `None` before the first claim.
    last_queue: Option<Arc<str>>,
    /// The position in each queue, by the name of the queue.
    positions: HashMap<Arc<str>, KeyPosition>,
}

/// The position of the round robin among the keys of a queue.
#[derive(Clone, Debug, Default)]
struct KeyPosition {
    /// The last key that had all of its turns.
    last_key: Arc<str>,
    /// The key after `last_key`, if it had only a part of its turns, with the number of its remaining turns.
    unfinished: Option<(Arc<str>, usize)>,
}

impl FairShare {
    /// Returns the last key of a queue that had all of its turns. The next turn is that of the key after this one.
    /// After the greatest key, the first one follows.
    pub fn last_key(&self, queue: &str) -> Arc<str> {
        self.positions.get(queue).map(|position| position.last_key.clone()).unwrap_or_default()
    }

    /// Divides `capacity` among these queues, which are in the order of their names.
    pub fn allocate(&mut self, queues: &[ReadyQueue], capacity: usize) -> Vec<Allocation> {
        let limit = |it: &ReadyQueue| {
            it.keys.iter().fold(0_usize, |sum, (_, limit)| it.capacity.min(sum.saturating_add(*limit)))
        };
        let limits: Vec<usize> = queues.iter().map(limit).collect();
        let first = self
            .last_queue
            .as_ref()
            .map_or(0, |last| queues.iter().take_while(|it| it.queue <= *last).count());
        let (shares, last) = share_in_rounds(capacity, &limits, &vec![1; limits.len()], first, None);
        if let Some((last, _)) = last {
            self.last_queue = Some(queues[last].queue.clone());
        }
        let mut allocations = Vec::new();
        for (queue, share) in queues.iter().zip(shares) {
            self.allocate_keys(queue, share, &mut allocations);
        }
        allocations
    }

    fn allocate_keys(&mut self, ready: &ReadyQueue, share: usize, allocations: &mut Vec<Allocation>) {
        let ReadyQueue { queue, capacity, keys, has_more_keys, weights } = ready;
        let limits: Vec<usize> = keys.iter().map(|(_, limit)| *limit).collect();
        let turns: Vec<usize> = keys.iter().map(|(key, _)| weights.weight_of(key) as usize).collect();
        let first = keys.first().map(|(key, _)| key);
        let unfinished = self.positions.get(queue).and_then(|position| position.unfinished.as_ref());
        let unfinished = unfinished.filter(|(key, _)| Some(key) == first).map(|(_, remaining)| *remaining);
        let (shares, last) = share_in_rounds(share, &limits, &turns, 0, unfinished);
        // keys that this claim did not read come first in the next claim
        let last = last.or_else(|| has_more_keys.then(|| (keys.len().saturating_sub(1), 0)));
        if let Some((last, remaining)) = last.filter(|(last, _)| *last < keys.len()) {
            let position = self.positions.entry(queue.clone()).or_default();
            let key = |at: usize| keys[at].0.clone();
            if remaining == 0 {
                *position = KeyPosition { last_key: key(last), unfinished: None };
            } else {
                let last_key = last.checked_sub(1).map_or_else(|| position.last_key.clone(), key);
                *position = KeyPosition { last_key, unfinished: Some((key(last), remaining)) };
            }
        }
        let shares = keys.iter().zip(shares).filter(|(_, limit)| *limit > 0);
        allocations.extend(shares.map(|((key, key_limit), limit)| Allocation {
            queue: queue.clone(),
            key: key.clone(),
            limit,
            is_truncated: limit < *key_limit && share < *capacity,
        }));
    }
}

/// Divides `capacity` in rounds. Participant `i` gets up to `turns[i]` in each round and up to `limits[i]` in all.
///
/// Every round begins at the participant `first`. If `unfinished` is given, the participant that begins the last,
/// partial round has only that many turns. Returns the shares and, if the last round was cut short, the last
/// participant that got a turn, with the number of its remaining turns.
fn share_in_rounds(
    mut capacity: usize,
    limits: &[usize],
    turns: &[usize],
    first: usize,
    mut unfinished: Option<usize>,
) -> (Vec<usize>, Option<(usize, usize)>) {
    let mut shares = vec![0; limits.len()];
    let count = limits.len().max(1);
    let mut open: Vec<usize> =
        (0..limits.len()).map(|i| (first + i) % count).filter(|i| limits[*i] > 0).collect();
    while capacity > 0 && !open.is_empty() {
        let rounds = capacity / open.iter().map(|i| turns[*i]).sum::<usize>();
        let mut last = None;
        open.retain(|i| {
            let wanted = match rounds {
                0 => unfinished.take().unwrap_or(turns[*i]),
                rounds => rounds * turns[*i],
            };
            let wanted = wanted.min(limits[*i] - shares[*i]);
            let given = wanted.min(capacity);
            if rounds == 0 && given > 0 && given == capacity {
                last = Some((*i, wanted - given));
            }
            shares[*i] += given;
            capacity -= given;
            shares[*i] < limits[*i]
        });
        if last.is_some() {
            return (shares, last);
        }
    }
    (shares, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, capacity: usize, keys: &[(&str, usize)]) -> ReadyQueue {
        let keys = keys.iter().map(|(key, limit)| (Arc::from(*key), *limit)).collect();
        ReadyQueue { queue: name.into(), capacity, keys, has_more_keys: false, weights: Weights::default() }
    }

    fn allocate(share: &mut FairShare, queues: &[ReadyQueue], capacity: usize) -> Vec<(String, usize)> {
        let allocations = share.allocate(queues, capacity);
        allocations.iter().map(|it| (format!("{}/{}", it.queue, it.key), it.limit)).collect()
    }

    fn expect(allocations: &[(&str, usize)]) -> Vec<(String, usize)> {
        allocations.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect()
    }

    #[test]
    fn unused_shares_go_to_other_queues_and_keys() {
        let queues = [
            queue("a", 100, &[("", 100)]),
            queue("b", 1, &[("", 100)]),
            queue("c", 100, &[("x", 2), ("y", 50)]),
        ];
        let mut share = FairShare::default();
        assert_eq!(
            allocate(&mut share, &queues, 21),
            expect(&[("a/", 10), ("b/", 1), ("c/x", 2), ("c/y", 8)])
        );
        let is_truncated: Vec<bool> = share.allocate(&queues, 21).iter().map(|it| it.is_truncated).collect();
        assert_eq!(is_truncated, [true, false, false, true]);
        assert_eq!(
            allocate(&mut share, &queues, 1000),
            expect(&[("a/", 100), ("b/", 1), ("c/x", 2), ("c/y", 50)])
        );
    }

    /// Returns the keys that get the capacity of `claims` claims, all of which find the same ready executions.
    fn serve(all: &[ReadyQueue], claims: usize, capacity: usize) -> Vec<String> {
        let mut share = FairShare::default();
        let mut served = Vec::new();
        for _ in 0..claims {
            // a store lists the keys from the one after the last key on
            let mut all = all.to_vec();
            for queue in &mut all {
                let last_key = share.last_key(&queue.queue);
                let at = queue.keys.iter().take_while(|(key, _)| *key <= last_key).count();
                let keys = queue.keys.len();
                queue.keys.rotate_left(at % keys);
            }
            let allocations = allocate(&mut share, &all, capacity);
            served.extend(allocations.into_iter().flat_map(|(name, limit)| std::iter::repeat_n(name, limit)));
        }
        served
    }

    #[test]
    fn claims_of_one_execution_serve_all_keys_in_turn() {
        let keys: &[_] = &[("x", 9), ("y", 9), ("z", 9)];
        let all = [queue("a", 9, keys), queue("b", 9, &[("", 9)])];
        assert_eq!(serve(&all, 6, 1), ["a/x", "b/", "a/y", "b/", "a/z", "b/"]);
    }

    #[test]
    fn weights_set_the_turns_of_keys() {
        let weights = Weights::from_iter([("x", 2), ("z", 3)]);
        let all = [ReadyQueue { weights, ..queue("a", 99, &[("x", 99), ("y", 99), ("z", 99)]) }];
        let expected: Vec<&str> = "x x y z z z x x y z z z".split(' ').collect();
        for capacity in [1, 2, 3, 4] {
            let served = serve(&all, 12 / capacity, capacity);
            let served: Vec<&str> = served.iter().filter_map(|name| name.strip_prefix("a/")).collect();
            assert_eq!(served, expected, "{capacity} at a time");
        }
        let mut share = FairShare::default();
        assert_eq!(allocate(&mut share, &all, 60), expect(&[("a/x", 20), ("a/y", 10), ("a/z", 30)]));
    }

    #[test]
    fn unused_turns_of_a_key_go_to_other_keys() {
        let weights = Weights::from_iter([("x", 100)]);
        let all = [ReadyQueue { weights, ..queue("a", 99, &[("x", 2), ("y", 9)]) }];
        let mut share = FairShare::default();
        assert_eq!(allocate(&mut share, &all, 4), expect(&[("a/x", 2), ("a/y", 2)]));
    }

    #[test]
    fn unread_keys_come_first_in_the_next_claim() {
        let mut share = FairShare::default();
        let more = ReadyQueue { has_more_keys: true, ..queue("a", 99, &[("x", 9), ("y", 9)]) };
        share.allocate(&[more], 99);
        assert_eq!(&*share.last_key("a"), "y");
    }

    #[test]
    fn shares_are_fair_and_use_all_capacity() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let limits: Vec<usize> = (0..rng.usize(..8)).map(|_| rng.usize(..20)).collect();
            let capacity = rng.usize(..60);
            let turns: Vec<usize> = limits.iter().map(|_| rng.usize(1..4)).collect();
            let (shares, _) = share_in_rounds(capacity, &limits, &turns, rng.usize(..9), None);
            assert_eq!(shares.iter().sum::<usize>(), capacity.min(limits.iter().sum()), "seed {seed}");
            for (i, share) in shares.iter().enumerate() {
                assert!(*share <= limits[i], "seed {seed}");
                // the others are at most one round ahead
                let rounds = share / turns[i] + 1;
                let is_ahead = |(other, turns): (&usize, &usize)| *other > rounds * turns;
                assert!(
                    *share == limits[i] || !shares.iter().zip(&turns).any(is_ahead),
                    "seed {seed}: {shares:?} of {limits:?} by {turns:?}"
                );
            }
        }
    }
}
