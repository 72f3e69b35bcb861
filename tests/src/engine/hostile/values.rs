//! The values, by their types.

use std::time::Duration;

use stepfast_core::clock::{MAX_STORED_DURATION, Timestamp};

/// A UUID that no execution has.
pub(super) const UUID: &str = "01a20b8f-64bf-7000-8000-000000000000";

/// Returns texts: empty, huge, repeated, and with characters that languages and terminals interpret.
pub(super) fn texts() -> Vec<String> {
    let short = [
        "",
        " ",
        "a",
        "a",
        "default",
        "a\0b",
        "\0",
        "a\nb",
        "\r",
        "\t",
        "\x1b[2J",
        "\x7f",
        "\u{9b}2J",
        "\u{202e}",
        "\u{feff}",
        "\u{10ffff}",
        "🦄",
        "👩‍👩‍👧",
        "0",
        "1",
        "-1",
        "inf",
        "NaN",
        "NULL",
        "none",
        "'",
        "\"",
        "';--",
        "%",
        "%s",
        "%00",
        "_",
        "\\",
        "$1",
        "?1",
        "a=b",
        "=",
        "a/b",
        "..",
        "a,b",
        "{}",
        "{1,2}",
        UUID,
        "01A20B8F-64BF-7000-8000-000000000000",
    ];
    let repeated =
        [("x", 48), ("x", 64), ("x", 128), ("x", 129), ("x", 255), ("x", 256), ("x", 1024), ("x", 1025)];
    let repeated =
        repeated.iter().chain(&[("x", 100_000), ("é", 127), ("é", 128), ("é", 513), ("\0", 2_000)]);
    short.into_iter().map(str::to_owned).chain(repeated.map(|(text, times)| text.repeat(*times))).collect()
}

/// Returns some of the texts, for slow entry points.
pub(super) fn some_texts() -> Vec<String> {
    let few =
        ["", " ", "a", "a\0b", "\x1b[2J", "\u{9b}2J", "🦄", "0", "-1", "inf", "'", "\"", "%00", "a=b", UUID];
    let repeated = [("x", 64), ("x", 1025), ("x", 100_000)].map(|(text, times)| text.repeat(times));
    few.into_iter().map(str::to_owned).chain(repeated).collect()
}

/// Returns durations from zero to above the range of a clock.
pub(super) fn durations() -> Vec<Duration> {
    vec![
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(1),
        Duration::from_micros(1_500),
        Duration::from_millis(1),
        Duration::from_secs(86_400),
        Duration::from_millis(i32::MAX as u64 + 1),
        MAX_STORED_DURATION,
        MAX_STORED_DURATION + Duration::from_nanos(1),
        Duration::from_micros(i64::MAX as u64),
        Duration::from_millis(i64::MAX as u64),
        Duration::from_millis(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ]
}

/// Returns instants from the first to the last that a clock can represent.
pub(super) fn instants() -> Vec<Timestamp> {
    // the first and the last day of Postgres, the ends of the years with four digits
    let days = [-210_866_803_200_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999];
    let ends = [i64::MIN, i64::MIN + 1, i64::MIN / 2, -1, 0, 1, i64::MAX / 2, i64::MAX - 1, i64::MAX];
    days.iter().flat_map(|day| [day - 1, *day]).chain(ends).map(Timestamp::from_micros).collect()
}

/// Counts at the limits of the types.
pub(super) const COUNTS: [u32; 9] =
    [0, 1, 2, 1_000, 1_001, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX - 1, u32::MAX];

/// Sizes at the limits of the types.
pub(super) const SIZES: [usize; 10] = [
    0,
    1,
    2,
    1_000,
    u32::MAX as usize,
    u32::MAX as usize + 1,
    usize::MAX >> 3,
    isize::MAX as usize,
    usize::MAX - 1,
    usize::MAX,
];

/// Floating-point numbers at the limits of the type.
pub(super) const FLOATS: [f64; 14] = [
    0.0,
    -0.0,
    f64::MIN_POSITIVE,
    0.5,
    1.0,
    -1.0,
    2.0,
    1e13,
    1e300,
    f64::MAX,
    f64::MIN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];
