//! The number of a flush: taken from the lane's row, together with the check of the fence. The row keeps the outcomes of
//! the flush, in case the flush is sent again because its COMMIT had no reply.

use stepfast_core::store::{Flush, Outcome, StoreError, decode_outcomes, encode_outcomes, outcomes_to_keep};

use crate::conn::statements::{Sql, Statements};
use crate::error::DbResult;

/// The result of [`take_number`].
pub(super) enum Number {
    /// The flush has taken its number, and has to be applied.
    Taken,
    /// The flush was applied before, with these outcomes other than `Applied`.
    AppliedBefore(Vec<(usize, Outcome)>),
}

/// Takes the number of a flush on its lane. Fails with `Fenced` if the lane's epoch has ended, and with `Corrupt` if the
/// number does not follow the lane's last one.
pub(super) fn take_number(sql: &mut Statements<'_>, flush: &Flush) -> DbResult<Number> {
    let Flush { worker, lane, epoch, number, .. } = *flush;
    if sql.run(Sql::TakeNumber, (worker.0, lane, epoch, number))? == 1 {
        return Ok(Number::Taken);
    }
    let mut row = sql.get(Sql::LaneState)?.query((worker.0, lane))?;
    let Some(row) = row.next()? else { return Err(StoreError::Fenced.into()) };
    if row.get::<_, i64>(0)? != epoch {
        return Err(StoreError::Fenced.into());
    }
    let last: i64 = row.get(1)?;
    if flush.is_resent && last == number {
        let kept = row.get_ref(2)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        return Ok(Number::AppliedBefore(decode_outcomes(kept)?));
    }
    Err(StoreError::Corrupt(format!("flush {number} of lane {lane} was sent after flush {last}")).into())
}

/// Keeps the outcomes of a flush, unless all its Writes but Wakes were applied.
pub(super) fn keep_outcomes(
    sql: &mut Statements<'_>,
    flush: &Flush,
    outcomes: &[(usize, Outcome)],
) -> DbResult<()> {
    if let Some(kept) = encode_outcomes(outcomes_to_keep(flush, outcomes)) {
        sql.run(Sql::KeepOutcomes, (flush.worker.0, flush.lane, kept))?;
    }
    Ok(())
}
