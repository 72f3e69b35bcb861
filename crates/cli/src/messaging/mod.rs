//! `stepfast message`, `stepfast event`, `stepfast stream`, `stepfast token` and `stepfast ask`: exchanges with executions.

pub(crate) mod ask;
pub(crate) mod event;
pub(crate) mod message;
pub(crate) mod stream;
pub(crate) mod token;

use anyhow::Context;
use serde_json::Value;

use crate::graph::parse_json;

/// Parses a value that is given as JSON. `what` describes it, for the message of the error.
fn parse_value(what: &str, text: &str) -> anyhow::Result<Value> {
    parse_json(text)
        .context(format!("{what} is JSON; a text has double quotes, as in '{}'", Value::from(text)))
}
