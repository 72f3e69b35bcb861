//! Schedules: a schedule starts an execution of a workflow at each of its instants.
//!
//! A schedule is itself an execution: of the built-in workflow `stepfast.schedule`, with the id `schedule:NAME`. That execution
//! waits for the next instant as for any other timer. So exactly one worker runs a schedule at a time, a takeover continues
//! it, and a schedule that waits costs a row. Changes reach the schedule as messages.

mod code;
mod decision;
mod declaration;
mod policy;
mod state;
mod timing;
mod view;

pub(crate) use code::schedule_workflow;
pub use declaration::{SCHEDULE_ATTRIBUTE, Schedule, instant_of};
pub(crate) use declaration::{SCHEDULE_WORKFLOW, check_schedule_name, schedule_id};
pub use policy::{CatchUp, Overlap};
pub(crate) use state::{REQUEST_TOPIC, ScheduleRequest, ScheduleState};
pub use state::{SchedulePause, ScheduleView};
pub(crate) use timing::Instants;
pub(crate) use view::{RecordedPart, fold_part};
