//! [`Attributes`]: names with values by which executions are found.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::text::{check_text, quote};

/// Longest name of an attribute, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest value of an attribute, in bytes.
pub const MAX_VALUE_BYTES: usize = 1024;
/// Most attributes that an execution can have.
pub const MAX_ATTRIBUTES: usize = 64;

/// Names, each with a value: an execution is given them when it is started, and is found by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes(BTreeMap<Arc<str>, Arc<str>>);

impl Attributes {
    /// None, which allocates nothing.
    pub const NONE: Self = Self(BTreeMap::new());

    /// Sets one; the last value of a name counts.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl Into<Arc<str>>) {
        self.0.insert(name.into(), value.into());
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| &**value)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all of these are among them.
    pub fn has_all(&self, others: &Attributes) -> bool {
        others.iter().all(|(name, value)| self.get(name) == Some(value))
    }

    /// An error if one of them cannot be, or if they are too many.
    pub fn check(&self) -> Result<(), Error> {
        if self.len() > MAX_ATTRIBUTES {
            let reason = format!("there are {}, at most {MAX_ATTRIBUTES} are allowed", self.len());
            return Err(Error::Invalid { what: "attributes", reason });
        }
        for (name, value) in self.iter() {
            check_text("the name of an attribute", name, MAX_NAME_BYTES)?;
            if name.contains('=') {
                let reason =
                    format!("{} contains '=', which stands between a name and its value", quote(name));
                return Err(Error::Invalid { what: "the name of an attribute", reason });
            }
            check_text("the value of an attribute", value, MAX_VALUE_BYTES)?;
        }
        Ok(())
    }
}

impl<N: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(N, V)> for Attributes {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(attributes: T) -> Self {
        Self(attributes.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
