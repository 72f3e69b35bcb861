//! Batches: their submission, portion by portion, their handles and their results.

pub(crate) mod handle;
pub(crate) mod results;
pub(crate) mod submission;
