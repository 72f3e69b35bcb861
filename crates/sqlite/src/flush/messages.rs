//! Messages: their sending, and the deletion of received ones; and the entries of streams.

use rusqlite::OptionalExtension;
use stepfast_core::key::Key;
use stepfast_core::store::counters::Table;
use stepfast_core::store::{Forward, Message, Outcome, Status, StreamEntry, Write};

use crate::conn::statements::Sql;
use crate::error::DbResult;
use crate::flush::apply::FlushApplier;
use crate::rows::{key_bytes, status_of};

impl FlushApplier<'_, '_> {
    /// Moves the messages at an address, and copies the ids at the address. Without messages, the execution has all ids.
    fn forward_messages(&mut self, forward: Forward) -> DbResult<()> {
        let (address, execution) = (key_bytes(&forward.address), key_bytes(&forward.execution));
        let moved = self.sql.update(Table::Messages, Sql::ForwardMessages, (execution, address))?;
        if moved > 0 {
            self.sql.insert(Table::MessageIds, Sql::ForwardMessageIds, (execution, address))?;
        }
        Ok(())
    }

    /// Forwards and sends the messages of the flush, after all other Writes. Adds the outcomes other than `Applied`.
    pub(super) fn send_messages(&mut self, outcomes: &mut Vec<(usize, Outcome)>) -> DbResult<()> {
        for write in &self.flush.writes {
            if let Write::Forward(forward) = write {
                self.forward_messages(*forward)?;
            }
        }
        for (i, write) in self.flush.writes.iter().enumerate() {
            if let Write::Send(message) = write {
                outcomes.push((i, self.send_message(message)?));
            }
        }
        Ok(())
    }

    fn send_message(&mut self, message: &Message) -> DbResult<Outcome> {
        let receiver = key_bytes(&message.execution);
        let status = if message.execution.is_address() {
            Status::Queued
        } else {
            let statement = self.sql.get(Sql::StatusOf)?;
            let Some(status) = statement.query_row([receiver], |row| Ok(status_of(row, 0))).optional()?
            else {
                return Ok(Outcome::NotFound);
            };
            // an execution with a status of a later version is shown as queued
            status?.unwrap_or(Status::Queued)
        };
        for (key, id) in message.recorded_ids() {
            let is_sent = self.sql.get(Sql::HasMessageId)?.exists((key_bytes(&key), &**id))?;
            if is_sent {
                return Ok(Outcome::AlreadySent);
            }
        }
        if status.is_terminal() {
            return Ok(Outcome::Ended(status));
        }
        for (key, id) in message.recorded_ids() {
            self.sql.insert(Table::MessageIds, Sql::InsertMessageId, (key_bytes(&key), &**id))?;
        }
        let params = (receiver, &*message.topic, message.value.as_bytes(), message.sent_at.as_micros());
        self.sql.insert(Table::Messages, Sql::InsertMessage, params)?;
        Ok(Outcome::Applied)
    }

    /// Appends an entry to a stream.
    pub(super) fn append_entry(
        &mut self,
        execution: Key,
        stream: &str,
        entry: &StreamEntry,
    ) -> DbResult<Outcome> {
        let params = (
            key_bytes(&execution),
            stream,
            entry.offset,
            entry.step.as_bytes(),
            entry.attempt_offset,
            entry.written_at.as_micros(),
            entry.value.as_bytes(),
        );
        if self.sql.insert(Table::StreamEntries, Sql::InsertStreamEntry, params)? == 1 {
            return Ok(Outcome::Applied);
        }
        let offset = entry.offset;
        Ok(Outcome::Rejected(
            format!("stream {stream:?} of execution {execution} already has an entry at offset {offset}")
                .into(),
        ))
    }

    /// Deletes a message that a checkpoint of the flush receives.
    pub(super) fn delete_message(&mut self, number: i64) -> DbResult<()> {
        self.sql.delete(Table::Messages, Sql::DeleteMessage, [number])?;
        Ok(())
    }
}
