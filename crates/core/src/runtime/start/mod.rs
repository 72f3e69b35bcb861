//! The parts of every start, in programs and in workflows: its options, their builder methods, and the lock of its id.

pub(crate) mod id_locks;
pub(crate) mod option_methods;
pub(crate) mod options;
