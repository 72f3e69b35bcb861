//! Schedules: how an engine or a client sets, changes and shows them.

pub(crate) mod schedules;
