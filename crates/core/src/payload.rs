//! [`Payload`]: a serialised value, made of one header byte and the encoded bytes.

use std::fmt;

use bytes::Bytes;
use rmpv::decode::read_value_with_max_depth;
use serde::{Serialize, de::DeserializeOwned};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::canonical;
use crate::error::Error;
use crate::failure::Failure;

/// The header of a value encoded as MessagePack.
const MESSAGE_PACK: u8 = 0x01;
/// The header of a reference to a value stored as chunks.
const CHUNKED: u8 = 0x81;

/// Maximum size of a value that is stored in the row that it belongs to, in bytes. Larger values are stored as chunks.
pub const INLINE_LIMIT: usize = 64 * 1024;
/// Maximum size of a chunk, in bytes.
pub const CHUNK_SIZE: usize = 1024 * 1024;
/// Default of an engine's `value_limit`: the maximum size of a value, in bytes.
pub const DEFAULT_VALUE_LIMIT: usize = 256 * 1024 * 1024;

/// Maximum depth of a value that is read for people and for fingerprints. An array or a map counts as two levels.
/// Reading a value of this depth fits into a thread's stack even without optimisations.
const MAX_DEPTH: usize = 256;

/// A serialised value. The first byte names the encoding, so old rows stay readable when the encoding changes.
#[derive(Clone)]
pub struct Payload(PayloadRepr);

/// The bytes of a payload. Most values are small: they are stored in place and need no allocation.
#[derive(Clone)]
enum PayloadRepr {
    InPlace(u8, [u8; IN_PLACE_BYTES]),
    Shared(Bytes),
}

/// Capacity of a payload that stores its bytes in place, in bytes. With this capacity the enum is as large as [`Bytes`]
/// alone: four words.
const IN_PLACE_BYTES: usize = 23;

/// A value that can be converted to a payload: any serde value, or a payload that the caller encoded.
pub(crate) trait ToPayload {
    fn to_payload(&self) -> Result<Payload, Error>;
}

/// A value that can be read from a payload: any serde value, or the payload itself.
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

/// A reference to the bytes of a large value: `count` rows of the table `chunks`, under (execution, `value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// The random number of the value, unique within its execution.
    pub value: u64,
    /// The length of the whole payload, in bytes.
    pub len: u64,
    /// The number of chunks.
    pub count: u32,
}

impl Payload {
    /// The header of the packed inputs of a bundle.
    pub(crate) const PACKED_INPUTS: u8 = 0x02;

    /// Returns the empty payload, which stands for no value, as in a row without an outcome. No value has an empty
    /// encoding.
    pub const fn empty() -> Self {
        Self(PayloadRepr::InPlace(0, [0; IN_PLACE_BYTES]))
    }

    fn in_place(bytes: &[u8]) -> Option<Self> {
        let mut buffer = [0; IN_PLACE_BYTES];
        buffer.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(PayloadRepr::InPlace(bytes.len() as u8, buffer)))
    }

    /// Encodes `value` as MessagePack with field names; returns [`Error::Encode`] if serde cannot represent it.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.push(MESSAGE_PACK);
        rmp_serde::encode::write_named(&mut bytes, value).map_err(|error| encode_error::<T>(&error))?;
        Ok(Self::in_place(&bytes).unwrap_or_else(|| Self(PayloadRepr::Shared(bytes.into_vec().into()))))
    }

    /// Appends the bytes of the payload that [`encode`](Self::encode) returns. After an error, some bytes may be appended.
    pub(crate) fn encode_to<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, value: &T) -> Result<(), Error> {
        bytes.push(MESSAGE_PACK);
        rmp_serde::encode::write_named(bytes, value).map_err(|error| encode_error::<T>(&error))
    }

    /// Decodes the value; returns [`Error::Decode`] if the bytes do not contain a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let fail = |reason: String| Error::Decode {
            value: "a recorded value".to_owned(),
            type_name: std::any::type_name::<T>(),
            reason,
        };
        match self.as_bytes().split_first() {
            Some((&MESSAGE_PACK, bytes)) => {
                rmp_serde::from_slice(bytes).map_err(|error| fail(self.describe_mismatch(&error)))
            }
            Some((&CHUNKED, _)) => Err(fail("it is stored as chunks, which were not loaded".to_owned())),
            Some((header, _)) => Err(fail(format!("unknown payload header {header:#04x}"))),
            None => Err(fail("the payload is empty".into())),
        }
    }

    /// Returns the reason why the bytes do not contain the requested type, in words that need no knowledge of the
    /// encoding.
    fn describe_mismatch(&self, error: &rmp_serde::decode::Error) -> String {
        let Some(value) = self.to_value() else { return "its bytes are damaged".to_owned() };
        let recorded = format!("the recorded value is {}", describe_value(&value));
        match error {
            // serde's own message: the expected type, or the missing field
            rmp_serde::decode::Error::Syntax(reason) => format!("{reason} ({recorded})"),
            _ => recorded,
        }
    }

    /// Creates a payload from a value that is already encoded as MessagePack.
    pub fn from_message_pack(encoded: &[u8]) -> Self {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::with_capacity(encoded.len() + 1);
        bytes.push(MESSAGE_PACK);
        bytes.extend_from_slice(encoded);
        Self::in_place(&bytes).unwrap_or_else(|| Self(PayloadRepr::Shared(bytes.into_vec().into())))
    }

    /// Creates a map from values that are already encoded, by key.
    pub(crate) fn from_entries<'e, K: AsRef<str> + 'e>(
        entries: impl IntoIterator<Item = (&'e K, &'e Payload), IntoIter: ExactSizeIterator>,
    ) -> Self {
        let entries = entries.into_iter();
        let mut encoded = Vec::new();
        // the head of a map in MessagePack
        match entries.len() {
            len @ 0..=15 => encoded.push(0x80 | len as u8),
            len @ 16..=0xffff => {
                encoded.push(0xde);
                encoded.extend_from_slice(&(len as u16).to_be_bytes());
            }
            len => {
                encoded.push(0xdf);
                encoded.extend_from_slice(&(len as u32).to_be_bytes());
            }
        }
        for (key, value) in entries {
            let key = Self::encode(key.as_ref()).unwrap_or_default();
            for part in [&key, value] {
                encoded.extend_from_slice(part.as_message_pack().unwrap_or(&[0xc0]));
            }
        }
        Self::from_message_pack(&encoded)
    }

    /// Returns the value as MessagePack; `None` if the payload has another encoding.
    pub fn as_message_pack(&self) -> Option<&[u8]> {
        match self.as_bytes().split_first() {
            Some((&MESSAGE_PACK, bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Encodes a failure; returns an empty payload if that is not possible.
    pub(crate) fn from_failure(failure: &Failure) -> Self {
        Self::encode(failure).unwrap_or_default()
    }

    /// Decodes a failure. If the payload does not contain a failure, returns a failure with the reason.
    pub(crate) fn to_failure(&self) -> Failure {
        self.decode().unwrap_or_else(|error| {
            Failure::new(error.with_value(|| "a recorded error".to_owned()).to_string())
        })
    }

    /// Creates a payload from a row's bytes, header included.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self::in_place(&bytes).unwrap_or(Self(PayloadRepr::Shared(bytes)))
    }

    /// Creates a payload from a copy of a row's bytes, header included.
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self::in_place(bytes).unwrap_or_else(|| Self(PayloadRepr::Shared(Bytes::copy_from_slice(bytes))))
    }

    /// Returns the stored bytes, header included.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            PayloadRepr::InPlace(len, bytes) => &bytes[..usize::from(*len)],
            PayloadRepr::Shared(bytes) => bytes,
        }
    }

    /// Returns the stored bytes, header included; large payloads share them.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            PayloadRepr::InPlace(..) => Bytes::copy_from_slice(self.as_bytes()),
            PayloadRepr::Shared(bytes) => bytes.clone(),
        }
    }

    /// Returns the length in bytes, header included.
    pub fn len(&self) -> usize {
        match &self.0 {
            PayloadRepr::InPlace(len, _) => usize::from(*len),
            PayloadRepr::Shared(bytes) => bytes.len(),
        }
    }

    /// Whether the payload is absent: it has no bytes, not even a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Creates a payload that refers to a value stored as chunks.
    pub fn from_chunk_ref(chunks: ChunkRef) -> Self {
        let mut bytes = [0; IN_PLACE_BYTES];
        bytes[0] = CHUNKED;
        bytes[1..9].copy_from_slice(&chunks.value.to_be_bytes());
        bytes[9..17].copy_from_slice(&chunks.len.to_be_bytes());
        bytes[17..21].copy_from_slice(&chunks.count.to_be_bytes());
        Self(PayloadRepr::InPlace(21, bytes))
    }

    /// Returns the reference to the value's chunks; `None` unless the payload is such a reference.
    pub fn chunk_ref(&self) -> Option<ChunkRef> {
        let (&CHUNKED, rest) = self.as_bytes().split_first()? else { return None };
        Some(ChunkRef {
            value: u64::from_be_bytes(rest.get(..8)?.try_into().ok()?),
            len: u64::from_be_bytes(rest.get(8..16)?.try_into().ok()?),
            count: u32::from_be_bytes(rest.get(16..20)?.try_into().ok()?),
        })
    }

    /// Returns eight bytes that distinguish values: a hash of the encoding with all maps sorted.
    pub fn fingerprint(&self) -> u64 {
        Self::fingerprint_of(self.as_bytes())
    }

    /// Returns the [fingerprint](Self::fingerprint) of the payload with these bytes.
    pub(crate) fn fingerprint_of(bytes: &[u8]) -> u64 {
        let hash = match bytes {
            [MESSAGE_PACK, encoded @ ..] => canonical::hash(encoded, MAX_DEPTH),
            _ => None,
        };
        hash.unwrap_or_else(|| xxh3_64(bytes))
    }

    /// Returns the [fingerprint](Self::fingerprint) of a value without maps, whose encoding needs no sorting.
    pub fn fingerprint_without_maps(&self) -> u64 {
        xxh3_64(self.as_message_pack().unwrap_or_else(|| self.as_bytes()))
    }

    /// Returns the value as a MessagePack tree, to show it to people; `None` if the payload is not MessagePack, is
    /// damaged, or is too deep.
    pub fn to_value(&self) -> Option<rmpv::Value> {
        let (&MESSAGE_PACK, mut bytes) = self.as_bytes().split_first()? else { return None };
        read_value_with_max_depth(&mut bytes, MAX_DEPTH).ok()
    }
}

fn encode_error<T: ?Sized>(error: &rmp_serde::encode::Error) -> Error {
    Error::Encode { type_name: std::any::type_name::<T>(), reason: error.to_string() }
}

/// Returns a description of a value's kind.
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
    fn entries_make_a_map() {
        for len in [0, 15, 16, 0xffff, 0x1_0000] {
            let entries: std::collections::BTreeMap<String, Payload> =
                (0..len).map(|n| (n.to_string(), Payload::encode(&n).unwrap())).collect();
            let map = Payload::from_entries(&entries);
            let expected = (0..len).map(|n| (n.to_string(), n)).collect();
            assert_eq!(map.decode::<std::collections::BTreeMap<String, u32>>().unwrap(), expected);
        }
    }

    #[test]
    fn deep_values_do_not_overflow_the_stack() {
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
    fn encoded_values_round_trip() {
        let value = (1u8, "two".to_owned(), vec![3.5f64], Some(HashMap::from([("k".to_owned(), true)])));
        let payload = Payload::encode(&value).unwrap();
        assert_eq!(payload.decode::<(u8, String, Vec<f64>, Option<HashMap<String, bool>>)>().unwrap(), value);
        let error = payload.decode::<u8>().unwrap_err();
        assert!(error.to_string().contains("u8"), "{error}");
    }

    #[test]
    fn decode_errors_need_no_knowledge_of_the_encoding() {
        #[derive(serde::Serialize, serde::Deserialize, Debug)]
        struct Order {
            id: u32,
            items: Vec<String>,
        }
        let order = Payload::encode(&Order { id: 7, items: Vec::new() }).unwrap();
        let message_of = |error: Error| error.to_string();
        let message = message_of(order.decode::<u32>().unwrap_err());
        assert!(message.contains("read as u32") && message.contains("a map with id, items"), "{message}");
        let message = message_of(Payload::encode("text").unwrap().decode::<u32>().unwrap_err());
        assert!(message.contains("a string"), "{message}");
        let message = message_of(Payload::encode(&5).unwrap().decode::<Order>().unwrap_err());
        assert!(message.contains("an integer"), "{message}");
        let short = Payload::encode(&HashMap::from([("id", 7)])).unwrap();
        let message = message_of(short.decode::<Order>().unwrap_err());
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
        assert!(message_of(torn.decode::<String>().unwrap_err()).contains("damaged"));
    }

    #[test]
    fn fingerprint_ignores_the_order_of_a_map() {
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
