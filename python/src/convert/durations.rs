//! Durations that Python passes in seconds.

use std::time::Duration;

/// Returns the duration of these seconds; the longest one for more than it can hold.
pub(crate) fn duration_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
