//! Heartbeats: a worker reports to the store, and receives the changes that it must handle.

use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::{Connection, OptionalExtension};
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::queue::DEFAULT_QUEUE;
use stepfast_core::queue::rate::ClaimScope;
use stepfast_core::store::{
    ExecutionId, Heartbeat, HeartbeatReply, MAX_EXPIRED, StoreError, is_same_version,
};

use crate::conn::statements::{Sql, Statements};
use crate::database::Database;
use crate::error::DbResult;
use crate::rows::queues::{next_ready_key, read_queue, ready_queues};
use crate::rows::{key_bytes, key_of, optional_text, request_kind, text};
use crate::{read, schema};

/// Number of renewing heartbeats of a store from one sweep to the next; the first such heartbeat makes a sweep due. A
/// sweep wakes executions whose child has ended without a Wake, and deletes slots of executions that do not run.
const RENEWALS_PER_SWEEP: u64 = 60;

impl Database {
    /// See [`Store::heartbeat`](stepfast_core::Store::heartbeat).
    pub(crate) fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.share.check_for_peers();
        if heartbeat.renews_lease {
            let is_sweep = self.renewals.fetch_add(1, SeqCst).is_multiple_of(RENEWALS_PER_SWEEP);
            self.is_sweep_due.fetch_or(is_sweep, SeqCst);
            self.check_files()?;
        }
        // the copy of the flush count is read before the database, so that the copy is never newer
        let copied_count =
            self.share.companions.if_open().and_then(|open_files| open_files.read_flush_count());
        self.read("reading a heartbeat", |conn| {
            if heartbeat.renews_lease {
                self.check_flush_count(copied_count, conn)?;
            }
            let mut reply = self.read_heartbeat_reply(conn, heartbeat)?;
            let (dead, owners) = self.find_takeover_targets(conn, heartbeat.worker.0)?;
            reply.has_dead_workers = !dead.is_empty() || !owners.is_empty() || self.is_sweep_due.load(SeqCst);
            Ok(reply)
        })
    }

    /// Reads the reply to a heartbeat from one snapshot of the database.
    fn read_heartbeat_reply(&self, conn: &Connection, heartbeat: &Heartbeat) -> DbResult<HeartbeatReply> {
        let mut sql = Statements::new(conn);
        let worker = heartbeat.worker.0;
        let mut reply = HeartbeatReply { now: self.now(), ..HeartbeatReply::default() };
        let epoch: Option<i64> = conn
            .prepare_cached("SELECT epoch FROM workers WHERE worker_id = ?1")?
            .query_row([worker], |row| row.get(0))
            .optional()?;
        reply.is_fenced = epoch != Some(heartbeat.epoch);
        reply.newer_schema = schema::find_newer_version(conn)?;

        let mut statement = conn.prepare_cached(include_str!("../../queries/pending_requests.sql"))?;
        let mut rows = statement.query([worker])?;
        while let Some(row) = rows.next()? {
            let key = key_of(row, 0)?;
            reply.requests.extend(request_kind(row, 1)?.map(|kind| (key, kind)));
        }
        drop(rows);

        let mut is_finished = conn.prepare_cached(
            "SELECT 1 FROM executions WHERE key = ?1 AND (status >= 4 OR status = 1 AND is_paused)",
        )?;
        for id in &heartbeat.watched {
            if is_finished.exists([key_bytes(id)])? {
                reply.finished.push(*id);
            }
        }

        if let Some(held) = &heartbeat.held {
            let held: HashSet<&Key> = held.iter().collect();
            let mut unheld = Vec::new();
            let mut statement = conn.prepare_cached("SELECT key FROM executions WHERE owner = ?1")?;
            let mut rows = statement.query([worker])?;
            while let Some(row) = rows.next()? {
                let id = key_of(row, 0)?;
                if !held.contains(&id) {
                    unheld.push(id);
                }
            }
            drop(rows);
            for id in unheld {
                if let Some(execution) = read::find_execution(&mut sql, &ExecutionId::Key(id), true)? {
                    reply.unheld.push(read::load_record(&mut sql, execution)?);
                }
            }
        }

        let version = heartbeat.app_version.as_deref();
        let is_ours = |pinned: Option<&str>| is_same_version(version, pinned);
        reply.has_ready = sql.exists(Sql::InboxRows, [1])?;
        for workflow in heartbeat.workflows.iter() {
            reply.has_ready = reply.has_ready || has_ready(&mut sql, workflow, heartbeat)?;
        }

        let mut rows = sql.get(Sql::QuarantineCandidates)?.query((i64::MAX, version))?;
        while let Some(row) = rows.next()? {
            if heartbeat.workflows.contains(&text(row, 2)?) {
                reply.quarantined_until = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        drop(rows);

        let now = reply.now.as_micros();
        let mut expired = conn.prepare_cached(include_str!("../../queries/expired_executions.sql"))?;
        let mut rows = expired.query((now, MAX_EXPIRED as i64))?;
        while let Some(row) = rows.next()? {
            reply.expired.push(key_of(row, 0)?);
        }
        drop(rows);
        let next = conn
            .prepare_cached(include_str!("../../queries/next_deadline.sql"))?
            .query_row([now], |row| row.get(0))
            .optional()?;
        reply.next_deadline = next.map(Timestamp::from_micros);

        let mut due = conn.prepare_cached(include_str!("../../queries/due_timers.sql"))?;
        let mut rows = due.query((i64::MIN, key_bytes(&Key::default()), i64::MAX, i64::MAX))?;
        while let Some(row) = rows.next()? {
            let queue = optional_text(row, 4)?.unwrap_or_else(|| DEFAULT_QUEUE.into());
            if heartbeat.serves(&queue)
                && heartbeat.workflows.contains(&text(row, 2)?)
                && is_ours(optional_text(row, 3)?.as_deref())
            {
                reply.next_due = Some(Timestamp::from_micros(row.get(0)?));
                break;
            }
        }
        Ok(reply)
    }
}

/// Whether executions of a workflow are ready in a queue that is served and not paused.
fn has_ready(sql: &mut Statements<'_>, workflow: &str, heartbeat: &Heartbeat) -> DbResult<bool> {
    for queue in ready_queues(sql, workflow)? {
        if !heartbeat.serves(&queue) || read_queue(sql, &queue)?.is_some_and(|row| row.is_paused) {
            continue;
        }
        let mut key = next_ready_key(sql, workflow, &queue, None, ClaimScope::All)?;
        while let Some(it) = key {
            if sql.exists(Sql::HasReady, (workflow, &*queue, &*it, heartbeat.app_version.as_deref()))? {
                return Ok(true);
            }
            key = next_ready_key(sql, workflow, &queue, Some(&it), ClaimScope::All)?;
        }
    }
    Ok(false)
}
