//! Crash points: positions in the code at which a test can kill the process; see the macro `crash_point`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use nix::sys::signal::{Signal, raise};

/// Whether this process is to crash: 0 before the environment was read, 1 for no, 2 for yes.
static MODE: AtomicU8 = AtomicU8::new(0);
/// The crash point of this process, from `STEPFAST_CRASH`; `None` if the variable is not set or cannot be parsed.
static TARGET: OnceLock<Option<CrashTarget>> = OnceLock::new();

/// The crash point at which the process is killed, and the number of passages that remain until then.
struct CrashTarget {
    name: String,
    remaining: AtomicU64,
}

/// Passes the crash point `name`, and kills the process if this passage is the one that the test has chosen.
#[inline]
pub fn pass(name: &str) {
    if MODE.load(Ordering::Relaxed) != 1 {
        check_target(name);
    }
}

#[cold]
fn check_target(name: &str) {
    let target = TARGET.get_or_init(|| {
        let text = std::env::var("STEPFAST_CRASH").ok()?;
        let (name, n) = text.rsplit_once(':')?;
        Some(CrashTarget { name: name.to_owned(), remaining: AtomicU64::new(n.parse().ok()?) })
    });
    let Some(target) = target else {
        MODE.store(1, Ordering::Relaxed);
        return;
    };
    MODE.store(2, Ordering::Relaxed);
    if target.name == name && target.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
        let _ = raise(Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}
