//! The continuation of an execution as new: its code begins again with another input, and replays nothing before.

use std::convert::Infallible;

use serde::Serialize;

use crate::error::Error;
use crate::failure::Failure;
use crate::path::Path;
use crate::payload::Payload;
use crate::runtime::run::Interrupt;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::CheckpointKind;
use crate::workflow::context::Context;
use crate::workflow::step_execution::store_payload;

/// The name of the call in the record.
const NAME: &str = "continue_as_new";

impl Context {
    /// Ends this part of the execution, and begins the next one: the code of the workflow runs again, from its beginning,
    /// with this input. The workflow_id, pending messages, events, streams and attributes stay, and so does the record. A
    /// replay begins with the last part, so an execution that receives messages for months stays cheap.
    ///
    /// The call returns only if it fails: `return cx.continue_as_new(&input).await`. Branches that still run are dropped.
    /// Children continue; the next part does not wait for them. A deadline counts from the start of the execution.
    ///
    /// # Errors
    ///
    /// The call fails if the input is too large or cannot be encoded, or after eight million parts.
    pub async fn continue_as_new<I: Serialize + ?Sized, O>(&mut self, input: &I) -> Result<O, Failure> {
        let input = Payload::encode(input).map_err(|error| error.to_failure())?;
        let call = self.begin_continuation(&input).map_err(|error| error.to_failure())?;
        match continue_as_new(&call, input).await {}
    }

    /// Begins the call that ends this part.
    pub(crate) fn begin_continuation(&self, input: &Payload) -> Result<Call, Error> {
        let run = &self.run;
        let (size, limit) = (input.len(), run.engine.options.value_limit);
        if size > limit {
            return Err(Error::TooLarge { value: "the input of the next part".to_owned(), size, limit });
        }
        // a call that the code abandons takes a number, too
        let part = run.state().calls.count_continuation();
        let Some(path) = Path::of_part(part) else {
            let reason = format!("it has {part} parts already; start another execution");
            return Err(Error::Invalid { input: "execution", reason });
        };
        Ok(Call::begin(run, path, &NAME.into(), CallKind::Continue, None))
    }
}

/// Runs a call that ends a part of the execution. The run ends before the call returns.
pub(crate) async fn continue_as_new(call: &Call, input: Payload) -> Infallible {
    // a recorded call was abandoned, and is dropped again
    call.wait_recorded().await;
    let run = &call.run;
    // the record of the next part needs a row of its own
    run.stage_row();
    let (input, reserved) = store_payload(call, input).await;
    call.deliver(CheckpointKind::Continued, input, reserved).await;
    crate::crash_point!("continuation staged");
    run.interrupt(Interrupt::Continue);
    std::future::pending().await
}
