//! Batches that a workflow submits: each is one child, which ends when all its items have ended.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::{TryStreamExt, stream};
use serde::{Serialize, de::DeserializeOwned};

use super::begin_result_call;
use super::start::{
    ChildKind, begin_start_call, check_registered, record_start, recorded_start, rejected_start,
    resolve_placement,
};
use super::wait_for_result;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::failure::Failure;
use crate::key::{Key, item_id};
use crate::path::Path;
use crate::payload::{FromPayload, Payload};
use crate::runtime::batch::StoredBatch;
use crate::runtime::batch::results::{ItemResult, read_results};
use crate::runtime::batch::submission::{BatchInput, BatchSubmission, BatchTemplate, check_count, name_item};
use crate::runtime::definition::Definition;
use crate::runtime::run::call::Call;
use crate::runtime::run::children::cancel_children;
use crate::runtime::run::{ChildState, Run, chunks};
use crate::runtime::start::option_methods::start_option_methods;
use crate::runtime::start::options::StartOptions;
use crate::store::{BatchCounts, Outcome, Parent};
use crate::workflow::Workflow;
use crate::workflow::context::Context;

/// A builder for a batch of children: `.await` the builder for a [`ChildBatch`]. Returned by [`Context::submit_batch`].
#[must_use = "nothing is submitted until this is awaited"]
pub struct SubmitBatch<'c, I, O> {
    cx: &'c mut Context,
    definition: Arc<Definition>,
    inputs: Vec<I>,
    options: Option<Box<StartOptions>>,
    output: PhantomData<fn() -> O>,
}

/// A batch that a workflow has submitted. [`wait`](ChildBatch::wait) waits until its items have ended, and
/// [`results`](ChildBatch::results) returns their results.
pub struct ChildBatch<O> {
    key: Key,
    name: Arc<str>,
    output: PhantomData<fn() -> O>,
}

impl Context {
    /// Submits one item per input as a batch, whose parent is this execution. Each item is an execution of `workflow`. The
    /// submission is recorded: a replay continues with the same batch. If it is repeated before it was recorded, the inputs
    /// must be the same.
    ///
    /// The workflow may end before the batch. Cancelling the workflow also cancels the batch.
    pub fn submit_batch<I, O>(
        &mut self,
        workflow: &Workflow<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> SubmitBatch<'_, I, O> {
        let (definition, inputs) = (workflow.definition.clone(), inputs.into_iter().collect());
        SubmitBatch { cx: self, definition, inputs, options: None, output: PhantomData }
    }
}

start_option_methods!(SubmitBatch.options: run_timeout, queue, key, priority, attribute);

impl<'c, I, O> IntoFuture for SubmitBatch<'c, I, O>
where
    I: Serialize + Send + 'c,
    O: Send + 'c,
{
    type Output = Result<ChildBatch<O>, Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let SubmitBatch { cx, definition, inputs, options, .. } = self;
        let (run, path, name) = (cx.run.clone(), cx.next_path(), definition.name.clone());
        let inputs: Result<Vec<BatchInput>, Error> = (0..)
            .zip(&inputs)
            .map(|(index, input)| Payload::encode(input).map_err(|error| name_item(error, index)))
            .map(|input| input.map(BatchInput::from))
            .collect();
        Box::pin(async move {
            let inputs = inputs.map_err(|error| error.to_failure())?;
            let key = submit_recorded(&run, path, NewBatch { definition, inputs, options }).await?;
            Ok(ChildBatch { key, name, output: PhantomData })
        })
    }
}

impl<O> ChildBatch<O> {
    /// Returns the id of the batch.
    pub fn batch_id(&self) -> String {
        self.key.to_string()
    }

    /// Returns the workflow_id of the item with this index.
    pub fn item_id(&self, index: u32) -> String {
        item_id(self.key, index)
    }

    /// Waits until all items have ended, and returns their counts, as a call of the branch `cx`. Failed items do not fail
    /// the call. If the batch was cancelled, the error is its cancellation.
    ///
    /// A replay counts again: items that were retried since are counted with their new ends.
    pub async fn wait(&self, cx: &mut Context) -> Result<BatchCounts, Failure> {
        let path = cx.next_path();
        wait_for_counts(begin_result_call(&cx.run, path, &self.name), self.key).await
    }
}

impl<O: DeserializeOwned + Send + 'static> ChildBatch<O> {
    /// Waits until all items have ended, and returns the output or the failure of each, in the order of the inputs, as a
    /// call of the branch `cx`. If the batch was cancelled, the error is its cancellation.
    ///
    /// A replay reads the results again, so the record of the workflow does not contain them.
    pub async fn results(&self, cx: &mut Context) -> Result<Vec<Result<O, Failure>>, Failure> {
        let path = cx.next_path();
        let call = begin_result_call(&cx.run, path, &self.name);
        let items = wait_for_results(call, self.key).await?;
        Ok(items.into_iter().map(|item| item.result.map_err(|error| failure_of(&error))).collect())
    }
}

impl<O> fmt::Debug for ChildBatch<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChildBatch({:?})", self.batch_id())
    }
}

/// Returns the failure of an item whose result is this error.
fn failure_of(error: &Error) -> Failure {
    match error {
        Error::Failed(failure) | Error::Cancelled(failure) => failure.clone(),
        error => error.to_failure(),
    }
}

/// A batch to be submitted.
pub(crate) struct NewBatch {
    pub(crate) definition: Arc<Definition>,
    pub(crate) inputs: Vec<BatchInput>,
    /// The options of the batch; `None` for the defaults.
    pub(crate) options: Option<Box<StartOptions>>,
}

impl NewBatch {
    /// Returns the fingerprint of all inputs.
    fn fingerprint(&self) -> u64 {
        self.inputs.iter().fold(0, |before, input| input.fold_fingerprint(before))
    }
}

/// Submits a batch as a call of its own, and records the submission. Every replay continues with the same batch.
pub(crate) async fn submit_recorded(run: &Arc<Run>, path: Path, batch: NewBatch) -> Result<Key, Failure> {
    // read first: until the call has begun, no delivery can change this time
    let last_delivery_at = run.state().delivery.delivered_at;
    let call = begin_start_call(run, path, &batch.definition, batch.fingerprint());
    if let Some(recorded) = recorded_start(&call, false).await {
        return recorded;
    }
    let submitted = submit(&call, batch, last_delivery_at).await;
    record_start(&call, submitted).await
}

/// Submits the batch of a call. If that is impossible, cancels the items that are submitted already.
async fn submit(call: &Call, batch: NewBatch, moment: Timestamp) -> Result<Key, Failure> {
    let NewBatch { definition, inputs, options } = batch;
    let (run, engine) = (&call.run, &call.run.engine);
    check_registered(call, &definition)?;
    let options = options.as_deref().unwrap_or(StartOptions::DEFAULTS);
    let count = inputs.len() as u64;
    check_count(count).map_err(|error| error.to_failure())?;
    let placement = resolve_placement(call, options, ChildKind::Awaited).await?;
    let (workflow, attributes) = (definition.name.clone(), options.attributes.clone());
    let run_timeout = options.run_timeout;
    let template = BatchTemplate { batch_id: None, workflow, placement, attributes, run_timeout };
    let (key, is_continued) = start_batch(call, &template, count, moment).await?;
    let submitted = engine.query_with_retry(async || {
        let mut items = BatchSubmission::of_workflow(engine, &template, key, is_continued);
        let inputs = pin!(stream::iter(inputs.iter().cloned().map(Ok)));
        let submitted = match items.submit_inputs(inputs).await {
            // the earlier run may have started the batch with another number of items
            Ok(count) if is_continued => items.close(count).await,
            submitted => submitted.map(drop),
        };
        match submitted {
            Err(error @ (Error::Conflict { .. } | Error::Invalid { .. } | Error::TooLarge { .. })) => {
                Ok(Err(error.to_failure()))
            }
            submitted => submitted.map(Ok),
        }
    });
    match submitted.await {
        Ok(Ok(())) => Ok(key),
        Ok(Err(failure)) => {
            run.state().children.remove(&key);
            cancel_children(run, vec![key], &failure);
            Err(failure)
        }
        // the engine is ending, and requeues the execution
        Err(Error::Unavailable(_)) => std::future::pending().await,
        Err(error) => call.park(error.to_string()).await,
    }
}

/// Starts the batch of a call. Returns its key, and whether an earlier run has started it.
async fn start_batch(
    call: &Call,
    template: &BatchTemplate,
    count: u64,
    moment: Timestamp,
) -> Result<(Key, bool), Failure> {
    let run = &call.run;
    // the fingerprint of a batch's row is the call that has submitted the batch
    let call_key = Key::derive(run.key, run.run_no, &call.path);
    let fingerprint = Some(call_key.stable_hash());
    let mut attempt = 0;
    loop {
        let key = Key::derive_batch(run.key, run.run_no, &call.path, moment, attempt);
        let mut start = template.start(&run.engine, key, Some(count));
        start.root = run.root;
        start.parent = Some(Parent { key: run.key, is_detached: false });
        start.fingerprint = fingerprint;
        start.is_guarded = true;
        run.stage_row();
        let reserved = chunks::reserve_row(run.lane(), &Payload::empty(), start.attributes.size()).await;
        run.state().children.insert(key, ChildState::Remote);
        let outcome = match run.stage_child(start, reserved) {
            Some((lsn, _)) => run.lane().wait_durable(lsn).await,
            None => Outcome::Fenced,
        };
        match outcome {
            Outcome::Applied => return Ok((key, false)),
            Outcome::Duplicate(existing) if existing.fingerprint == fingerprint => return Ok((key, true)),
            // the batch of another call has this key
            Outcome::Duplicate(_) => run.state().children.remove(&key),
            Outcome::Rejected(reason) => return Err(rejected_start(&reason)),
            // the run is closed or disowned: its task stops the code
            _ => std::future::pending().await,
        };
        attempt += 1;
    }
}

/// Waits until the batch has ended, and counts its items.
pub(crate) async fn wait_for_counts(call: Call, key: Key) -> Result<BatchCounts, Failure> {
    let batch = wait_for_batch(&call, key).await?;
    Ok(call.query(async || batch.wait().await).await)
}

/// Waits until the batch has ended, and reads the results of its items.
pub(crate) async fn wait_for_results<O: FromPayload + Send + 'static>(
    call: Call,
    key: Key,
) -> Result<Vec<ItemResult<O>>, Failure> {
    let batch = wait_for_batch(&call, key).await?;
    Ok(call.query(async || read_results(&batch).try_collect().await).await)
}

async fn wait_for_batch(call: &Call, key: Key) -> Result<StoredBatch, Failure> {
    wait_for_result::<Payload>(call, key).await?;
    Ok(StoredBatch { engine: call.run.engine.clone(), key, given_id: None })
}
