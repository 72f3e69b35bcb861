//! [`PayloadPieces`]: payloads that are stored in pieces in the table `payloads`, instead of in the rows that refer to
//! them.
//!
//! In a table without rowids, a row that is longer than a quarter of a page spills into a page of its own. Therefore a
//! payload of more than [`MAX_INLINE_BYTES`] is cut into pieces of equal length, of which six or more fill a page. Its
//! column holds a reference: [`REFERENCE_TAG`], the id of the first piece, the length, and the number of pieces.

use std::ops::Range;

use rusqlite::Params;
use stepfast_core::payload::{INLINE_LIMIT, Payload};
use stepfast_core::store::PackBytes;

use crate::conn::statements::BATCH_ROWS;
use crate::conn::statements::{Sql, Statements};
use crate::error::{DbError, DbResult};
use crate::rows::blob;

/// Maximum length of a payload that is stored inline, in bytes. Two inline payloads and the short columns of an
/// execution take less than a quarter of a page.
const MAX_INLINE_BYTES: usize = 400;
/// Maximum length of a payload that is cut into pieces, in bytes; the engine stores longer values as chunks. A payload
/// that is longer nevertheless is stored inline, and SQLite rejects it if it exceeds SQLite's limit.
const MAX_SPLIT_BYTES: usize = INLINE_LIMIT;
/// Maximum length of a piece, in bytes: with the overhead of a row, a sixth of a page. Longer pieces leave more of a
/// page empty; shorter pieces need more rows. With pieces of equal length, 1 byte of a payload takes 1.1 bytes of the
/// file on average, and never more than 1.2.
const MAX_PIECE_BYTES: usize = 668;
/// First byte of a reference. No encoding begins with it.
const REFERENCE_TAG: u8 = 0xff;
/// Length of a reference, in bytes.
const REFERENCE_BYTES: usize = 17;

/// The location of a payload's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reference {
    /// Id of the first piece.
    first: i64,
    /// Length of the payload, in bytes.
    len: u32,
    /// Number of pieces.
    pieces: u32,
}

impl Reference {
    fn to_bytes(self) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [REFERENCE_TAG; REFERENCE_BYTES];
        bytes[1..9].copy_from_slice(&self.first.to_be_bytes());
        bytes[9..13].copy_from_slice(&self.len.to_be_bytes());
        bytes[13..].copy_from_slice(&self.pieces.to_be_bytes());
        bytes
    }

    #[inline]
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [REFERENCE_TAG, rest @ ..] = <&[u8; REFERENCE_BYTES]>::try_from(bytes).ok()? else { return None };
        Some(Self {
            first: i64::from_be_bytes(*rest.first_chunk()?),
            len: u32::from_be_bytes(*rest[8..].first_chunk()?),
            pieces: u32::from_be_bytes(*rest[12..].first_chunk()?),
        })
    }

    /// Returns the id after that of the last piece.
    fn end(self) -> i64 {
        self.first.saturating_add(i64::from(self.pieces))
    }
}

/// The value that a column stores for a payload.
pub(crate) enum ColumnValue<'p> {
    /// The payload itself; NULL if it is empty.
    Inline(Option<&'p [u8]>),
    /// A reference to its pieces.
    Reference([u8; REFERENCE_BYTES]),
}

impl ColumnValue<'_> {
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            ColumnValue::Inline(bytes) => *bytes,
            ColumnValue::Reference(reference) => Some(reference),
        }
    }
}

/// Returns the length of a payload's pieces, in bytes. Only the last one may be shorter.
fn piece_length(payload: &Payload) -> usize {
    payload.len().div_ceil(payload.len().div_ceil(MAX_PIECE_BYTES))
}

/// The payloads that a transaction stores in pieces.
#[derive(Default)]
pub(crate) struct PayloadPieces {
    /// The id of the next piece; `None` until it is read from the database.
    next_id: Option<i64>,
    /// Payloads that have references but are not inserted yet, with the ids of their first pieces.
    pending: Vec<(i64, Payload)>,
}

impl PayloadPieces {
    /// Returns the value of a payload's column. Inlined, because most payloads are short and need only the check of
    /// their length.
    #[inline]
    pub(crate) fn column_value<'p>(
        &mut self,
        sql: &mut Statements<'_>,
        payload: &'p Payload,
    ) -> DbResult<ColumnValue<'p>> {
        let bytes = payload.as_bytes();
        // a payload that resembles a reference is stored in pieces, because its column would be read as a reference
        let is_short = bytes.len() <= MAX_INLINE_BYTES && Reference::from_bytes(bytes).is_none();
        if is_short || bytes.len() > MAX_SPLIT_BYTES {
            return Ok(ColumnValue::Inline((!bytes.is_empty()).then_some(bytes)));
        }
        self.split(sql, payload)
    }

    /// Allocates the ids of a payload's pieces, and returns the reference to them.
    #[inline(never)]
    fn split<'p>(&mut self, sql: &mut Statements<'_>, payload: &'p Payload) -> DbResult<ColumnValue<'p>> {
        let first = match self.next_id {
            Some(first) => first,
            None => sql.get(Sql::NextPieceId)?.query_row([], |row| row.get(0))?,
        };
        let pieces = payload.len().div_ceil(piece_length(payload)) as u32;
        let reference = Reference { first, len: payload.len() as u32, pieces };
        self.next_id = Some(reference.end());
        self.pending.push((first, payload.clone()));
        Ok(ColumnValue::Reference(reference.to_bytes()))
    }

    /// Discards the pending payloads after the first `count`: the rows that refer to them were not written.
    pub(crate) fn discard_pending(&mut self, count: usize) {
        if let Some((first, _)) = self.pending.get(count) {
            self.next_id = Some(*first);
            self.pending.truncate(count);
        }
    }

    /// Returns the number of payloads that are not inserted yet.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Inserts the pieces of all pending payloads.
    pub(crate) fn insert_pending(&mut self, sql: &mut Statements<'_>) -> DbResult<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let pieces = pending
            .iter()
            .flat_map(|(first, payload)| (*first..).zip(payload.as_bytes().chunks(piece_length(payload))));
        let pieces: Vec<(i64, &[u8])> = pieces.collect();
        let (batches, rest) = pieces.as_chunks::<BATCH_ROWS>();
        for batch in batches {
            let statement = sql.get(Sql::InsertPieceBatch)?;
            for (n, (id, bytes)) in batch.iter().enumerate() {
                statement.raw_bind_parameter(2 * n + 1, id)?;
                statement.raw_bind_parameter(2 * n + 2, bytes)?;
            }
            statement.raw_execute()?;
        }
        for piece in rest {
            sql.run(Sql::InsertPiece, *piece)?;
        }
        Ok(())
    }

    /// Deletes the pieces of payloads that are about to be replaced or were deleted. Runs the statement `referring`,
    /// which selects or returns the columns of these payloads. Returns the number of its rows.
    pub(crate) fn delete_referenced(
        &mut self,
        sql: &mut Statements<'_>,
        referring: Sql,
        params: impl Params,
    ) -> DbResult<u64> {
        let (mut row_count, mut references) = (0, Vec::new());
        let mut rows = sql.get(referring)?.query(params)?;
        while let Some(row) = rows.next()? {
            row_count += 1;
            references.extend(blob(row, 0)?.and_then(Reference::from_bytes));
        }
        drop(rows);
        if !references.is_empty() {
            // some of the pieces may be pending: only inserted pieces can be deleted
            self.insert_pending(sql)?;
        }
        for reference in references {
            sql.run(Sql::DeletePieces, (reference.first, reference.end()))?;
        }
        Ok(row_count)
    }
}

/// Replaces a reference by the payload to which it refers. Returns false if pieces are missing. Then `payload` remains
/// the reference, which no decoder accepts.
pub(crate) fn fetch_payload(sql: &mut Statements<'_>, payload: &mut Payload) -> DbResult<bool> {
    let Some(reference) = Reference::from_bytes(payload.as_bytes()) else { return Ok(true) };
    let len = reference.len as usize;
    let mut bytes = Vec::with_capacity(len.min(MAX_SPLIT_BYTES));
    let mut rows = sql.get(Sql::Pieces)?.query((reference.first, reference.end()))?;
    while let Some(row) = rows.next()? {
        bytes.extend_from_slice(blob(row, 0)?.unwrap_or_default());
    }
    let is_whole = bytes.len() == len;
    if is_whole {
        *payload = Payload::from_bytes(bytes.into());
    }
    Ok(is_whole)
}

/// A payload in a column, of which a search reads the pieces that it needs.
pub(crate) struct SearchedPayload<'s, 'c> {
    sql: &'s mut Statements<'c>,
    /// The value of the column.
    column: Payload,
    reference: Option<Reference>,
    /// Neighbouring pieces that were read last.
    pieces: Vec<u8>,
    /// The place of these pieces in the payload.
    place: Range<usize>,
}

impl<'s, 'c> SearchedPayload<'s, 'c> {
    pub(crate) fn new(sql: &'s mut Statements<'c>, column: Payload) -> Self {
        let reference = Reference::from_bytes(column.as_bytes());
        Self { sql, column, reference, pieces: Vec::new(), place: 0..0 }
    }

    /// Reads the pieces that contain this part of a payload. Returns false if some are missing.
    fn read_pieces(&mut self, reference: Reference, part: &Range<usize>) -> DbResult<bool> {
        let len = reference.len as usize;
        if part.end > len || reference.pieces == 0 {
            return Ok(false);
        }
        let piece_len = len.div_ceil(reference.pieces as usize);
        let pieces = part.start / piece_len..part.end.div_ceil(piece_len);
        let id_of = |piece: usize| reference.first.saturating_add(piece as i64);
        self.pieces.clear();
        let mut rows = self.sql.get(Sql::Pieces)?.query((id_of(pieces.start), id_of(pieces.end)))?;
        while let Some(row) = rows.next()? {
            self.pieces.extend_from_slice(blob(row, 0)?.unwrap_or_default());
        }
        self.place = pieces.start * piece_len..len.min(pieces.end * piece_len);
        Ok(self.pieces.len() == self.place.len())
    }
}

impl PackBytes for SearchedPayload<'_, '_> {
    type Error = DbError;

    fn len(&self) -> usize {
        self.reference.map_or(self.column.len(), |reference| reference.len as usize)
    }

    fn read(&mut self, part: Range<usize>) -> DbResult<Option<&[u8]>> {
        let Some(reference) = self.reference else { return Ok(self.column.as_bytes().get(part)) };
        let is_read = self.place.start <= part.start && part.end <= self.place.end;
        if !is_read && !self.read_pieces(reference, &part)? {
            self.place = 0..0;
            return Ok(None);
        }
        let begin = self.place.start;
        Ok(self.pieces.get(part.start - begin..part.end - begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_is_parsed_from_its_bytes() {
        let reference = Reference { first: 1 << 40, len: 65_536, pieces: 66 };
        let bytes = reference.to_bytes();
        assert_eq!(Reference::from_bytes(&bytes), Some(reference));
        for other in [&bytes[..16], &[&bytes[..], &[0]].concat(), &[0x01; REFERENCE_BYTES]] {
            assert_eq!(Reference::from_bytes(other), None);
        }
    }
}
