//! Administration of the schema: creates, migrates and checks it.

mod check;
pub(crate) mod migrate;
