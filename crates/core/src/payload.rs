//! [`Payload`]: a serialised value, one header byte and the bytes.

use std::fmt;

use bytes::Bytes;
use rmpv::decode::read_value_with_max_depth;
use serde::{Serialize, de::DeserializeOwned};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::failure::Failure;

/// Header of a value encoded as MessagePack.
const MESSAGE_PACK: u8 = 0x01;
/// Header of a reference to a value stored as chunks.
const CHUNKED: u8 = 0x81;

/// Values up to this many bytes are stored in the row that refers to them; larger ones as chunks aside.
pub const INLINE_LIMIT: usize = 64 * 1024;
/// Largest chunk of a value stored aside, in bytes.
pub const CHUNK_SIZE: usize = 1024 * 1024;
/// Largest value that is accepted unless the engine is told otherwise, in bytes.
pub const DEFAULT_VALUE_LIMIT: usize = 256 * 1024 * 1024;

/// Deepest tree that is read for people and for fingerprints; an array counts twice. Its reading fits into the stack of
/// a thread also without optimisations.
const MAX_DEPTH: usize = 256;

/// A serialised value. Its first byte says how it was encoded, so old rows stay readable.
#[derive(Clone)]
pub struct Payload(PayloadRepr);

/// Small values are most of them: they are kept in place, and cost no allocation.
#[derive(Clone)]
enum PayloadRepr {
    InPlace(u8, [u8; IN_PLACE_BYTES]),
    Shared(Bytes),
}

/// Bytes that a payload holds in place: what fits beside the four words of [`Bytes`].
const IN_PLACE_BYTES: usize = 23;

/// What can be put into a payload: any serde value; and a payload, for those who encode by themselves.
pub(crate) trait ToPayload {
    fn to_payload(&self) -> Result<Payload, Error>;
}

/// What can be read from a payload, in the same way.
pub(crate) trait FromPayload: Sized {
    fn from_payload(payload: &Payload) -> Result<Self, Error>;
}

impl<T: Serialize> ToPayload for T {
    fn to_payload(&self) -> Result<Payload, Error> {
        Payload::encode(self)
    }
}

impl<T: DeserializeOwned> FromPayload for T {
    fn from_payload(payload: &Payload) -> Result<Self, Error> {
        payload.decode()
    }
}

impl ToPayload for Payload {
    fn to_payload(&self) -> Result<Payload, Error> {
        Ok(self.clone())
    }
}

impl FromPayload for Payload {
    fn from_payload(payload: &Payload) -> Result<Self, Error> {
        Ok(payload.clone())
    }
}

/// Where the bytes of a large value are: `count` rows of `chunks` under (execution, `value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// Number of the value, random, unique within its execution.
    pub value: u64,
    /// Length of the whole payload in bytes.
    pub len: u64,
    /// How many chunks there are.
    pub count: u32,
}

impl Payload {
    /// No payload at all, as in a row without an outcome; not the encoding of any value.
    pub const fn empty() -> Self {
        Self(PayloadRepr::InPlace(0, [0; IN_PLACE_BYTES]))
    }

    fn in_place(bytes: &[u8]) -> Option<Self> {
        let mut held = [0; IN_PLACE_BYTES];
        held.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(PayloadRepr::InPlace(bytes.len() as u8, held)))
    }

    /// `value` as MessagePack with field names; [`Error::Encode`] if serde cannot represent it.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.push(MESSAGE_PACK);
        rmp_serde::encode::write_named(&mut bytes, value)
            .map_err(|error| Error::Encode { what: std::any::type_name::<T>(), reason: error.to_string() })?;
        Ok(Self::in_place(&bytes).unwrap_or_else(|| Self(PayloadRepr::Shared(bytes.into_vec().into()))))
    }

    /// The value back; [`Error::Decode`] if the bytes do not hold a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let fail = |reason: String| Error::Decode {
            value: "a recorded value".to_owned(),
            what: std::any::type_name::<T>(),
            reason,
        };
        match self.as_bytes().split_first() {
            Some((&MESSAGE_PACK, bytes)) => {
                rmp_serde::from_slice(bytes).map_err(|error| fail(self.describe_mismatch(&error)))
            }
            Some((&CHUNKED, _)) => Err(fail("it is stored aside, and was not fetched".to_owned())),
            Some((header, _)) => Err(fail(format!("unknown payload header {header:#04x}"))),
            None => Err(fail("there is no payload".into())),
        }
    }

    /// Why the bytes are not the value that was asked for, in words that need no knowledge of the encoding.
    fn describe_mismatch(&self, error: &rmp_serde::decode::Error) -> String {
        let Some(value) = self.to_value() else { return "its bytes are damaged".to_owned() };
        let recorded = format!("what is recorded is {}", describe_value(&value));
        match error {
            // serde's own words: what it expected, or which field it misses
            rmp_serde::decode::Error::Syntax(reason) => format!("{reason} ({recorded})"),
            _ => recorded,
        }
    }

    /// The payload of a value that is MessagePack already.
    pub fn from_message_pack(encoded: &[u8]) -> Self {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::with_capacity(encoded.len() + 1);
        bytes.push(MESSAGE_PACK);
        bytes.extend_from_slice(encoded);
        Self::in_place(&bytes).unwrap_or_else(|| Self(PayloadRepr::Shared(bytes.into_vec().into())))
    }

    /// The value as MessagePack; `None` if the payload holds something else.
    pub fn as_message_pack(&self) -> Option<&[u8]> {
        match self.as_bytes().split_first() {
            Some((&MESSAGE_PACK, bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the encoded failure; an empty payload if it cannot be encoded.
    pub(crate) fn from_failure(failure: &Failure) -> Self {
        Self::encode(failure).unwrap_or_default()
    }

    /// Returns the failure that the payload holds, or one that says why the payload cannot be read as a failure.
    pub(crate) fn to_failure(&self) -> Failure {
        self.decode().unwrap_or_else(|error| {
            Failure::new(error.with_value(|| "what was recorded as an error".to_owned()).to_string())
        })
    }

    /// The payload from the bytes of a row.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self::in_place(&bytes).unwrap_or(Self(PayloadRepr::Shared(bytes)))
    }

    /// The payload from the bytes of a row, copied.
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self::in_place(bytes).unwrap_or_else(|| Self(PayloadRepr::Shared(Bytes::copy_from_slice(bytes))))
    }

    /// The bytes as stored, header included.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            PayloadRepr::InPlace(len, bytes) => &bytes[..usize::from(*len)],
            PayloadRepr::Shared(bytes) => bytes,
        }
    }

    /// The bytes as stored, to be shared.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            PayloadRepr::InPlace(..) => Bytes::copy_from_slice(self.as_bytes()),
            PayloadRepr::Shared(bytes) => bytes.clone(),
        }
    }

    /// Length in bytes, header included.
    pub fn len(&self) -> usize {
        match &self.0 {
            PayloadRepr::InPlace(len, _) => usize::from(*len),
            PayloadRepr::Shared(bytes) => bytes.len(),
        }
    }

    /// True if there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A payload that refers to a value stored as chunks.
    pub fn from_chunk_ref(chunks: ChunkRef) -> Self {
        let mut bytes = [0; IN_PLACE_BYTES];
        bytes[0] = CHUNKED;
        bytes[1..9].copy_from_slice(&chunks.value.to_be_bytes());
        bytes[9..17].copy_from_slice(&chunks.len.to_be_bytes());
        bytes[17..21].copy_from_slice(&chunks.count.to_be_bytes());
        Self(PayloadRepr::InPlace(21, bytes))
    }

    /// The chunks this payload refers to, if it is such a reference.
    pub fn chunk_ref(&self) -> Option<ChunkRef> {
        let (&CHUNKED, rest) = self.as_bytes().split_first()? else { return None };
        Some(ChunkRef {
            value: u64::from_be_bytes(rest.get(..8)?.try_into().ok()?),
            len: u64::from_be_bytes(rest.get(8..16)?.try_into().ok()?),
            count: u32::from_be_bytes(rest.get(16..20)?.try_into().ok()?),
        })
    }

    /// Eight bytes that tell different values apart: a hash of the encoding with its maps sorted.
    pub fn fingerprint(&self) -> u64 {
        let Some((&MESSAGE_PACK, mut bytes)) = self.as_bytes().split_first() else {
            return xxh3_64(self.as_bytes());
        };
        let Ok(mut value) = read_value_with_max_depth(&mut bytes, MAX_DEPTH) else {
            return xxh3_64(self.as_bytes());
        };
        sort_maps(&mut value);
        let mut canonical = Vec::with_capacity(self.len());
        rmpv::encode::write_value(&mut canonical, &value)
            .map_or_else(|_| xxh3_64(self.as_bytes()), |()| xxh3_64(&canonical))
    }

    /// The same of a value that has no maps, which is already as it would be sorted.
    pub fn fingerprint_without_maps(&self) -> u64 {
        xxh3_64(self.as_message_pack().unwrap_or_else(|| self.as_bytes()))
    }

    /// The value as a MessagePack tree, for showing it to people; `None` if it is not one, or too deep.
    pub fn to_value(&self) -> Option<rmpv::Value> {
        let (&MESSAGE_PACK, mut bytes) = self.as_bytes().split_first()? else { return None };
        read_value_with_max_depth(&mut bytes, MAX_DEPTH).ok()
    }
}

/// What kind of value it is.
fn describe_value(value: &rmpv::Value) -> String {
    use rmpv::Value;
    match value {
        Value::Nil => "nothing (null)".to_owned(),
        Value::Boolean(_) => "a boolean".to_owned(),
        Value::Integer(_) => "an integer".to_owned(),
        Value::F32(_) | Value::F64(_) => "a floating-point number".to_owned(),
        Value::String(_) => "a string".to_owned(),
        Value::Binary(bytes) => format!("{} bytes", bytes.len()),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Map(entries) => {
            let mut names: Vec<&str> = entries.iter().filter_map(|(key, _)| key.as_str()).take(9).collect();
            if names.len() < entries.len() {
                names.push("…");
            }
            format!("a map with {}", if names.is_empty() { "no fields".to_owned() } else { names.join(", ") })
        }
        Value::Ext(..) => "an extension of MessagePack".to_owned(),
    }
}

fn sort_maps(value: &mut rmpv::Value) {
    match value {
        rmpv::Value::Array(items) => items.iter_mut().for_each(sort_maps),
        rmpv::Value::Map(entries) => {
            for (key, item) in entries.iter_mut() {
                sort_maps(key);
                sort_maps(item);
            }
            entries.sort_by_cached_key(|(key, _)| {
                let mut bytes = Vec::new();
                let _ = rmpv::encode::write_value(&mut bytes, key);
                bytes
            });
        }
        _ => {}
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_value() {
            Some(value) if self.len() <= 200 => write!(f, "Payload({value})"),
            _ => write!(f, "Payload({} bytes)", self.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_value_however_deep_overflows_no_stack() {
        for deep in [vec![0x91; 5_000], vec![0x81; 5_000], [0x81, 0xc0].repeat(5_000)] {
            let payload = Payload::from_message_pack(&deep);
            assert!(payload.decode::<i64>().is_err() && payload.to_value().is_none());
            assert_eq!(payload.fingerprint(), payload.clone().fingerprint());
        }
        let nested = (0..100).fold("7".to_owned(), |inner, _| format!("[{inner}]"));
        let value: serde_json::Value = serde_json::from_str(&nested).unwrap();
        assert!(Payload::encode(&value).unwrap().to_value().is_some());
    }

    #[test]
    fn values_come_back() {
        let value = (1u8, "two".to_owned(), vec![3.5f64], Some(HashMap::from([("k".to_owned(), true)])));
        let payload = Payload::encode(&value).unwrap();
        assert_eq!(payload.decode::<(u8, String, Vec<f64>, Option<HashMap<String, bool>>)>().unwrap(), value);
        let error = payload.decode::<u8>().unwrap_err();
        assert!(error.to_string().contains("u8"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_is_said_without_the_encodings_words() {
        #[derive(serde::Serialize, serde::Deserialize, Debug)]
        struct Order {
            id: u32,
            items: Vec<String>,
        }
        let order = Payload::encode(&Order { id: 7, items: Vec::new() }).unwrap();
        let why = |error: Error| error.to_string();
        let message = why(order.decode::<u32>().unwrap_err());
        assert!(message.contains("read as u32") && message.contains("a map with id, items"), "{message}");
        let message = why(Payload::encode("text").unwrap().decode::<u32>().unwrap_err());
        assert!(message.contains("a string"), "{message}");
        let message = why(Payload::encode(&5).unwrap().decode::<Order>().unwrap_err());
        assert!(message.contains("an integer"), "{message}");
        let short = Payload::encode(&HashMap::from([("id", 7)])).unwrap();
        let message = why(short.decode::<Order>().unwrap_err());
        assert!(message.contains("missing field `items`"), "{message}");
        for payload in [order, short, Payload::encode(&1.5).unwrap(), Payload::encode(&Some(())).unwrap()] {
            for error in [
                payload.decode::<String>().unwrap_err(),
                payload.decode::<(u8, u8)>().unwrap_err(),
                payload.decode::<bool>().unwrap_err(),
                payload.decode::<char>().unwrap_err(),
            ] {
                let message = error.to_string();
                assert!(!message.contains("marker") && !message.contains("msgpack"), "{message}");
            }
        }
        let torn = Payload::from_slice(&Payload::encode("some text").unwrap().as_bytes()[..5]);
        assert!(why(torn.decode::<String>().unwrap_err()).contains("damaged"));
    }

    #[test]
    fn fingerprint_does_not_see_the_order_of_a_map() {
        let pairs: Vec<(String, u32)> = (0..50).map(|i| (i.to_string(), i)).collect();
        let (a, b): (HashMap<_, _>, HashMap<_, _>) =
            (pairs.iter().cloned().collect(), pairs.iter().rev().cloned().collect());
        assert_eq!(Payload::encode(&a).unwrap().fingerprint(), Payload::encode(&b).unwrap().fingerprint());
        assert_ne!(Payload::encode(&1).unwrap().fingerprint(), Payload::encode(&2).unwrap().fingerprint());
    }

    #[test]
    fn chunk_references_round_trip() {
        let chunks = ChunkRef { value: 7, len: 3 << 20, count: 3 };
        assert_eq!(Payload::from_chunk_ref(chunks).chunk_ref(), Some(chunks));
        assert_eq!(Payload::encode(&1).unwrap().chunk_ref(), None);
    }
}
