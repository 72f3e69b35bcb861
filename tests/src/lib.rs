//! Whole-system tests of Stepfast: one suite for all stores.
//!
//! [`conformance`] says case by case what every store must do; a store joins it with a [`StoreFixture`].

#![allow(clippy::unwrap_used)] // this is test code

pub mod conformance;
pub mod fixture;
pub mod make;
pub mod worker;

pub use fixture::{MemoryFixture, StoreFixture};
pub use worker::Worker;
