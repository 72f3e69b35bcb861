//! [`SendFromWorkflow`]: a durable call that sends a message to another execution.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Error;
use crate::failure::Failure;
use crate::payload::Payload;
use crate::runtime::messaging::{DEFAULT_TOPIC, check_topic};
use crate::runtime::run::Run;
use crate::runtime::run::call::Call;
use crate::runtime::run::replay::CallKind;
use crate::store::{CheckpointKind, Outcome, Write};
use crate::workflow::context::Context;
use crate::workflow::messaging::lookup::find_other;

/// A durable call that sends a message to an execution. Made by [`Context::send`].
#[must_use = "nothing is sent before the call is awaited"]
pub struct SendFromWorkflow<'c> {
    context: &'c mut Context,
    workflow_id: String,
    value: Result<Payload, Error>,
    topic: Arc<str>,
}

impl Context {
    /// Sends a message to the execution with this workflow_id, once: a replay does not send the message again. The call
    /// returns when the message is durable.
    ///
    /// # Errors
    ///
    /// The call fails if the execution does not exist or has ended.
    pub fn send<T: serde::Serialize + ?Sized>(
        &mut self,
        workflow_id: impl Into<String>,
        value: &T,
    ) -> SendFromWorkflow<'_> {
        SendFromWorkflow {
            context: self,
            workflow_id: workflow_id.into(),
            value: Payload::encode(value),
            topic: DEFAULT_TOPIC.into(),
        }
    }

    /// Begins the call that sends a message of a topic. Takes the path of the call in any case.
    pub(crate) fn begin_send(&mut self, topic: Arc<str>) -> Result<(Call, Arc<str>), Error> {
        let path = self.next_path();
        check_topic(&topic)?;
        Ok((Call::begin(&self.run, path, &topic.clone().into(), CallKind::Send, None), topic))
    }
}

impl SendFromWorkflow<'_> {
    /// Sends the message under this topic. Default: the topic `default`.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topic = topic.into();
        self
    }

    async fn send(self) -> Result<(), Failure> {
        let begun = self.context.begin_send(self.topic);
        let (call, topic) = begun.map_err(|error| error.to_failure())?;
        send(&call, &self.workflow_id, self.value, topic).await
    }
}

impl<'c> IntoFuture for SendFromWorkflow<'c> {
    type Output = Result<(), Failure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Runs a call that sends a message.
pub(crate) async fn send(
    call: &Call,
    workflow_id: &str,
    value: Result<Payload, Error>,
    topic: Arc<str>,
) -> Result<(), Failure> {
    if let Some(recorded) = call.wait_recorded().await {
        return match recorded.kind {
            CheckpointKind::Failed => Err(recorded.outcome.to_failure()),
            _ => Ok(()),
        };
    }
    let run = &call.run;
    let sent = async {
        let receiver = find_other(call, workflow_id, || run.engine.find_receiver(workflow_id)).await?;
        let mut message =
            run.engine.new_message(receiver, topic, Some(message_id(run, call).into()), value?)?;
        message.is_owned = true;
        let reserved = call.reserve_row(&message.value).await;
        let Some(lsn) = run.stage(Write::Send(message.into()), reserved) else { return Ok(None) };
        Ok(Some(run.lane().wait_durable(lsn).await))
    };
    let result = match sent.await {
        Err(error) => Err(error),
        Ok(Some(Outcome::Applied | Outcome::AlreadySent)) => Ok(()),
        Ok(None | Some(Outcome::Fenced | Outcome::Dropped)) => std::future::pending().await,
        Ok(Some(outcome)) => Err(run.engine.send_error(workflow_id, outcome)),
    };
    crate::crash_point!("message sent and not recorded");
    match result {
        Ok(()) => {
            call.deliver(CheckpointKind::Sent, Payload::empty(), 0).await;
            Ok(())
        }
        Err(error) => {
            let failure = error.to_failure();
            call.deliver_failure(&failure).await;
            Err(failure)
        }
    }
}

/// Returns the id of the message that a call sends. A replay of the call sends the same id.
fn message_id(run: &Run, call: &Call) -> String {
    // the control character keeps the id apart from those of callers
    format!("\u{1}{}/{}/{}", run.key, run.run_no, call.path)
}
