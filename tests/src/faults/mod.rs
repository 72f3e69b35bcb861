//! Faults between an engine and its database: a store that fails on request, and proxies that stall or lose traffic.

pub mod fault_store;
pub mod lossy_proxy;
pub mod stalling_proxy;
