//! [`Attributes`]: the names and values by which executions are found.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::name_checks::check_text;
use crate::text::quote;

/// Maximum length of an attribute's name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Maximum length of an attribute's value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1024;
/// Maximum number of attributes of an execution.
pub const MAX_ATTRIBUTES: usize = 64;

/// The part of an attribute's size that does not depend on its texts, in bytes.
const ROW_SIZE: usize = 64;

/// A map from names to values. An execution gets its attributes when it starts. Lists and counts find the execution by
/// its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes(BTreeMap<Arc<str>, Arc<str>>);

impl Attributes {
    /// An empty map, which allocates nothing.
    pub const NONE: Self = Self(BTreeMap::new());

    /// Sets the value of a name, and replaces an earlier one.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl Into<Arc<str>>) {
        self.0.insert(name.into(), value.into());
    }

    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| &**value)
    }

    /// Returns all attributes in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the number of attributes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the size in bytes that counts towards the limits of a flush and the budget of a lane: the texts, and a
    /// fixed part for the row of each attribute.
    pub(crate) fn size(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len() + ROW_SIZE).sum()
    }

    /// Whether the map has no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the map contains every name and value of `others`.
    pub fn has_all(&self, others: &Attributes) -> bool {
        others.iter().all(|(name, value)| self.get(name) == Some(value))
    }

    /// Returns an error if an execution cannot have these attributes: too many, or an unacceptable name or value.
    pub fn check(&self) -> Result<(), Error> {
        if self.len() > MAX_ATTRIBUTES {
            let reason = format!("the execution has {}, at most {MAX_ATTRIBUTES} are allowed", self.len());
            return Err(Error::Invalid { input: "attributes", reason });
        }
        self.iter().try_for_each(|(name, value)| check_attribute(name, value))
    }
}

/// Returns an error if no execution can have this attribute.
pub(crate) fn check_attribute(name: &str, value: &str) -> Result<(), Error> {
    check_text("the name of an attribute", name, MAX_NAME_BYTES)?;
    if name.contains('=') {
        let reason = format!("{} contains '=', which separates a name from its value", quote(name));
        return Err(Error::Invalid { input: "the name of an attribute", reason });
    }
    check_text("the value of an attribute", value, MAX_VALUE_BYTES)
}

impl<N: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(N, V)> for Attributes {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(attributes: T) -> Self {
        Self(attributes.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
