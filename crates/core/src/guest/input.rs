//! [`GuestInput`]: the input of a guest's workflow.

use crate::payload::Payload;
use crate::workflow::Workflow;

/// The input of a guest's workflow.
#[derive(Clone, Debug)]
pub struct GuestInput {
    /// The input as it is recorded.
    pub payload: Payload,
    /// The fingerprint of the input; `None` for the fingerprint of the payload. A language with several spellings of
    /// one call gives all of them the same fingerprint.
    pub fingerprint: Option<u64>,
}

impl From<Payload> for GuestInput {
    fn from(payload: Payload) -> Self {
        Self { payload, fingerprint: None }
    }
}

impl GuestInput {
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint.unwrap_or_else(|| self.payload.fingerprint())
    }
}

/// A workflow of a guest.
pub type GuestWorkflow = Workflow<Payload, Payload>;
