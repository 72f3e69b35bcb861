//! Stored queues, and the search for queues and keys with ready executions.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row};
use stepfast_core::queue::rate::{ClaimScope, Rate};
use stepfast_core::queue::weights::Weights;
use stepfast_core::queue::{Limits, Queue, QueueRow};
use stepfast_core::store::{Route, is_same_version, is_served};

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::{number, text, time};

/// Reads a row of `queues`.
pub(crate) fn parse_queue(row: &Row<'_>) -> DbResult<QueueRow> {
    Ok(QueueRow {
        queue: Queue {
            name: text(row, 0)?,
            limits: Limits {
                concurrency: row.get(4)?,
                worker_concurrency: row.get(5)?,
                key_concurrency: row.get(6)?,
                rate: parse_rate(row, 7)?,
                key_rate: parse_rate(row, 10)?,
                max_depth: row.get(13)?,
                key_weights: parse_weights(row, 14)?,
            },
        },
        version: row.get(1)?,
        changed_at: time(row, 2)?,
        is_paused: row.get(3)?,
    })
}

/// Reads a rate: starts, period, burst.
fn parse_rate(row: &Row<'_>, i: usize) -> DbResult<Option<Rate>> {
    let Some(starts) = row.get(i)? else { return Ok(None) };
    let period = Duration::from_millis(number(row, i + 1)?);
    Ok(Some(Rate { starts, period, burst: row.get(i + 2)? }))
}

/// Reads the weights of queue keys; NULL means that no key has a weight.
fn parse_weights(row: &Row<'_>, i: usize) -> DbResult<Weights> {
    Ok(row.get::<_, Option<String>>(i)?.map_or_else(Weights::default, |json| Weights::from_stored(&json)))
}

/// Reads a stored queue; `None` if the queue does not exist.
pub(crate) fn read_queue(sql: &mut Statements<'_>, name: &str) -> DbResult<Option<QueueRow>> {
    sql.get(Sql::Queue)?.query_row([name], |row| Ok(parse_queue(row))).optional()?.transpose()
}

/// The capability of a worker: its workflows, the version of its code, and its queues; `None` for all.
#[derive(Clone, Copy)]
pub(crate) struct Capability<'a> {
    pub(crate) workflows: &'a [Arc<str>],
    pub(crate) app_version: Option<&'a str>,
    pub(crate) queues: Option<&'a [Arc<str>]>,
}

impl Capability<'_> {
    /// Whether the worker may run executions that are pinned to this version; an empty version means any.
    fn has_version(&self, pinned: &str) -> bool {
        is_same_version(self.app_version, (!pinned.is_empty()).then_some(pinned))
    }

    /// Returns the routes that have ready executions, or timers, and that the worker can run. `next` finds the next
    /// route between two texts. Skips from route to route, so the cost does not depend on the number of rows.
    pub(crate) fn routes(&self, sql: &mut Statements<'_>, next: Sql) -> DbResult<Vec<Route>> {
        let mut routes = Vec::new();
        for workflow in self.workflows {
            let (mut last, end) = Route::bounds(workflow);
            while let Some(text) = sql.get(next)?.query_row((&last, &end), |row| row.get(0)).optional()? {
                last = text;
                let route = Route::from_text(&last);
                if is_same_version(self.app_version, route.app_version())
                    && is_served(self.queues, route.queue())
                {
                    routes.push(route);
                }
            }
        }
        Ok(routes)
    }

    /// Returns the workflows and versions that have executions in quarantine and that the worker can run.
    pub(crate) fn quarantine_versions(
        &self,
        sql: &mut Statements<'_>,
    ) -> DbResult<Vec<(Arc<str>, Arc<str>)>> {
        let mut found = Vec::new();
        for workflow in self.workflows {
            // before every version
            let mut last = sql
                .get(Sql::FirstQuarantineVersion)?
                .query_row([&**workflow], |row| Ok(text(row, 0)))
                .optional()?
                .transpose()?;
            while let Some(version) = last {
                if self.has_version(&version) {
                    found.push((workflow.clone(), version.clone()));
                }
                let params = (&**workflow, &*version);
                let next = sql.get(Sql::NextQuarantineVersion)?.query_row(params, |row| Ok(text(row, 0)));
                last = next.optional()?.transpose()?;
            }
        }
        Ok(found)
    }
}

/// Returns the first queue key after `after` with ready executions of a route. If `after` is `None`, begins with the
/// first key. The scope `Woken` considers only woken executions.
pub(crate) fn next_ready_key(
    sql: &mut Statements<'_>,
    route: &Route,
    after: Option<&str>,
    scope: ClaimScope,
) -> DbResult<Option<Arc<str>>> {
    let (first, next) = match scope {
        ClaimScope::Woken => (Sql::FirstWokenKey, Sql::NextWokenKey),
        ClaimScope::All | ClaimScope::Starting => (Sql::FirstReadyKey, Sql::NextReadyKey),
    };
    let next = match after {
        None => sql.get(first)?.query_row([route.as_str()], |row| Ok(text(row, 0))),
        Some(after) => sql.get(next)?.query_row([route.as_str(), after], |row| Ok(text(row, 0))),
    };
    next.optional()?.transpose()
}
