//! Crashes: processes that are killed, disks that fail, power that is cut, and checks of the promises after each.

pub mod child;
pub mod crash_points;
pub mod disk;
pub mod harness;
pub mod leftovers;
pub mod power;
pub mod promises;
pub mod role_process;
pub mod vfs;
