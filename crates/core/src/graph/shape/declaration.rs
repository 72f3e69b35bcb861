//! [`GraphDeclaration`]: a graph as a database keeps it, for programs without its code.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::graph::shape::GraphShape;
use crate::graph::shape::rule::Rule;
use crate::name::Name;
use crate::store::GraphRow;
use crate::text::quote;

/// The declaration of a graph: its tasks and inputs, without their code. An engine stores the declarations of its graphs
/// when it opens, so that other programs can show these graphs and start them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphDeclaration {
    /// The tasks, in the order of their definition.
    pub tasks: Vec<TaskDeclaration>,
    /// The inputs that callers pass by name; `None` if the graph takes one value as its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Vec<InputDeclaration>>,
}

/// A task as it is declared, before its dependencies are found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskDeclaration {
    /// The name of the task.
    pub name: Name,
    /// The names of its dependencies. Repeated names count once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Name>,
    /// The condition on which the task runs.
    #[serde(default, skip_serializing_if = "Rule::is_default")]
    pub rule: Rule,
}

/// An input of a graph that callers pass by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputDeclaration {
    /// The name of the input.
    pub name: String,
    /// Whether callers must pass the input.
    pub is_required: bool,
}

impl GraphDeclaration {
    /// Returns the declaration as JSON, for a database.
    pub(crate) fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| invalid(&error.to_string()))
    }

    /// Returns the stored declaration of a graph. Fails with [`Error::Invalid`] if a newer version of Stepfast has stored
    /// the graph, or if the row is damaged.
    pub fn from_row(row: &GraphRow) -> Result<Self, Error> {
        serde_json::from_str(&row.declaration).map_err(|error| {
            invalid(&format!(
                "the stored declaration of {} cannot be read ({error}): a newer version of Stepfast wrote it, or the \
                 row is damaged",
                quote(&row.name)
            ))
        })
    }

    /// Returns the shape of the graph. Fails like [`GraphShape::new`].
    pub fn shape(&self, name: &str) -> Result<GraphShape, Error> {
        GraphShape::new(name, &self.tasks)
    }
}

fn invalid(reason: &str) -> Error {
    Error::Invalid { input: "graph", reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::shape::condition::Literal;

    #[test]
    fn declaration_returns_from_json_unchanged() {
        let literals = [
            Literal::None,
            true.into(),
            i64::MIN.into(),
            0.1.into(),
            f64::INFINITY.into(),
            (-0.0).into(),
            "a\0\"\n\u{1f600}".into(),
        ];
        let compared = literals.map(|literal| Rule::value("a").field("x").field("").ne(literal));
        let rules = [
            Rule::all_success(),
            Rule::all_done() & !Rule::failed("a"),
            Rule::any_success() | Rule::skipped("a") | Rule::one_failed(),
            Rule::none_failed() & Rule::succeeded("a"),
        ];
        let tasks = rules.into_iter().chain(compared).enumerate().map(|(number, rule)| TaskDeclaration {
            name: format!("task {number}").into(),
            dependencies: vec!["a".into(); number % 2],
            rule,
        });
        let inputs = Some(vec![InputDeclaration { name: "source".into(), is_required: true }]);
        let declaration = GraphDeclaration { tasks: tasks.collect(), inputs };
        let row = |declaration: String| GraphRow { name: "etl".into(), declaration: declaration.into() };
        let stored = row(declaration.to_json().unwrap());
        assert_eq!(GraphDeclaration::from_row(&stored).unwrap(), declaration);
        let simple = GraphDeclaration {
            tasks: vec![TaskDeclaration {
                name: "a".into(),
                dependencies: Vec::new(),
                rule: Rule::default(),
            }],
            inputs: None,
        };
        assert_eq!(simple.to_json().unwrap(), r#"{"tasks":[{"name":"a"}]}"#);
        let unknown =
            GraphDeclaration::from_row(&row(r#"{"tasks":[{"name":"a","rule":"later"}]}"#.to_owned()));
        let message = unknown.unwrap_err().to_string();
        assert!(message.contains("\"etl\" cannot be read") && message.contains("newer version"), "{message}");
    }

    #[test]
    fn long_chain_of_conditions_returns_from_json() {
        let rule = (0..200).map(|n| Rule::failed(format!("task {n}"))).reduce(|a, b| a | b).unwrap();
        let task = TaskDeclaration { name: "a".into(), dependencies: Vec::new(), rule };
        let declaration = GraphDeclaration { tasks: vec![task], inputs: None };
        let declared = declaration.to_json().unwrap();
        let row = GraphRow { name: "etl".into(), declaration: declared.into() };
        assert_eq!(GraphDeclaration::from_row(&row).unwrap(), declaration);
    }
}
