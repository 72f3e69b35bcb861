//! The rows of `assignments`: how the executions of a worker are found.

use stepfast_core::key::Key;
use stepfast_core::store::AssignmentId;

use crate::conn::statements::{Sql, Statements};
use crate::error::{DbError, DbResult};
use crate::rows::{blob, key_bytes};

/// A row of `assignments`.
pub(crate) struct AssignmentRow {
    pub(crate) id: AssignmentId,
    pub(crate) executions: Vec<Key>,
}

/// Records an assignment; does nothing if it is recorded.
pub(crate) fn insert_assignment(
    sql: &mut Statements<'_>,
    worker: i64,
    id: AssignmentId,
    executions: &[Key],
) -> DbResult<()> {
    let mut keys = Vec::with_capacity(size_of_val(executions));
    for key in executions {
        keys.extend_from_slice(key_bytes(key));
    }
    sql.run(Sql::InsertAssignment, (worker, id.lane, id.number, keys))?;
    Ok(())
}

/// Reads assignments of a worker, in order, until they list `limit` executions.
pub(crate) fn read_assignments(
    sql: &mut Statements<'_>,
    worker: i64,
    limit: usize,
) -> DbResult<Vec<AssignmentRow>> {
    let mut found = Vec::new();
    let mut total = 0;
    let mut rows = sql.get(Sql::Assignments)?.query([worker])?;
    while total < limit
        && let Some(row) = rows.next()?
    {
        let id = AssignmentId { lane: row.get(0)?, number: row.get(1)? };
        let keys = blob(row, 2)?.unwrap_or_default();
        let (keys, rest) = keys.as_chunks::<{ size_of::<Key>() }>();
        if !rest.is_empty() {
            return Err(DbError::corrupt("a row of assignments has a part of a key"));
        }
        total += keys.len();
        found.push(AssignmentRow { id, executions: keys.iter().map(|key| Key::from_bytes(*key)).collect() });
    }
    Ok(found)
}

/// Returns those of the executions that the worker runs.
pub(crate) fn retain_running(
    sql: &mut Statements<'_>,
    worker: i64,
    executions: Vec<Key>,
) -> DbResult<Vec<Key>> {
    let mut running = Vec::new();
    for key in executions {
        if sql.exists(Sql::IsRunBy, (key_bytes(&key), worker))? {
            running.push(key);
        }
    }
    Ok(running)
}
