//! [`ContextChanges`]: the changes of a context by one task, as they are recorded.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::Error;
use crate::graph::context::ContextValues;
use crate::payload::Payload;

/// The value of a task, with its changes of the context. All bindings record them in the same form: a map with the
/// entries `value`, `set` and `removed`.
pub(in crate::graph) struct ContextChanges {
    pub(in crate::graph) value: Payload,
    /// The values by key that the task has written.
    pub(in crate::graph) set: ContextValues,
    /// The keys that the task has removed.
    pub(in crate::graph) removed: Vec<String>,
}

/// The recorded form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedChanges {
    value: rmpv::Value,
    #[serde(deserialize_with = "deserialize_values")]
    set: ContextValues,
    removed: Vec<String>,
}

impl ContextChanges {
    /// Returns the recorded form.
    pub(in crate::graph) fn encode(&self) -> Result<Payload, Error> {
        let entries = [
            ("value", self.value.clone()),
            ("set", Payload::from_entries(&self.set)),
            ("removed", Payload::encode(&self.removed)?),
        ];
        Ok(Payload::from_entries(entries.iter().map(|(name, value)| (name, value))))
    }

    /// Returns the changes in a recorded form. Fails with [`Error::Decode`] if the payload has another form, as the value
    /// of a task that took no context.
    pub(in crate::graph) fn decode(recorded: &Payload) -> Result<Self, Error> {
        let RecordedChanges { value, set, removed } = recorded.decode()?;
        Ok(Self { value: Payload::encode(&value)?, set, removed })
    }
}

/// Reads the values of a context from a map.
pub(super) fn deserialize_values<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ContextValues, D::Error> {
    let values = BTreeMap::<String, rmpv::Value>::deserialize(deserializer)?;
    let encode = |(key, value)| Ok((key, Payload::encode(&value).map_err(D::Error::custom)?));
    values.into_iter().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_changes_are_read_back() {
        let set = ContextValues::from([("a".to_owned(), Payload::encode(&[1, 2]).unwrap())]);
        let value = Payload::encode("text").unwrap();
        let recorded = ContextChanges { value, set, removed: vec!["b".to_owned()] }.encode().unwrap();
        assert_eq!(
            serde_json::to_string(&recorded.to_value().unwrap()).unwrap(),
            r#"{"value":"text","set":{"a":[1,2]},"removed":["b"]}"#
        );
        let changes = ContextChanges::decode(&recorded).unwrap();
        assert_eq!(changes.value.decode::<String>().unwrap(), "text");
        assert_eq!(changes.set["a"].decode::<Vec<u8>>().unwrap(), [1, 2]);
        assert_eq!(changes.removed, ["b"]);
        for other in [Payload::encode(&1), Payload::encode(&BTreeMap::from([("value", 1)]))] {
            assert!(ContextChanges::decode(&other.unwrap()).is_err());
        }
    }
}
