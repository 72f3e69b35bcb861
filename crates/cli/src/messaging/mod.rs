//! `stepfast message` and `stepfast event`: exchanges with executions.

pub(crate) mod event;
pub(crate) mod message;
