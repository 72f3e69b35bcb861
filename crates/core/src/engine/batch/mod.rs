//! Batches: many executions of one workflow that are submitted, tracked and cancelled as one.

mod handle;
mod results;
mod retry;
mod submission;

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream};
use serde::Serialize;

pub use handle::BatchHandle;
pub(crate) use results::results_of;
pub(crate) use submission::submit;

use crate::engine::Engine;
use crate::engine::submission::{ArcRef, Submission};
use crate::error::Error;
use crate::payload::Payload;
pub use crate::runtime::batch::results::ItemResult;
use crate::runtime::batch::submission::UnencodedInput;
pub use crate::runtime::batch::submission::{BatchInput, PackInput};
use crate::runtime::definition::Definition;
use crate::runtime::start::option_methods::start_option_methods;
use crate::runtime::start::options::StartOptions;
use crate::store::Detail;
use crate::text::quote;
use crate::workflow::Workflow;

/// A builder for a batch: `.await` it for the [`BatchHandle`].
#[must_use = "nothing is submitted until this is awaited"]
pub struct BatchBuilder<'e, S, O> {
    engine: &'e Engine,
    definition: &'e Arc<Definition>,
    inputs: S,
    /// Whether the size hint of the inputs can be trusted: none of them is the error of a stream.
    has_exact_size: bool,
    options: Option<Box<StartOptions>>,
    output: PhantomData<fn() -> O>,
}

impl Engine {
    /// Submits one item per input as a batch. Each item is an execution of `workflow`, and its record is as durable as that
    /// of any other. When the call returns, all items are durable and will run to their ends.
    ///
    /// The inputs are read while earlier items are written, so memory stays bounded however many they are. Up to 1,000
    /// items share one row and one claim. If encoding fails in the middle, the call fails with an error that names the
    /// item. The batch then contains the items before it, except up to the last 999, and stays open.
    ///
    /// A batch has at most [`MAX_BATCH_ITEMS`](crate::MAX_BATCH_ITEMS) items.
    pub fn submit_batch<'e, I, O, S>(
        &'e self,
        workflow: &'e Workflow<I, O>,
        inputs: S,
    ) -> BatchBuilder<'e, impl Stream<Item: PackInput> + Send + use<'e, I, O, S>, O>
    where
        I: Serialize,
        S: IntoIterator<Item = I, IntoIter: Send>,
    {
        let inputs = stream::iter(inputs.into_iter().map(UnencodedInput));
        BatchBuilder::new(self, workflow, inputs, true)
    }

    /// Submits one item per input of a stream as a batch; in all other respects like
    /// [`submit_batch`](Engine::submit_batch). An error of the stream ends the call with that error.
    pub fn submit_batch_stream<'e, I, O, S>(
        &'e self,
        workflow: &'e Workflow<I, O>,
        inputs: S,
    ) -> BatchBuilder<'e, impl Stream<Item: PackInput> + Send + use<'e, I, O, S>, O>
    where
        I: Serialize,
        S: Stream<Item = Result<I, Error>> + Send,
    {
        use futures_util::StreamExt;
        let inputs = inputs.map(|input| input.map(UnencodedInput));
        BatchBuilder::new(self, workflow, inputs, false)
    }

    /// Returns a handle to the batch with this id, whichever process submitted the batch. Fails with [`Error::Invalid`] if
    /// the id belongs to another kind of execution.
    pub async fn get_batch<O>(&self, batch_id: &str) -> Result<BatchHandle<O>, Error> {
        Ok(self.find_batch(batch_id).await?.1)
    }

    /// Returns a handle to the batch with this id. Fails with [`Error::Invalid`] if the registered name of the workflow of
    /// its items is not `workflow`.
    pub async fn get_batch_of<O>(&self, batch_id: &str, workflow: &str) -> Result<BatchHandle<O>, Error> {
        let (of, batch) = self.find_batch(batch_id).await?;
        if *of != *workflow {
            let reason = format!(
                "batch {} is of workflow {of:?}, not {workflow:?}; get it with its own workflow",
                quote(batch_id)
            );
            return Err(Error::Invalid { input: "workflow", reason });
        }
        Ok(batch)
    }

    /// Returns the batch with this id, and the name of its workflow.
    async fn find_batch<O>(&self, batch_id: &str) -> Result<(Arc<str>, BatchHandle<O>), Error> {
        let execution = self.inner.find(batch_id, Detail::Outcome).await?.execution;
        if !execution.key.is_batch() {
            let reason = format!("{} is an execution, not a batch; use `get`", quote(batch_id));
            return Err(Error::Invalid { input: "batch_id", reason });
        }
        let batch = BatchHandle::new(self.inner.clone(), execution.key, execution.given_id);
        Ok((execution.workflow, batch))
    }
}

start_option_methods!(BatchBuilder.options: run_timeout, queue, key, priority, attribute);

impl<'e, S, O> BatchBuilder<'e, S, O> {
    fn new<I>(engine: &'e Engine, workflow: &'e Workflow<I, O>, inputs: S, has_exact_size: bool) -> Self {
        let definition = &workflow.definition;
        Self { engine, definition, inputs, has_exact_size, options: None, output: PhantomData }
    }

    /// Sets the id of the batch, which makes the submission idempotent: a second submission with the same id, workflow and
    /// inputs continues where the first one ended, and returns the same batch. With another workflow or other inputs, it
    /// fails with [`Error::Conflict`](crate::Error::Conflict), which names the first input that differs.
    ///
    /// The item with index 7 of batch `b` has the workflow_id `b#7`.
    pub fn batch_id(mut self, id: impl AsRef<str>) -> Self {
        self.options().workflow_id = Some(id.as_ref().into());
        self
    }
}

impl<'e, S, O> IntoFuture for BatchBuilder<'e, S, O>
where
    S: Stream<Item: PackInput> + Send + 'e,
    O: Send + 'e,
{
    type Output = Result<BatchHandle<O>, Error>;
    type IntoFuture = BoxFuture<'e, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let BatchBuilder { engine, definition, inputs, has_exact_size, options, .. } = self;
        let (engine, definition) = (ArcRef::Borrowed(&engine.inner), ArcRef::Borrowed(definition));
        let batch = Submission::new(engine, definition, Payload::empty(), options);
        Box::pin(submit(batch, inputs, has_exact_size))
    }
}
