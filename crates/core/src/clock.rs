//! [`Timestamp`]: an instant. [`Clock`]: the one interface through which a store reads the time.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// An instant, in microseconds since the Unix epoch (UTC).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the instant `duration` after this one (saturating).
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the instant `duration` before this one (saturating).
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

/// Maximum stored time limit or delay: a hundred years. Every store reduces a longer one to this value.
pub const MAX_STORED_DURATION: Duration = Duration::from_hours(100 * 366 * 24);

/// Converts a time limit or a delay to its stored form: milliseconds, at most [`MAX_STORED_DURATION`].
pub fn stored_millis(duration: Duration) -> i64 {
    i64::try_from(duration.min(MAX_STORED_DURATION).as_millis()).unwrap_or(i64::MAX)
}

impl Timestamp {
    /// Returns the instant within [`MAX_STORED_DURATION`] of `now` that is nearest to this one.
    #[must_use]
    pub fn clamp_near(self, now: Timestamp) -> Self {
        self.clamp(now.minus(MAX_STORED_DURATION), now.plus(MAX_STORED_DURATION))
    }
}

/// The format of RFC 3339, in UTC.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(instant) => fmt::Display::fmt(&instant, f),
            Err(_) => write!(f, "{self:?}"),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Returns the time since the machine started, including the time for which it was suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn time_since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Returns the time since the machine started. This clock may stop while the machine is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn time_since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The source of a store's current time: the machine's clock, unless a test sets another one.
///
/// A store on a database server uses the server's clock instead. A test's clock replaces the server's clock too.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place that reads the wall clock
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp(since.as_micros() as i64)
    }
}

/// A clock for tests: it changes only when a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as i64, Relaxed);
    }

    /// Moves the clock back, as an operator may do.
    pub fn set_back(&self, by: Duration) {
        self.0.fetch_sub(by.as_micros() as i64, Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Relaxed))
    }
}
