//! [`Rate`]: how often executions of a queue, or of a key, may begin.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::text::quote;

/// How many executions may begin in a time.
///
/// Of two kinds: by default at most so many in *any* window of that length, as fast as they come; or spaced
/// [evenly](Rate::evenly), one every `period / starts`, with a [burst](Rate::burst) after a pause.
///
/// An execution begins when a worker takes it: for the first time, or again after its worker was lost, it was handed on,
/// or somebody resumed it. One that goes on after it has waited does not begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub starts: u32,
    /// In which time.
    pub period: Duration,
    /// Where given they are spaced evenly, and so many may begin at once after a pause.
    pub burst: Option<u32>,
}

/// What is stored of the starts under a rate, as far as it still counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateUsage {
    /// How many there were in the last period; of an even rate nothing.
    pub starts: u64,
    /// When the first of these was.
    pub first_at: Option<Timestamp>,
    /// When the last of these was; of an even rate, when the next one would come if there were no burst.
    pub last_at: Option<Timestamp>,
}

/// What a rate allows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// How many may begin now.
    pub starts: usize,
    /// When more may; `None` if there is no bound now.
    pub more_at: Option<Timestamp>,
}

/// Starts as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateEntry {
    /// When they were: those of a window where its part ends; of an even rate the time of the next one.
    pub at: Timestamp,
    /// How many; of an even rate 0.
    pub starts: u64,
    /// What was entered up to this time counts no more: of an even rate one entry is kept.
    pub prune_until: Timestamp,
}

/// Which of what is ready in a queue a claim may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimScope {
    /// All of it: no rate counts.
    All,
    /// What goes on after it has waited: it does not count for rates, and comes first.
    Woken,
    /// The rest.
    Starting,
}

impl ClaimScope {
    /// What `ready.is_woken` has to be; `None` for either.
    pub fn is_woken(self) -> Option<bool> {
        match self {
            ClaimScope::All => None,
            ClaimScope::Woken => Some(true),
            ClaimScope::Starting => Some(false),
        }
    }
}

/// Starts of a window are kept together in so many parts of it: as much later they are forgotten.
const WINDOW_PARTS: i64 = 1_000;
/// An even start that is late by less than this part of the interval does not make those after it late.
const LATE_TOLERANCE_DIVISOR: i64 = 20;
/// And by less than this in any case, in microseconds, but not by more than a quarter of the interval: timers and flushes
/// are not more exact.
const TIMING_PRECISION_MICROS: i64 = 2_000;

impl Rate {
    /// At most `starts` in any window of this length.
    pub fn new(starts: u32, period: Duration) -> Self {
        Self { starts, period, burst: None }
    }

    /// The same, one after the other at even intervals.
    #[must_use]
    pub fn evenly(self) -> Self {
        self.burst(1)
    }

    /// Spaced evenly, but after a pause so many may begin at once.
    #[must_use]
    pub fn burst(mut self, starts: u32) -> Self {
        self.burst = Some(starts);
        self
    }

    /// Its period in milliseconds.
    pub fn period_ms(&self) -> u64 {
        u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX)
    }

    /// Its period in microseconds.
    fn period_micros(&self) -> i64 {
        i64::try_from(self.period.as_micros()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
    }

    /// From one start to the next, in microseconds, rounded up.
    fn interval(&self) -> i64 {
        let starts = i64::from(self.starts.max(1));
        (self.period_micros() + starts - 1) / starts
    }

    /// Entries after this time count: those of the last period; of an even rate, the one there is.
    pub fn window_start(&self, now: Timestamp) -> Timestamp {
        let even = self.burst.is_some();
        Timestamp::from_micros(if even { i64::MIN } else { now.as_micros() - self.period_micros() })
    }

    /// What it allows for at this time.
    pub fn allowance(&self, used: &RateUsage, now: Timestamp) -> Allowance {
        let now = now.as_micros();
        match self.burst {
            None => {
                let left = u64::from(self.starts).saturating_sub(used.starts);
                let more_at = used.first_at.map(|at| at.as_micros() + self.period_micros());
                Allowance { starts: left as usize, more_at: more_at.map(Timestamp::from_micros) }
            }
            Some(burst) => {
                // in wider numbers: a large burst of long intervals is longer than all time
                let (interval, now) = (i128::from(self.interval().max(1)), i128::from(now));
                let whole = interval * i128::from(burst.max(1));
                let next = used.last_at.map_or(now, |at| i128::from(at.as_micros())).max(now);
                let starts = ((now + whole - next) / interval).max(0);
                // the next one comes when one more interval has gone by
                let more_at = next - whole + (starts + 1) * interval;
                Allowance { starts: starts as usize, more_at: Some(Timestamp::from_micros(clamp_to_i64(more_at))) }
            }
        }
    }

    /// How starts of now are entered.
    pub fn entry(&self, used: &RateUsage, now: Timestamp, starts: usize) -> RateEntry {
        let at = self.entry_time(used, now.as_micros(), starts);
        let (starts, forget_until) = match self.burst {
            None => (starts as u64, self.window_start(now)),
            Some(_) => (0, Timestamp::from_micros(i64::MAX)),
        };
        RateEntry { at: Timestamp::from_micros(at), starts, prune_until: forget_until }
    }

    fn entry_time(&self, used: &RateUsage, now: i64, starts: usize) -> i64 {
        match self.burst {
            None => {
                let part = (self.period_micros() / WINDOW_PARTS).max(1);
                (now + part - 1).div_euclid(part) * part
            }
            Some(_) => {
                let interval = self.interval();
                let late = (interval / LATE_TOLERANCE_DIVISOR).max(TIMING_PRECISION_MICROS.min(interval / 4));
                let next = used.last_at.map_or(now, |at| at.as_micros().max(now - late));
                clamp_to_i64(i128::from(next) + i128::from(interval) * starts as i128)
            }
        }
    }
}

/// A number of microseconds as far as it can be stored.
fn clamp_to_i64(micros: i128) -> i64 {
    i64::try_from(micros).unwrap_or(if micros < 0 { i64::MIN } else { i64::MAX })
}

/// Units of a period, the longest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// As in `100/1m`, or with a burst `100/1m burst 5`.
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
                "{} is no rate; write how many in which time (ms, s, m, h, d), as in \"100/1m\" or \"10/s burst 1\"",
                quote(text)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_burst_and_no_period_is_too_large_to_count_with() {
        let (now, used) = (Timestamp::from_micros(1_767_225_600_000_000), RateUsage::default());
        for period in [Duration::from_secs(86_400 * 365), Duration::MAX] {
            for burst in [1, u32::MAX / 2, u32::MAX] {
                let rate = Rate::new(1, period).burst(burst);
                let mut used = used;
                for starts in [1, u32::MAX as usize, usize::MAX] {
                    assert!(rate.allowance(&used, now).starts <= burst as usize);
                    used.last_at = Some(rate.entry(&used, now, starts).at);
                    assert!(used.last_at > Some(now), "what begins counts: {rate}, {starts}");
                }
            }
            let rate = Rate::new(1, period);
            assert_eq!(rate.allowance(&used, now).starts, 1);
            assert!(rate.entry(&used, now, 1).at >= now);
            assert!(
                rate.allowance(&RateUsage { starts: 1, first_at: Some(now), last_at: Some(now) }, now).more_at
                    > Some(now)
            );
        }
    }

    #[test]
    fn a_rate_is_written_as_it_is_read() {
        for text in ["100/1m", "1/1500ms", "10/1s burst 1", "7/3d", "1/90m burst 20"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("10/s".parse(), Ok(Rate::new(10, Duration::from_secs(1))));
        assert_eq!("10/60s".parse::<Rate>().unwrap().to_string(), "10/1m");
        for text in ["", "10", "10/", "x/s", "10/y", "10/s burst x", "-1/s", "1/-1s"] {
            assert!(text.parse::<Rate>().unwrap_err().contains("write how many"), "{text}");
        }
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    /// Takes as much as is allowed at each of these times, and at each time that it names; when each start was.
    fn starts(rate: Rate, tried_at: impl Iterator<Item = i64>, most: usize) -> Vec<i64> {
        let mut entered: Vec<(i64, u64)> = Vec::new();
        let mut all = Vec::new();
        for now in tried_at {
            let from = rate.window_start(at(now)).as_micros();
            let counting = || entered.iter().filter(|(at, _)| *at > from);
            let used = RateUsage {
                starts: if rate.burst.is_some() { 0 } else { counting().map(|(_, n)| n).sum() },
                first_at: counting().map(|(it, _)| at(*it)).min(),
                last_at: counting().map(|(it, _)| at(*it)).max(),
            };
            let allowance = rate.allowance(&used, at(now));
            let taken = allowance.starts.min(most);
            if taken > 0 {
                entered.push((rate.entry(&used, at(now), taken).at.as_micros(), taken as u64));
                all.extend(std::iter::repeat_n(now, taken));
            } else {
                let more_at = allowance.more_at.unwrap().as_micros();
                assert!(more_at > now, "{rate:?} at {now}: more at {more_at}");
            }
        }
        all
    }

    #[test]
    fn no_window_has_more_than_its_starts() {
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
            let most = rng.usize(1..30);
            let all = starts(rate, times.into_iter(), most);
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
        // tried every 3 ms: each is up to 3 ms late, and the next one is not for that
        let all = starts(rate, (0..3_334).map(|n| n * 3_000), 5);
        assert!((100..=101).contains(&all.len()), "{}", all.len());
        for pair in all.windows(2) {
            assert!((95_000..=105_000).contains(&(pair[1] - pair[0])), "{pair:?}");
        }
        // after a pause: one, not all that might have been
        let late = starts(rate, [0, 5_000_000, 5_000_001, 5_200_000].into_iter(), 5);
        assert_eq!(late, [0, 5_000_000, 5_200_000]);
    }

    #[test]
    fn a_burst_comes_after_a_pause() {
        let rate = Rate::new(10, Duration::from_secs(1)).burst(3);
        let all = starts(rate, [0, 1, 99_999, 100_000, 150_000, 200_000, 1_000_000].into_iter(), 9);
        assert_eq!(all, [0, 0, 0, 100_000, 200_000, 1_000_000, 1_000_000, 1_000_000]);
    }

    #[test]
    fn it_tells_when_there_is_more() {
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
