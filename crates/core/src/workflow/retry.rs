//! [`RetryPolicy`] and [`StepOptions`]: how a step is carried out.

use std::time::Duration;

use crate::error::Error;
use crate::failure::Failure;

/// When and how a failed attempt of a step is followed by another.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Attempts after the first; 0 by default.
    pub retries: u32,
    /// Pause before the second attempt; 1 s by default.
    pub backoff: Duration,
    /// What each further pause is multiplied by, at least 1; 2 by default.
    pub factor: f64,
    /// Longest pause; 60 s by default.
    pub max_backoff: Duration,
    /// Share of the pause that is random, 0 to 1; 0.5 by default: a pause of 4 s becomes 2 to 4 s.
    pub jitter: f64,
    /// Whether an error may be retried; all that are [retryable](Failure::is_retryable) by default.
    pub retry_if: Option<fn(&Failure) -> bool>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 0,
            backoff: Duration::from_secs(1),
            factor: 2.0,
            max_backoff: Duration::from_secs(60),
            jitter: 0.5,
            retry_if: None,
        }
    }
}

impl RetryPolicy {
    /// The pause after failed attempt number `attempt` (from 1), before jitter:
    /// `min(backoff * factor^(attempt - 1), max_backoff)`.
    pub fn pause_after(&self, attempt: u32) -> Duration {
        if self.backoff.is_zero() {
            // zero times infinity is no number
            return Duration::ZERO;
        }
        let factor = self.factor.max(1.0).powi(attempt.saturating_sub(1).min(1000) as i32);
        let seconds = self.backoff.as_secs_f64() * factor;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.max_backoff)
    }

    pub(super) fn jittered(&self, attempt: u32) -> Duration {
        let share = 1.0 - self.jitter.clamp(0.0, 1.0) * fastrand::f64();
        // the longest pause there is does not survive a round trip
        Duration::try_from_secs_f64(self.pause_after(attempt).as_secs_f64() * share).unwrap_or(Duration::MAX)
    }

    /// Returns an error for a factor or a jitter that is out of bounds.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { factor, jitter, .. } = self;
        let (what, reason) = if factor.is_nan() || *factor < 1.0 {
            ("factor", format!("is {factor}; it must be at least 1"))
        } else if !(0.0..=1.0).contains(jitter) {
            ("jitter", format!("is {jitter}; it must be from 0 to 1"))
        } else {
            return Ok(());
        };
        Err(Error::Invalid { what, reason })
    }

    pub(super) fn allows(&self, attempt: u32, failure: &Failure) -> bool {
        attempt <= self.retries
            && failure.is_retryable
            && self.retry_if.is_none_or(|retry_if| retry_if(failure))
    }
}

/// How a step is carried out.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions {
    /// When a failed attempt is followed by another.
    pub retry: RetryPolicy,
    /// Longest an attempt may take; no limit by default.
    pub timeout: Option<Duration>,
    /// True if the body may run before the checkpoints of earlier steps are durable.
    pub is_speculative: bool,
}
