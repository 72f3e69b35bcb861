//! `stepfast bench sleepers` and `stepfast bench schedules`.

mod schedules;
mod sleepers;

pub(super) use schedules::SchedulesArgs;
pub(super) use sleepers::SleepersArgs;
