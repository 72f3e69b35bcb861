//! [`Weights`]: how much of their queue's share its keys have.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::text::quote;

/// Most keys of a queue that have a weight: claims read them.
const MAX_WEIGHTED_KEYS: usize = 1_000;
/// The largest weight.
const MAX_WEIGHT: u32 = 1_000;

/// Weights of keys of a queue: a key has so many turns where one without a weight has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Option<Arc<BTreeMap<String, u32>>>);

impl Weights {
    /// The weight of a key: 1 unless it was given another.
    pub fn weight_of(&self, key: &str) -> u32 {
        self.0.as_deref().and_then(|all| all.get(key).copied()).unwrap_or(1)
    }

    /// Gives a key a weight; 1 is what it has without.
    pub fn set(&mut self, key: &str, weight: u32) {
        let mut all = self.0.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        if weight == 1 {
            all.remove(key);
        } else {
            all.insert(key.to_owned(), weight);
        }
        self.0 = (!all.is_empty()).then(|| Arc::new(all));
    }

    /// The keys that were given weights, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().flat_map(|all| all.iter()).map(|(key, weight)| (key.as_str(), *weight))
    }

    /// As stores keep them: a JSON object; `None` if no key was given one.
    pub fn to_json(&self) -> Option<String> {
        self.0.as_deref().and_then(|all| serde_json::to_string(all).ok())
    }

    /// Returns the weights in a column of a queue's row. What is not as [`to_json`](Self::to_json) writes it stops no
    /// claim: such a queue has no weights, and a weight out of range counts as the nearest one in range.
    pub fn from_stored(json: &str) -> Self {
        static WARNED: std::sync::Once = std::sync::Once::new();
        let Some(mut all) = Self::from_json(json) else {
            WARNED.call_once(|| {
                tracing::warn!(
                    json,
                    "a queue's key_weights cannot be read, and count as none; set them anew"
                );
            });
            return Self::default();
        };
        if all.invalid_reason().is_some() {
            all = all.iter().take(MAX_WEIGHTED_KEYS).map(|(key, weight)| (key, weight.clamp(1, MAX_WEIGHT))).collect();
        }
        all
    }

    /// What [`to_json`](Self::to_json) has made; `None` if it is something else.
    pub fn from_json(json: &str) -> Option<Self> {
        let all: BTreeMap<String, u32> = serde_json::from_str(json).ok()?;
        Some(Self((!all.is_empty()).then(|| Arc::new(all))))
    }

    /// Why they cannot be, apart from what the keys are.
    pub(crate) fn invalid_reason(&self) -> Option<String> {
        if let Some((key, weight)) = self.iter().find(|(_, weight)| !(1..=MAX_WEIGHT).contains(weight)) {
            return Some(format!(
                "that of key {} is {weight}; it must be between 1 and {MAX_WEIGHT}",
                quote(key)
            ));
        }
        let keys = self.iter().count();
        (keys > MAX_WEIGHTED_KEYS).then(|| format!("there are {keys}; give at most {MAX_WEIGHTED_KEYS} keys a weight"))
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
    fn weights_come_back_from_json() {
        let weights: Weights = [("gold \"1\"", 5), ("none", 1), ("", 7)].into_iter().collect();
        let json = weights.to_json().unwrap();
        assert_eq!(json, r#"{"":7,"gold \"1\"":5}"#);
        assert_eq!(Weights::from_json(&json), Some(weights.clone()));
        assert_eq!((weights.weight_of("gold \"1\""), weights.weight_of("none"), weights.weight_of("")), (5, 1, 7));
        for other in ["", "[]", r#"{"a":-1}"#, r#"{"a":"b"}"#] {
            assert_eq!(Weights::from_json(other), None, "{other}");
        }
    }

    #[test]
    fn weights_that_cannot_be_stop_nobody() {
        for none in ["", "[]", r#"{"a":-1}"#, r#"{"a":"b"}"#] {
            assert_eq!(Weights::from_stored(none), Weights::default(), "{none}");
        }
        let clamped = Weights::from_stored(r#"{"a":0,"b":4000000000,"c":7}"#);
        assert_eq!((clamped.weight_of("a"), clamped.weight_of("b"), clamped.weight_of("c")), (1, MAX_WEIGHT, 7));
    }

    #[test]
    fn without_a_weight_nothing_is_kept() {
        let mut weights: Weights = [("a", 5)].into_iter().collect();
        weights.set("a", 1);
        assert_eq!(weights, Weights::default());
        assert_eq!(weights.to_json(), None);
    }
}
