//! The rules of the quarantine: strikes of executions that seem to kill their workers, and the delay before they are
//! tried.

use std::time::Duration;

/// The number of strikes at which an execution enters quarantine.
pub const QUARANTINE_STRIKES: u32 = 3;

/// Returns the strikes of an execution after one more recovery; see
/// [`Execution::strikes`](crate::store::Execution::strikes).
///
/// `has_progressed` is true if the execution has more checkpoints or attempts than at the recovery before. `was_alone`
/// is true if its worker had claimed no other execution from quarantine with it.
pub fn next_strikes(strikes: u32, has_progressed: bool, was_alone: bool) -> u32 {
    match strikes {
        _ if has_progressed => 1,
        QUARANTINE_STRIKES.. if !was_alone => strikes,
        _ => strikes.saturating_add(1),
    }
}

/// Returns the delay before an execution in quarantine is tried. The first trial has no delay, the second one 1 s. Each
/// further strike doubles the delay, up to 60 s.
pub fn quarantine_delay(strikes: u32) -> Duration {
    match strikes.checked_sub(QUARANTINE_STRIKES + 1) {
        None => Duration::ZERO,
        Some(times) => Duration::from_secs(1 << times.min(6)).min(Duration::from_secs(60)),
    }
}
