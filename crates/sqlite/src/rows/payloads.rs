//! [`Aside`]: payloads that stand in pieces in the table `payloads`, and not in the rows that refer to them.
//!
//! A row of a table without rowids that is longer than a quarter of a page spills into a page of its own. So a payload of
//! more than [`HERE`] bytes is cut into pieces of the same length, of which six or more fill a page. Its column holds a
//! reference: [`REFERENCE`], the place of the first piece, the length, and the number of pieces.

use rusqlite::Params;
use stepfast_core::payload::{INLINE_LIMIT, Payload};

use crate::conn::statements::ROWS;
use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;
use crate::rows::blob;

/// Longest payload that stands in the row that refers to it. Two of them and the short columns of an execution are less
/// than a quarter of a page.
const HERE: usize = 400;
/// Longest payload that is cut into pieces; the engine stores longer values as chunks. What is longer all the same stands
/// in its column, where SQLite refuses what is too long for it.
const LONGEST: usize = INLINE_LIMIT;
/// Longest piece: with the few bytes that SQLite adds to a row, a sixth of a page. Longer ones leave more of a page empty,
/// shorter ones are more rows. With pieces of the same length, 1 byte takes 1.1 on average, and never more than 1.2.
const PIECE: usize = 668;
/// First byte of a reference. No encoding has it.
const REFERENCE: u8 = 0xff;
/// Bytes of a reference.
const LENGTH: usize = 17;

/// Where the pieces of a payload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reference {
    first: i64,
    len: u32,
    pieces: u32,
}

impl Reference {
    fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [REFERENCE; LENGTH];
        bytes[1..9].copy_from_slice(&self.first.to_be_bytes());
        bytes[9..13].copy_from_slice(&self.len.to_be_bytes());
        bytes[13..].copy_from_slice(&self.pieces.to_be_bytes());
        bytes
    }

    #[inline]
    fn of(bytes: &[u8]) -> Option<Self> {
        let [REFERENCE, rest @ ..] = <&[u8; LENGTH]>::try_from(bytes).ok()? else { return None };
        Some(Self {
            first: i64::from_be_bytes(*rest.first_chunk()?),
            len: u32::from_be_bytes(*rest[8..].first_chunk()?),
            pieces: u32::from_be_bytes(*rest[12..].first_chunk()?),
        })
    }

    /// The place after the last piece.
    fn end(self) -> i64 {
        self.first.saturating_add(i64::from(self.pieces))
    }
}

/// The bytes that a column gets of a payload.
pub(crate) enum Column<'p> {
    /// The payload; NULL if there is none.
    Here(Option<&'p [u8]>),
    /// A reference.
    Aside([u8; LENGTH]),
}

impl Column<'_> {
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Column::Here(bytes) => *bytes,
            Column::Aside(reference) => Some(reference),
        }
    }
}

/// Returns the length of the pieces of a payload: all have the same, but for the last.
fn piece(payload: &Payload) -> usize {
    payload.len().div_ceil(payload.len().div_ceil(PIECE))
}

/// The payloads that a transaction puts aside.
#[derive(Default)]
pub(crate) struct Aside {
    /// The place of the next piece, once it is known.
    next: Option<i64>,
    /// Payloads whose references were handed out, with the places of their first pieces.
    waiting: Vec<(i64, Payload)>,
}

impl Aside {
    /// Returns the bytes that a column gets of a payload. Inline, as all but the short check is rare.
    #[inline]
    pub(crate) fn column<'p>(&mut self, sql: &mut Statements<'_>, payload: &'p Payload) -> DbResult<Column<'p>> {
        let bytes = payload.as_bytes();
        // whatever a caller has encoded: a column that reads like a reference is one
        let is_short = bytes.len() <= HERE && Reference::of(bytes).is_none();
        if is_short || bytes.len() > LONGEST {
            return Ok(Column::Here((!bytes.is_empty()).then_some(bytes)));
        }
        self.put(sql, payload)
    }

    /// Hands out the reference of a payload that is put aside.
    #[inline(never)]
    fn put<'p>(&mut self, sql: &mut Statements<'_>, payload: &'p Payload) -> DbResult<Column<'p>> {
        let first = match self.next {
            Some(first) => first,
            None => sql.get(Sql::NextPiece)?.query_row([], |row| row.get(0))?,
        };
        let pieces = payload.len().div_ceil(piece(payload)) as u32;
        let reference = Reference { first, len: payload.len() as u32, pieces };
        self.next = Some(reference.end());
        self.waiting.push((first, payload.clone()));
        Ok(Column::Aside(reference.to_bytes()))
    }

    /// Takes back the references handed out since there were `waiting` of them: their rows were not written.
    pub(crate) fn take_back(&mut self, waiting: usize) {
        if let Some((first, _)) = self.waiting.get(waiting) {
            self.next = Some(*first);
            self.waiting.truncate(waiting);
        }
    }

    /// Returns the number of payloads that wait for their insertion.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Inserts the pieces of all payloads whose references were handed out.
    pub(crate) fn insert(&mut self, sql: &mut Statements<'_>) -> DbResult<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let pieces = waiting
            .iter()
            .flat_map(|(first, payload)| (*first..).zip(payload.as_bytes().chunks(piece(payload))));
        let pieces: Vec<(i64, &[u8])> = pieces.collect();
        let (many, rest) = pieces.as_chunks::<ROWS>();
        for many in many {
            let statement = sql.get(Sql::PieceMany)?;
            for (n, (id, bytes)) in many.iter().enumerate() {
                statement.raw_bind_parameter(2 * n + 1, id)?;
                statement.raw_bind_parameter(2 * n + 2, bytes)?;
            }
            statement.raw_execute()?;
        }
        for piece in rest {
            sql.run(Sql::Piece, *piece)?;
        }
        Ok(())
    }

    /// Deletes the pieces of payloads that are about to be replaced or were deleted, and returns how many rows there are:
    /// `referring` selects their columns, or returns them.
    pub(crate) fn delete(
        &mut self,
        sql: &mut Statements<'_>,
        referring: Sql,
        params: impl Params,
    ) -> DbResult<u64> {
        let (mut found, mut references) = (0, Vec::new());
        let mut rows = sql.get(referring)?.query(params)?;
        while let Some(row) = rows.next()? {
            found += 1;
            references.extend(blob(row, 0)?.and_then(Reference::of));
        }
        drop(rows);
        if !references.is_empty() {
            // one of them may be of this transaction
            self.insert(sql)?;
        }
        for reference in references {
            sql.run(Sql::DeletePieces, (reference.first, reference.end()))?;
        }
        Ok(found)
    }
}

/// Puts a payload into the place of its reference. Returns false if its pieces are not all there; the payload is then the
/// reference, which no decoder accepts.
pub(crate) fn fetch(sql: &mut Statements<'_>, payload: &mut Payload) -> DbResult<bool> {
    let Some(reference) = Reference::of(payload.as_bytes()) else { return Ok(true) };
    let len = reference.len as usize;
    let mut bytes = Vec::with_capacity(len.min(LONGEST));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let reference = Reference { first: 1 << 40, len: 65_536, pieces: 66 };
        let bytes = reference.to_bytes();
        assert_eq!(Reference::of(&bytes), Some(reference));
        for other in [&bytes[..16], &[&bytes[..], &[0]].concat(), &[0x01; LENGTH]] {
            assert_eq!(Reference::of(other), None);
        }
    }
}
