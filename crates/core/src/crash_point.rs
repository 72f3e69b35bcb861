//! Points at which a test can kill the process: see the macro `crash_point`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use nix::sys::signal::{Signal, raise};

/// 0: nobody has looked yet. 1: this process is not to crash. 2: it is.
static MODE: AtomicU8 = AtomicU8::new(0);
static TARGET: OnceLock<Option<CrashTarget>> = OnceLock::new();

/// The point, and how many passages of it are left.
struct CrashTarget {
    name: String,
    remaining: AtomicU64,
}

/// A passage of the point `name`.
#[inline]
pub fn pass(name: &str) {
    if MODE.load(Ordering::Relaxed) != 1 {
        check_target(name);
    }
}

#[cold]
fn check_target(name: &str) {
    let armed = TARGET.get_or_init(|| {
        let text = std::env::var("STEPFAST_CRASH").ok()?;
        let (name, n) = text.rsplit_once(':')?;
        Some(CrashTarget { name: name.to_owned(), remaining: AtomicU64::new(n.parse().ok()?) })
    });
    let Some(armed) = armed else {
        MODE.store(1, Ordering::Relaxed);
        return;
    };
    MODE.store(2, Ordering::Relaxed);
    if armed.name == name && armed.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
        let _ = raise(Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}
