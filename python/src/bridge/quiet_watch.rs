//! [`QuietWatch`]: the runs of a loop that may become quiescent.

use stepfast::guest::RunControl;

/// Number of loop turns without activity after which an execution is quiescent although a branch waits for something
/// other than a durable call. In a chain of futures that set each other, each future takes one turn.
const QUIET_LOOP_TURNS: u32 = 8;

/// Runs that may become quiescent, checked in every turn of the loop.
#[derive(Default)]
pub(crate) struct QuietWatch {
    runs: Vec<WatchedRun>,
    /// Whether a check is scheduled for the loop's next turn.
    is_scheduled: bool,
}

/// A run with its activity at the last check.
struct WatchedRun {
    control: RunControl,
    activity: Option<u32>,
    /// The number of turns without activity.
    quiet_turns: u32,
}

impl QuietWatch {
    /// Adds a run. Returns true if the caller has to schedule a check.
    pub(crate) fn add(&mut self, control: RunControl) -> bool {
        self.runs.push(WatchedRun { control, activity: None, quiet_turns: 0 });
        !std::mem::replace(&mut self.is_scheduled, true)
    }

    /// Counts a turn of the loop. Removes the runs that are quiescent now, and returns them. Also returns whether the
    /// caller has to schedule another check.
    pub(crate) fn count_turn(&mut self) -> (Vec<RunControl>, bool) {
        let mut quiet = Vec::new();
        self.runs.retain_mut(|run| {
            let activity = run.control.activity();
            if activity.is_none() {
                return false;
            }
            run.quiet_turns = if activity == run.activity { run.quiet_turns + 1 } else { 0 };
            run.activity = activity;
            if run.quiet_turns < QUIET_LOOP_TURNS {
                return true;
            }
            quiet.push(run.control.clone());
            false
        });
        self.is_scheduled = !self.runs.is_empty();
        (quiet, self.is_scheduled)
    }
}
