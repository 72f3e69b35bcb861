//! Tokens, questions and streams: exchanges with the code of workflows.

pub(crate) mod question;
pub(crate) mod stream;
pub(crate) mod token;
