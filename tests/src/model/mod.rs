//! Random histories, programs, graphs and interleavings, compared with the memory store as the model.

pub mod actions;
pub mod differential;
mod exchanges;
mod gated_engine;
mod graph_reference;
pub mod histories;
pub mod interleavings;
pub mod queue_histories;
pub mod random_graphs;
pub mod random_programs;
mod recorded_calls;
