//! [`Rate`]: a limit on how often executions of a queue, or of a queue key, begin.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::text::quote;

/// A limit on the executions that begin in a period.
///
/// There are two kinds of rates. By default at most `starts` executions begin in *any* window of `period`, as fast as
/// they arrive. With even spacing ([`evenly`](Rate::evenly), [`burst`](Rate::burst)) one execution begins every `period
/// / starts`, and a burst may begin after a pause.
///
/// An execution begins when a worker claims it for the first time. The execution begins again when a worker claims it
/// after a recovery, a requeue or a resume. An execution that continues after it was `waiting` does not begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Maximum number of starts in a period.
    pub starts: u32,
    /// The length of the period, in whole milliseconds.
    pub period: Duration,
    /// Maximum number of starts at once after a pause, for a rate with even spacing. `None` for a rate that limits the
    /// starts in any window.
    pub burst: Option<u32>,
}

/// A summary of the stored starts that still count for a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateUsage {
    /// The number of starts in the last period. With even spacing the field is unused.
    pub starts: u64,
    /// The time of the first of these starts.
    pub first_at: Option<Timestamp>,
    /// The time of the last of these starts. With even spacing, the time at which the next start would be due without
    /// a burst.
    pub last_at: Option<Timestamp>,
}

/// The starts that a rate allows at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Maximum number of starts now.
    pub starts: usize,
    /// The time at which the rate allows more starts; `None` if no stored start counts now.
    pub more_at: Option<Timestamp>,
}

/// The stored form of starts under a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateEntry {
    /// The time of the starts, rounded up to the end of a part of the window. With even spacing, the time at which the
    /// next start is due.
    pub at: Timestamp,
    /// The number of starts; 0 with even spacing.
    pub starts: u64,
    /// The time up to which stored entries of the same queue or queue key no longer count, so that the store deletes
    /// them. With even spacing the store keeps only one entry, so this is the time of the new one.
    pub prune_until: Timestamp,
}

/// The ready executions of a queue that a claim may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimScope {
    /// All executions: the queue has no rate.
    All,
    /// Executions that continue after they were `waiting`. Woken executions do not count for rates, and come first.
    Woken,
    /// Executions that begin, and count for rates.
    Starting,
}

impl ClaimScope {
    /// Returns the required value of the column `ready.is_woken`; `None` for either value.
    pub fn is_woken(self) -> Option<bool> {
        match self {
            ClaimScope::All => None,
            ClaimScope::Woken => Some(true),
            ClaimScope::Starting => Some(false),
        }
    }
}

/// The number of parts of a window. Starts in one part share an entry, so they count for up to one part longer.
const WINDOW_PARTS: i64 = 1_000;
/// The ratio of the interval to the tolerated delay. With even spacing, a start that is late by less than the tolerated
/// delay does not delay later starts.
const LATE_TOLERANCE_DIVISOR: i64 = 20;
/// The precision of timers and flushes, in microseconds. A delay below this precision is tolerated as well, up to a
/// quarter of the interval.
const TIMING_PRECISION_MICROS: i64 = 2_000;

impl Rate {
    /// Creates a rate of at most `starts` in any window of length `period`.
    pub fn new(starts: u32, period: Duration) -> Self {
        Self { starts, period, burst: None }
    }

    /// Returns the same rate with even spacing: one start after the other, at equal intervals.
    #[must_use]
    pub fn evenly(self) -> Self {
        self.burst(1)
    }

    /// Returns the same rate with even spacing, but with up to `starts` at once after a pause.
    #[must_use]
    pub fn burst(mut self, starts: u32) -> Self {
        self.burst = Some(starts);
        self
    }

    /// Returns the period in milliseconds.
    pub fn period_ms(&self) -> u64 {
        u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the period in microseconds.
    fn period_micros(&self) -> i64 {
        i64::try_from(self.period.as_micros()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
    }

    /// Returns the interval between two starts with even spacing, in microseconds, rounded up.
    fn interval(&self) -> i64 {
        let starts = i64::from(self.starts.max(1));
        (self.period_micros() + starts - 1) / starts
    }

    /// Returns the time after which stored entries count: one period before `now`. With even spacing there is only one
    /// entry, which always counts.
    pub fn window_start(&self, now: Timestamp) -> Timestamp {
        let is_even = self.burst.is_some();
        Timestamp::from_micros(if is_even { i64::MIN } else { now.as_micros() - self.period_micros() })
    }

    /// Returns the time up to which no stored entry counts at the time `now`, with or without even spacing.
    pub fn expired_until(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros() - self.period_micros())
    }

    /// Returns the starts that the rate allows at the time `now`.
    pub fn allowance(&self, usage: &RateUsage, now: Timestamp) -> Allowance {
        let now = now.as_micros();
        match self.burst {
            None => {
                let remaining = u64::from(self.starts).saturating_sub(usage.starts);
                let more_at = usage.first_at.map(|at| at.as_micros() + self.period_micros());
                Allowance { starts: remaining as usize, more_at: more_at.map(Timestamp::from_micros) }
            }
            Some(burst) => {
                // a large burst with long intervals overflows 64 bits
                let (interval, now) = (i128::from(self.interval().max(1)), i128::from(now));
                let whole = interval * i128::from(burst.max(1));
                let next = usage.last_at.map_or(now, |at| i128::from(at.as_micros())).max(now);
                let starts = ((now + whole - next) / interval).max(0);
                // one more start is allowed after one more interval
                let more_at = next - whole + (starts + 1) * interval;
                Allowance {
                    starts: starts as usize,
                    more_at: Some(Timestamp::from_micros(clamp_to_i64(more_at))),
                }
            }
        }
    }

    /// Returns the entry that records this number of starts at the time `now`.
    pub fn entry(&self, usage: &RateUsage, now: Timestamp, starts: usize) -> RateEntry {
        let at = Timestamp::from_micros(self.entry_time(usage, now.as_micros(), starts));
        let (starts, prune_until) = match self.burst {
            None => (starts as u64, self.window_start(now)),
            Some(_) => (0, at),
        };
        RateEntry { at, starts, prune_until }
    }

    fn entry_time(&self, usage: &RateUsage, now: i64, starts: usize) -> i64 {
        match self.burst {
            None => {
                let part = (self.period_micros() / WINDOW_PARTS).max(1);
                (now + part - 1).div_euclid(part) * part
            }
            Some(_) => {
                let interval = self.interval();
                let tolerance =
                    (interval / LATE_TOLERANCE_DIVISOR).max(TIMING_PRECISION_MICROS.min(interval / 4));
                let next = usage.last_at.map_or(now, |at| at.as_micros().max(now - tolerance));
                clamp_to_i64(i128::from(next) + i128::from(interval) * starts as i128)
            }
        }
    }
}

/// Clamps a number of microseconds to the range that can be stored.
fn clamp_to_i64(micros: i128) -> i64 {
    i64::try_from(micros).unwrap_or(if micros < 0 { i64::MIN } else { i64::MAX })
}

/// The units of a period, in milliseconds, the longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Writes the rate as in `100/1m`, or with a burst as in `100/1m burst 5`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period_ms();
        let unit = UNITS.iter().find(|(_, size)| period.is_multiple_of(*size)).unwrap_or(&("ms", 1));
        write!(f, "{}/{}{}", self.starts, period / unit.1, unit.0)?;
        self.burst.map_or(Ok(()), |burst| write!(f, " burst {burst}"))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (rate, burst) = match text.split_once(" burst ") {
                Some((rate, burst)) => (rate, Some(burst.trim().parse().ok()?)),
                None => (text, None),
            };
            let (starts, period) = rate.trim().split_once('/')?;
            let digits = period.find(|c: char| !c.is_ascii_digit()).unwrap_or(period.len());
            let (count, unit) = period.split_at(digits);
            let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
            let count: u64 = if count.is_empty() { 1 } else { count.parse().ok()? };
            let period = Duration::from_millis(count.checked_mul(*size)?);
            Some(Rate { starts: starts.parse().ok()?, period, burst })
        };
        read().ok_or_else(|| {
            format!(
                "{} is not a rate; write a number of starts and a period (ms, s, m, h, d), as in \"100/1m\" or \
                 \"10/s burst 1\"",
                quote(text)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bursts_and_periods_do_not_overflow() {
        let (now, used) = (Timestamp::from_micros(1_767_225_600_000_000), RateUsage::default());
        for period in [Duration::from_secs(86_400 * 365), Duration::MAX] {
            for burst in [1, u32::MAX / 2, u32::MAX] {
                let rate = Rate::new(1, period).burst(burst);
                let mut used = used;
                for starts in [1, u32::MAX as usize, usize::MAX] {
                    assert!(rate.allowance(&used, now).starts <= burst as usize);
                    used.last_at = Some(rate.entry(&used, now, starts).at);
                    assert!(used.last_at > Some(now), "a start counts: {rate}, {starts}");
                }
            }
            let rate = Rate::new(1, period);
            assert_eq!(rate.allowance(&used, now).starts, 1);
            assert!(rate.entry(&used, now, 1).at >= now);
            assert!(
                rate.allowance(&RateUsage { starts: 1, first_at: Some(now), last_at: Some(now) }, now)
                    .more_at
                    > Some(now)
            );
        }
    }

    #[test]
    fn rate_text_round_trips() {
        for text in ["100/1m", "1/1500ms", "10/1s burst 1", "7/3d", "1/90m burst 20"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("10/s".parse(), Ok(Rate::new(10, Duration::from_secs(1))));
        assert_eq!("10/60s".parse::<Rate>().unwrap().to_string(), "10/1m");
        for text in ["", "10", "10/", "x/s", "10/y", "10/s burst x", "-1/s", "1/-1s"] {
            assert!(text.parse::<Rate>().unwrap_err().contains("is not a rate"), "{text}");
        }
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    /// Makes as many starts as the rate allows at each of these times, at most `limit`; returns the time of each start.
    fn make_starts(rate: Rate, tried_at: impl Iterator<Item = i64>, limit: usize) -> Vec<i64> {
        let mut entries: Vec<(i64, u64)> = Vec::new();
        let mut all = Vec::new();
        for now in tried_at {
            let from = rate.window_start(at(now)).as_micros();
            let counting = || entries.iter().filter(|(at, _)| *at > from);
            let used = RateUsage {
                starts: if rate.burst.is_some() { 0 } else { counting().map(|(_, n)| n).sum() },
                first_at: counting().map(|(it, _)| at(*it)).min(),
                last_at: counting().map(|(it, _)| at(*it)).max(),
            };
            let allowance = rate.allowance(&used, at(now));
            let taken = allowance.starts.min(limit);
            if taken > 0 {
                entries.push((rate.entry(&used, at(now), taken).at.as_micros(), taken as u64));
                all.extend(std::iter::repeat_n(now, taken));
            } else {
                let more_at = allowance.more_at.unwrap().as_micros();
                assert!(more_at > now, "{rate:?} at {now}: more at {more_at}");
            }
        }
        all
    }

    #[test]
    fn windows_never_exceed_their_starts() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let rate = Rate::new(rng.u32(1..20), Duration::from_micros(rng.u64(10..20_000)));
            let mut now = 1_000_000_i64;
            let times: Vec<i64> = (0..500)
                .map(|_| {
                    now += rng.i64(0..4_000);
                    now
                })
                .collect();
            let limit = rng.usize(1..30);
            let all = make_starts(rate, times.into_iter(), limit);
            for (i, from) in all.iter().enumerate() {
                let within = all[i..].iter().take_while(|it| **it - from < rate.period_micros()).count();
                assert!(within <= rate.starts as usize, "seed {seed}: {within} of {rate:?} from {from}");
            }
            assert!(all.len() >= rate.starts as usize, "seed {seed}");
        }
    }

    #[test]
    fn even_starts_are_an_interval_apart_and_do_not_fall_behind() {
        let rate = Rate::new(10, Duration::from_secs(1)).evenly();
        // tried every 3 ms: each start is up to 3 ms late, which does not delay the next one
        let all = make_starts(rate, (0..3_334).map(|n| n * 3_000), 5);
        assert!((100..=101).contains(&all.len()), "{}", all.len());
        for pair in all.windows(2) {
            assert!((95_000..=105_000).contains(&(pair[1] - pair[0])), "{pair:?}");
        }
        // after a pause: one start, without those that the pause prevented
        let late = make_starts(rate, [0, 5_000_000, 5_000_001, 5_200_000].into_iter(), 5);
        assert_eq!(late, [0, 5_000_000, 5_200_000]);
    }

    #[test]
    fn burst_is_allowed_after_a_pause() {
        let rate = Rate::new(10, Duration::from_secs(1)).burst(3);
        let all = make_starts(rate, [0, 1, 99_999, 100_000, 150_000, 200_000, 1_000_000].into_iter(), 9);
        assert_eq!(all, [0, 0, 0, 100_000, 200_000, 1_000_000, 1_000_000, 1_000_000]);
    }

    #[test]
    fn allowance_names_the_time_of_more_starts() {
        let window = Rate::new(2, Duration::from_secs(1));
        let used = RateUsage { starts: 2, first_at: Some(at(500)), last_at: Some(at(900)) };
        let expected = Allowance { starts: 0, more_at: Some(at(1_000_500)) };
        assert_eq!(window.allowance(&used, at(1_000)), expected);
        let even = Rate::new(2, Duration::from_secs(1)).evenly();
        let used = RateUsage { last_at: Some(at(700_000)), ..RateUsage::default() };
        let expected = Allowance { starts: 0, more_at: Some(at(700_000)) };
        assert_eq!(even.allowance(&used, at(600_000)), expected);
        assert_eq!(even.allowance(&used, at(700_000)).starts, 1);
    }
}
