//! [`GraphContext`]: the context of a graph as the body of a task has it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, MutexGuard};

use serde::de::DeserializeOwned;
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;
use crate::graph::context::ContextValues;
use crate::graph::context::changes::ContextChanges;
use crate::payload::Payload;
use crate::sync::Mutex;
use crate::text::{list_names, quote};

/// The values that the tasks of a graph share by key, as one task has them: the values that the tasks before it have
/// written, and its own changes.
///
/// The changes are recorded with the value of the task. Those of a failed attempt are dropped. A clone refers to the
/// same context. Changes that a clone makes after the end of the body are lost.
///
/// As the output of a graph, the context has the values at the end of the graph.
#[derive(Clone, Default)]
pub struct GraphContext(Arc<Mutex<ContextState>>);

#[derive(Default)]
struct ContextState {
    values: ContextValues,
    /// The keys that the task has written or removed.
    changed: BTreeSet<String>,
}

impl GraphContext {
    /// Returns an empty context, for tests of the bodies of tasks.
    pub fn new() -> Self {
        Self::default()
    }

    pub(in crate::graph) fn from_values(values: ContextValues) -> Self {
        Self(Arc::new(Mutex::new(ContextState { values, changed: BTreeSet::new() })))
    }

    pub(in crate::graph) fn into_values(self) -> ContextValues {
        std::mem::take(&mut self.state().values)
    }

    /// Returns the value of a key; `None` if the key does not exist. Fails with [`Error::Decode`] if the value is no `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        let value = self.state().values.get(key).cloned();
        value.map(|value| decode_value(key, &value)).transpose()
    }

    /// Returns the value of a key. Fails with [`Error::Invalid`] if the key does not exist, and with [`Error::Decode`] if
    /// the value is no `T`.
    pub fn require<T: DeserializeOwned>(&self, key: &str) -> Result<T, Error> {
        let value = self.state().existing(key)?.clone();
        decode_value(key, &value)
    }

    /// Returns all values as a `T`: a struct whose fields are keys of the context, or a map. Fails with [`Error::Decode`]
    /// if the values do not make a `T`.
    pub fn view<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let values = Payload::from_entries(&self.state().values);
        values.decode().map_err(|error| error.with_value(|| "the context of the graph".to_owned()))
    }

    /// Adds a new key. Fails with [`Error::Invalid`] if the key exists, and with [`Error::Encode`] if the value cannot be
    /// recorded.
    pub fn insert<T: Serialize>(&self, key: &str, value: T) -> Result<(), Error> {
        let value = Payload::encode(&value)?;
        let mut state = self.state();
        if state.values.contains_key(key) {
            return Err(invalid(format!("the key {} exists already; use update or set", quote(key))));
        }
        state.set(key, value);
        Ok(())
    }

    /// Replaces the value of a key. Fails with [`Error::Invalid`] if the key does not exist, and with [`Error::Encode`] if
    /// the value cannot be recorded.
    pub fn update<T: Serialize>(&self, key: &str, value: T) -> Result<(), Error> {
        let value = Payload::encode(&value)?;
        let mut state = self.state();
        state.existing(key)?;
        state.set(key, value);
        Ok(())
    }

    /// Adds a key, or replaces its value. Fails with [`Error::Encode`] if the value cannot be recorded.
    pub fn set<T: Serialize>(&self, key: &str, value: T) -> Result<(), Error> {
        let value = Payload::encode(&value)?;
        self.state().set(key, value);
        Ok(())
    }

    /// Removes a key. Fails with [`Error::Invalid`] if the key does not exist.
    pub fn remove(&self, key: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.existing(key)?;
        state.values.remove(key);
        state.changed.insert(key.to_owned());
        Ok(())
    }

    /// Whether the key exists.
    pub fn contains(&self, key: &str) -> bool {
        self.state().values.contains_key(key)
    }

    /// Returns the keys, in alphabetical order.
    pub fn keys(&self) -> Vec<String> {
        self.state().values.keys().cloned().collect()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.state().values.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the changes since the context was made, with the value of the task that has made them.
    pub(in crate::graph) fn changes(&self, value: Payload) -> ContextChanges {
        let state = self.state();
        let mut changes = ContextChanges { value, set: ContextValues::new(), removed: Vec::new() };
        for key in &state.changed {
            match state.values.get(key) {
                Some(value) => drop(changes.set.insert(key.clone(), value.clone())),
                None => changes.removed.push(key.clone()),
            }
        }
        changes
    }

    fn state(&self) -> MutexGuard<'_, ContextState> {
        self.0.lock()
    }
}

impl ContextState {
    fn set(&mut self, key: &str, value: Payload) {
        self.values.insert(key.to_owned(), value);
        self.changed.insert(key.to_owned());
    }

    fn existing(&self, key: &str) -> Result<&Payload, Error> {
        self.values.get(key).ok_or_else(|| {
            let keys = if self.values.is_empty() {
                "the context is empty".to_owned()
            } else {
                format!("its keys are {}", list_names(self.values.keys().map(String::as_str)))
            };
            invalid(format!("the key {} does not exist; {keys}", quote(key)))
        })
    }
}

impl fmt::Debug for GraphContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.state().values.iter().map(|(key, value)| (key, value.to_value()))).finish()
    }
}

impl Serialize for GraphContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state = self.state();
        let mut map = serializer.serialize_map(Some(state.values.len()))?;
        for (key, value) in &state.values {
            let value: rmpv::Value = value.decode().map_err(S::Error::custom)?;
            map.serialize_entry(key, &value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for GraphContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        super::changes::deserialize_values(deserializer).map(Self::from_values)
    }
}

fn decode_value<T: DeserializeOwned>(key: &str, value: &Payload) -> Result<T, Error> {
    value.decode().map_err(|error| error.with_value(|| format!("the context key {}", quote(key))))
}

fn invalid(reason: String) -> Error {
    Error::Invalid { input: "context", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_inserted_updated_and_removed() {
        let context = GraphContext::new();
        assert!(context.update("a", 1).unwrap_err().to_string().contains("the context is empty"));
        context.insert("a", 1).unwrap();
        context.set("b", "x").unwrap();
        let error = context.insert("a", 2).unwrap_err().to_string();
        assert!(error.starts_with("context: the key \"a\" exists already; use update or set"), "{error}");
        let error = context.remove("c").unwrap_err().to_string();
        assert!(error.contains("the key \"c\" does not exist; its keys are a, b"), "{error}");
        context.update("a", 3).unwrap();
        context.clone().remove("b").unwrap();
        assert_eq!((context.get::<i64>("a").unwrap(), context.get::<i64>("b").unwrap()), (Some(3), None));
        let error = context.get::<String>("a").unwrap_err().to_string();
        assert!(error.contains("the context key \"a\""), "{error}");
        assert!(context.require::<i64>("b").is_err() && context.contains("a") && !context.is_empty());
        assert_eq!(context.keys(), ["a"]);
        let changes = context.changes(Payload::empty());
        assert_eq!((changes.set.len(), changes.removed), (1, vec!["b".to_owned()]));
    }

    #[test]
    fn context_is_a_map_as_a_value() {
        #[derive(Deserialize)]
        struct Stats {
            rows: u32,
            #[serde(default)]
            errors: Vec<String>,
        }

        let context = GraphContext::new();
        context.insert("rows", 3).unwrap();
        context.insert("bytes", serde_json::json!({"a": [1.5, null]})).unwrap();
        let stats: Stats = context.view().unwrap();
        assert_eq!((stats.rows, stats.errors.len()), (3, 0));
        let copy: GraphContext = Payload::encode(&context).unwrap().decode().unwrap();
        copy.set("rows", 4).unwrap();
        assert_eq!((context.require::<u32>("rows").unwrap(), copy.require::<u32>("rows").unwrap()), (3, 4));
        assert_eq!(
            format!("{context:?}"),
            format!("{:?}", {
                copy.set("rows", 3).unwrap();
                &copy
            })
        );
        assert!(context.view::<Vec<u32>>().unwrap_err().to_string().contains("the context of the graph"));
    }
}
