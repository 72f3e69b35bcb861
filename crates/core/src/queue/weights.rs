//! [`Weights`]: the weights by which the keys of a queue share its capacity.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::text::quote;

/// Maximum number of keys with a weight in a queue. Every claim reads all of them.
const MAX_WEIGHTED_KEYS: usize = 1_000;
/// Maximum weight of a key.
const MAX_WEIGHT: u32 = 1_000;

/// The weights of a queue's keys. A key's weight is its number of turns in a round; a key without a weight has one
/// turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Option<Arc<BTreeMap<String, u32>>>);

impl Weights {
    /// Returns the weight of a key, 1 by default.
    pub fn weight_of(&self, key: &str) -> u32 {
        self.0.as_deref().and_then(|all| all.get(key).copied()).unwrap_or(1)
    }

    /// Sets the weight of a key. The weight 1 is the default and is not stored.
    pub fn set(&mut self, key: &str, weight: u32) {
        let mut all = self.0.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        if weight == 1 {
            all.remove(key);
        } else {
            all.insert(key.to_owned(), weight);
        }
        self.0 = (!all.is_empty()).then(|| Arc::new(all));
    }

    /// Returns the keys with a weight other than 1, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().flat_map(|all| all.iter()).map(|(key, weight)| (key.as_str(), *weight))
    }

    /// Returns the stored form of the weights, a JSON object; `None` if no key has a weight.
    pub fn to_json(&self) -> Option<String> {
        self.0.as_deref().and_then(|all| serde_json::to_string(all).ok())
    }

    /// Reads the weights from a column of a queue's row.
    ///
    /// A value that [`to_json`](Self::to_json) cannot have written does not stop claims. An unreadable value counts as
    /// no weights, and a weight out of range as the nearest one in range.
    pub fn from_stored(json: &str) -> Self {
        static WARNED: std::sync::Once = std::sync::Once::new();
        let Some(mut all) = Self::from_json(json) else {
            WARNED.call_once(|| {
                tracing::warn!(json, "key_weights of a queue cannot be read and are ignored; set them again");
            });
            return Self::default();
        };
        if all.invalid_reason().is_some() {
            all = all
                .iter()
                .take(MAX_WEIGHTED_KEYS)
                .map(|(key, weight)| (key, weight.clamp(1, MAX_WEIGHT)))
                .collect();
        }
        all
    }

    /// Parses the result of [`to_json`](Self::to_json); returns `None` for any other text.
    pub fn from_json(json: &str) -> Option<Self> {
        let all: BTreeMap<String, u32> = serde_json::from_str(json).ok()?;
        Some(Self((!all.is_empty()).then(|| Arc::new(all))))
    }

    /// Returns the reason why a queue cannot have these weights. The keys themselves are not checked.
    pub(crate) fn invalid_reason(&self) -> Option<String> {
        if let Some((key, weight)) = self.iter().find(|(_, weight)| !(1..=MAX_WEIGHT).contains(weight)) {
            return Some(format!(
                "the weight of key {} is {weight}; it must be between 1 and {MAX_WEIGHT}",
                quote(key)
            ));
        }
        let keys = self.iter().count();
        (keys > MAX_WEIGHTED_KEYS)
            .then(|| format!("{keys} keys have a weight; at most {MAX_WEIGHTED_KEYS} are allowed"))
    }
}

impl<K: AsRef<str>> FromIterator<(K, u32)> for Weights {
    fn from_iter<T: IntoIterator<Item = (K, u32)>>(weights: T) -> Self {
        let mut all = Self::default();
        weights.into_iter().for_each(|(key, weight)| all.set(key.as_ref(), weight));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_round_trip_as_json() {
        let weights: Weights = [("gold \"1\"", 5), ("none", 1), ("", 7)].into_iter().collect();
        let json = weights.to_json().unwrap();
        assert_eq!(json, r#"{"":7,"gold \"1\"":5}"#);
        assert_eq!(Weights::from_json(&json), Some(weights.clone()));
        assert_eq!(
            (weights.weight_of("gold \"1\""), weights.weight_of("none"), weights.weight_of("")),
            (5, 1, 7)
        );
        for other in ["", "[]", r#"{"a":-1}"#, r#"{"a":"b"}"#] {
            assert_eq!(Weights::from_json(other), None, "{other}");
        }
    }

    #[test]
    fn invalid_stored_weights_do_not_stop_claims() {
        for none in ["", "[]", r#"{"a":-1}"#, r#"{"a":"b"}"#] {
            assert_eq!(Weights::from_stored(none), Weights::default(), "{none}");
        }
        let clamped = Weights::from_stored(r#"{"a":0,"b":4000000000,"c":7}"#);
        assert_eq!(
            (clamped.weight_of("a"), clamped.weight_of("b"), clamped.weight_of("c")),
            (1, MAX_WEIGHT, 7)
        );
    }

    #[test]
    fn weight_of_one_is_not_stored() {
        let mut weights: Weights = [("a", 5)].into_iter().collect();
        weights.set("a", 1);
        assert_eq!(weights, Weights::default());
        assert_eq!(weights.to_json(), None);
    }
}
