//! The schema: made, brought up to date, checked, and opened to roles.

pub(crate) mod check;
pub(crate) mod migrate;
pub(crate) mod prepare;
pub(crate) mod privileges;
pub(crate) mod role;
pub(crate) mod schema_state;
