//! [`Pace`]: how many executions end in a time.

use std::time::Duration;

use tokio::time::Instant;

/// Ends are counted in spans of this length.
const SPAN: Duration = Duration::from_millis(250);
/// A pace is that of so many spans.
const SPANS: u32 = 4;
/// What counts as back.
const BACK: f64 = 0.9;

/// When executions have ended.
#[derive(Debug, Default)]
pub struct Pace {
    ends: Vec<Instant>,
}

/// What a fault did to the pace, in executions per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dent {
    /// Right before it.
    pub before: f64,
    /// While it lasted.
    pub during: f64,
    /// From when it was back, else since the fault.
    pub after: f64,
    /// From the end of the fault until the pace was back at 90 % of what it was before it.
    pub back: Option<Duration>,
}

impl Pace {
    /// One has ended.
    pub fn end(&mut self, at: Instant) {
        self.ends.push(at);
    }

    /// How many have.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// How many ended per second.
    pub fn rate(&self, from: Instant, to: Instant) -> f64 {
        let count = self.ends.iter().filter(|at| (from..to).contains(at)).count();
        count as f64 / to.duration_since(from).as_secs_f64().max(1e-9)
    }

    /// What the fault from `begun` to `over` did, seen from `since` until now.
    pub fn dent(&self, since: Instant, begun: Instant, over: Instant) -> Dent {
        let now = Instant::now();
        let before = self.rate(since, begun);
        let spans = (now.duration_since(over).as_millis() / SPAN.as_millis()) as u32 + 1;
        let back = (SPANS..spans)
            .map(|n| over + SPAN * (n - SPANS))
            .find(|from| self.rate(*from, *from + SPAN * SPANS) >= BACK * before);
        Dent {
            before,
            during: self.rate(begun, over),
            after: self.rate(back.unwrap_or(over), now),
            back: back.map(|at| at.duration_since(over)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_back_with_the_first_second_that_is_as_good() {
        let millis = Duration::from_millis;
        let since = Instant::now().checked_sub(millis(20_000)).unwrap();
        let (begun, over) = (since + millis(4000), since + millis(6000));
        let mut pace = Pace::default();
        // 100 a second, half of it during the fault, nothing for 3 s after it
        for n in 0..400 {
            pace.end(since + millis(n * 10));
        }
        for n in 0..100 {
            pace.end(begun + millis(n * 20));
        }
        for n in 300..1400 {
            pace.end(over + millis(n * 10));
        }
        let dent = pace.dent(since, begun, over);
        assert_eq!((dent.before, dent.during, dent.back), (100.0, 50.0, Some(millis(3000))));
        assert!((99.0..101.0).contains(&dent.after), "{dent:?}");
        pace.ends.retain(|at| *at < over);
        assert_eq!(pace.dent(since, begun, over).back, None);
    }
}
