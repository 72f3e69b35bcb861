//! [`Turns`]: how a claim's places are divided, so that queues, and keys within a queue, take turns.

use std::collections::HashMap;
use std::sync::Arc;

use crate::queue::weights::Weights;

/// A queue of which something is ready, as a claim finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyQueue {
    /// Its name.
    pub queue: Arc<str>,
    /// How many may be taken of it in all.
    pub capacity: usize,
    /// Its keys, from the one whose turn it is on, and how many may be taken of each.
    pub keys: Vec<(Arc<str>, usize)>,
    /// True if there are keys beyond these.
    pub has_more_keys: bool,
    /// How many turns keys have.
    pub weights: Weights,
}

/// What a claim is to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Of this queue.
    pub queue: Arc<str>,
    /// Of this key.
    pub key: Arc<str>,
    /// At most so many.
    pub limit: usize,
    /// True if limits would allow for more.
    pub is_truncated: bool,
}

/// Whose turn it is: kept by whoever claims, from claim to claim.
///
/// Every queue has the same share of a claim's places, and every key a share of its queue's by its weight; what one cannot
/// use is the others'. Where there are more turns than places, the next claim begins where the last one ended, in the
/// middle of a key's turns as well. So a million executions of one key delay those of another by one round.
#[derive(Clone, Debug, Default)]
pub struct FairShare {
    /// The queue that had the last turn.
    last_queue: Option<Arc<str>>,
    /// Of each queue, whose turn it is.
    positions: HashMap<Arc<str>, KeyPosition>,
}

/// Whose turn it is in a queue.
#[derive(Clone, Debug, Default)]
struct KeyPosition {
    /// The key that had the last one.
    last_key: Arc<str>,
    /// The key behind it that has had only some of its turns, and how many it still has.
    unfinished: Option<(Arc<str>, usize)>,
}

impl FairShare {
    /// Where the keys of a queue begin: the first is the one after this, and after the last comes the first.
    pub fn last_key(&self, queue: &str) -> Arc<str> {
        self.positions.get(queue).map(|turn| turn.last_key.clone()).unwrap_or_default()
    }

    /// Divides `places` among these queues, given in the order of their names.
    pub fn allocate(&mut self, candidates: &[ReadyQueue], places: usize) -> Vec<Allocation> {
        let room = |it: &ReadyQueue| {
            it.keys.iter().fold(0_usize, |sum, (_, room)| it.capacity.min(sum.saturating_add(*room)))
        };
        let rooms: Vec<usize> = candidates.iter().map(room).collect();
        let first = self
            .last_queue
            .as_ref()
            .map_or(0, |last| candidates.iter().take_while(|it| it.queue <= *last).count());
        let (shares, last) = share_in_rounds(places, &rooms, &vec![1; rooms.len()], first, None);
        if let Some((last, _)) = last {
            self.last_queue = Some(candidates[last].queue.clone());
        }
        let mut portions = Vec::new();
        for (candidate, share) in candidates.iter().zip(shares) {
            self.allocate_keys(candidate, share, &mut portions);
        }
        portions
    }

    fn allocate_keys(&mut self, candidate: &ReadyQueue, places: usize, portions: &mut Vec<Allocation>) {
        let ReadyQueue { queue, capacity: all, keys, has_more_keys, weights } = candidate;
        let rooms: Vec<usize> = keys.iter().map(|(_, room)| *room).collect();
        let turns: Vec<usize> = keys.iter().map(|(key, _)| weights.weight_of(key) as usize).collect();
        let first = keys.first().map(|(key, _)| key);
        let unfinished = self.positions.get(queue).and_then(|turn| turn.unfinished.as_ref());
        let unfinished = unfinished.filter(|(key, _)| Some(key) == first).map(|(_, left)| *left);
        let (shares, last) = share_in_rounds(places, &rooms, &turns, 0, unfinished);
        // those that were not looked at come first the next time
        let last = last.or_else(|| has_more_keys.then(|| (keys.len().saturating_sub(1), 0)));
        if let Some((last, left)) = last.filter(|(last, _)| *last < keys.len()) {
            let turn = self.positions.entry(queue.clone()).or_default();
            let key = |at: usize| keys[at].0.clone();
            if left == 0 {
                *turn = KeyPosition { last_key: key(last), unfinished: None };
            } else {
                let after = last.checked_sub(1).map_or_else(|| turn.last_key.clone(), key);
                *turn = KeyPosition { last_key: after, unfinished: Some((key(last), left)) };
            }
        }
        let shares = keys.iter().zip(shares).filter(|(_, most)| *most > 0);
        portions.extend(shares.map(|((key, room), most)| Allocation {
            queue: queue.clone(),
            key: key.clone(),
            limit: most,
            is_truncated: most < *room && places < *all,
        }));
    }
}

/// Divides places among those that have room, in rounds, in each of which they have these turns; and who had the last one,
/// if the last round was cut short, and how many it still has. Those from `first` on are served first, the first of them
/// with what an earlier round has left it.
fn share_in_rounds(
    mut places: usize,
    rooms: &[usize],
    turns: &[usize],
    first: usize,
    mut unfinished: Option<usize>,
) -> (Vec<usize>, Option<(usize, usize)>) {
    let mut shares = vec![0; rooms.len()];
    let all = rooms.len().max(1);
    let mut open: Vec<usize> =
        (0..rooms.len()).map(|i| (first + i) % all).filter(|i| rooms[*i] > 0).collect();
    while places > 0 && !open.is_empty() {
        let rounds = places / open.iter().map(|i| turns[*i]).sum::<usize>();
        let mut last = None;
        open.retain(|i| {
            let has = match rounds {
                0 => unfinished.take().unwrap_or(turns[*i]),
                rounds => rounds * turns[*i],
            };
            let has = has.min(rooms[*i] - shares[*i]);
            let given = has.min(places);
            if rounds == 0 && given > 0 && given == places {
                last = Some((*i, has - given));
            }
            shares[*i] += given;
            places -= given;
            shares[*i] < rooms[*i]
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

    fn candidate(queue: &str, room: usize, keys: &[(&str, usize)]) -> ReadyQueue {
        let keys = keys.iter().map(|(key, room)| (Arc::from(*key), *room)).collect();
        ReadyQueue { queue: queue.into(), capacity: room, keys, has_more_keys: false, weights: Weights::default() }
    }

    fn divide(turns: &mut FairShare, candidates: &[ReadyQueue], places: usize) -> Vec<(String, usize)> {
        let portions = turns.allocate(candidates, places);
        portions.iter().map(|it| (format!("{}/{}", it.queue, it.key), it.limit)).collect()
    }

    fn of(portions: &[(&str, usize)]) -> Vec<(String, usize)> {
        portions.iter().map(|(name, most)| ((*name).to_owned(), *most)).collect()
    }

    #[test]
    fn what_one_cannot_use_is_the_others() {
        let queues = [
            candidate("a", 100, &[("", 100)]),
            candidate("b", 1, &[("", 100)]),
            candidate("c", 100, &[("x", 2), ("y", 50)]),
        ];
        let mut turns = FairShare::default();
        assert_eq!(divide(&mut turns, &queues, 21), of(&[("a/", 10), ("b/", 1), ("c/x", 2), ("c/y", 8)]));
        let cut: Vec<bool> = turns.allocate(&queues, 21).iter().map(|it| it.is_truncated).collect();
        assert_eq!(cut, [true, false, false, true]);
        assert_eq!(divide(&mut turns, &queues, 1000), of(&[("a/", 100), ("b/", 1), ("c/x", 2), ("c/y", 50)]));
    }

    /// Who is served by so many claims of so many places, all of which find the same.
    fn served(all: &[ReadyQueue], claims: usize, places: usize) -> Vec<String> {
        let mut turns = FairShare::default();
        let mut served = Vec::new();
        for _ in 0..claims {
            // as a store lists them: from the key after the last one on
            let mut all = all.to_vec();
            for candidate in &mut all {
                let after = turns.last_key(&candidate.queue);
                let at = candidate.keys.iter().take_while(|(key, _)| *key <= after).count();
                let keys = candidate.keys.len();
                candidate.keys.rotate_left(at % keys);
            }
            let portions = divide(&mut turns, &all, places);
            served.extend(portions.into_iter().flat_map(|(name, most)| std::iter::repeat_n(name, most)));
        }
        served
    }

    #[test]
    fn with_one_place_everybody_has_a_turn() {
        let keys: &[_] = &[("x", 9), ("y", 9), ("z", 9)];
        let all = [candidate("a", 9, keys), candidate("b", 9, &[("", 9)])];
        assert_eq!(served(&all, 6, 1), ["a/x", "b/", "a/y", "b/", "a/z", "b/"]);
    }

    #[test]
    fn a_key_has_as_many_turns_as_its_weight_says() {
        let weights = Weights::from_iter([("x", 2), ("z", 3)]);
        let all = [ReadyQueue { weights, ..candidate("a", 99, &[("x", 99), ("y", 99), ("z", 99)]) }];
        let expected: Vec<&str> = "x x y z z z x x y z z z".split(' ').collect();
        for places in [1, 2, 3, 4] {
            let served = served(&all, 12 / places, places);
            let served: Vec<&str> = served.iter().filter_map(|name| name.strip_prefix("a/")).collect();
            assert_eq!(served, expected, "{places} at a time");
        }
        let mut turns = FairShare::default();
        assert_eq!(divide(&mut turns, &all, 60), of(&[("a/x", 20), ("a/y", 10), ("a/z", 30)]));
    }

    #[test]
    fn who_has_no_more_gives_up_its_turns() {
        let weights = Weights::from_iter([("x", 100)]);
        let all = [ReadyQueue { weights, ..candidate("a", 99, &[("x", 2), ("y", 9)]) }];
        let mut turns = FairShare::default();
        assert_eq!(divide(&mut turns, &all, 4), of(&[("a/x", 2), ("a/y", 2)]));
    }

    #[test]
    fn keys_that_were_not_looked_at_come_first_the_next_time() {
        let mut turns = FairShare::default();
        let more = ReadyQueue { has_more_keys: true, ..candidate("a", 99, &[("x", 9), ("y", 9)]) };
        turns.allocate(&[more], 99);
        assert_eq!(&*turns.last_key("a"), "y");
    }

    #[test]
    fn shares_are_fair_and_use_what_there_is() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let rooms: Vec<usize> = (0..rng.usize(..8)).map(|_| rng.usize(..20)).collect();
            let places = rng.usize(..60);
            let turns: Vec<usize> = rooms.iter().map(|_| rng.usize(1..4)).collect();
            let (shares, _) = share_in_rounds(places, &rooms, &turns, rng.usize(..9), None);
            assert_eq!(shares.iter().sum::<usize>(), places.min(rooms.iter().sum()), "seed {seed}");
            for (i, share) in shares.iter().enumerate() {
                assert!(*share <= rooms[i], "seed {seed}");
                // another is at most a round ahead
                let rounds = share / turns[i] + 1;
                let is_ahead = |(other, turns): (&usize, &usize)| *other > rounds * turns;
                assert!(
                    *share == rooms[i] || !shares.iter().zip(&turns).any(is_ahead),
                    "seed {seed}: {shares:?} of {rooms:?} by {turns:?}"
                );
            }
        }
    }
}
