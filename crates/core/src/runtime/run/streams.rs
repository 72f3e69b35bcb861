//! The streams of a run: the offsets of the entries that follow.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Run;
use super::call::BodyAttempt;
use crate::commit::Lsn;
use crate::error::Error;
use crate::payload::Payload;
use crate::store::{Append, StreamEntry, StreamQuery, Write};
use crate::text::quote;

/// The streams that a run has written to. Few workflows write to more than one.
#[derive(Default)]
pub(crate) struct RunStreams(Vec<StreamEnd>);

/// The end of a stream.
struct StreamEnd {
    stream: Arc<str>,
    /// The offset of the next entry.
    next: i64,
    is_closed: bool,
    /// The last attempt of each call that has written, with the offset of its first entry.
    attempts: SmallVec<[(BodyAttempt, i64); 1]>,
}

impl RunStreams {
    fn end(&mut self, stream: &str) -> Option<&mut StreamEnd> {
        self.0.iter_mut().find(|end| *end.stream == *stream)
    }

    /// Returns the offset of the next entry, which is appended now. The stream must be open.
    pub(crate) fn take_offset(&mut self, stream: &str) -> Option<i64> {
        let end = self.end(stream)?;
        end.next += 1;
        Some(end.next - 1)
    }

    /// Returns an error for a stream that is closed. With `closes`, the stream is closed from here on.
    pub(crate) fn check_open(&mut self, stream: &str, closes: bool) -> Result<(), Error> {
        let Some(end) = self.end(stream) else { return Ok(()) };
        let was_closed = end.is_closed;
        end.is_closed |= closes;
        if was_closed {
            let reason = format!("{} is closed; write to another stream, or close it later", quote(stream));
            return Err(Error::Invalid { input: "stream", reason });
        }
        Ok(())
    }
}

impl Run {
    /// Finds the end of a stream, before an entry is appended. No other run appends meanwhile: the Writes of earlier runs
    /// were durable before this run began.
    pub(crate) async fn open_stream(&self, stream: &Arc<str>) -> Result<(), Error> {
        if self.state().calls.streams().end(stream).is_some() {
            return Ok(());
        }
        let query = StreamQuery { execution: self.key, stream: stream.clone(), from: None };
        let engine = &self.engine;
        let last = engine.query_with_retry(|| engine.stream_loads.load(query.clone())).await?.pop();
        let mut state = self.state();
        let streams = state.calls.streams();
        if streams.end(stream).is_none() {
            streams.0.push(StreamEnd {
                stream: stream.clone(),
                next: last.as_ref().map_or(0, |entry| entry.offset + 1),
                is_closed: last.is_some_and(|entry| entry.is_end()),
                attempts: SmallVec::new(),
            });
        }
        Ok(())
    }

    /// Appends a value that an attempt of a step writes. The stream must be open. Returns `None` if the run records nothing
    /// more.
    pub(crate) fn append(
        &self,
        stream: &Arc<str>,
        attempt: &BodyAttempt,
        value: Payload,
        reserved: u32,
    ) -> Result<Option<Lsn>, Error> {
        let mut state = self.state();
        let is_closed = state.is_closed;
        let streams = state.calls.streams();
        if let Err(error) = streams.check_open(stream, false) {
            self.lane().release(reserved);
            return Err(error);
        }
        let end = if is_closed { None } else { streams.end(stream) };
        let Some(end) = end else {
            self.lane().release(reserved);
            return Ok(None);
        };
        let offset = end.next;
        end.next += 1;
        let first = match end.attempts.iter_mut().find(|(other, _)| other.call == attempt.call) {
            Some((other, first)) if other == attempt => *first,
            Some(last) => {
                // the earlier attempt writes no more
                *last = (attempt.clone(), offset);
                offset
            }
            None => {
                end.attempts.push((attempt.clone(), offset));
                offset
            }
        };
        let entry = StreamEntry {
            offset,
            attempt_offset: first,
            step: attempt.path.clone(),
            value,
            written_at: self.engine.now(),
        };
        let append = Append { execution: self.key, stream: stream.clone(), entry };
        let lsn = self.stage_locked(&mut state, Write::Append(append.into()), reserved);
        drop(state);
        crate::crash_point!("stream value staged");
        Ok(lsn)
    }
}
