//! [`TestClock`]: the clock of a fixture: it stands still or goes with the machine's, and can be put forward.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use stepfast_core::clock::{Clock, SystemClock, Timestamp};

/// A clock that a test can put forward.
#[derive(Debug)]
pub struct TestClock {
    micros: AtomicI64,
    is_running: bool,
}

impl TestClock {
    /// A clock that stands at `now`.
    pub fn standing(now: Timestamp) -> Self {
        Self { micros: AtomicI64::new(now.as_micros()), is_running: false }
    }

    /// The machine's clock.
    pub fn running() -> Self {
        Self { micros: AtomicI64::new(0), is_running: true }
    }

    /// Puts the clock forward.
    pub fn advance(&self, by: Duration) {
        self.micros.fetch_add(i64::try_from(by.as_micros()).unwrap(), SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let micros = self.micros.load(SeqCst);
        if self.is_running {
            SystemClock.now().plus(Duration::from_micros(micros.unsigned_abs()))
        } else {
            Timestamp::from_micros(micros)
        }
    }
}
