//! [`Key`]: the 16-byte, time-ordered key of an execution.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::path::Path;

/// Virtual shards that executions hash to, so that a later release can spread them over several databases.
pub const SHARDS: u16 = 1024;

/// The key of an execution: a UUIDv7 minted by the engine, or one derived from the parent for a child.
///
/// Keys sort by the time they were minted, so inserts land at the right edge of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key([u8; 16]);

impl Key {
    /// A fresh key that no other process can mint (UUIDv7, RFC 9562).
    pub fn mint() -> Self {
        Self(Uuid::now_v7().into_bytes())
    }

    /// The key of the child that `parent` starts at `path` in its run `run_no`.
    ///
    /// Every replay derives the same key, so a replay's Start is the same Start. It keeps the parent's
    /// time prefix (neighbours in the tables) and is a UUIDv8, so it never meets a minted key.
    pub fn derived(parent: Key, run_no: u32, path: &Path) -> Self {
        let mut seed = Vec::with_capacity(20 + path.as_bytes().len());
        seed.extend_from_slice(&parent.0);
        seed.extend_from_slice(&run_no.to_be_bytes());
        seed.extend_from_slice(path.as_bytes());
        let mut bytes = parent.0;
        bytes[6..].copy_from_slice(&xxh3_128(&seed).to_be_bytes()[6..]);
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        Self(bytes)
    }

    /// The key from its 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key from a slice of exactly 16 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The key from its canonical text (lower-case, hyphenated); anything else is not a key.
    pub fn from_text(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        (uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then(|| Self(uuid.into_bytes()))
    }

    /// The workflow_id of the execution with this key: what its caller gave, else this key's text.
    pub(crate) fn workflow_id(&self, given: Option<&str>) -> String {
        given.map_or_else(|| self.to_string(), str::to_owned)
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The key as a big-endian number.
    pub const fn as_u128(&self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// The virtual shard, 0 to 1,023, of the tree whose root has this key.
    pub fn shard(&self) -> u16 {
        (xxh3_64(&self.0) % u64::from(SHARDS)) as u16
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A map by key.
pub type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<KeyHasher>>;

/// Hashes the last four bytes of a key: they are random in all keys, and the only ones that are random among those that
/// were minted within a millisecond.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(tail) = bytes.last_chunk::<4>() {
            // an odd factor spreads them: the map takes its buckets from the low bits and its tags from the high ones
            self.0 = u64::from(u32::from_ne_bytes(*tail)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn write_usize(&mut self, _len: usize) {}
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn minted_keys_sort_by_time() {
        let keys: Vec<Key> = (0..1000).map(|_| Key::mint()).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn derived_keys_depend_on_all_of_parent_run_and_path() {
        let (a, b) = (Key::mint(), Key::mint());
        let (one, two) = (Path::root().child(1), Path::root().child(2));
        let key = Key::derived(a, 1, &one);
        assert_eq!(key, Key::derived(a, 1, &one));
        for other in [Key::derived(b, 1, &one), Key::derived(a, 2, &one), Key::derived(a, 1, &two)] {
            assert_ne!(key, other);
        }
        assert_eq!(key.as_bytes()[..6], a.as_bytes()[..6]);
    }

    #[test]
    fn keys_of_one_moment_have_hashes_of_their_own() {
        let build = BuildHasherDefault::<KeyHasher>::default();
        let hashes: Vec<u64> =
            (0..1000).map(|_| std::hash::BuildHasher::hash_one(&build, Key::mint())).collect();
        for bits in [0, 8, 57] {
            let parts: HashSet<u64> = hashes.iter().map(|hash| hash >> bits & 0x7f).collect();
            assert!(parts.len() > 100, "bits {bits} to {}: {} different", bits + 6, parts.len());
        }
    }

    #[test]
    fn only_canonical_text_is_a_key() {
        let key = Key::mint();
        let text = key.to_string();
        assert_eq!(Key::from_text(&text), Some(key));
        assert_eq!(Key::from_text(&text.to_uppercase()), None);
        assert_eq!(Key::from_text(&text.replace('-', "")), None);
        assert_eq!(Key::from_text("order-7"), None);
    }
}
