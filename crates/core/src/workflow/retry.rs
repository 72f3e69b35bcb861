//! [`RetryPolicy`] and [`StepOptions`]: retries, time limit and speculation of a step.

use std::time::Duration;

use crate::error::Error;
use crate::failure::Failure;

/// A step's policy for retries: which failures are retried, how often, and after which pauses.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Maximum number of attempts after the first; 0 by default.
    pub retries: u32,
    /// The pause before the second attempt; 1 s by default.
    pub backoff: Duration,
    /// The factor by which each further pause grows, at least 1; 2 by default.
    pub backoff_factor: f64,
    /// The longest pause; 60 s by default.
    pub max_backoff: Duration,
    /// The share of a pause that is random, from 0 to 1. The default is 0.5, by which a pause of 4 s becomes 2 to 4 s.
    pub jitter: f64,
    /// A function that returns whether a failure may be retried. By default all [retryable](Failure::is_retryable)
    /// failures may be retried.
    pub retry_if: Option<fn(&Failure) -> bool>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 0,
            backoff: Duration::from_secs(1),
            backoff_factor: 2.0,
            max_backoff: Duration::from_secs(60),
            jitter: 0.5,
            retry_if: None,
        }
    }
}

impl RetryPolicy {
    /// Returns the pause after the failed attempt number `attempt`, counted from 1, before jitter: `min(backoff *
    /// backoff_factor^(attempt - 1), max_backoff)`.
    pub fn pause_after(&self, attempt: u32) -> Duration {
        if self.backoff.is_zero() {
            // zero times infinity is NaN
            return Duration::ZERO;
        }
        let factor = self.backoff_factor.max(1.0).powi(attempt.saturating_sub(1).min(1000) as i32);
        let seconds = self.backoff.as_secs_f64() * factor;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.max_backoff)
    }

    pub(super) fn jittered_pause_after(&self, attempt: u32) -> Duration {
        let share = 1.0 - self.jitter.clamp(0.0, 1.0) * fastrand::f64();
        // `Duration::MAX` does not survive the round trip through seconds
        Duration::try_from_secs_f64(self.pause_after(attempt).as_secs_f64() * share).unwrap_or(Duration::MAX)
    }

    /// Returns the pause between the failed attempt number `attempt` and the next one; `None` if no further attempt is
    /// allowed.
    pub(crate) fn pause_before_retry(&self, attempt: u32, failure: &Failure) -> Option<Duration> {
        self.allows_retry(attempt, failure).then(|| self.jittered_pause_after(attempt))
    }

    /// Returns an error if `backoff_factor` or `jitter` is out of bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { backoff_factor, jitter, .. } = self;
        let (input, reason) = if backoff_factor.is_nan() || *backoff_factor < 1.0 {
            ("backoff_factor", format!("is {backoff_factor}; it must be at least 1"))
        } else if !(0.0..=1.0).contains(jitter) {
            ("jitter", format!("is {jitter}; it must be from 0 to 1"))
        } else {
            return Ok(());
        };
        Err(Error::Invalid { input, reason })
    }

    pub(super) fn allows_retry(&self, attempt: u32, failure: &Failure) -> bool {
        attempt <= self.retries
            && failure.is_retryable
            && self.retry_if.is_none_or(|retry_if| retry_if(failure))
    }
}

/// A step's options.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions {
    /// The policy for retries; a single attempt by default.
    pub retry: RetryPolicy,
    /// The time limit of one attempt; no limit by default.
    pub timeout: Option<Duration>,
    /// Whether the body may run before the checkpoints of earlier steps are durable.
    pub is_speculative: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_pauses_grow_to_maximum_and_jitter_shortens() {
        let policy = RetryPolicy { retries: 9, ..RetryPolicy::default() };
        let pauses: Vec<u64> = (1..9).map(|attempt| policy.pause_after(attempt).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(policy.pause_after(u32::MAX), Duration::from_secs(60));
        for attempt in 1..9 {
            let (pause, jittered) = (policy.pause_after(attempt), policy.jittered_pause_after(attempt));
            assert!(jittered <= pause && jittered >= pause / 2);
        }
        let unlimited =
            RetryPolicy { backoff: Duration::MAX, max_backoff: Duration::MAX, jitter: 0.0, ..policy };
        assert_eq!(unlimited.jittered_pause_after(1), Duration::MAX);
    }

    #[test]
    fn retry_policy_keeps_zero_pause_and_rejects_bad_numbers() {
        let policy =
            RetryPolicy { backoff: Duration::ZERO, backoff_factor: f64::INFINITY, ..RetryPolicy::default() };
        assert_eq!((policy.pause_after(1), policy.pause_after(9)), (Duration::ZERO, Duration::ZERO));
        assert!(policy.check().is_ok());
        for backoff_factor in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.5] {
            let error = RetryPolicy { backoff_factor, ..policy }.check().unwrap_err().to_string();
            assert!(error.starts_with("backoff_factor: is ") && error.contains("at least 1"), "{error}");
        }
        for jitter in [f64::NAN, f64::INFINITY, -0.5, 1.5] {
            let error = RetryPolicy { jitter, ..policy }.check().unwrap_err().to_string();
            assert!(error.starts_with("jitter: is ") && error.contains("0 to 1"), "{error}");
        }
    }

    #[test]
    fn retry_policy_limits_attempts_and_failures() {
        let policy = RetryPolicy { retries: 2, ..RetryPolicy::default() };
        let failure = Failure::new("x");
        assert!(
            policy.allows_retry(1, &failure)
                && policy.allows_retry(2, &failure)
                && !policy.allows_retry(3, &failure)
        );
        assert!(!policy.allows_retry(1, &failure.clone().permanent()));
        let restricted = RetryPolicy { retry_if: Some(|failure| failure.message == "again"), ..policy };
        assert!(restricted.allows_retry(1, &Failure::new("again")) && !restricted.allows_retry(1, &failure));
        let steady = RetryPolicy { jitter: 0.0, ..policy };
        let pauses = [1, 2, 3].map(|attempt| steady.pause_before_retry(attempt, &failure));
        assert_eq!(pauses, [Some(Duration::from_secs(1)), Some(Duration::from_secs(2)), None]);
    }
}
