//! [`Merge`]: how values that parallel tasks have written under one key are merged.

use std::fmt;
use std::sync::Arc;

use rmpv::Value;

use crate::failure::{Failure, IntoFailure};
use crate::payload::Payload;

/// How a graph merges the values that tasks have written under one key of the context, if none of these tasks depends on
/// another one. The values are in the topological order of their tasks. A removed key has no value among them.
#[derive(Clone, Default)]
pub enum Merge {
    /// The next task that reads the context fails, with the key and the names of the tasks.
    #[default]
    Error,
    /// The last value remains.
    Last,
    /// Lists and texts are concatenated. Other values are an error.
    Concatenate,
    /// Maps are merged key by key, and lists are concatenated. Of other values the last one remains.
    Deep,
    /// A function returns the value: see [`Merge::with`].
    With(Arc<MergeFunction>),
}

/// A function that merges the values of a key.
pub type MergeFunction = dyn Fn(&str, &[Payload]) -> Result<Payload, Failure> + Send + Sync;

impl Merge {
    /// Returns a policy by which a function of the key and of the values returns the value to keep. The function must
    /// depend only on them, because each replay calls it again.
    ///
    /// ```
    /// use stepfast_core::graph::Merge;
    /// use stepfast_core::payload::Payload;
    /// use stepfast_core::Error;
    ///
    /// let sum = Merge::with(|_key, values| {
    ///     let numbers = values.iter().map(Payload::decode).collect::<Result<Vec<i64>, Error>>()?;
    ///     Payload::encode(&numbers.iter().sum::<i64>())
    /// });
    /// ```
    pub fn with<F, E>(merge: F) -> Self
    where
        F: Fn(&str, &[Payload]) -> Result<Payload, E> + Send + Sync + 'static,
        E: IntoFailure,
    {
        Self::With(Arc::new(move |key, values| merge(key, values).map_err(IntoFailure::into_failure)))
    }

    /// Returns the merged value of a key. There is at least one value. `tasks` are the names of the tasks, for messages.
    pub(super) fn apply(&self, key: &str, values: &[Payload], tasks: &str) -> Result<Payload, Failure> {
        let merge: fn(Value, Value) -> Option<Value> = match self {
            Self::With(merge) => return merge(key, values),
            Self::Concatenate => concatenate,
            _ => |one, other| Some(merge_deeply(one, other)),
        };
        let decode = |value: &Payload| value.decode::<Value>().map_err(|error| error.to_failure());
        let mut merged = decode(&values[0])?;
        for value in &values[1..] {
            merged = merge(merged, decode(value)?).ok_or_else(|| {
                Failure::new(format!(
                    "the tasks {tasks} have written the context key {key:?}, and only two lists or two texts are \
                     concatenated"
                ))
                .permanent()
            })?;
        }
        Payload::encode(&merged).map_err(|error| error.to_failure())
    }
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "Error",
            Self::Last => "Last",
            Self::Concatenate => "Concatenate",
            Self::Deep => "Deep",
            Self::With(_) => "With",
        })
    }
}

fn concatenate(one: Value, other: Value) -> Option<Value> {
    match (one, other) {
        (Value::Array(mut one), Value::Array(other)) => {
            one.extend(other);
            Some(Value::Array(one))
        }
        (Value::String(one), Value::String(other)) => {
            Some(Value::from([one.as_str()?, other.as_str()?].concat()))
        }
        _ => None,
    }
}

fn merge_deeply(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Map(mut one), Value::Map(other)) => {
            for (key, value) in other {
                match one.iter_mut().find(|(existing, _)| *existing == key) {
                    Some((_, existing)) => {
                        *existing = merge_deeply(std::mem::replace(existing, Value::Nil), value);
                    }
                    None => one.push((key, value)),
                }
            }
            Value::Map(one)
        }
        (Value::Array(mut one), Value::Array(other)) => {
            one.extend(other);
            Value::Array(one)
        }
        (_, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(policy: &Merge, values: &[serde_json::Value]) -> Result<serde_json::Value, Failure> {
        let values: Vec<Payload> = values.iter().map(|value| Payload::encode(value).unwrap()).collect();
        policy.apply("k", &values, "\"a\" and \"b\"").map(|value| value.decode().unwrap())
    }

    #[test]
    fn lists_and_texts_are_concatenated() {
        assert_eq!(
            merged(&Merge::Concatenate, &[json!([1]), json!([2, 3]), json!([])]).unwrap(),
            json!([1, 2, 3])
        );
        assert_eq!(merged(&Merge::Concatenate, &[json!("a"), json!("b")]).unwrap(), json!("ab"));
        let failure = merged(&Merge::Concatenate, &[json!("a"), json!(1)]).unwrap_err();
        assert!(failure.message.contains("the tasks \"a\" and \"b\" have written the context key \"k\""));
    }

    #[test]
    fn maps_are_merged_deeply() {
        let values = [json!({"a": {"n": 1}, "l": [1]}), json!({"a": {"m": 2, "n": 3}, "l": [2], "x": null})];
        let expected = json!({"a": {"m": 2, "n": 3}, "l": [1, 2], "x": null});
        assert_eq!(merged(&Merge::Deep, &values).unwrap(), expected);
        assert_eq!(merged(&Merge::Deep, &[json!([1]), json!("text")]).unwrap(), json!("text"));
    }
}
