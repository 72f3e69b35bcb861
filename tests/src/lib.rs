//! Whole-system tests of Stepfast: one suite for all stores.
//!
//! [`conformance`] says case by case what every store must do; a store joins it with a [`StoreFixture`].
//! [`history`] makes up what may happen, and [`twins`] lets it happen to several stores in step.
//! [`rig`] kills processes that play [`victim`], and [`check`] asks what the promises are worth.

#![allow(clippy::unwrap_used)] // this is test code

pub mod acts;
mod cases;
pub mod chaos;
pub mod check;
pub mod clock;
pub mod conformance;
pub mod crash_points;
pub mod disk;
pub mod fault_store;
pub mod fixture;
pub mod history;
pub mod interleaving;
pub mod later;
pub mod leftovers;
pub mod make;
pub mod pooler;
pub mod postgres_server;
pub mod power;
pub mod program;
pub mod queueing;
pub mod rig;
pub mod rooms;
pub mod scenarios;
pub mod standing_proxy;
pub mod twins;
pub mod vfs;
pub mod victim;
pub mod worker;

pub use fixture::{Fresh, GOING, STORES, StoreFixture};
pub use worker::Worker;
