//! [`Definition`]: a registered workflow with its types erased.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Error;
use crate::failure::Failure;
use crate::name_checks::check_name;
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::store::{ExistingExecution, GraphRow, is_built_in};
use crate::text::list_names;

/// The future of a workflow's code. It resolves to the encoded output.
pub(crate) type BodyFuture = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send>>;

/// A workflow's function with its types erased. It decodes the input and returns the future of the code.
pub(crate) type Body = dyn Fn(Arc<Run>, &Payload) -> Result<BodyFuture, Failure> + Send + Sync;

/// The place where the code of a workflow runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeLocation {
    /// In the run's task, which polls the code.
    Task,
    /// In another language, polled by an event loop of that language.
    Loop,
    /// In another language, holding a thread of a pool while it runs.
    Thread,
    /// In another program.
    OtherProgram,
}

/// A workflow with its types erased.
pub(crate) struct Definition {
    pub(crate) name: Arc<str>,
    pub(crate) is_eager: bool,
    pub(crate) code: CodeLocation,
    /// Text for messages: the language's way to set a durable time limit.
    pub(crate) time_limit_hint: &'static str,
    /// The declaration of a graph, which engines store; `None` for other workflows.
    pub(crate) graph: Option<Arc<str>>,
    pub(crate) body: Box<Body>,
}

impl Definition {
    /// Whether a binding polls the code, not the run's task.
    pub(crate) fn is_guest(&self) -> bool {
        matches!(self.code, CodeLocation::Loop | CodeLocation::Thread)
    }

    /// Whether the code holds a thread of a pool while it runs.
    pub(crate) fn holds_thread(&self) -> bool {
        self.code == CodeLocation::Thread
    }

    /// Whether the code is in another program, so that only another worker can run it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.code == CodeLocation::OtherProgram
    }

    /// Returns an error if `existing`, which has the workflow_id of a start, is a batch, is of another workflow or has
    /// another input.
    pub(crate) fn check_same_start(
        &self,
        existing: &ExistingExecution,
        workflow_id: Option<&str>,
        fingerprint: Option<u64>,
    ) -> Result<(), Error> {
        let reason = if existing.key.is_batch() {
            "it belongs to a batch, not to an execution".to_owned()
        } else if *existing.workflow != *self.name {
            format!("it belongs to an execution of workflow {:?}, not {:?}", &*existing.workflow, &*self.name)
        } else if existing.fingerprint.is_some() && existing.fingerprint != fingerprint {
            format!("it belongs to an execution of {:?} with another input", &*self.name)
        } else {
            return Ok(());
        };
        Err(Error::Conflict { workflow_id: workflow_id.unwrap_or_default().to_owned(), reason })
    }
}

/// The workflows that are registered with an engine, by name.
#[derive(Default)]
pub(crate) struct Definitions(HashMap<Arc<str>, Arc<Definition>, foldhash::fast::RandomState>);

impl Definitions {
    pub(crate) fn register(&mut self, definition: &Arc<Definition>) -> Result<(), Error> {
        check_name("workflow name", &definition.name)?;
        if definition.code == CodeLocation::OtherProgram {
            let reason =
                format!("{:?} has no code in this program; only a client can start it", definition.name);
            return Err(Error::Invalid { input: "workflow", reason });
        }
        match self.0.insert(definition.name.clone(), definition.clone()) {
            Some(other) if !Arc::ptr_eq(&other, definition) => Err(Error::Invalid {
                input: "workflow name",
                reason: format!("{:?} is registered twice; give one of them another name", definition.name),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Definition>> {
        self.0.get(name)
    }

    /// Returns the error for a workflow that is not registered.
    pub(crate) fn unknown_error(&self, name: &str) -> Error {
        let names = self.names();
        let known = list_names(names.iter().map(|it| &**it).filter(|it| !is_built_in(it)));
        Error::UnknownWorkflow { name: name.to_owned(), known }
    }

    /// Returns the names of all workflows, sorted.
    pub(crate) fn names(&self) -> Arc<[Arc<str>]> {
        let mut names: Vec<Arc<str>> = self.0.keys().cloned().collect();
        names.sort();
        names.into()
    }

    /// Returns the graphs among the workflows, sorted by name.
    pub(crate) fn graphs(&self) -> Vec<GraphRow> {
        let row = |it: &Arc<Definition>| {
            it.graph.clone().map(|declaration| GraphRow { name: it.name.clone(), declaration })
        };
        let mut graphs: Vec<GraphRow> = self.0.values().filter_map(row).collect();
        graphs.sort_by(|a, b| a.name.cmp(&b.name));
        graphs
    }
}
