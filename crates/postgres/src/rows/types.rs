//! How the contract's types look in the database.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use stepfast_core::clock::Timestamp;
use stepfast_core::store::{State, encode_pending_sleeps};
use stepfast_core::{Key, Payload};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// Microseconds from the Unix epoch to the one that the server counts from (2000-01-01).
const SERVER_EPOCH: i64 = 946_684_800_000_000;

/// The first instant that the server knows (in 4714 BC), in microseconds from its epoch.
const SERVER_FIRST: i64 = -211_813_488_000_000_000;

/// A [`Timestamp`] as `timestamptz`, exact to the microsecond. The two ends of the range are `infinity`
/// and `-infinity`, so a saturated due time comes back as it was. Instants before the first one of the server are `-infinity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(pub Timestamp);

impl ToSql for Instant {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let micros = self.0.as_micros();
        out.put_i64(match micros {
            i64::MAX => i64::MAX,
            _ => match micros.saturating_sub(SERVER_EPOCH) {
                ..SERVER_FIRST => i64::MIN,
                micros => micros,
            },
        });
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Instant {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp::from_micros(match micros {
            i64::MIN => i64::MIN,
            _ => micros.saturating_add(SERVER_EPOCH),
        })))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// A key as `uuid`.
pub(crate) fn uuid(key: Key) -> Uuid {
    Uuid::from_bytes(*key.as_bytes())
}

/// A `uuid` as key.
pub(crate) fn key(uuid: Uuid) -> Key {
    Key::from_bytes(uuid.into_bytes())
}

/// A payload as a nullable column: null for none.
pub(crate) fn some_bytes(payload: &Payload) -> Option<&[u8]> {
    (!payload.is_empty()).then(|| payload.as_bytes())
}

/// A payload from a column.
pub(crate) fn payload(bytes: &[u8]) -> Payload {
    Payload::from_slice(bytes)
}

/// Returns the column `is_paused` of a state.
pub(crate) fn is_paused(state: &State) -> bool {
    matches!(state, State::Parked { .. })
}

/// Returns the column `outcome` of a state.
pub(crate) fn outcome(state: &State) -> Option<&[u8]> {
    match state {
        State::Parked { reason: outcome, .. } | State::Ended { outcome, .. } => some_bytes(outcome),
        _ => None,
    }
}

/// Returns the column `ended_at` of a state.
pub(crate) fn ended_at(state: &State) -> Option<Instant> {
    match state {
        State::Ended { at, .. } => Some(Instant(*at)),
        _ => None,
    }
}

/// Returns the column `armed` of a state.
pub(crate) fn armed(state: &State) -> Option<Vec<u8>> {
    let armed = state.armed();
    (!armed.is_empty()).then(|| encode_pending_sleeps(armed))
}

/// A payload as the column of what a cancel ends.
pub(crate) fn reason(payload: &Payload) -> Option<&[u8]> {
    some_bytes(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_round_trip_to_the_microsecond() {
        for micros in [0, 1, -1, SERVER_EPOCH, 1_700_000_000_123_457, i64::MAX, i64::MAX - 1, i64::MIN] {
            let instant = Instant(Timestamp::from_micros(micros));
            let mut bytes = BytesMut::new();
            instant.to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
            assert_eq!(Instant::from_sql(&Type::TIMESTAMPTZ, &bytes).unwrap(), instant, "{micros}");
        }
    }

    #[test]
    fn instants_before_the_first_of_the_server_are_infinitely_early() {
        let first = SERVER_FIRST + SERVER_EPOCH;
        let sent = |micros| {
            let mut bytes = BytesMut::new();
            Instant(Timestamp::from_micros(micros)).to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
            i64::from_be_bytes(bytes[..].try_into().unwrap())
        };
        assert_eq!([sent(first), sent(first - 1), sent(i64::MIN / 2)], [SERVER_FIRST, i64::MIN, i64::MIN]);
    }
}
