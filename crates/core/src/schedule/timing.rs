//! [`Instants`]: the instants of a schedule, from its cron expression and time zone, its interval, or its single instant.
//!
//! In a time zone with daylight saving time, a cron expression with a fixed hour and minute has one instant each day. If the
//! local time is skipped, as 02:30 in spring, the instant is the end of the gap, 03:00. If the local time is repeated, the
//! instant is the first of both. An expression with a wildcard, list, range or step has an instant at each local time that it
//! matches: none in the gap, and two when the time is repeated.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::schedule::declaration::Schedule;
use crate::text::quote;

/// The instants of a schedule.
pub(crate) struct Instants<'s> {
    schedule: &'s Schedule,
    timing: Timing,
}

enum Timing {
    Cron(Box<Cron>, TimeZone),
    /// The interval and the first instant, in microseconds.
    Interval {
        every: i64,
        origin: i64,
    },
    Once(Timestamp),
}

impl<'s> Instants<'s> {
    /// Returns the instants of a schedule. Fails for a cron expression or a time zone that cannot be read.
    pub(crate) fn new(schedule: &'s Schedule) -> Result<Self, Error> {
        let timing = if let Some(expression) = &schedule.cron {
            let cron = parse_cron(expression)?;
            Timing::Cron(Box::new(cron), find_timezone(schedule.timezone_name())?)
        } else if let Some(every) = schedule.every {
            let every = i64::try_from(every.as_micros()).unwrap_or(i64::MAX).max(1);
            Timing::Interval { every, origin: schedule.starts_at.map_or(0, Timestamp::as_micros) }
        } else {
            Timing::Once(schedule.at.unwrap_or_default())
        };
        Ok(Self { schedule, timing })
    }

    /// Returns the first instant after `time`; `None` if there is none.
    pub(crate) fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let from = match self.schedule.starts_at {
            // an instant at this time counts
            Some(start) if start > time => Timestamp::from_micros(start.as_micros().saturating_sub(1)),
            _ => time,
        };
        let next = match &self.timing {
            Timing::Once(at) => (*at > from).then_some(*at),
            Timing::Interval { every, origin } => {
                let passed = from.as_micros().checked_sub(*origin)?.div_euclid(*every).checked_add(1)?;
                Some(Timestamp::from_micros(passed.checked_mul(*every)?.checked_add(*origin)?))
            }
            Timing::Cron(cron, zone) => next_of_cron(cron, zone, from),
        };
        next.filter(|instant| self.schedule.ends_at.is_none_or(|end| *instant <= end))
    }

    /// Returns the last instant at or before `time`; `None` if there is none.
    pub(crate) fn last_until(&self, time: Timestamp) -> Option<Timestamp> {
        let until = self.schedule.ends_at.map_or(time, |end| end.min(time));
        let last = match &self.timing {
            Timing::Once(at) => (*at <= until).then_some(*at),
            Timing::Interval { every, origin } => {
                let passed = until.as_micros().checked_sub(*origin)?.div_euclid(*every);
                Some(Timestamp::from_micros(passed.checked_mul(*every)?.checked_add(*origin)?))
            }
            Timing::Cron(cron, zone) => last_of_cron(cron, zone, until),
        };
        last.filter(|instant| self.schedule.starts_at.is_none_or(|start| *instant >= start))
    }

    /// Returns the time at which the execution of an instant starts: the instant and its jitter.
    pub(crate) fn due_at(&self, instant: Timestamp) -> Timestamp {
        let jitter = self.schedule.jitter.as_micros() as u64;
        if jitter == 0 {
            return instant;
        }
        let mut seed = self.schedule.name.as_bytes().to_vec();
        seed.extend_from_slice(&instant.as_micros().to_be_bytes());
        instant.plus(std::time::Duration::from_micros(xxh3_64(&seed) % (jitter + 1)))
    }
}

/// The fields of a cron expression. The first one may be left out.
const CRON_FIELDS: [&str; 6] = ["second", "minute", "hour", "day of the month", "month", "day of the week"];

/// Parses a cron expression of five or six fields, or a nickname such as `@daily`.
fn parse_cron(expression: &str) -> Result<Cron, Error> {
    cron_parser().parse(expression).map_err(|error| Error::Invalid {
        input: "cron",
        reason: format!(
            "{} is not a cron expression: {}; give minute, hour, day of the month, month and day of the week, as in \
             \"0 2 * * *\", or six fields with the seconds first",
            quote(expression),
            fault(expression).unwrap_or_else(|| error.to_string().trim_end_matches('.').to_owned())
        ),
    })
}

/// Returns the fault of a cron expression: its number of fields, or the first field that cannot be parsed.
fn fault(expression: &str) -> Option<String> {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    if !(5..=6).contains(&fields.len()) {
        return Some(format!("the number of its fields is {}", fields.len()));
    }
    let names = &CRON_FIELDS[CRON_FIELDS.len() - fields.len()..];
    let parses = |place: usize| {
        let alone = (0..fields.len()).map(|other| if other == place { fields[other] } else { "*" });
        cron_parser().parse(&alone.collect::<Vec<_>>().join(" ")).is_ok()
    };
    let place = (0..fields.len()).find(|place| !parses(*place))?;
    Some(format!("{} is no {}", quote(fields[place]), names[place]))
}

fn cron_parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build()
}

/// Returns the time zone with this IANA name.
fn find_timezone(name: &str) -> Result<TimeZone, Error> {
    TimeZone::get(name).map_err(|_| Error::Invalid {
        input: "timezone",
        reason: format!("{} is not an IANA time zone; give a name such as \"Europe/Berlin\"", quote(name)),
    })
}

fn next_of_cron(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let mut from = zoned(after, zone)?;
    loop {
        let next = cron.find_next_occurrence(&from, false).ok()?;
        let instant = Timestamp::from_micros(next.timestamp().as_microsecond());
        if instant > after {
            return Some(instant);
        }
        from = next;
    }
}

fn last_of_cron(cron: &Cron, zone: &TimeZone, until: Timestamp) -> Option<Timestamp> {
    let mut from = zoned(until, zone)?;
    let mut is_inclusive = true;
    loop {
        let last = cron.find_previous_occurrence(&from, is_inclusive).ok()?;
        let instant = Timestamp::from_micros(last.timestamp().as_microsecond());
        if instant <= until {
            return Some(instant);
        }
        (from, is_inclusive) = (last, false);
    }
}

fn zoned(time: Timestamp, zone: &TimeZone) -> Option<jiff::Zoned> {
    let time = jiff::Timestamp::from_microsecond(time.as_micros()).ok()?;
    Some(time.to_zoned(zone.clone()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::payload::Payload;

    fn schedule() -> Schedule {
        Schedule::of_payload("s".into(), "w".into(), &Payload::encode(&()).unwrap())
    }

    fn cron(expression: &str, zone: &str) -> Schedule {
        schedule().cron(expression).timezone(zone)
    }

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
    }

    /// Returns the instants after `from` until `until`, in UTC, and checks that they are found backwards, too.
    fn between(schedule: &Schedule, from: &str, until: &str) -> Vec<String> {
        let instants = Instants::new(schedule).unwrap();
        let (from, until) = (at(from), at(until));
        let next = |time| instants.next_after(time).filter(|instant| *instant <= until);
        let forwards: Vec<_> = std::iter::successors(next(from), |last| next(*last)).collect();
        let before = |time| instants.last_until(time).filter(|instant| *instant > from);
        let just_before = |time: &Timestamp| before(Timestamp::from_micros(time.as_micros() - 1));
        let mut backwards: Vec<_> = std::iter::successors(before(until), just_before).collect();
        backwards.reverse();
        assert_eq!(forwards, backwards, "{}", schedule.timing());
        forwards.iter().map(Timestamp::to_string).collect()
    }

    #[test]
    fn skipped_local_time_of_a_fixed_job_is_the_end_of_the_gap() {
        // 29 March 2026: 02:00 becomes 03:00 in Berlin
        let berlin = cron("30 2 * * *", "Europe/Berlin");
        let days = between(&berlin, "2026-03-28T00:00:00Z", "2026-03-31T00:00:00Z");
        assert_eq!(days, ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
        // 8 March 2026: 02:00 becomes 03:00 in New York
        let new_york = cron("30 2 * * *", "America/New_York");
        let days = between(&new_york, "2026-03-07T00:00:00Z", "2026-03-10T00:00:00Z");
        assert_eq!(days, ["2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]);
        // 4 October 2026: 02:00 becomes 02:30 on Lord Howe Island, half an hour only
        let lord_howe = cron("15 2 * * *", "Australia/Lord_Howe");
        let days = between(&lord_howe, "2026-10-02T16:00:00Z", "2026-10-05T00:00:00Z");
        assert_eq!(days, ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]);
    }

    #[test]
    fn repeated_local_time_of_a_fixed_job_is_the_first_one() {
        // 25 October 2026: 03:00 becomes 02:00 in Berlin
        let berlin = cron("30 2 * * *", "Europe/Berlin");
        let days = between(&berlin, "2026-10-24T00:00:00Z", "2026-10-27T00:00:00Z");
        assert_eq!(days, ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        // 1 November 2026: 02:00 becomes 01:00 in New York
        let new_york = cron("30 1 * * *", "America/New_York");
        let days = between(&new_york, "2026-10-31T00:00:00Z", "2026-11-03T00:00:00Z");
        assert_eq!(days, ["2026-10-31T05:30:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]);
        // 5 April 2026: 02:00 becomes 01:30 on Lord Howe Island
        let lord_howe = cron("45 1 * * *", "Australia/Lord_Howe");
        let days = between(&lord_howe, "2026-04-03T16:00:00Z", "2026-04-06T00:00:00Z");
        assert_eq!(days, ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]);
    }

    #[test]
    fn days_have_23_to_25_hours() {
        let hourly = cron("0 * * * *", "Europe/Berlin");
        // local days: they begin at 23:00 or 22:00 in UTC
        assert_eq!(between(&hourly, "2026-03-28T22:59:59Z", "2026-03-29T21:59:59Z").len(), 23);
        assert_eq!(between(&hourly, "2026-10-24T21:59:59Z", "2026-10-25T22:59:59Z").len(), 25);
        let halves = cron("*/30 2 * * *", "Europe/Berlin");
        assert_eq!(between(&halves, "2026-03-28T22:59:59Z", "2026-03-29T21:59:59Z"), [""; 0]);
        assert_eq!(between(&halves, "2026-10-24T21:59:59Z", "2026-10-25T22:59:59Z").len(), 4);
    }

    #[test]
    fn rare_days_are_found() {
        let leap_day = cron("0 0 29 2 *", "UTC");
        let days = between(&leap_day, "2026-01-01T00:00:00Z", "2033-01-01T00:00:00Z");
        assert_eq!(days, ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]);
        let last_day = cron("0 12 L * *", "UTC");
        let days = between(&last_day, "2026-01-31T12:00:00Z", "2026-04-30T12:00:00Z");
        assert_eq!(days, ["2026-02-28T12:00:00Z", "2026-03-31T12:00:00Z", "2026-04-30T12:00:00Z"]);
        let on_31st = cron("0 0 31 * *", "UTC");
        let days = between(&on_31st, "2026-03-31T00:00:00Z", "2026-07-31T00:00:00Z");
        assert_eq!(days, ["2026-05-31T00:00:00Z", "2026-07-31T00:00:00Z"]);
        let seconds = cron("*/20 59 23 31 12 *", "UTC");
        let instants = between(&seconds, "2026-12-31T23:59:00Z", "2027-01-01T00:00:00Z");
        assert_eq!(instants, ["2026-12-31T23:59:20Z", "2026-12-31T23:59:40Z"]);
    }

    #[test]
    fn fields_have_names_and_marks() {
        let first = |expression: &str| {
            let schedule = cron(expression, "UTC");
            let next = Instants::new(&schedule).unwrap().next_after(at("2026-11-01T00:00:00Z"));
            next.unwrap().to_string()
        };
        for (expression, expected) in [
            // the first and the second Friday of November, the last one, and the last day
            ("0 2 * * FRI", "2026-11-06T02:00:00Z"),
            ("0 2 * * 5", "2026-11-06T02:00:00Z"),
            ("0 2 * * FRI#2", "2026-11-13T02:00:00Z"),
            ("0 2 * * FRI#L", "2026-11-27T02:00:00Z"),
            ("0 2 * * 5L", "2026-11-27T02:00:00Z"),
            ("0 2 L * *", "2026-11-30T02:00:00Z"),
            // 31 January 2027 is a Sunday
            ("0 2 LW 1 *", "2027-01-29T02:00:00Z"),
            // the 15th is a Sunday, and the 14th a Saturday
            ("0 2 15W * *", "2026-11-16T02:00:00Z"),
            ("0 2 14W * *", "2026-11-13T02:00:00Z"),
            // the 1st or a Monday, and the 1st that is a Monday
            ("0 2 5 * MON", "2026-11-02T02:00:00Z"),
            ("0 2 1 * +MON", "2027-02-01T02:00:00Z"),
            ("0 2 ? dec sun", "2026-12-06T02:00:00Z"),
            ("0 2 * * 7", "2026-11-01T02:00:00Z"),
            ("0 9-17/4 * * *", "2026-11-01T09:00:00Z"),
            ("30,45 6 * * *", "2026-11-01T06:30:00Z"),
            ("@hourly", "2026-11-01T01:00:00Z"),
            ("@daily", "2026-11-02T00:00:00Z"),
            ("@weekly", "2026-11-08T00:00:00Z"),
            ("@monthly", "2026-12-01T00:00:00Z"),
            ("@yearly", "2027-01-01T00:00:00Z"),
            ("@annually", "2027-01-01T00:00:00Z"),
            ("15 0 12 * * *", "2026-11-01T12:00:15Z"),
        ] {
            assert_eq!(first(expression), expected, "{expression}");
        }
        for bad in ["0/15 * * * *", "@midnight", "@reboot"] {
            assert!(Instants::new(&cron(bad, "UTC")).is_err(), "{bad}");
        }
    }

    #[test]
    fn cron_expression_that_never_matches_has_no_instant() {
        let never = cron("0 0 31 2 *", "UTC");
        assert_eq!(Instants::new(&never).unwrap().next_after(at("2026-01-01T00:00:00Z")), None);
        for bad in ["", "* * * *", "60 * * * *", "every day", "0 0 0 1 1 * 2030", "* * * * * * * *", "\0"] {
            assert!(Instants::new(&cron(bad, "UTC")).is_err(), "{bad:?}");
        }
        for bad in ["", "Berlin", "Europe/Atlantis", "../etc/passwd", "\0"] {
            assert!(Instants::new(&cron("* * * * *", bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn error_of_a_cron_expression_names_the_field() {
        for (expression, cause) in [
            ("60 * * * *", "\"60\" is no minute"),
            ("* 25 * * *", "\"25\" is no hour"),
            ("* * 0 * *", "\"0\" is no day of the month"),
            ("* * * 1-13 *", "\"1-13\" is no month"),
            ("* * * * FRY", "\"FRY\" is no day of the week"),
            ("61 * * * * *", "\"61\" is no second"),
            ("* * * *", "the number of its fields is 4"),
            ("", "the number of its fields is 0"),
            ("@midnight", "the number of its fields is 1"),
        ] {
            let error = Instants::new(&cron(expression, "UTC")).err().unwrap().to_string();
            assert!(error.contains(cause), "{error}");
            assert!(!error.contains(".;"), "{error}");
        }
    }

    #[test]
    fn intervals_are_multiples() {
        let every = schedule().every(Duration::from_secs(90));
        let instants = between(&every, "2026-01-01T00:00:00Z", "2026-01-01T00:04:00Z");
        assert_eq!(instants, ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]);
        let from = every.starts_at(at("2026-01-01T00:00:10Z")).ends_at(at("2026-01-01T00:03:10Z"));
        let instants = between(&from, "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z");
        assert_eq!(instants, ["2026-01-01T00:00:10Z", "2026-01-01T00:01:40Z", "2026-01-01T00:03:10Z"]);
        let once = schedule().at(at("2026-01-01T00:00:10Z"));
        assert_eq!(between(&once, "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z").len(), 1);
        let longest = schedule().every(Duration::from_micros(i64::MAX as u64));
        assert_eq!(between(&longest, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"), [""; 0]);
        for limit in [i64::MIN, i64::MAX] {
            for it in [&from, &once, &cron("* * * * *", "UTC")] {
                // nothing overflows
                let instants = Instants::new(it).unwrap();
                let _ = instants.next_after(Timestamp::from_micros(limit));
                let _ = instants.last_until(Timestamp::from_micros(limit));
            }
        }
    }

    #[test]
    fn timing_is_shown_in_the_largest_unit() {
        let shown = |seconds| schedule().every(Duration::from_secs_f64(seconds)).timing();
        let texts = [90.0, 300.0, 7_200.0, 86_400.0, 1.5, 1.000_001].map(shown);
        assert_eq!(
            texts,
            ["every 90s", "every 5m", "every 2h", "every 1d", "every 1500ms", "every 1.000001s"]
        );
        assert_eq!(cron("0 2 * * *", "Europe/Berlin").timing(), "0 2 * * * Europe/Berlin");
        let once = schedule().at(at("2026-01-01T00:00:10Z"));
        assert_eq!(
            (once.timing(), schedule().timing()),
            ("at 2026-01-01T00:00:10Z".into(), "no timing".into())
        );
    }

    #[test]
    fn jitter_is_derived_from_the_instant() {
        let jittered = schedule().every(Duration::from_secs(60)).jitter(Duration::from_secs(30));
        let instants = Instants::new(&jittered).unwrap();
        let first = at("2026-01-01T00:00:00Z");
        let delays: Vec<Duration> = (0..1_000)
            .map(|minute| first.plus(Duration::from_secs(60 * minute)))
            .map(|instant| instants.due_at(instant).since(instant))
            .collect();
        assert!(delays.iter().all(|delay| *delay <= Duration::from_secs(30)));
        let mean = delays.iter().sum::<Duration>() / 1_000;
        assert!((14..17).contains(&mean.as_secs()), "{mean:?}");
        assert_eq!(instants.due_at(first), Instants::new(&jittered).unwrap().due_at(first));
    }
}
