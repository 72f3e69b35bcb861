//! Whole-system tests of Stepfast: one suite for all stores.
//!
//! [`conformance`] contains the contract of a store, case by case; [`engine`] contains the behaviour of an engine as a
//! program sees it. A store joins both suites with a [`StoreFixture`]. [`model`] compares random histories between
//! stores. [`crash`] kills processes and checks the promises; [`chaos`] does so under load.

#![allow(clippy::unwrap_used)] // this is test code

pub mod chaos;
pub mod conformance;
pub mod crash;
pub mod engine;
pub mod faults;
pub mod fixtures;
pub mod model;
pub mod rooms;

pub use fixtures::registration::Worker;
pub use fixtures::stores::{FixtureFactory, STORES, STORES_WITH_RUNNING_CLOCK, StoreFixture};
