//! Support for whole-system tests: one suite for all stores.

pub mod postgres_server;
