//! Strikes of executions that seem to kill their workers, and how long such executions stay in quarantine.

use std::time::Duration;

/// So many recoveries in a row without a new checkpoint put an execution in quarantine.
pub const QUARANTINE_STRIKES: u32 = 3;

/// The strikes of an execution after one more recovery; see [`Execution::strikes`](crate::store::Execution::strikes). `has_got_on`: there is
/// more recorded of it than at the recovery before. `was_alone`: it was the only one of the quarantine that its
/// worker tried.
pub fn next_strikes(strikes: u32, has_got_on: bool, was_alone: bool) -> u32 {
    match strikes {
        _ if has_got_on => 1,
        QUARANTINE_STRIKES.. if !was_alone => strikes,
        _ => strikes.saturating_add(1),
    }
}

/// How long an execution stays in quarantine before it is tried: none at first, then 1 s, twice as long each time,
/// at most a minute.
pub fn quarantine_delay(strikes: u32) -> Duration {
    match strikes.checked_sub(QUARANTINE_STRIKES + 1) {
        None => Duration::ZERO,
        Some(times) => Duration::from_secs(1 << times.min(6)).min(Duration::from_secs(60)),
    }
}
