//! Converts the types of the store contract to database types.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use stepfast_core::clock::Timestamp;
use stepfast_core::{Key, Payload};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// Microseconds from the Unix epoch to the server's epoch (2000-01-01).
const SERVER_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The server's minimum timestamp (in 4714 BC), in microseconds from its epoch.
const MIN_SERVER_MICROS: i64 = -211_813_488_000_000_000;

/// A [`Timestamp`] as `timestamptz`, exact to the microsecond. The two ends of the range are `infinity` and `-infinity`,
/// so a saturated due time survives the round trip. Timestamps before the server's minimum become `-infinity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamptz(pub Timestamp);

impl ToSql for Timestamptz {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let micros = self.0.as_micros();
        out.put_i64(match micros {
            i64::MAX => i64::MAX,
            _ => match micros.saturating_sub(SERVER_EPOCH_MICROS) {
                ..MIN_SERVER_MICROS => i64::MIN,
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

impl<'a> FromSql<'a> for Timestamptz {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp::from_micros(match micros {
            i64::MIN => i64::MIN,
            _ => micros.saturating_add(SERVER_EPOCH_MICROS),
        })))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// Converts a key to a `uuid`.
pub(crate) fn to_uuid(key: Key) -> Uuid {
    Uuid::from_bytes(*key.as_bytes())
}

/// Converts a `uuid` to a key.
pub(crate) fn to_key(uuid: Uuid) -> Key {
    Key::from_bytes(uuid.into_bytes())
}

/// Returns a payload's bytes for a nullable column, or `None` for an empty payload.
pub(crate) fn non_empty_bytes(payload: &Payload) -> Option<&[u8]> {
    (!payload.is_empty()).then(|| payload.as_bytes())
}

/// Converts a column to a payload.
pub(crate) fn to_payload(bytes: &[u8]) -> Payload {
    Payload::from_slice(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_round_trip_to_the_microsecond() {
        for micros in [0, 1, -1, SERVER_EPOCH_MICROS, 1_700_000_000_123_457, i64::MAX, i64::MAX - 1, i64::MIN]
        {
            let time = Timestamptz(Timestamp::from_micros(micros));
            let mut bytes = BytesMut::new();
            time.to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
            assert_eq!(Timestamptz::from_sql(&Type::TIMESTAMPTZ, &bytes).unwrap(), time, "{micros}");
        }
    }

    #[test]
    fn timestamps_before_the_server_minimum_are_infinite() {
        let first = MIN_SERVER_MICROS + SERVER_EPOCH_MICROS;
        let sent = |micros| {
            let mut bytes = BytesMut::new();
            Timestamptz(Timestamp::from_micros(micros)).to_sql(&Type::TIMESTAMPTZ, &mut bytes).unwrap();
            i64::from_be_bytes(bytes[..].try_into().unwrap())
        };
        assert_eq!(
            [sent(first), sent(first - 1), sent(i64::MIN / 2)],
            [MIN_SERVER_MICROS, i64::MIN, i64::MIN]
        );
    }
}
