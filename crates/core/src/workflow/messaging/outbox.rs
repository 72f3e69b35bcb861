//! [`OutboxMessage`]: a message that an outbox writes in a transaction of its caller, and the built-in workflow that sends it.

use std::sync::OnceLock;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::failure::Failure;
use crate::name_checks::{MAX_ID_BYTES, check_text};
use crate::payload::Payload;
use crate::runtime::messaging::{check_message_id, check_message_size, check_topic};
use crate::workflow::Workflow;
use crate::workflow::context::Context;
use crate::workflow::messaging::send::{OutgoingMessage, send};

/// The name of the built-in workflow that sends the messages of outboxes.
pub const SEND_WORKFLOW: &str = "stepfast.send";

/// A message of an outbox. The transaction of the caller starts the built-in workflow that sends the message.
#[derive(Serialize, Deserialize)]
pub struct OutboxMessage {
    workflow_id: String,
    topic: String,
    message_id: Option<String>,
    keeps: bool,
    /// The value, encoded.
    value: Bytes,
}

impl OutboxMessage {
    /// Returns the encoded input of the workflow that sends this message.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a value above 64 KiB, and for a topic or an id that no message can have.
    pub fn encode_input(
        workflow_id: String,
        topic: String,
        message_id: Option<String>,
        keeps: bool,
        value: &Payload,
    ) -> Result<Payload, Error> {
        check_text("workflow_id", &workflow_id, MAX_ID_BYTES)?;
        check_topic(&topic)?;
        if let Some(id) = &message_id {
            check_message_id(id)?;
        }
        check_message_size(&topic, value)?;
        let value = Bytes::copy_from_slice(value.as_bytes());
        Payload::encode(&Self { workflow_id, topic, message_id, keeps, value })
    }
}

/// Returns the built-in workflow that sends the messages of outboxes.
pub(crate) fn send_workflow() -> &'static Workflow<OutboxMessage, ()> {
    static WORKFLOW: OnceLock<Workflow<OutboxMessage, ()>> = OnceLock::new();
    WORKFLOW.get_or_init(|| Workflow::new(SEND_WORKFLOW, send_outbox_message))
}

async fn send_outbox_message(mut cx: Context, message: OutboxMessage) -> Result<(), Failure> {
    let OutboxMessage { workflow_id, topic, message_id, keeps, value } = message;
    let message = OutgoingMessage {
        topic: topic.into(),
        id: message_id.map(Into::into),
        keeps,
        ..OutgoingMessage::new(workflow_id, Ok(Payload::from_bytes(value)))
    };
    let call = cx.begin_send(&message.topic).map_err(|error| error.to_failure())?;
    send(&call, message).await
}
