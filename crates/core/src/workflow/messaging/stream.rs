//! Streams in the code of workflows and of their steps: [`WriteStream`], and [`StreamWriter`] for steps.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use serde::Serialize;

use crate::error::Error;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::messaging::streams::{check_stream_name, check_stream_value};
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;
use crate::workflow::context::Context;
use crate::workflow::messaging::step_scope::StepScope;

/// A durable call that writes a value to a stream, or closes it. Made by [`Context::write_stream`] or
/// [`Context::close_stream`].
#[must_use = "nothing is written before the call is awaited"]
pub struct WriteStream<'c> {
    context: &'c mut Context,
    stream: Arc<str>,
    /// The value; `None` for the end of the stream.
    value: Option<Result<Payload, Error>>,
}

/// A writer for the steps of an execution. Made by [`Context::stream_writer`].
#[derive(Clone)]
pub struct StreamWriter {
    run: Arc<Run>,
    stream: Arc<str>,
}

impl Context {
    /// Writes a value to a stream of this execution, once: a replay does not write it again. Any process can read the
    /// stream while it grows, by [`Engine::read_stream`](crate::Engine::read_stream). The value is durable before the next
    /// step begins. To write in a step, use a [`stream_writer`](Self::stream_writer).
    ///
    /// # Errors
    ///
    /// The call fails if no stream can have the name, if the stream is closed, or if the value has more than 64 KiB or
    /// cannot be encoded.
    pub fn write_stream<T: Serialize + ?Sized>(
        &mut self,
        stream: impl Into<Arc<str>>,
        value: &T,
    ) -> WriteStream<'_> {
        WriteStream { context: self, stream: stream.into(), value: Some(Payload::encode(value)) }
    }

    /// Closes a stream of this execution: readers reach its end. The end of the execution ends all of its streams.
    ///
    /// # Errors
    ///
    /// The call fails if no stream can have the name, or if the stream is closed.
    pub fn close_stream(&mut self, stream: impl Into<Arc<str>>) -> WriteStream<'_> {
        WriteStream { context: self, stream: stream.into(), value: None }
    }

    /// Returns a writer with which the steps of this execution write to a stream. This is no durable call.
    pub fn stream_writer(&mut self, stream: impl Into<Arc<str>>) -> StreamWriter {
        self.run.has_body_calls.store(true, SeqCst);
        StreamWriter { run: self.run.clone(), stream: stream.into() }
    }

    /// Begins the call that writes to a stream. Takes the path of the call in any case.
    pub(crate) fn begin_write_stream(&mut self, stream: Arc<str>) -> Result<Call, Error> {
        let path = self.next_path();
        check_stream_name(&stream)?;
        Ok(Call::begin(&self.run, path, &stream.into(), CallKind::WriteStream, None))
    }
}

impl<'c> IntoFuture for WriteStream<'c> {
    type Output = Result<(), Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let begun = self.context.begin_write_stream(self.stream);
            write_stream(&begun.map_err(|error| error.to_failure())?, self.value).await
        })
    }
}

/// Runs a call that writes a value to a stream, or its end.
pub(crate) async fn write_stream(call: &Call, value: Option<Result<Payload, Error>>) -> Result<(), Failure> {
    if let Some(recorded) = call.wait_recorded().await {
        return match recorded.kind {
            CheckpointKind::Failed => Err(recorded.outcome.to_failure()),
            _ => Ok(()),
        };
    }
    let run = &call.run;
    let stream: Arc<str> = run.call_name(call.id()).into();
    let closes = value.is_none();
    let checked = async {
        let value = value.transpose()?.unwrap_or_default();
        check_stream_value(&stream, &value)?;
        // a stream is found by the row of its execution
        run.stage_row();
        call.query(|| run.open_stream(&stream)).await;
        run.state().calls.streams().check_open(&stream, closes)?;
        Ok::<_, Error>(value)
    };
    match checked.await {
        Ok(value) => {
            call.deliver(CheckpointKind::StreamWrite, value, 0).await;
            Ok(())
        }
        Err(error) => {
            let failure = error.to_failure();
            call.deliver_failure(&failure).await;
            Err(failure)
        }
    }
}

impl StreamWriter {
    /// Appends a value to the stream, from the body of a step. The value is durable at the latest when the outcome of the
    /// step is. If the body runs again, for a retry or after a crash, its values are appended again: readers distinguish
    /// the attempts by [`StreamValue::attempt_offset`](crate::StreamValue::attempt_offset).
    ///
    /// # Errors
    ///
    /// The call fails outside of the body of a step of this execution (the tasks that a body spawns count as outside), if
    /// no stream can have the name, if the stream is closed, or if the value has more than 64 KiB or cannot be encoded.
    pub async fn write<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), Failure> {
        let Some(scope) = StepScope::current(&self.run) else {
            let reason =
                "a StreamWriter writes in the body of a step; in the code of the workflow, call write_stream";
            return Err(Error::Invalid { input: "stream", reason: reason.to_owned() }.to_failure());
        };
        let value = Payload::encode(value).map_err(|error| error.to_failure())?;
        scope.write(&self.stream, value).await.map_err(|error| error.to_failure())
    }
}
