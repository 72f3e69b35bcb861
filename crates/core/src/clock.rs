//! Instants, and the one seam through which a store learns what time it is.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// An instant: microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant, `duration` later (saturating).
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// This instant, `duration` earlier (saturating).
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this instant; zero if it is not earlier.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

/// The longest time that limits and delays count: a hundred years. What is longer counts as this, in every store.
pub const MAX_STORED_DURATION: Duration = Duration::from_hours(100 * 366 * 24);

/// Returns a limit or a delay as stores keep it: milliseconds, at most those of [`LONGEST`].
pub fn stored_millis(duration: Duration) -> i64 {
    i64::try_from(duration.min(MAX_STORED_DURATION).as_millis()).unwrap_or(i64::MAX)
}

impl Timestamp {
    /// Returns this instant, or the nearest one within [`LONGEST`] of `now`.
    #[must_use]
    pub fn clamp_near(self, now: Timestamp) -> Self {
        self.clamp(now.minus(MAX_STORED_DURATION), now.plus(MAX_STORED_DURATION))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Returns the time since the machine has started, counting the time for which it was suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn time_since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Returns the time since the machine has started. Elsewhere than on Linux the monotonic clock may stand still while the
/// machine is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Where a store takes "now" from: the machine's clock, unless a test sets another.
///
/// A store on a server asks the server instead; a clock given to it replaces that.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
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

/// A clock that stands still until it is moved: for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as i64, Relaxed);
    }

    /// Moves the clock back, as an operator may.
    pub fn set_back(&self, by: Duration) {
        self.0.fetch_sub(by.as_micros() as i64, Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Relaxed))
    }
}
