//! Existing executions: the outcomes of Starts that were not inserted.

use rusqlite::OptionalExtension;
use stepfast_core::store::{ExistingExecution, Outcome, Start};

use crate::conn::statements::Sql;
use crate::error::{DbError, DbResult};
use crate::flush::apply::FlushApplier;
use crate::rows::{key_bytes, parse_existing_row};

impl FlushApplier<'_, '_> {
    /// Returns the outcome of a Start that is not inserted. The outcome is `rejection` unless the Start is a duplicate.
    pub(super) fn outcome_if_rejected(&mut self, start: &Start, rejection: Outcome) -> DbResult<Outcome> {
        if let Some((existing, _)) = self.find_existing(start)? {
            return Ok(Outcome::Duplicate(Box::new(existing)));
        }
        let other = if start.dedup_id.is_some() { self.find_deduplicated(start)? } else { None };
        Ok(other.map_or(rejection, |other| Outcome::Deduplicated(Some(other))))
    }

    /// Returns the outcome of a Start that was not inserted because another execution has its key, id or `dedup_id`.
    pub(super) fn duplicate_outcome(&mut self, start: &Start) -> DbResult<Outcome> {
        match self.find_existing(start)? {
            Some((existing, _)) => Ok(Outcome::Duplicate(Box::new(existing))),
            None if start.dedup_id.is_some() => Ok(Outcome::Deduplicated(self.find_deduplicated(start)?)),
            None => Err(DbError::corrupt("table executions rejects a key that it does not contain")),
        }
    }

    /// Finds the execution that has a Start's key or workflow_id, and its creation time.
    pub(super) fn find_existing(&mut self, start: &Start) -> DbResult<Option<(ExistingExecution, i64)>> {
        let statement = self.sql.get(Sql::ExistingByKey)?;
        if let Some(found) =
            statement.query_row([key_bytes(&start.key)], |row| Ok(parse_existing_row(row))).optional()?
        {
            return found.map(Some);
        }
        let Some(workflow_id) = start.workflow_id.as_deref() else { return Ok(None) };
        let statement = self.sql.get(Sql::ExistingById)?;
        statement.query_row([workflow_id], |row| Ok(parse_existing_row(row))).optional()?.transpose()
    }

    /// Finds the execution that has a Start's `dedup_id`.
    fn find_deduplicated(&mut self, start: &Start) -> DbResult<Option<Box<ExistingExecution>>> {
        let queue = start.placement.as_deref().map(|placement| &*placement.queue);
        let statement = self.sql.get(Sql::ExistingByDedupId)?;
        let params = (queue, start.dedup_id.as_deref());
        let found = statement.query_row(params, |row| Ok(parse_existing_row(row))).optional()?.transpose()?;
        Ok(found.map(|(existing, _)| Box::new(existing)))
    }
}
