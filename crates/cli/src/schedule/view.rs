//! Schedules as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use stepfast::clock::{Clock, SystemClock, Timestamp};
use stepfast::text::format_duration;
use stepfast::{Error, ScheduleView};

use crate::output::{cell_text, short_payload};
use crate::value::payload_json;

/// Number of future instants that `show` lists.
const LISTED_INSTANTS: usize = 5;

/// Returns the state of a schedule, in one or two words.
fn state(view: &ScheduleView) -> &'static str {
    let has_work = view.next.is_some() || view.buffered > 0 || view.backfills > 0;
    match &view.pause {
        _ if view.stopped.is_some() => "stopped",
        Some(pause) if pause.is_automatic => "paused itself",
        Some(_) => "paused",
        None if view.is_late => "late",
        None if view.error.is_some() => "error",
        None if has_work => "active",
        None => "finished",
    }
}

/// Returns the state of a schedule with its reason.
fn state_with_reason(view: &ScheduleView) -> String {
    let reason = match &view.pause {
        _ if view.stopped.is_some() => view.stopped.clone(),
        Some(pause) => Some(pause.reason.clone()).filter(|reason| !reason.is_empty()),
        None if view.is_late => Some("no worker runs the schedule".to_owned()),
        None => view.error.clone(),
    };
    reason.map_or_else(|| state(view).to_owned(), |reason| format!("{}: {reason}", state(view)))
}

fn format_or_none(instant: Option<Timestamp>) -> String {
    instant.map_or_else(|| "none".to_owned(), |instant| instant.to_string())
}

/// Formats an instant in a time zone, as in `2026-11-29T03:00:00+01:00[Europe/Berlin]`.
fn format_local(instant: Timestamp, zone: &str) -> String {
    let instant = jiff::Timestamp::from_microsecond(instant.as_micros());
    match (instant, TimeZone::get(zone)) {
        (Ok(instant), Ok(zone)) => instant.to_zoned(zone).to_string(),
        _ => "?".to_owned(),
    }
}

/// Returns the next instants of a schedule. Those of a paused one have no executions unless it is resumed.
fn next_instants(view: &ScheduleView) -> Result<Vec<Timestamp>, Error> {
    let from = match view.next {
        Some(next) => Timestamp::from_micros(next.as_micros().saturating_sub(1)),
        None => SystemClock.now(),
    };
    view.schedule.instants_after(from, LISTED_INSTANTS)
}

/// Returns the workflow, the timing and the state of a schedule in one line.
pub(super) fn describe(view: &ScheduleView) -> String {
    let schedule = &view.schedule;
    let next = match (state(view), view.next) {
        ("active", Some(next)) => format!("next {next}"),
        (state, _) => state.to_owned(),
    };
    format!("{}, {}, {next}", schedule.workflow, schedule.timing())
}

pub(super) fn schedule_table(views: &[ScheduleView]) -> String {
    if views.is_empty() {
        return "no schedules".to_owned();
    }
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "schedule",
        "workflow",
        "timing",
        "next",
        "last started",
        "started",
        "skipped",
        "state",
    ]);
    for view in views {
        table.add_row([
            cell_text(&view.schedule.name),
            cell_text(&view.schedule.workflow),
            cell_text(&view.schedule.timing()),
            format_or_none(view.next),
            format_or_none(view.last_started),
            view.started.to_string(),
            view.skipped.to_string(),
            state(view).to_owned(),
        ]);
    }
    table.to_string()
}

pub(super) fn schedule_text(view: &ScheduleView) -> Result<String, Error> {
    let schedule = &view.schedule;
    let text = |value: Option<&str>| value.unwrap_or("none").to_owned();
    let number = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let duration = |value: Option<Duration>| {
        number(value.map(|value| format_duration(i64::try_from(value.as_millis()).unwrap_or(i64::MAX))))
    };
    let attributes: Vec<String> =
        schedule.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let skips: Vec<String> = view.skips.iter().map(Timestamp::to_string).collect();
    let lines = [
        ("state", state_with_reason(view)),
        ("workflow", schedule.workflow.to_string()),
        ("input", short_payload(&schedule.input())),
        ("timing", schedule.timing()),
        ("starts at", format_or_none(schedule.starts_at)),
        ("ends at", format_or_none(schedule.ends_at)),
        ("jitter", duration(Some(schedule.jitter).filter(|jitter| !jitter.is_zero()))),
        ("overlap", schedule.overlap.as_str().to_owned()),
        ("catch-up", schedule.catch_up.as_str().to_owned()),
        ("pause after", number(schedule.pause_after.map(|limit| format!("{limit} failures")))),
        ("queue", text(schedule.queue.as_deref())),
        ("key", text(schedule.key.as_deref())),
        ("priority", number(schedule.priority.map(|priority| priority.to_string()))),
        ("timeout", duration(schedule.execution_timeout)),
        ("run timeout", duration(schedule.run_timeout)),
        ("attributes", if attributes.is_empty() { "none".to_owned() } else { attributes.join(" ") }),
        ("execution", view.workflow_id.clone()),
        ("last started", format_or_none(view.last_started)),
        ("started", view.started.to_string()),
        (
            "skipped",
            if skips.is_empty() {
                "0".to_owned()
            } else {
                format!("{}, the last ones {}", view.skipped, skips.join(" "))
            },
        ),
        ("buffered", view.buffered.to_string()),
        ("backfills", view.backfills.to_string()),
        ("failures", view.failures.to_string()),
        ("last error", text(view.error.as_deref())),
    ];
    let mut shown = format!("schedule {}\n", schedule.name);
    for (name, value) in lines {
        shown += &format!("{name:13}{value}\n");
    }
    let instants = next_instants(view)?;
    shown += if instants.is_empty() { "no further instants" } else { "next instants" };
    let zone = schedule.timezone_name();
    for instant in instants {
        let local = if zone == "UTC" { String::new() } else { format!("  {}", format_local(instant, zone)) };
        shown += &format!("\n  {instant}{local}");
    }
    Ok(shown)
}

pub(super) fn schedule_json(view: &ScheduleView) -> Value {
    let schedule = &view.schedule;
    let millis = |duration: Option<Duration>| duration.map(|duration| duration.as_millis() as u64);
    json!({
        "schedule": &*schedule.name,
        "state": state(view),
        "workflow": &*schedule.workflow,
        "input": payload_json(&schedule.input()),
        "timing": schedule.timing(),
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "every_ms": millis(schedule.every),
        "at": schedule.at.map(|instant| instant.to_string()),
        "starts_at": schedule.starts_at.map(|instant| instant.to_string()),
        "ends_at": schedule.ends_at.map(|instant| instant.to_string()),
        "jitter_ms": millis(Some(schedule.jitter)),
        "overlap": schedule.overlap.as_str(),
        "catch_up": schedule.catch_up.as_str(),
        "pause_after": schedule.pause_after,
        "queue": schedule.queue.as_deref(),
        "queue_key": schedule.key.as_deref(),
        "priority": schedule.priority,
        "execution_timeout_ms": millis(schedule.execution_timeout),
        "run_timeout_ms": millis(schedule.run_timeout),
        "attributes": schedule.attributes.iter().map(|(name, value)| (&**name, &**value)).collect::<BTreeMap<_, _>>(),
        "pause": view.pause.as_ref().map(|pause| {
            json!({ "reason": pause.reason, "is_automatic": pause.is_automatic })
        }),
        "next": view.next.map(|instant| instant.to_string()),
        "last_started": view.last_started.map(|instant| instant.to_string()),
        "started": view.started,
        "skipped": view.skipped,
        "skips": view.skips.iter().map(Timestamp::to_string).collect::<Vec<_>>(),
        "buffered": view.buffered,
        "backfills": view.backfills,
        "failures": view.failures,
        "error": view.error,
        "stopped": view.stopped,
        "is_late": view.is_late,
        "workflow_id": view.workflow_id,
    })
}

/// Returns the JSON of a schedule with its next instants.
pub(super) fn shown_json(view: &ScheduleView) -> Result<Value, Error> {
    let mut shown = schedule_json(view);
    let zone = view.schedule.timezone_name();
    let instant = |it: &Timestamp| json!({ "instant": it.to_string(), "local": format_local(*it, zone) });
    shown["instants"] = next_instants(view)?.iter().map(instant).collect();
    Ok(shown)
}
