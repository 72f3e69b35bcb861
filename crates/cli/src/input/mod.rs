//! The forms in which workflows take their inputs.

use std::sync::Arc;

use anyhow::bail;
use serde_json::{Value, json};
use stepfast::graph::GraphDeclaration;
use stepfast::{Error, Store};

use crate::graph::{encode_input, read_graph};

/// The form in which a workflow takes a value that is given as JSON.
pub(crate) enum InputForm {
    /// The value itself.
    Value,
    /// The arguments of a Python function.
    Arguments,
    /// The inputs of a graph.
    Graph(String, Box<GraphDeclaration>),
}

impl InputForm {
    /// Returns the form of a workflow's inputs.
    pub(crate) async fn find(
        store: &Arc<dyn Store>,
        workflow: &str,
        has_arguments: bool,
    ) -> Result<Self, Error> {
        if let Some(row) = store.graphs(Some(&[workflow.into()])).await?.first() {
            let (declaration, _) = read_graph(row)?;
            return Ok(Self::Graph(workflow.to_owned(), Box::new(declaration)));
        }
        Ok(if has_arguments { Self::Arguments } else { Self::Value })
    }

    /// Returns the input for a value; `None` for no value.
    pub(crate) fn encode(&self, value: Option<Value>) -> anyhow::Result<Value> {
        Ok(match self {
            Self::Value => value.unwrap_or_default(),
            Self::Graph(name, declaration) => encode_input(name, declaration, value)?,
            // as the Python package encodes arguments: those by position, then those by name
            Self::Arguments => match value {
                None => json!([[], {}]),
                Some(by_position @ Value::Array(_)) => json!([by_position, {}]),
                Some(by_name @ Value::Object(_)) => json!([[], by_name]),
                Some(_) => bail!("the arguments must be a JSON array or a JSON object"),
            },
        })
    }
}
