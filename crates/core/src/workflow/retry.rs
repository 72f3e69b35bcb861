//! [`RetryPolicy`], [`Pauses`] and [`StepOptions`]: retries, time limit and speculation of a step.

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
    /// The kind of the pauses; [`Pauses::Exponential`] by default.
    pub pauses: Pauses,
    /// The share of a pause that is random, from 0 to 1. The default is 0.5, by which a pause of 4 s becomes 2 to 4 s.
    pub jitter: f64,
    /// A function that returns whether a failure may be retried. By default all [retryable](Failure::is_retryable)
    /// failures may be retried.
    pub retry_if: Option<fn(&Failure) -> bool>,
}

/// The kind of the pauses of a [`RetryPolicy`].
#[derive(Clone, Copy, Debug, Default)]
pub enum Pauses {
    /// Each pause is `backoff_factor` times longer than the one before it. The first one is `backoff`.
    #[default]
    Exponential,
    /// Each pause is longer by this time than the one before it. The first one is `backoff`.
    Linear(Duration),
    /// The pauses after the first, second and further failed attempts. The last one is repeated.
    Listed(&'static [Duration]),
    /// The function returns the pause for the number of the failed attempt, counted from 1.
    Custom(fn(u32) -> Duration),
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 0,
            backoff: Duration::from_secs(1),
            backoff_factor: 2.0,
            max_backoff: Duration::from_secs(60),
            pauses: Pauses::Exponential,
            jitter: 0.5,
            retry_if: None,
        }
    }
}

impl RetryPolicy {
    /// Returns a policy with equal pauses. `max_backoff` is unlimited.
    pub fn fixed(pause: Duration) -> Self {
        Self { backoff: pause, backoff_factor: 1.0, max_backoff: Duration::MAX, ..Self::default() }
    }

    /// Returns a policy whose first pause is `first`. Each further pause is longer by `increment`, up to `max_backoff`.
    pub fn linear(first: Duration, increment: Duration) -> Self {
        Self { backoff: first, pauses: Pauses::Linear(increment), ..Self::default() }
    }

    /// Returns a policy whose first pause is `first`. Each further pause is `factor` times longer, up to `max_backoff`.
    pub fn exponential(first: Duration, factor: f64) -> Self {
        Self { backoff: first, backoff_factor: factor, ..Self::default() }
    }

    /// Returns a policy with the pauses of a list, whose last pause is repeated. `max_backoff` is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use stepfast_core::RetryPolicy;
    ///
    /// const PAUSES: &[Duration] = &[Duration::from_secs(1), Duration::from_secs(60)];
    /// let policy = RetryPolicy { retries: 5, ..RetryPolicy::listed(PAUSES) };
    /// assert_eq!(policy.pause_after(5), Duration::from_secs(60));
    /// ```
    pub fn listed(pauses: &'static [Duration]) -> Self {
        Self { pauses: Pauses::Listed(pauses), max_backoff: Duration::MAX, ..Self::default() }
    }

    /// Returns a policy whose pauses a function returns for the number of the failed attempt, counted from 1. The
    /// function is called after each failed attempt, and again after a crash. `max_backoff` is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use stepfast_core::RetryPolicy;
    ///
    /// let policy = RetryPolicy::custom(|attempt| Duration::from_secs(u64::from(attempt).pow(2)));
    /// assert_eq!(policy.pause_after(3), Duration::from_secs(9));
    /// ```
    pub fn custom(pause_after: fn(u32) -> Duration) -> Self {
        Self { pauses: Pauses::Custom(pause_after), max_backoff: Duration::MAX, ..Self::default() }
    }

    /// Returns the pause after the failed attempt number `attempt`, counted from 1, before jitter. The pause depends on
    /// [`pauses`](Self::pauses), and is at most `max_backoff`.
    pub fn pause_after(&self, attempt: u32) -> Duration {
        let earlier = attempt.saturating_sub(1);
        let pause = match self.pauses {
            Pauses::Exponential => self.exponential_pause(earlier),
            Pauses::Linear(increment) => self.backoff.saturating_add(increment.saturating_mul(earlier)),
            Pauses::Listed(pauses) => {
                let pause = pauses.get(earlier as usize).or(pauses.last());
                pause.copied().unwrap_or_default()
            }
            Pauses::Custom(pause_after) => pause_after(attempt.max(1)),
        };
        pause.min(self.max_backoff)
    }

    fn exponential_pause(&self, earlier: u32) -> Duration {
        if self.backoff.is_zero() {
            // zero times infinity is NaN
            return Duration::ZERO;
        }
        let factor = self.backoff_factor.max(1.0).powi(earlier.min(1000) as i32);
        Duration::try_from_secs_f64(self.backoff.as_secs_f64() * factor).unwrap_or(Duration::MAX)
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

    /// Returns an error if `backoff_factor` or `jitter` is out of bounds, or if the list of pauses is empty.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { backoff_factor, jitter, pauses, .. } = self;
        let (input, reason) = if backoff_factor.is_nan() || *backoff_factor < 1.0 {
            ("backoff_factor", format!("is {backoff_factor}; it must be at least 1"))
        } else if !(0.0..=1.0).contains(jitter) {
            ("jitter", format!("is {jitter}; it must be from 0 to 1"))
        } else if matches!(pauses, Pauses::Listed([])) {
            ("pauses", "is an empty list; the list needs at least one pause".to_owned())
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

    /// Returns the pauses after the first attempts, in seconds.
    fn seconds<const N: usize>(policy: RetryPolicy) -> [u64; N] {
        std::array::from_fn(|index| policy.pause_after(index as u32 + 1).as_secs())
    }

    const LISTED: &[Duration] = &[Duration::from_secs(5), Duration::from_secs(1), Duration::from_secs(300)];

    #[test]
    fn pauses_of_all_kinds_begin_at_the_first_attempt_and_end_at_the_longest() {
        let second = Duration::from_secs(1);
        let hours = RetryPolicy::fixed(second * 3600);
        let linear = RetryPolicy::linear(second, second * 20);
        let exponential = RetryPolicy::exponential(second * 2, 3.0);
        let custom = RetryPolicy::custom(|attempt| Duration::from_secs(u64::from(attempt) * 2));
        assert_eq!(seconds(hours), [3600, 3600, 3600, 3600]);
        assert_eq!(seconds(linear), [1, 21, 41, 60, 60]);
        assert_eq!(seconds(exponential), [2, 6, 18, 54, 60]);
        assert_eq!(seconds(RetryPolicy::listed(LISTED)), [5, 1, 300, 300, 300]);
        assert_eq!(seconds(custom), [2, 4, 6, 8, 10]);
        for policy in [hours, linear, exponential, RetryPolicy::listed(LISTED), custom] {
            assert_eq!(policy.pause_after(0), policy.pause_after(1));
            assert!(policy.check().is_ok() && policy.jittered_pause_after(4) <= policy.pause_after(4));
            let limited = RetryPolicy { max_backoff: second, ..policy };
            assert_eq!(limited.pause_after(4), second);
        }
        assert_eq!(linear.pause_after(u32::MAX), second * 60);
        assert_eq!(exponential.pause_after(u32::MAX), second * 60);
        assert_eq!(RetryPolicy::listed(LISTED).pause_after(u32::MAX), second * 300);
        assert_eq!(custom.pause_after(u32::MAX).as_secs(), u64::from(u32::MAX) * 2);
        let longest =
            RetryPolicy { max_backoff: Duration::MAX, ..RetryPolicy::linear(second, Duration::MAX) };
        assert_eq!((longest.pause_after(1), longest.pause_after(u32::MAX)), (second, Duration::MAX));
    }

    #[test]
    fn empty_list_of_pauses_is_rejected() {
        let policy = RetryPolicy::listed(&[]);
        let error = policy.check().unwrap_err().to_string();
        assert!(error.starts_with("pauses: is an empty list"), "{error}");
        assert_eq!(policy.pause_after(1), Duration::ZERO);
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
