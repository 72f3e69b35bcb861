//! `stepfast graph`: the stored graphs, their pictures, and starts of executions.

use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::{Map, Value, json};
use stepfast::graph::{GraphDeclaration, GraphShape, InputDeclaration, Rule};
use stepfast::store::GraphRow;
use stepfast::text::{list_names, quote};
use stepfast::{Error, Store, Workflow};

use crate::client::with_client;
use crate::follow::follow;
use crate::output::{self, Exit, NotFound};
use crate::workflow::{StoreArgs, parse_attribute};

/// Show graphs, and start executions of them.
#[derive(Subcommand)]
pub(crate) enum GraphCommand {
    /// List the graphs that programs have registered in this store.
    List(ListGraphsArgs),
    /// Show the tasks of a graph and their dependencies, as a tree or as a picture.
    Show(ShowGraphArgs),
    /// Start an execution of a graph, which a worker of its program runs.
    Run(RunGraphArgs),
}

#[derive(Args)]
pub(crate) struct ListGraphsArgs {
    #[command(flatten)]
    target: StoreArgs,
}

#[derive(Args)]
pub(crate) struct ShowGraphArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The graph's name.
    name: String,
    /// The form in which the graph is shown.
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: GraphFormat,
}

#[derive(Args)]
pub(crate) struct RunGraphArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The graph's name.
    name: String,
    /// The input as JSON. A graph of a Python program takes an object with its inputs by name; by default none.
    #[arg(long, value_name = "JSON", value_parser = parse_json, allow_negative_numbers = true)]
    input: Option<Value>,
    /// The workflow_id of the execution. If an execution with this id and this input exists, no other is started.
    #[arg(long)]
    workflow_id: Option<String>,
    /// The queue of the execution.
    #[arg(long)]
    queue: Option<String>,
    /// An attribute of the execution. May be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_attribute)]
    attribute: Vec<(String, String)>,
    /// Show the states of the tasks until the execution has ended. The exit code is 1 if it did not complete.
    #[arg(long, conflicts_with = "json")]
    follow: bool,
}

/// A form in which a graph is shown.
#[derive(Clone, Copy, Default, ValueEnum)]
enum GraphFormat {
    /// A tree of text.
    #[default]
    Tree,
    /// A diagram in the language of Mermaid.
    Mermaid,
    /// A diagram in DOT, the language of Graphviz.
    Dot,
    /// An SVG picture.
    Svg,
}

impl GraphCommand {
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            GraphCommand::List(list) => list.run().await,
            GraphCommand::Show(show) => show.run().await,
            GraphCommand::Run(run) => run.run().await,
        }
    }
}

impl ListGraphsArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let rows = store.graphs(None).await.map_err(Error::from)?;
        let graphs: Vec<_> = rows.iter().map(|row| (&row.name, read_graph(row))).collect();
        if self.target.json {
            let graph = |(name, graph): &(&Arc<str>, Result<_, Error>)| match graph {
                Ok((declaration, shape)) => graph_json(declaration, shape),
                Err(error) => json!({ "name": name, "error": error.to_string() }),
            };
            output::print_json(&json!({ "graphs": graphs.iter().map(graph).collect::<Vec<_>>() }))?;
        } else if graphs.is_empty() {
            output::print("no graphs: a program that opens an engine with graphs stores them");
        } else {
            let mut table = Table::new();
            table.load_style(UTF8_HORIZONTAL_ONLY).set_header(["name", "tasks", "levels", "inputs"]);
            for (name, graph) in &graphs {
                let name = output::cell_text(name);
                let Ok((declaration, shape)) = graph else {
                    table.add_row([name, "unreadable".to_owned()]);
                    continue;
                };
                table.add_row([
                    name,
                    shape.len().to_string(),
                    shape.levels().len().to_string(),
                    output::cell_text(&describe_inputs(declaration)),
                ]);
            }
            output::print(&table.to_string());
            for error in graphs.iter().filter_map(|(_, graph)| graph.as_ref().err()) {
                output::print(&output::cell_text(&error.to_string()));
            }
        }
        Ok(Exit::Done)
    }
}

impl ShowGraphArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let (declaration, shape) = find_graph(&store, &self.name).await?;
        if self.target.json {
            output::print_json(&graph_json(&declaration, &shape))?;
            return Ok(Exit::Done);
        }
        output::print(
            match self.format {
                GraphFormat::Tree => tree_of_rules(&shape),
                GraphFormat::Mermaid => shape.to_mermaid(),
                GraphFormat::Dot => shape.to_dot(),
                GraphFormat::Svg => shape.to_svg(),
            }
            .trim_end(),
        );
        Ok(Exit::Done)
    }
}

impl RunGraphArgs {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let (declaration, _) = find_graph(&store, &self.name).await?;
        let input = encode_input(&self.name, &declaration, self.input)?;
        let workflow = Workflow::<Value, Value>::named(&self.name);
        let (workflow_id, queue, attributes) = (self.workflow_id, self.queue, self.attribute);
        let started = with_client(store.clone(), async |client| {
            let mut start = client.start(&workflow, input);
            if let Some(id) = &workflow_id {
                start = start.workflow_id(id);
            }
            if let Some(queue) = &queue {
                start = start.queue(queue);
            }
            for (name, value) in &attributes {
                start = start.attribute(name, value);
            }
            Ok(start.await?.workflow_id())
        })
        .await?;
        if self.target.json {
            output::print_json(&json!({ "workflow_id": started }))?;
        } else if self.follow {
            return follow(&store, &started).await;
        } else {
            output::print(&started);
        }
        Ok(Exit::Done)
    }
}

/// Loads a graph by its name.
async fn find_graph(store: &Arc<dyn Store>, name: &str) -> anyhow::Result<(GraphDeclaration, GraphShape)> {
    let found = store.graphs(Some(&[name.into()])).await.map_err(Error::from)?;
    let Some(row) = found.first() else {
        let rows = store.graphs(None).await.map_err(Error::from)?;
        let known = match rows.len() {
            0 => "a program that opens an engine with graphs stores them".to_owned(),
            _ => format!("the graphs are {}", list_names(rows.iter().map(|row| &*row.name))),
        };
        bail!(NotFound(format!("the store has no graph {}; {known}", quote(name))));
    };
    Ok(read_graph(row)?)
}

pub(crate) fn read_graph(row: &GraphRow) -> Result<(GraphDeclaration, GraphShape), Error> {
    let declaration = GraphDeclaration::from_row(row)?;
    let shape = declaration.shape(&row.name)?;
    Ok((declaration, shape))
}

/// Returns the tree of a graph, in which each line has the rule of the task unless it is the default.
fn tree_of_rules(shape: &GraphShape) -> String {
    shape.to_tree(|task| {
        let rule = shape.rule(task).filter(|rule| **rule != Rule::default());
        rule.map_or_else(String::new, |rule| format!("when {rule}"))
    })
}

fn graph_json(declaration: &GraphDeclaration, shape: &GraphShape) -> Value {
    let tasks: Vec<Value> = shape
        .names()
        .map(|task| {
            json!({
                "name": task,
                "dependencies": shape.dependencies(task),
                "rule": shape.rule(task).map(ToString::to_string),
            })
        })
        .collect();
    let inputs = declaration.inputs.as_ref().map(|inputs| {
        let input = |it: &InputDeclaration| json!({ "name": it.name, "is_required": it.is_required });
        inputs.iter().map(input).collect::<Vec<_>>()
    });
    json!({
        "name": shape.name(),
        "tasks": tasks,
        "inputs": inputs,
        "levels": shape.levels(),
        "critical_path": shape.critical_path(|_| 1.0),
    })
}

fn describe_inputs(declaration: &GraphDeclaration) -> String {
    match &declaration.inputs {
        None => "one value".to_owned(),
        Some(inputs) => {
            let name = |it: &InputDeclaration| {
                if it.is_required { it.name.clone() } else { format!("{} (optional)", it.name) }
            };
            inputs.iter().map(name).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns the input of an execution in the form in which the program of the graph takes it.
pub(crate) fn encode_input(
    name: &str,
    declaration: &GraphDeclaration,
    input: Option<Value>,
) -> anyhow::Result<Value> {
    let Some(inputs) = &declaration.inputs else { return Ok(input.unwrap_or_default()) };
    let given = match input {
        None => Map::new(),
        Some(Value::Object(given)) => given,
        Some(_) => bail!("the input of graph {} must be a JSON object of its inputs by name", quote(name)),
    };
    let expected = || match inputs.len() {
        0 => "it has no inputs".to_owned(),
        _ => format!("its inputs are {}", describe_inputs(declaration)),
    };
    if let Some(unknown) = given.keys().find(|key| inputs.iter().all(|input| input.name != **key)) {
        bail!("graph {} has no input {}; {}", quote(name), quote(unknown), expected());
    }
    if let Some(missing) = inputs.iter().find(|input| input.is_required && !given.contains_key(&input.name)) {
        bail!("graph {} needs its input {}; {}", quote(name), quote(&missing.name), expected());
    }
    // as the Python package encodes arguments: those by position, then those by name
    Ok(json!([[], given]))
}

/// Parses JSON. An integer that needs more than 64 bits is an error, because it would become a float.
pub(crate) fn parse_json(text: &str) -> anyhow::Result<Value> {
    let value = serde_json::from_str(text).map_err(|error| anyhow!("{} is no JSON: {error}", quote(text)))?;
    if let Some(integer) = find_large_integer(text) {
        bail!("{integer} is no integer of 64 bits: pass it as a text or as a float");
    }
    Ok(value)
}

/// Returns the first integer of a valid JSON text that is neither an `i64` nor a `u64`.
fn find_large_integer(text: &str) -> Option<&str> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c != '"' && c != '-' && !c.is_ascii_digit());
        if let Some(string) = rest.strip_prefix('"') {
            let mut is_escaped = false;
            let end = string.find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            })?;
            rest = string.get(end + 1..)?;
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c)).unwrap_or(rest.len());
        let (number, others) = rest.split_at_checked(end).filter(|(number, _)| !number.is_empty())?;
        let is_integer = !number.contains(['.', 'e', 'E']);
        if is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
            return Some(number);
        }
        rest = others;
    }
}
