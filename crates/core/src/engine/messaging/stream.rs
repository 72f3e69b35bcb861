//! [`StreamReader`]: the values of a stream, read while it grows, in whichever process its execution runs.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use serde::de::DeserializeOwned;

use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::path::Path;
use crate::runtime::inner::EngineInner;
use crate::runtime::messaging::streams::{StreamPlace, check_stream_name};
use crate::store::StreamEntry;

/// A value of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamValue<T> {
    /// The place in the stream, from 0.
    pub offset: i64,
    /// The value.
    pub value: T,
    /// The time of the writing.
    pub written_at: Timestamp,
    /// The position of the step that wrote the value; `None` if the code of the workflow did.
    pub step: Option<Path>,
    /// The offset of the first value that the same attempt of the step wrote to the stream. A reader that has values of
    /// this step with another `attempt_offset` discards them: they are of an attempt that failed, or whose process died.
    /// Equal to `offset` if the code of the workflow wrote the value.
    pub attempt_offset: i64,
}

/// A builder for a [`StreamReader`]: `.await` it to begin to read. Made by [`Engine::read_stream`] or
/// [`Handle::read_stream`].
#[must_use = "nothing is read before the builder is awaited"]
pub struct ReadStreamBuilder<T> {
    engine: Arc<EngineInner>,
    workflow_id: String,
    key: Option<Key>,
    stream: Arc<str>,
    from: i64,
    waits: bool,
    value: PhantomData<fn() -> T>,
}

/// The values of a stream in their order, each when it is durable. Made by [`Engine::read_stream`].
pub struct StreamReader<T> {
    engine: Arc<EngineInner>,
    place: StreamPlace,
    loaded: VecDeque<StreamEntry>,
    value: PhantomData<fn() -> T>,
}

impl Engine {
    /// Reads the stream of this name of the execution with this workflow_id, also while it grows. The execution may run in
    /// any process. The reader reaches the end when the stream is closed, or when the execution has ended.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`] if no execution has this id.
    /// - [`Error::Invalid`] if no stream can have the name.
    pub fn read_stream<T: DeserializeOwned>(
        &self,
        workflow_id: impl Into<String>,
        stream: impl Into<Arc<str>>,
    ) -> ReadStreamBuilder<T> {
        ReadStreamBuilder::new(self.inner.clone(), workflow_id.into(), None, stream.into())
    }
}

impl<O> Handle<O> {
    /// Reads a stream of the execution: see [`Engine::read_stream`].
    pub fn read_stream<T: DeserializeOwned>(&self, stream: impl Into<Arc<str>>) -> ReadStreamBuilder<T> {
        ReadStreamBuilder::new(self.engine().clone(), self.workflow_id(), Some(self.key()), stream.into())
    }
}

impl<T> ReadStreamBuilder<T> {
    fn new(engine: Arc<EngineInner>, workflow_id: String, key: Option<Key>, stream: Arc<str>) -> Self {
        Self { engine, workflow_id, key, stream, from: 0, waits: true, value: PhantomData }
    }

    /// Begins with the value at this offset. Default: 0, the first one. A reader that was interrupted continues with the
    /// offset after its last value. An offset beyond the end waits for the value, or reaches the end.
    pub fn from(mut self, offset: i64) -> Self {
        self.from = offset;
        self
    }

    /// Reads only values that are durable already: the reader reaches its end where it would have to wait.
    pub fn present_only(mut self) -> Self {
        self.waits = false;
        self
    }

    async fn open(self) -> Result<StreamReader<T>, Error> {
        let Self { engine, workflow_id, key, stream, from, waits, .. } = self;
        engine.check_open()?;
        check_stream_name(&stream)?;
        if from < 0 {
            let reason = format!("{from} is negative; the first value has the offset 0");
            return Err(Error::Invalid { input: "offset", reason });
        }
        let execution = match key {
            Some(key) => key,
            None => engine.find_setter(&workflow_id).await?,
        };
        let place = StreamPlace { execution, stream, next: Some(from), waits };
        Ok(StreamReader { engine, place, loaded: VecDeque::new(), value: PhantomData })
    }
}

impl<T: Send + 'static> IntoFuture for ReadStreamBuilder<T> {
    type Output = Result<StreamReader<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl<T> StreamReader<T> {
    /// Waits for the next values, and returns them encoded: those that are durable already, up to some hundred. Returns no
    /// values at the end of the stream.
    #[doc(hidden)]
    pub async fn next_entries(&mut self) -> Result<Vec<StreamEntry>, Error> {
        if !self.loaded.is_empty() {
            return Ok(std::mem::take(&mut self.loaded).into());
        }
        self.engine.next_entries(&mut self.place).await
    }

    /// Waits for the next value. Returns `None` at the end of the stream. If the caller stops waiting, no value is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the value is not a `T`; the next call returns the value after it.
    pub async fn next(&mut self) -> Result<Option<StreamValue<T>>, Error>
    where
        T: DeserializeOwned,
    {
        if self.loaded.is_empty() {
            self.loaded = self.engine.next_entries(&mut self.place).await?.into();
        }
        let Some(entry) = self.loaded.pop_front() else { return Ok(None) };
        let described = || format!("value {} of stream {:?}", entry.offset, self.place.stream);
        let value = entry.value.decode().map_err(|error| error.with_value(described))?;
        Ok(Some(StreamValue {
            offset: entry.offset,
            value,
            written_at: entry.written_at,
            step: Some(entry.step).filter(|step| *step != Path::root()),
            attempt_offset: entry.attempt_offset,
        }))
    }

    /// Returns the values as a [`Stream`], which ends after an error other than [`Error::Decode`].
    pub fn into_stream(self) -> impl Stream<Item = Result<StreamValue<T>, Error>> + Send
    where
        T: DeserializeOwned + Send + 'static,
    {
        futures_util::stream::unfold(Some(self), async |reader| {
            let mut reader = reader?;
            match reader.next().await {
                Ok(value) => value.map(|value| (Ok(value), Some(reader))),
                Err(error @ Error::Decode { .. }) => Some((Err(error), Some(reader))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}
