//! [`Turns`]: how a claim's places are divided, so that queues, and keys within a queue, take turns.

use std::collections::HashMap;
use std::sync::Arc;

/// A queue of which something is ready, as a claim finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub queue: Arc<str>,
    /// How many may be taken of it in all.
    pub room: usize,
    /// Its keys, from the one whose turn it is on, and how many may be taken of each.
    pub keys: Vec<(Arc<str>, usize)>,
    /// True if there are keys beyond these.
    pub has_more_keys: bool,
}

/// What a claim is to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Of this queue.
    pub queue: Arc<str>,
    /// Of this key.
    pub key: Arc<str>,
    /// At most so many.
    pub most: usize,
    /// True if limits would allow for more.
    pub is_cut: bool,
}

/// Whose turn it is: kept by whoever claims, from claim to claim.
///
/// Every queue has the same share of a claim's places, and every key the same share of its queue's; what one cannot use
/// is the others'. Where there are more of them than places, the next claim begins where the last one ended. So a
/// million executions of one key delay those of another by one round.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The queue that had the last turn.
    queue: Option<Arc<str>>,
    /// Of each queue, the key that had the last turn.
    keys: HashMap<Arc<str>, Arc<str>>,
}

impl Turns {
    /// Where the keys of a queue begin: the first is the one after this, and after the last comes the first.
    pub fn after(&self, queue: &str) -> Arc<str> {
        self.keys.get(queue).cloned().unwrap_or_default()
    }

    /// Divides `places` among these queues, given in the order of their names.
    pub fn divide(&mut self, candidates: &[Candidate], places: usize) -> Vec<Portion> {
        let room = |it: &Candidate| {
            it.keys.iter().fold(0_usize, |sum, (_, room)| it.room.min(sum.saturating_add(*room)))
        };
        let rooms: Vec<usize> = candidates.iter().map(room).collect();
        let first = self
            .queue
            .as_ref()
            .map_or(0, |last| candidates.iter().take_while(|it| it.queue <= *last).count());
        let (shares, last) = share(places, &rooms, first);
        if let Some(last) = last {
            self.queue = Some(candidates[last].queue.clone());
        }
        let mut portions = Vec::new();
        for (candidate, share) in candidates.iter().zip(shares) {
            self.divide_keys(candidate, share, &mut portions);
        }
        portions
    }

    fn divide_keys(&mut self, candidate: &Candidate, places: usize, portions: &mut Vec<Portion>) {
        let Candidate { queue, room: all, keys, has_more_keys } = candidate;
        let rooms: Vec<usize> = keys.iter().map(|(_, room)| *room).collect();
        let (shares, last) = share(places, &rooms, 0);
        // those that were not looked at come first the next time
        let last = last.or_else(|| has_more_keys.then(|| keys.len().saturating_sub(1)));
        if let Some((key, _)) = last.and_then(|last| keys.get(last)) {
            self.keys.insert(queue.clone(), key.clone());
        }
        let shares = keys.iter().zip(shares).filter(|(_, most)| *most > 0);
        portions.extend(shares.map(|((key, room), most)| Portion {
            queue: queue.clone(),
            key: key.clone(),
            most,
            is_cut: most < *room && places < *all,
        }));
    }
}

/// Divides places among those that have room, evenly; and who had the last one, if some had one more than others.
/// Those from `first` on are served first.
fn share(mut places: usize, rooms: &[usize], first: usize) -> (Vec<usize>, Option<usize>) {
    let mut shares = vec![0; rooms.len()];
    let all = rooms.len().max(1);
    let mut open: Vec<usize> =
        (0..rooms.len()).map(|i| (first + i) % all).filter(|i| rooms[*i] > 0).collect();
    while places > 0 && !open.is_empty() {
        let each = places / open.len();
        if each == 0 {
            let last = open.get(places - 1).copied();
            open.iter().take(places).for_each(|i| shares[*i] += 1);
            return (shares, last);
        }
        open.retain(|i| {
            let given = each.min(rooms[*i] - shares[*i]);
            shares[*i] += given;
            places -= given;
            shares[*i] < rooms[*i]
        });
    }
    (shares, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(queue: &str, room: usize, keys: &[(&str, usize)]) -> Candidate {
        let keys = keys.iter().map(|(key, room)| (Arc::from(*key), *room)).collect();
        Candidate { queue: queue.into(), room, keys, has_more_keys: false }
    }

    fn divide(turns: &mut Turns, candidates: &[Candidate], places: usize) -> Vec<(String, usize)> {
        let portions = turns.divide(candidates, places);
        portions.iter().map(|it| (format!("{}/{}", it.queue, it.key), it.most)).collect()
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
        let mut turns = Turns::default();
        assert_eq!(divide(&mut turns, &queues, 21), of(&[("a/", 10), ("b/", 1), ("c/x", 2), ("c/y", 8)]));
        let cut: Vec<bool> = turns.divide(&queues, 21).iter().map(|it| it.is_cut).collect();
        assert_eq!(cut, [true, false, false, true]);
        assert_eq!(divide(&mut turns, &queues, 1000), of(&[("a/", 100), ("b/", 1), ("c/x", 2), ("c/y", 50)]));
    }

    #[test]
    fn with_one_place_everybody_has_a_turn() {
        let keys: &[_] = &[("x", 9), ("y", 9), ("z", 9)];
        let all = [candidate("a", 9, keys), candidate("b", 9, &[("", 9)])];
        let mut turns = Turns::default();
        let mut served = Vec::new();
        for _ in 0..6 {
            // as a store lists them: from the key after the last one on
            let mut all = all.clone();
            let after = turns.after("a");
            let at = all[0].keys.iter().take_while(|(key, _)| *key <= after).count();
            all[0].keys.rotate_left(at % 3);
            served.extend(divide(&mut turns, &all, 1));
        }
        let served: Vec<&str> = served.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(served, ["a/x", "b/", "a/y", "b/", "a/z", "b/"]);
    }

    #[test]
    fn keys_that_were_not_looked_at_come_first_the_next_time() {
        let mut turns = Turns::default();
        let more = Candidate { has_more_keys: true, ..candidate("a", 99, &[("x", 9), ("y", 9)]) };
        turns.divide(&[more], 99);
        assert_eq!(&*turns.after("a"), "y");
    }

    #[test]
    fn shares_are_fair_and_use_what_there_is() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let rooms: Vec<usize> = (0..rng.usize(..8)).map(|_| rng.usize(..20)).collect();
            let places = rng.usize(..60);
            let (shares, _) = share(places, &rooms, rng.usize(..9));
            assert_eq!(shares.iter().sum::<usize>(), places.min(rooms.iter().sum()), "seed {seed}");
            for (i, share) in shares.iter().enumerate() {
                assert!(*share <= rooms[i], "seed {seed}");
                let is_behind = |other: &usize| *other > share + 1;
                assert!(
                    *share == rooms[i] || !shares.iter().any(is_behind),
                    "seed {seed}: {shares:?} of {rooms:?}"
                );
            }
        }
    }
}
