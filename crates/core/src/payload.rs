//! [`Payload`]: a serialised value, one header byte and the bytes.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;

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

/// A serialised value. Its first byte says how it was encoded, so old rows stay readable.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Payload(Bytes);

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
        Self(Bytes::new())
    }

    /// `value` as MessagePack with field names; [`Error::Encode`] if serde cannot represent it.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let mut writer = BytesMut::with_capacity(32).writer();
        writer.get_mut().put_u8(MESSAGE_PACK);
        rmp_serde::encode::write_named(&mut writer, value)
            .map_err(|error| Error::Encode { what: std::any::type_name::<T>(), reason: error.to_string() })?;
        Ok(Self(writer.into_inner().freeze()))
    }

    /// The value back; [`Error::Decode`] if the bytes do not hold a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let fail = |reason: String| Error::Decode { what: std::any::type_name::<T>(), reason };
        match self.0.split_first() {
            Some((&MESSAGE_PACK, bytes)) => {
                rmp_serde::from_slice(bytes).map_err(|error| fail(error.to_string()))
            }
            Some((header, _)) => Err(fail(format!("unknown payload header {header:#04x}"))),
            None => Err(fail("there is no payload".into())),
        }
    }

    /// The payload from the bytes of a row.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The bytes as stored, header included.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Length in bytes, header included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no payload.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A payload that refers to a value stored as chunks.
    pub fn chunked(chunks: ChunkRef) -> Self {
        let mut bytes = BytesMut::with_capacity(21);
        bytes.put_u8(CHUNKED);
        bytes.put_u64(chunks.value);
        bytes.put_u64(chunks.len);
        bytes.put_u32(chunks.count);
        Self(bytes.freeze())
    }

    /// The chunks this payload refers to, if it is such a reference.
    pub fn chunks(&self) -> Option<ChunkRef> {
        let (&CHUNKED, rest) = self.0.split_first()? else { return None };
        Some(ChunkRef {
            value: u64::from_be_bytes(rest.get(..8)?.try_into().ok()?),
            len: u64::from_be_bytes(rest.get(8..16)?.try_into().ok()?),
            count: u32::from_be_bytes(rest.get(16..20)?.try_into().ok()?),
        })
    }

    /// Eight bytes that tell different values apart: a hash of the encoding with its maps sorted.
    pub fn fingerprint(&self) -> u64 {
        let Some((&MESSAGE_PACK, mut bytes)) = self.0.split_first() else { return xxh3_64(&self.0) };
        let Ok(mut value) = rmpv::decode::read_value(&mut bytes) else { return xxh3_64(&self.0) };
        sort_maps(&mut value);
        let mut canonical = Vec::with_capacity(self.len());
        rmpv::encode::write_value(&mut canonical, &value)
            .map_or_else(|_| xxh3_64(&self.0), |()| xxh3_64(&canonical))
    }

    /// The value as a MessagePack tree, for showing it to people; `None` if it is not one.
    pub fn to_value(&self) -> Option<rmpv::Value> {
        let (&MESSAGE_PACK, mut bytes) = self.0.split_first()? else { return None };
        rmpv::decode::read_value(&mut bytes).ok()
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
    fn values_come_back() {
        let value = (1u8, "two".to_owned(), vec![3.5f64], Some(HashMap::from([("k".to_owned(), true)])));
        let payload = Payload::encode(&value).unwrap();
        assert_eq!(payload.decode::<(u8, String, Vec<f64>, Option<HashMap<String, bool>>)>().unwrap(), value);
        let error = payload.decode::<u8>().unwrap_err();
        assert!(error.to_string().contains("u8"), "{error}");
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
        assert_eq!(Payload::chunked(chunks).chunks(), Some(chunks));
        assert_eq!(Payload::encode(&1).unwrap().chunks(), None);
    }
}
