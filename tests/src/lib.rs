//! Whole-system tests of Stepfast: one suite for all stores.
//!
//! [`conformance`] says case by case what every store must do; a store joins it with a [`StoreFixture`].
//! [`history`] makes up what may happen, and [`twins`] lets it happen to several stores in step.

#![allow(clippy::unwrap_used)] // this is test code

pub mod acts;
pub mod clock;
pub mod conformance;
pub mod fault_store;
pub mod fixture;
pub mod history;
pub mod interleaving;
pub mod make;
pub mod postgres_server;
pub mod program;
pub mod scenarios;
pub mod standing_proxy;
pub mod twins;
pub mod worker;

pub use fixture::{Fresh, GOING, STORES, StoreFixture};
pub use worker::Worker;
