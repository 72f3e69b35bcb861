//! [`BatchSubmission`]: a batch while Python code hands over its inputs, portion by portion.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::{self, Stream};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use stepfast::guest::GuestInput;
use stepfast::{BatchHandle, Engine, Error, Payload};
use tokio::sync::mpsc;

use crate::bridge::call::Call;
use crate::bridge::engine::KnownWorkflow;
use crate::bridge::port::Port;
use crate::bridge::reply::{Reply, ReplyFuture};
use crate::convert::start_options::StartOptions;
use crate::fork::Process;
use crate::lock::Mutex;
use crate::runtime::runtime;

/// Maximum number of portions that are handed over and not yet taken.
const MAX_PORTIONS_IN_FLIGHT: usize = 2;

/// The index in the batch of an input that cannot be encoded, and the exception.
pub(crate) type RefusedInput = (u64, Py<PyAny>);

/// A message of the code that reads the inputs.
enum InputMessage {
    Inputs(Vec<GuestInput>),
    /// There are no further inputs.
    End,
    /// The code cannot read further inputs.
    Abort,
}

/// The way to hand over inputs, and the result of the submission.
#[derive(Clone)]
struct Inputs {
    sender: mpsc::Sender<InputMessage>,
    ended: Shared<BoxFuture<'static, Result<BatchHandle<Payload>, Error>>>,
}

/// A batch while Python code hands over its inputs. A task of the runtime submits them. If this object is dropped before
/// the end of the inputs, the batch stays open.
#[pyclass(frozen)]
pub(crate) struct BatchSubmission {
    inputs: Mutex<Option<Inputs>>,
    workflow: KnownWorkflow,
    /// Whether the inputs are compared with those of an earlier submission.
    is_compared: bool,
    /// The number of inputs that were handed over.
    count: AtomicU64,
    process: Process,
}

impl Drop for BatchSubmission {
    fn drop(&mut self) {
        self.process.drop_if_current(self.inputs.get_mut().take());
    }
}

impl BatchSubmission {
    /// Begins the submission of a batch.
    pub(crate) fn begin(engine: &Engine, workflow: KnownWorkflow, options: Option<&StartOptions>) -> Self {
        let (sender, messages) = mpsc::channel(MAX_PORTIONS_IN_FLIGHT);
        let core_options = options.map(StartOptions::to_core);
        let submission = engine.submit_batch_guest(&workflow.workflow, inputs_of(messages), core_options);
        let task = runtime().spawn(submission);
        // the engine drops the task only when the process ends
        let ended = async move { task.await.unwrap_or(Err(Error::Shutdown)) }.boxed().shared();
        Self {
            inputs: Mutex::new(Some(Inputs { sender, ended })),
            workflow,
            is_compared: options.is_some_and(StartOptions::has_id),
            count: AtomicU64::new(0),
            process: Process::current(),
        }
    }

    fn inputs(&self, py: Python<'_>) -> PyResult<Inputs> {
        self.process.check(py)?;
        let inputs = self.inputs.with(|inputs| inputs.clone());
        inputs.ok_or_else(|| crate::error::runtime_error("the submission of the batch has ended"))
    }

    /// Returns the inputs for the calls with these arguments. At the first one that cannot be encoded, also returns its
    /// index in the batch, and the error.
    fn encode(&self, items: &Bound<'_, PyList>) -> (Vec<GuestInput>, Option<(u64, PyErr)>) {
        let (inputs, error) = encode_items(&self.workflow, items, self.is_compared);
        let index = self.count.load(SeqCst) + inputs.len() as u64;
        (inputs, error.map(|error| (index, error)))
    }
}

/// Returns the inputs for the calls with these tuples of arguments, up to the first one that cannot be encoded, and its
/// error.
pub(crate) fn encode_items(
    workflow: &KnownWorkflow,
    items: &Bound<'_, PyList>,
    is_compared: bool,
) -> (Vec<GuestInput>, Option<PyErr>) {
    let none = PyDict::new(items.py());
    let mut inputs = Vec::with_capacity(items.len());
    for item in items.iter() {
        let input = item
            .cast::<PyTuple>()
            .map_err(PyErr::from)
            .and_then(|arguments| workflow.input(arguments, &none, is_compared));
        match input {
            Ok(input) => inputs.push(input),
            Err(error) => return (inputs, Some(error)),
        }
    }
    (inputs, None)
}

#[pymethods]
impl BatchSubmission {
    /// Hands over the inputs for the calls with these tuples of arguments, up to the first one that cannot be encoded. The
    /// call ends when the submission may be given the next portion. Also returns the size of these inputs in bytes, and
    /// the index of an input that cannot be encoded with the exception.
    fn push(
        &self,
        py: Python<'_>,
        items: &Bound<'_, PyList>,
        port: Option<&Bound<'_, Port>>,
    ) -> PyResult<(Call, usize, Option<RefusedInput>)> {
        let Inputs { sender, ended } = self.inputs(py)?;
        let (inputs, error) = self.encode(items);
        let bytes = inputs.iter().map(|input| input.payload.as_bytes().len()).sum();
        self.count.fetch_add(inputs.len() as u64, SeqCst);
        let future: ReplyFuture = Box::pin(async move {
            match sender.send(InputMessage::Inputs(inputs)).await {
                Ok(()) => Reply::Nothing,
                Err(_) => Reply::Error(ended.await.err().unwrap_or(Error::Shutdown)),
            }
        });
        let error = error.map(|(index, error)| (index, error.into_value(py).into_any()));
        Ok((Call::awaitable(port, future), bytes, error))
    }

    /// Ends the inputs. The call returns a handle to the batch when all items are durable.
    fn finish(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let Inputs { sender, ended } = self.inputs(py)?;
        drop(self.inputs.take());
        let future: ReplyFuture = Box::pin(async move {
            // a submission that has failed takes no messages
            let _ = sender.send(InputMessage::End).await;
            ended.await.map_or_else(Reply::Error, Reply::Batch)
        });
        Ok(Call::awaitable(port, future))
    }

    /// Leaves the batch open. The call ends when the items that were handed over are durable, up to the last whole
    /// bundle, or cannot become durable.
    fn abort(&self, py: Python<'_>, port: Option<&Bound<'_, Port>>) -> PyResult<Call> {
        let Inputs { sender, ended } = self.inputs(py)?;
        drop(self.inputs.take());
        let future: ReplyFuture = Box::pin(async move {
            let _ = sender.send(InputMessage::Abort).await;
            // the caller has an error of its own
            let _ = ended.await;
            Reply::Nothing
        });
        Ok(Call::awaitable(port, future))
    }

    /// Leaves the batch open, without waiting.
    fn close(&self) {
        if self.process.is_current() {
            drop(self.inputs.take());
        }
    }
}

/// The inputs of a portion that are not yet taken, and the messages with the next portions.
struct InputReader {
    portion: std::vec::IntoIter<GuestInput>,
    messages: mpsc::Receiver<InputMessage>,
}

/// Returns the inputs that the messages contain.
fn inputs_of(messages: mpsc::Receiver<InputMessage>) -> impl Stream<Item = Result<GuestInput, Error>> + Send {
    let reader = InputReader { portion: Vec::new().into_iter(), messages };
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        loop {
            if let Some(input) = reader.portion.next() {
                return Some((Ok(input), Some(reader)));
            }
            match reader.messages.recv().await {
                Some(InputMessage::Inputs(inputs)) => reader.portion = inputs.into_iter(),
                Some(InputMessage::End) => return None,
                Some(InputMessage::Abort) | None => {
                    let reason = "the code that reads them has ended early".to_owned();
                    return Some((Err(Error::Invalid { input: "inputs", reason }), None));
                }
            }
        }
    })
}
