//! Tokens and questions: answers to the code of workflows, and from it.

pub(crate) mod question;
pub(crate) mod token;
