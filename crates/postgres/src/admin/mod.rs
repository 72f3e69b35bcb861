//! Administration of the schema: creates, migrates and checks it, and grants privileges to roles.

pub(crate) mod check;
pub(crate) mod migrate;
pub(crate) mod prepare;
pub(crate) mod privileges;
pub(crate) mod role;
pub(crate) mod schema_state;
