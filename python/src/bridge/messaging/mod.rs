//! Messages of steps, tokens, questions and streams: exchanges with the code of workflows.

pub(crate) mod question;
pub(crate) mod step;
pub(crate) mod stream;
pub(crate) mod token;
