//! [`Key`]: the 16-byte, time-ordered key of an execution.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::clock::Timestamp;
use crate::path::Path;

/// The number of shards that a key can name: 0 to 1,023.
pub const SHARD_COUNT: u16 = 1024;

/// The bits of byte 14 that contain the high bits of the shard's number.
const SHARD_HIGH_BITS: u8 = 0b11;

/// The variant bits of byte 8 in the keys of batches, bundles and items. RFC 9562 reserves this variant, so no minted or
/// derived key has it.
const BATCH_VARIANT: u8 = 0b1100_0000;
/// The position of the number that distinguishes a batch, its bundles and its items.
const NUMBER: std::ops::Range<usize> = 10..14;
/// The number of a batch.
const BATCH_NUMBER: u32 = u32::MAX;
/// The number of the bundle whose last item has index 0. The numbers of items are smaller.
const FIRST_BUNDLE_NUMBER: u32 = 1 << 31;

/// The first bytes of addresses. A minted or derived key has them only after the year 10000.
const ADDRESS_PREFIX: [u8; 2] = [u8::MAX; 2];

/// Maximum number of items in a batch.
pub const MAX_BATCH_ITEMS: u64 = (BATCH_NUMBER - FIRST_BUNDLE_NUMBER) as u64;
/// The index of the last item that a batch can have.
const LAST_INDEX: u32 = (MAX_BATCH_ITEMS - 1) as u32;

/// The key of an execution: a UUIDv7 that the engine minted. The key of a child is derived from the parent's key
/// instead.
///
/// Keys sort by the time at which they were minted, so inserts go to the right edge of the tables. The last ten bits
/// are the number of the execution's shard.
///
/// The keys of a batch, of its bundles and of its items differ in bytes 10 to 13 only. They sort as one range: the
/// items by index, then the bundles by their last index, then the batch. No other key has their variant bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key([u8; 16]);

impl Key {
    /// Mints the key of an execution in this shard. The key is a UUIDv7 (RFC 9562), which differs from the keys of all
    /// other processes.
    ///
    /// The shard's number replaces ten random bits; 22 random bits and the counter in bytes 6 to 11 remain.
    pub fn mint(shard: u16) -> Self {
        debug_assert!(shard < SHARD_COUNT, "{shard} is not the number of a shard");
        let mut bytes = Uuid::now_v7().into_bytes();
        let [high, low] = (shard % SHARD_COUNT).to_be_bytes();
        bytes[14] = bytes[14] & !SHARD_HIGH_BITS | high;
        bytes[15] = low;
        Self(bytes)
    }

    /// Returns the key of the child that `parent` starts at `path` while its run_no is `run_no`.
    ///
    /// Every replay derives the same key, so it stages the same Start. The derived key has the parent's time prefix, so
    /// parent and child are neighbours in tables and lists. It also has the parent's shard. As a UUIDv8 it never equals
    /// a minted key.
    pub fn derive(parent: Key, run_no: u32, path: &Path) -> Self {
        let mut bytes = Self::derive_unsharded(parent, run_no, path).0;
        bytes[14] = bytes[14] & !SHARD_HIGH_BITS | parent.0[14] & SHARD_HIGH_BITS;
        bytes[15] = parent.0[15];
        Self(bytes)
    }

    /// Returns the key that [`derive`](Self::derive) returned before keys contained the number of their shard.
    pub(crate) fn derive_unsharded(parent: Key, run_no: u32, path: &Path) -> Self {
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

    /// Returns the key of the child that `parent` starts at `path` without awaiting it in the same call.
    ///
    /// The key sorts by `moment`, the time of the last outcome that the parent's code received before the call. The
    /// moment is recorded, so a replay derives the same key. The child sorts after executions that were started before
    /// the moment. If the moment is before the time in the parent's key, the child's key contains the parent's time.
    pub(crate) fn derive_at(parent: Key, run_no: u32, path: &Path, moment: Timestamp) -> Self {
        let mut bytes = Self::derive(parent, run_no, path).0;
        let micros = u64::try_from(moment.as_micros()).unwrap_or_default();
        let time = (micros / 1000).to_be_bytes();
        if time[..2] == [0; 2] && time[2..] >= bytes[..6] {
            bytes[..6].copy_from_slice(&time[2..]);
            // the microseconds within the millisecond, in twelve bits
            let below = ((micros % 1000) << 2).to_be_bytes();
            bytes[6] = 0x80 | below[6];
            bytes[7] = below[7];
        }
        Self(bytes)
    }

    /// Returns the key of the batch that `parent` submits at `path`.
    ///
    /// The key sorts by `moment`, as that of [`derive_at`](Self::derive_at) does. Of the hash only 32 bits remain, so two
    /// batches may have the same key. The key for the next `attempt` is another one.
    pub(crate) fn derive_batch(
        parent: Key,
        run_no: u32,
        path: &Path,
        moment: Timestamp,
        attempt: u32,
    ) -> Self {
        let mut bytes = Self::derive(parent, run_no, &path.child(attempt)).0;
        bytes[..6].copy_from_slice(&Self::derive_at(parent, run_no, path, moment).0[..6]);
        bytes[8] |= BATCH_VARIANT;
        Self(bytes).with_number(BATCH_NUMBER)
    }

    /// Mints the key of a batch in this shard.
    ///
    /// A hash of a minted key provides the bits beside the time and the number: two batches of the same millisecond
    /// have the same key with a probability of 2^-32. The Start of the second one then finds the first one.
    pub fn mint_batch(shard: u16) -> Self {
        let minted = Self::mint(shard);
        let mut bytes = minted.0;
        bytes[6..].copy_from_slice(&xxh3_128(&minted.0).to_be_bytes()[6..]);
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] |= BATCH_VARIANT;
        bytes[14] = bytes[14] & !SHARD_HIGH_BITS | minted.0[14] & SHARD_HIGH_BITS;
        bytes[15] = minted.0[15];
        Self(bytes).with_number(BATCH_NUMBER)
    }

    /// Returns the address of a workflow_id in this shard: the key under which messages are kept until an execution with
    /// this id receives. No execution has it. As a hash, it is the same in every process.
    pub fn address_of(workflow_id: &str, shard: u16) -> Self {
        let mut bytes = xxh3_128(workflow_id.as_bytes()).to_be_bytes();
        let [high, low] = (shard % SHARD_COUNT).to_be_bytes();
        bytes[..2].copy_from_slice(&ADDRESS_PREFIX);
        bytes[6] = 0x80 | (bytes[6] & 0x0f);
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        bytes[14] = bytes[14] & !SHARD_HIGH_BITS | high;
        bytes[15] = low;
        Self(bytes)
    }

    /// Whether this is the address of a workflow_id.
    pub fn is_address(self) -> bool {
        self.0[..2] == ADDRESS_PREFIX
    }

    /// Returns the key of an item of this batch, by index.
    #[must_use]
    pub fn item(self, index: u32) -> Self {
        debug_assert!(self.is_batch() && u64::from(index) < MAX_BATCH_ITEMS, "item {index} of {self}");
        self.with_number(index)
    }

    /// Returns the key of the bundle of this batch whose last item has this index. Every bundle with items at or behind an
    /// index has this key or a larger one.
    #[must_use]
    pub fn bundle(self, last_index: u32) -> Self {
        debug_assert!(
            self.is_batch() && u64::from(last_index) < MAX_BATCH_ITEMS,
            "bundle {last_index} of {self}"
        );
        self.with_number(FIRST_BUNDLE_NUMBER | last_index)
    }

    /// Returns the range of the keys of all items that this batch can have.
    pub fn items(self) -> RangeInclusive<Self> {
        self.item(0)..=self.item(LAST_INDEX)
    }

    /// Returns the range of the keys of all bundles that this batch can have.
    pub fn bundles(self) -> RangeInclusive<Self> {
        self.bundle(0)..=self.bundle(LAST_INDEX)
    }

    /// Returns the range of the keys of the bundles of this batch with items at or behind an index; `None` unless this is
    /// the key of a batch, which can have an item with this index.
    pub fn bundles_from(self, index: u32) -> Option<RangeInclusive<Self>> {
        let can_exist = self.is_batch() && index <= LAST_INDEX;
        can_exist.then(|| self.bundle(index)..=self.bundle(LAST_INDEX))
    }

    /// Returns the key of the batch to which this item or bundle belongs; its own key for a batch. `None` for any other
    /// execution.
    pub fn batch(self) -> Option<Self> {
        self.number().map(|_| self.with_number(BATCH_NUMBER))
    }

    /// The largest key.
    pub const MAX: Self = Self([u8::MAX; 16]);

    /// Whether this is the key of a batch.
    pub fn is_batch(self) -> bool {
        self.number() == Some(BATCH_NUMBER)
    }

    /// Whether this is the key of a bundle.
    pub fn is_bundle(self) -> bool {
        self.last_index().is_some()
    }

    /// Returns the index of the last item of this bundle; `None` unless this is the key of a bundle.
    pub fn last_index(self) -> Option<u32> {
        self.number()
            .filter(|number| (FIRST_BUNDLE_NUMBER..BATCH_NUMBER).contains(number))
            .map(|it| it - FIRST_BUNDLE_NUMBER)
    }

    /// Returns the index of the first item of this bundle, which has `item_count` items; `None` unless this is the key of a
    /// bundle that can have as many.
    pub fn first_index(self, item_count: u64) -> Option<u32> {
        let end = u64::from(self.last_index()?) + 1;
        end.checked_sub(item_count).map(|first| first as u32)
    }

    /// Returns the range of the keys of the items of this bundle, which has `item_count` items; `None` unless this is the
    /// key of a bundle.
    pub fn bundle_items(self, item_count: u64) -> Option<RangeInclusive<Self>> {
        let (batch, last) = (self.batch()?, self.last_index()?);
        let first = self.first_index(item_count).unwrap_or_default();
        Some(batch.item(first)..=batch.item(last))
    }

    /// Returns the index of this item in its batch; `None` unless this is the key of an item.
    pub fn item_index(self) -> Option<u32> {
        self.number().filter(|number| *number < FIRST_BUNDLE_NUMBER)
    }

    /// Returns the number by which a batch, its bundles and its items differ; `None` for other executions.
    fn number(self) -> Option<u32> {
        let number = || self.0[NUMBER].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        (self.0[8] & BATCH_VARIANT == BATCH_VARIANT).then(number)
    }

    fn with_number(mut self, number: u32) -> Self {
        self.0[NUMBER].copy_from_slice(&number.to_be_bytes());
        self
    }

    /// Creates a key from its 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Creates a key from a slice; `None` unless it has exactly 16 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Parses a key from its canonical text, lower-case and hyphenated; `None` for any other text.
    pub fn from_text(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        (uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then(|| Self(uuid.into_bytes()))
    }

    /// Returns the workflow_id of the execution with this key: the id that its caller gave, or else the text of the
    /// key. The workflow_id of an item consists of the text of its batch's key, `#`, and the index.
    pub(crate) fn workflow_id(&self, given_id: Option<&str>) -> String {
        match (given_id, self.item_index(), self.batch()) {
            (Some(id), ..) => id.to_owned(),
            (None, Some(index), Some(batch)) => item_id(batch, index),
            (None, ..) => self.to_string(),
        }
    }

    /// Returns the 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the key as a number (big-endian).
    pub const fn as_u128(&self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Returns the number of the execution's shard, 0 to 1,023.
    pub const fn shard(&self) -> u16 {
        u16::from_be_bytes([self.0[14] & SHARD_HIGH_BITS, self.0[15]])
    }

    /// Returns a number by which hints name the execution. Few other executions have the same one.
    pub fn tag(&self) -> u32 {
        self.stable_hash() as u32
    }

    /// Returns a hash of the key that is the same in every process. By this hash, an engine distributes execution trees
    /// over its lanes.
    pub fn stable_hash(&self) -> u64 {
        xxh3_64(&self.0)
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

/// A map from keys to values. The hash is seeded, because transactions of other programs may choose keys.
pub type KeyMap<V> = HashMap<Key, V, foldhash::fast::RandomState>;

/// Returns the id of an item of the batch with this id.
pub(crate) fn item_id(batch: impl fmt::Display, index: u32) -> String {
    format!("{batch}#{index}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn minted_keys_sort_by_time() {
        let keys: Vec<Key> = (0..1000).map(|_| Key::mint(0)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn derived_keys_depend_on_parent_run_no_and_path() {
        let (a, b) = (Key::mint(0), Key::mint(0));
        let (one, two) = (Path::root().child(1), Path::root().child(2));
        let key = Key::derive(a, 1, &one);
        assert_eq!(key, Key::derive(a, 1, &one));
        for other in [Key::derive(b, 1, &one), Key::derive(a, 2, &one), Key::derive(a, 1, &two)] {
            assert_ne!(key, other);
        }
        assert_eq!(key.as_bytes()[..6], a.as_bytes()[..6]);
    }

    #[test]
    fn keys_of_started_children_sort_by_moment() {
        let (parent, path) = (Key::mint(0), Path::root().child(1));
        let now = i64::from_be_bytes([&[0, 0], &parent.as_bytes()[..6]].concat().try_into().unwrap()) * 1000;
        let started = |run_no, micros| Key::derive_at(parent, run_no, &path, Timestamp::from_micros(micros));
        let keys: Vec<Key> = (0..4000).map(|later| started(1, now + later)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(started(1, now + 5000), started(1, now + 5000));
        assert_ne!(started(1, now + 5000), started(2, now + 5000));
        for before in [i64::MIN, -1, 0, now - 1000] {
            assert_eq!(started(1, before), Key::derive(parent, 1, &path), "never before the parent");
        }
        assert_eq!(started(1, i64::MAX), Key::derive(parent, 1, &path), "too late for a key");
        assert_eq!(Uuid::from_bytes(started(1, now + 5000).0).get_version_num(), 8);
    }

    #[test]
    fn keys_of_parent_and_child_name_the_same_shard() {
        for shard in [0, 1, 255, 256, 1023] {
            let keys: HashSet<Key> = (0..10_000).map(|_| Key::mint(shard)).collect();
            assert_eq!(keys.len(), 10_000);
            for key in keys {
                let child = Key::derive(key, 1, &Path::root().child(1));
                assert_eq!((key.shard(), child.shard()), (shard, shard));
                assert_eq!((Uuid::from_bytes(key.0).get_version_num(), key.0[8] >> 6), (7, 0b10));
            }
        }
    }

    #[test]
    fn keys_of_a_batch_are_one_range_in_order() {
        for shard in [0, 1023] {
            let batch = Key::mint_batch(shard);
            let last = u32::try_from(MAX_BATCH_ITEMS - 1).unwrap();
            let keys = [
                batch.item(0),
                batch.item(1),
                batch.item(last),
                batch.bundle(0),
                batch.bundle(999),
                batch.bundle(last),
                batch,
            ];
            assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
            let numbers = |key: Key| (key.item_index(), key.last_index(), key.is_batch());
            assert_eq!(
                keys.map(numbers),
                [
                    (Some(0), None, false),
                    (Some(1), None, false),
                    (Some(last), None, false),
                    (None, Some(0), false),
                    (None, Some(999), false),
                    (None, Some(last), false),
                    (None, None, true),
                ]
            );
            for key in keys {
                assert_eq!((key.batch(), key.shard()), (Some(batch), shard));
                assert_eq!(Key::from_text(&key.to_string()), Some(key));
            }
            assert_eq!(batch.as_bytes()[..5], Key::mint(shard).as_bytes()[..5], "sorted by time");
        }
    }

    #[test]
    fn ranges_contain_the_items_and_bundles_that_can_exist() {
        let batch = Key::mint_batch(0);
        let last = u32::try_from(MAX_BATCH_ITEMS - 1).unwrap();
        assert_eq!(batch.items(), batch.item(0)..=batch.item(last));
        assert_eq!(batch.bundles(), batch.bundle(0)..=batch.bundle(last));
        assert_eq!(batch.bundles_from(last), Some(batch.bundle(last)..=batch.bundle(last)));
        assert_eq!(batch.bundles_from(last + 1), None);
        let bundle = batch.bundle(9);
        for (item_count, first) in [(1, Some(9)), (10, Some(0)), (11, None), (u64::MAX, None)] {
            assert_eq!(bundle.first_index(item_count), first);
            let first = first.unwrap_or(0);
            assert_eq!(bundle.bundle_items(item_count), Some(batch.item(first)..=batch.item(9)));
        }
        for key in [batch, batch.item(9), Key::mint(0)] {
            assert_eq!((key.first_index(1), key.bundle_items(1)), (None, None));
        }
        for key in [bundle, batch.item(9), Key::mint(0)] {
            assert_eq!(key.bundles_from(0), None);
        }
    }

    #[test]
    fn other_keys_belong_to_no_batch() {
        for _ in 0..1000 {
            let minted = Key::mint(0);
            for key in [minted, Key::derive(minted, 1, &Path::root().child(1))] {
                assert_eq!(
                    (key.batch(), key.item_index(), key.last_index(), key.is_batch()),
                    (None, None, None, false)
                );
            }
        }
    }

    #[test]
    fn keys_of_submitted_batches_depend_on_all_parts() {
        let (a, b) = (Key::mint(7), Key::mint(7));
        let (one, two) = (Path::root().child(1), Path::root().child(2));
        let moment = Timestamp::from_micros(0);
        let key = Key::derive_batch(a, 1, &one, moment, 0);
        assert_eq!(key, Key::derive_batch(a, 1, &one, moment, 0));
        assert_eq!((key.is_batch(), key.shard(), &key.as_bytes()[..6]), (true, 7, &a.as_bytes()[..6]));
        for other in [
            Key::derive_batch(b, 1, &one, moment, 0),
            Key::derive_batch(a, 2, &one, moment, 0),
            Key::derive_batch(a, 1, &two, moment, 0),
            Key::derive_batch(a, 1, &one, moment, 1),
        ] {
            assert_ne!(key, other);
        }
    }

    #[test]
    fn keys_of_batches_differ() {
        let keys: HashSet<Key> = (0..10_000).map(|_| Key::mint_batch(0)).collect();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn hashes_of_similar_keys_differ() {
        let build = foldhash::fast::RandomState::default();
        // keys that differ in one byte, as a transaction of another program may choose them
        for at in 0..16 {
            let key = |n| Key(std::array::from_fn(|byte| if byte == at { n } else { 7 }));
            let hashes: HashSet<u64> =
                (0..=255).map(|n| std::hash::BuildHasher::hash_one(&build, key(n)) & 0xffff).collect();
            assert!(hashes.len() > 200, "byte {at}: {} different", hashes.len());
        }
    }

    #[test]
    fn key_is_parsed_from_canonical_text_only() {
        let key = Key::mint(0);
        let text = key.to_string();
        assert_eq!(Key::from_text(&text), Some(key));
        assert_eq!(Key::from_text(&text.to_uppercase()), None);
        assert_eq!(Key::from_text(&text.replace('-', "")), None);
        assert_eq!(Key::from_text("order-7"), None);
    }
}
