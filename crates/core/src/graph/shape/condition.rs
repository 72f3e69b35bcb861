//! [`ValueCondition`]: a condition on the value of a task or of a key of the context.

use std::cmp::Ordering;
use std::fmt;

use rmpv::Value;
use serde::{Deserialize, Serialize};

use crate::graph::shape::rule::Rule;
use crate::name::Name;
use crate::payload::Payload;

/// A condition on a value, or on a field of that value: the value is compared with a literal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueCondition {
    /// The source of the value.
    #[serde(flatten)]
    pub source: ValueSource,
    /// The names of nested fields, from the outermost one: empty for the whole value.
    pub fields: Vec<String>,
    /// The kind of comparison.
    pub comparison: Comparison,
    /// The value with which it is compared.
    pub literal: Literal,
}

/// The source of the value that a condition compares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueSource {
    /// The task with this name.
    Task(Name),
    /// This key of the graph's context, as the task with the rule reads the context.
    Context(String),
}

/// A kind of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// The value is a text that contains the literal, a list with an element that equals it, or a map with this key.
    Contains,
    /// The value exists, whatever it is.
    Exists,
}

/// A literal in a condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Literal {
    /// No value.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A number.
    #[serde(with = "float_text")]
    Float(f64),
    /// A text.
    Text(String),
}

/// The value of a task or of a key of the context, or a field of it, of which a comparison makes a [`Rule`]: see
/// [`Rule::value`] and [`Rule::context_value`].
#[derive(Clone, Debug)]
#[must_use = "a comparison makes a rule of this value"]
pub struct ComparedValue {
    source: ValueSource,
    fields: Vec<String>,
}

impl Rule {
    /// Returns the value of a task, of which a comparison makes a rule: `Rule::value("count").gt(10)`. The task becomes a
    /// dependency.
    ///
    /// The rule does not hold if the task has not succeeded, or if the value has no such field. Values of different types
    /// differ, and neither is less than the other.
    pub fn value(task: impl Into<Name>) -> ComparedValue {
        ComparedValue { source: ValueSource::Task(task.into()), fields: Vec::new() }
    }

    /// Returns the value of a key of the graph's context, of which a comparison makes a rule:
    /// `Rule::context_value("rows").gt(10)`. The rule sees the context that the task would read: the changes of the tasks
    /// on which the task depends, directly or through others.
    ///
    /// The rule does not hold if the context has no such key, or if the value has no such field. If tasks that do not depend
    /// on each other have written the key, and the [merge policy](crate::graph::Graph::merge) of the graph does not merge
    /// their values, the task fails.
    pub fn context_value(key: impl Into<String>) -> ComparedValue {
        ComparedValue { source: ValueSource::Context(key.into()), fields: Vec::new() }
    }
}

impl ComparedValue {
    /// Returns a field of this value, which is a map or a struct.
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.fields.push(name.into());
        self
    }

    /// The value equals the literal.
    pub fn eq(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Eq, literal)
    }

    /// The value differs from the literal.
    pub fn ne(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Ne, literal)
    }

    /// The value is less than the literal.
    pub fn lt(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Lt, literal)
    }

    /// The value is at most the literal.
    pub fn le(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Le, literal)
    }

    /// The value is greater than the literal.
    pub fn gt(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Gt, literal)
    }

    /// The value is at least the literal.
    pub fn ge(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Ge, literal)
    }

    /// The value contains the literal: as a part of a text, an element of a list, or a key of a map.
    pub fn contains(self, literal: impl Into<Literal>) -> Rule {
        self.compared(Comparison::Contains, literal)
    }

    /// The value exists, whatever it is: the task has succeeded, or the context has the key; and the value has the field.
    pub fn exists(self) -> Rule {
        self.compared(Comparison::Exists, Literal::None)
    }

    fn compared(self, comparison: Comparison, literal: impl Into<Literal>) -> Rule {
        let Self { source, fields } = self;
        Rule::of_value(ValueCondition { source, fields, comparison, literal: literal.into() })
    }
}

impl Comparison {
    /// Returns the operator of the comparison.
    pub fn operator(self) -> &'static str {
        match self {
            Self::Eq => "==",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
            Self::Contains => "contains",
            Self::Exists => "exists",
        }
    }

    /// Returns the comparison with this operator.
    pub fn from_operator(operator: &str) -> Option<Self> {
        use Comparison::{Contains, Eq, Exists, Ge, Gt, Le, Lt, Ne};
        [Eq, Ne, Lt, Le, Gt, Ge, Contains, Exists]
            .into_iter()
            .find(|comparison| comparison.operator() == operator)
    }

    /// Whether the comparison of a value with a literal holds.
    fn holds(self, value: &Value, literal: &Literal) -> bool {
        let order = literal.order(value);
        match self {
            Self::Exists => true,
            Self::Contains => match (value, literal) {
                (Value::String(text), Literal::Text(part)) => {
                    text.as_str().is_some_and(|text| text.contains(part))
                }
                (Value::Array(elements), _) => {
                    elements.iter().any(|element| Self::Eq.holds(element, literal))
                }
                (Value::Map(entries), _) => entries.iter().any(|(key, _)| Self::Eq.holds(key, literal)),
                _ => false,
            },
            Self::Eq => order == Some(Ordering::Equal),
            Self::Ne => order != Some(Ordering::Equal),
            Self::Lt => order == Some(Ordering::Less),
            Self::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Gt => order == Some(Ordering::Greater),
            Self::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl ValueCondition {
    /// Whether the condition holds for the value of its source.
    pub fn holds(&self, value: &Payload) -> bool {
        let Ok(value) = value.decode::<Value>() else { return false };
        let mut value = &value;
        for field in &self.fields {
            let Some((_, inner)) =
                value.as_map().and_then(|map| map.iter().find(|(key, _)| key.as_str() == Some(field)))
            else {
                return false;
            };
            value = inner;
        }
        self.comparison.holds(value, &self.literal)
    }
}

impl Literal {
    /// Returns the order of a value relative to this literal; `None` if their types differ, or if one is NaN.
    fn order(&self, value: &Value) -> Option<Ordering> {
        match (value, self) {
            (Value::Nil, Self::None) => Some(Ordering::Equal),
            (Value::Boolean(value), Self::Bool(literal)) => Some(value.cmp(literal)),
            (Value::Integer(value), Self::Integer(literal)) => Some(match value.as_i64() {
                Some(value) => value.cmp(literal),
                // larger than every i64
                None => Ordering::Greater,
            }),
            (Value::Integer(_) | Value::F32(_) | Value::F64(_), Self::Integer(_) | Self::Float(_)) => {
                let literal = match self {
                    Self::Integer(literal) => *literal as f64,
                    Self::Float(literal) => *literal,
                    _ => return None,
                };
                value.as_f64()?.partial_cmp(&literal)
            }
            (Value::String(value), Self::Text(literal)) => Some(value.as_str()?.cmp(literal)),
            _ => None,
        }
    }
}

impl fmt::Display for ValueCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            ValueSource::Task(task) => write!(f, "value({:?})", &**task)?,
            ValueSource::Context(key) => write!(f, "context_value({key:?})")?,
        }
        for field in &self.fields {
            write!(f, "[{field:?}]")?;
        }
        match self.comparison {
            Comparison::Contains => write!(f, ".contains({})", self.literal),
            Comparison::Exists => f.write_str(".exists()"),
            comparison => write!(f, " {} {}", comparison.operator(), self.literal),
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(true) => f.write_str("True"),
            Self::Bool(false) => f.write_str("False"),
            Self::Integer(literal) => write!(f, "{literal}"),
            Self::Float(literal) => write!(f, "{literal:?}"),
            Self::Text(literal) => write!(f, "{literal:?}"),
        }
    }
}

impl From<bool> for Literal {
    fn from(literal: bool) -> Self {
        Self::Bool(literal)
    }
}

impl From<i64> for Literal {
    fn from(literal: i64) -> Self {
        Self::Integer(literal)
    }
}

impl From<i32> for Literal {
    fn from(literal: i32) -> Self {
        Self::Integer(literal.into())
    }
}

impl From<u32> for Literal {
    fn from(literal: u32) -> Self {
        Self::Integer(literal.into())
    }
}

impl From<f64> for Literal {
    fn from(literal: f64) -> Self {
        Self::Float(literal)
    }
}

impl From<&str> for Literal {
    fn from(literal: &str) -> Self {
        Self::Text(literal.to_owned())
    }
}

impl From<String> for Literal {
    fn from(literal: String) -> Self {
        Self::Text(literal)
    }
}

/// Numbers as text, since JSON has neither NaN nor infinities.
mod float_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    fn condition(rule: &Rule) -> ValueCondition {
        let mut found = None;
        rule.visit_conditions(&mut |condition| found = Some(condition.clone()));
        found.unwrap()
    }

    fn holds(rule: &Rule, value: impl Serialize) -> bool {
        condition(rule).holds(&Payload::encode(&value).unwrap())
    }

    fn value() -> ComparedValue {
        Rule::value("t")
    }

    #[test]
    fn values_are_compared_by_type_and_order() {
        assert!(holds(&value().gt(10), 11) && !holds(&value().gt(10), 10) && holds(&value().ge(10), 10));
        assert!(holds(&value().lt(1.5), 1) && holds(&value().le(1.0), 1) && !holds(&value().lt(1), 1.5));
        assert!(holds(&value().gt(i64::MAX), u64::MAX) && holds(&value().ne(0), u64::MAX));
        assert!(holds(&value().eq("a"), "a") && holds(&value().lt("b"), "a"));
        assert!(holds(&value().eq(Literal::None), None::<i64>) && !holds(&value().eq(Literal::None), 0));
        assert!(holds(&value().eq(true), true) && !holds(&value().eq(true), 1));
    }

    #[test]
    fn values_of_different_types_differ_without_order() {
        for rule in [value().lt(1), value().le(1), value().gt(1), value().ge(1), value().eq(1)] {
            assert!(!holds(&rule, "text") && !holds(&rule, None::<i64>) && !holds(&rule, [1]), "{rule}");
        }
        assert!(holds(&value().ne(1), "text") && holds(&value().ne(f64::NAN), f64::NAN));
        assert!(!holds(&value().le(f64::NAN), 1.0));
    }

    #[test]
    fn texts_lists_and_maps_contain_values() {
        assert!(holds(&value().contains("urge"), "urgent") && !holds(&value().contains("a"), "urgent"));
        assert!(holds(&value().contains(2), [1, 2]) && !holds(&value().contains("2"), [1, 2]));
        assert!(holds(&value().contains("a"), BTreeMap::from([("a", 0)])));
        assert!(!holds(&value().contains(1), 1) && !holds(&value().contains(Literal::None), None::<i64>));
        assert!(holds(&value().exists(), None::<i64>) && holds(&value().exists(), 0));
        assert!(!holds(&value().field("a").exists(), BTreeMap::from([("b", 0)])));
        let text = (value().contains("a") & value().field("b").exists()).to_string();
        assert_eq!(text, "(value(\"t\").contains(\"a\")) & (value(\"t\")[\"b\"].exists())");
    }

    #[test]
    fn fields_of_maps_are_compared() {
        let stats = BTreeMap::from([("rows", BTreeMap::from([("bad", 3)]))]);
        let bad = || value().field("rows").field("bad");
        assert!(holds(&bad().gt(2), &stats) && !holds(&bad().gt(3), &stats));
        assert!(!holds(&value().field("nothing").ne(1), &stats), "a missing field has no value");
        assert_eq!(bad().ne("x").to_string(), "value(\"t\")[\"rows\"][\"bad\"] != \"x\"");
        let key = Rule::context_value("stats").field("rows");
        assert_eq!(key.ge(1).to_string(), "context_value(\"stats\")[\"rows\"] >= 1");
    }
}
