//! Canonical MessagePack: one encoding per value, with the entries of all maps in the order of their encoded keys.
//!
//! The encoding is hashed while the value is read. Only maps need memory: the encoded bytes of the outermost map, and
//! the positions of its entries.

use xxhash_rust::xxh3::Xxh3;

/// Number of encoded bytes outside of maps that are hashed at once.
const HASHED_AT_ONCE: usize = 64 * 1024;

/// Returns the hash of the canonical encoding of the first value in `bytes`. Returns `None` if the value is damaged, or
/// deeper than `max_depth`. An array or a map counts as two levels.
pub(crate) fn hash(bytes: &[u8], max_depth: usize) -> Option<u64> {
    let mut encoder = Encoder { rest: bytes, encoded: Vec::new(), maps: 0, hasher: Xxh3::new() };
    encoder.encode_value(max_depth)?;
    encoder.hasher.update(&encoder.encoded);
    Some(encoder.hasher.digest())
}

struct Encoder<'b> {
    /// The bytes that were not read yet.
    rest: &'b [u8],
    /// The canonical bytes that were not hashed yet.
    encoded: Vec<u8>,
    /// Number of maps that contain the present value. Bytes in a map are hashed when its entries are in order.
    maps: usize,
    hasher: Xxh3,
}

/// An entry of a map, by the positions of its bytes.
#[derive(Clone, Copy)]
struct MapEntry {
    start: usize,
    value_start: usize,
    end: usize,
}

impl Encoder<'_> {
    fn encode_value(&mut self, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        if self.maps == 0 && self.encoded.len() >= HASHED_AT_ONCE {
            self.hasher.update(&self.encoded);
            self.encoded.clear();
        }
        let [marker] = self.take()?;
        match marker {
            0x00..=0x7f => self.encode_unsigned(marker.into()),
            0x80..=0x8f => self.encode_map(usize::from(marker & 0x0f), depth)?,
            0x90..=0x9f => self.encode_array(usize::from(marker & 0x0f), depth)?,
            0xa0..=0xbf => self.encode_text(usize::from(marker & 0x1f), depth)?,
            // the second marker is reserved, and decoders read it as null
            0xc0 | 0xc1 => self.encoded.push(0xc0),
            0xc2 | 0xc3 => self.encoded.push(marker),
            0xc4 => self.take_len::<1>().and_then(|len| self.encode_binary(len, depth))?,
            0xc5 => self.take_len::<2>().and_then(|len| self.encode_binary(len, depth))?,
            0xc6 => self.take_len::<4>().and_then(|len| self.encode_binary(len, depth))?,
            0xc7 => self.take_len::<1>().and_then(|len| self.encode_extension(len, depth))?,
            0xc8 => self.take_len::<2>().and_then(|len| self.encode_extension(len, depth))?,
            0xc9 => self.take_len::<4>().and_then(|len| self.encode_extension(len, depth))?,
            0xca => self.encode_float::<4>(marker)?,
            0xcb => self.encode_float::<8>(marker)?,
            0xcc => self.take().map(u8::from_be_bytes).map(|n| self.encode_unsigned(n.into()))?,
            0xcd => self.take().map(u16::from_be_bytes).map(|n| self.encode_unsigned(n.into()))?,
            0xce => self.take().map(u32::from_be_bytes).map(|n| self.encode_unsigned(n.into()))?,
            0xcf => self.take().map(u64::from_be_bytes).map(|n| self.encode_unsigned(n))?,
            0xd0 => self.take().map(i8::from_be_bytes).map(|n| self.encode_signed(n.into()))?,
            0xd1 => self.take().map(i16::from_be_bytes).map(|n| self.encode_signed(n.into()))?,
            0xd2 => self.take().map(i32::from_be_bytes).map(|n| self.encode_signed(n.into()))?,
            0xd3 => self.take().map(i64::from_be_bytes).map(|n| self.encode_signed(n))?,
            0xd4..=0xd8 => self.encode_extension(1 << (marker - 0xd4), depth)?,
            0xd9 => self.take_len::<1>().and_then(|len| self.encode_text(len, depth))?,
            0xda => self.take_len::<2>().and_then(|len| self.encode_text(len, depth))?,
            0xdb => self.take_len::<4>().and_then(|len| self.encode_text(len, depth))?,
            0xdc => self.take_len::<2>().and_then(|len| self.encode_array(len, depth))?,
            0xdd => self.take_len::<4>().and_then(|len| self.encode_array(len, depth))?,
            0xde => self.take_len::<2>().and_then(|len| self.encode_map(len, depth))?,
            0xdf => self.take_len::<4>().and_then(|len| self.encode_map(len, depth))?,
            0xe0..=0xff => self.encode_signed(i64::from(marker as i8)),
        }
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    /// Reads a length of `N` bytes.
    fn take_len<const N: usize>(&mut self) -> Option<usize> {
        let bytes: [u8; N] = self.take()?;
        Some(bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)))
    }

    /// Encodes `number` in `bytes` bytes behind a marker.
    fn encode_number(&mut self, marker: u8, number: u64, bytes: usize) {
        self.encoded.push(marker);
        self.encoded.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
    }

    fn encode_unsigned(&mut self, number: u64) {
        match number {
            0..=0x7f => self.encoded.push(number as u8),
            0x80..=0xff => self.encode_number(0xcc, number, 1),
            0x100..=0xffff => self.encode_number(0xcd, number, 2),
            0x1_0000..=0xffff_ffff => self.encode_number(0xce, number, 4),
            _ => self.encode_number(0xcf, number, 8),
        }
    }

    fn encode_signed(&mut self, number: i64) {
        match number {
            0.. => self.encode_unsigned(number as u64),
            -0x20..=-1 => self.encoded.push(number as u8),
            -0x80..=-0x21 => self.encode_number(0xd0, number as u64, 1),
            -0x8000..=-0x81 => self.encode_number(0xd1, number as u64, 2),
            -0x8000_0000..=-0x8001 => self.encode_number(0xd2, number as u64, 4),
            _ => self.encode_number(0xd3, number as u64, 8),
        }
    }

    fn encode_float<const N: usize>(&mut self, marker: u8) -> Option<()> {
        let bytes: [u8; N] = self.take()?;
        self.encoded.push(marker);
        self.encoded.extend_from_slice(&bytes);
        Some(())
    }

    /// Encodes the next `len` bytes as they are.
    fn encode_bytes(&mut self, len: usize) -> Option<()> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        self.encoded.extend_from_slice(bytes);
        Some(())
    }

    fn encode_text(&mut self, len: usize, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        if std::str::from_utf8(self.rest.get(..len)?).is_err() {
            // bytes that are no text have the canonical encoding of bytes
            return self.encode_binary(len, depth);
        }
        depth.checked_sub(1)?;
        match len {
            0..=0x1f => self.encoded.push(0xa0 | len as u8),
            0x20..=0xff => self.encode_number(0xd9, len as u64, 1),
            0x100..=0xffff => self.encode_number(0xda, len as u64, 2),
            _ => self.encode_number(0xdb, len as u64, 4),
        }
        self.encode_bytes(len)
    }

    fn encode_binary(&mut self, len: usize, depth: usize) -> Option<()> {
        depth.checked_sub(1)?;
        match len {
            0..=0xff => self.encode_number(0xc4, len as u64, 1),
            0x100..=0xffff => self.encode_number(0xc5, len as u64, 2),
            _ => self.encode_number(0xc6, len as u64, 4),
        }
        self.encode_bytes(len)
    }

    fn encode_extension(&mut self, len: usize, depth: usize) -> Option<()> {
        depth.checked_sub(2)?;
        match len {
            1 | 2 | 4 | 8 | 16 => self.encoded.push(0xd4 + len.ilog2() as u8),
            0..=0xff => self.encode_number(0xc7, len as u64, 1),
            0x100..=0xffff => self.encode_number(0xc8, len as u64, 2),
            _ => self.encode_number(0xc9, len as u64, 4),
        }
        // the type, then the bytes
        self.encode_bytes(len + 1)
    }

    fn encode_array(&mut self, len: usize, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match len {
            0..=0x0f => self.encoded.push(0x90 | len as u8),
            0x10..=0xffff => self.encode_number(0xdc, len as u64, 2),
            _ => self.encode_number(0xdd, len as u64, 4),
        }
        for _ in 0..len {
            self.encode_value(depth)?;
        }
        Some(())
    }

    fn encode_map(&mut self, len: usize, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match len {
            0..=0x0f => self.encoded.push(0x80 | len as u8),
            0x10..=0xffff => self.encode_number(0xde, len as u64, 2),
            _ => self.encode_number(0xdf, len as u64, 4),
        }
        self.maps += 1;
        let (mut entries, mut is_sorted) = (Vec::<MapEntry>::new(), true);
        for _ in 0..len {
            let start = self.encoded.len();
            self.encode_value(depth)?;
            let value_start = self.encoded.len();
            self.encode_value(depth)?;
            let entry = MapEntry { start, value_start, end: self.encoded.len() };
            is_sorted &= entries.last().is_none_or(|last| self.key(last) <= self.key(&entry));
            entries.push(entry);
        }
        if let Some(first) = entries.first().filter(|_| !is_sorted).map(|entry| entry.start) {
            entries.sort_by(|a, b| self.key(a).cmp(self.key(b)));
            let mut sorted = Vec::with_capacity(self.encoded.len() - first);
            for entry in &entries {
                sorted.extend_from_slice(&self.encoded[entry.start..entry.end]);
            }
            self.encoded[first..].copy_from_slice(&sorted);
        }
        self.maps -= 1;
        Some(())
    }

    /// Returns the encoded key of an entry.
    fn key(&self, entry: &MapEntry) -> &[u8] {
        &self.encoded[entry.start..entry.value_start]
    }
}

#[cfg(test)]
mod tests {
    use rmpv::Value;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    /// Returns the hash by way of a decoded value.
    fn hash_of_decoded(mut bytes: &[u8], max_depth: usize) -> Option<u64> {
        let mut value = rmpv::decode::read_value_with_max_depth(&mut bytes, max_depth).ok()?;
        sort_maps(&mut value);
        let mut encoded = Vec::new();
        rmpv::encode::write_value(&mut encoded, &value).ok()?;
        Some(xxh3_64(&encoded))
    }

    fn sort_maps(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(sort_maps),
            Value::Map(entries) => {
                for (key, item) in entries.iter_mut() {
                    sort_maps(key);
                    sort_maps(item);
                }
                entries.sort_by_cached_key(|(key, _)| {
                    let mut bytes = Vec::new();
                    rmpv::encode::write_value(&mut bytes, key).unwrap();
                    bytes
                });
            }
            _ => {}
        }
    }

    /// Appends a random value, whose encoding is not always the shortest.
    fn push_value(rng: &mut fastrand::Rng, bytes: &mut Vec<u8>, levels: usize) {
        let is_nested = levels > 0 && rng.bool();
        let max_len = if rng.u8(0..20) == 0 { 300 } else { 4 };
        let len = rng.usize(0..max_len);
        let extend = |rng: &mut fastrand::Rng, bytes: &mut Vec<u8>, n: usize| {
            bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(n));
        };
        match rng.u8(0..if is_nested { 4 } else { 7 }) {
            n @ 0..4 if is_nested => {
                let (short, long) = if n < 2 { (0x90, 0xdc) } else { (0x80, 0xde) };
                match rng.u8(0..3) {
                    0 if len < 16 => bytes.push(short | len as u8),
                    0 | 1 => bytes.extend([long, (len >> 8) as u8, len as u8]),
                    _ => bytes.extend([long + 1, 0, 0, (len >> 8) as u8, len as u8]),
                }
                let levels = if len > 4 { 0 } else { levels - 1 };
                for _ in 0..if n < 2 { len } else { 2 * len } {
                    push_value(rng, bytes, levels);
                }
            }
            0 => {
                let scalar = [0xc0, 0xc1, 0xc2, 0xc3, rng.u8(0..0x80), rng.u8(0xe0..)];
                bytes.push(scalar[rng.usize(0..6)]);
            }
            1 | 2 => {
                let exponent = rng.u8(0..4);
                bytes.push([0xcc, 0xd0][rng.usize(0..2)] + exponent);
                let zeros = rng.usize(0..=1 << exponent);
                bytes.extend(std::iter::repeat_n([0, 0xff][rng.usize(0..2)], zeros));
                extend(rng, bytes, (1 << exponent) - zeros);
            }
            3 => {
                let is_long = rng.bool();
                bytes.push(0xca + u8::from(is_long));
                extend(rng, bytes, if is_long { 8 } else { 4 });
            }
            4 => {
                let exponent = rng.u8(0..5);
                bytes.push(0xd4 + exponent);
                extend(rng, bytes, (1 << exponent) + 1);
            }
            n => {
                // text, bytes and extensions with a length of one, two or four bytes
                let marker = [0xd9, 0xc4, 0xc7][rng.usize(0..3)];
                let width = rng.usize(0..3);
                bytes.push(marker + width as u8);
                let len = if width == 0 { len.min(255) } else { len };
                bytes.extend_from_slice(&(len as u32).to_be_bytes()[4 - (1 << width)..]);
                if marker == 0xc7 {
                    bytes.push(rng.u8(..));
                }
                if n == 5 {
                    bytes.extend(std::iter::repeat_n(b'a' + rng.u8(0..3), len));
                } else {
                    extend(rng, bytes, len);
                }
            }
        }
    }

    #[test]
    fn hash_is_that_of_the_decoded_value() {
        for seed in 0..20_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut bytes = Vec::new();
            push_value(&mut rng, &mut bytes, 6);
            for max_depth in [256, rng.usize(1..16)] {
                assert_eq!(hash(&bytes, max_depth), hash_of_decoded(&bytes, max_depth), "seed {seed}");
            }
            // bytes behind the value do not count, and a value that is cut off is damaged
            bytes.push(0);
            assert_eq!(hash(&bytes, 256), hash_of_decoded(&bytes, 256), "seed {seed}");
            bytes.truncate(rng.usize(0..bytes.len()));
            assert_eq!(hash(&bytes, 256), hash_of_decoded(&bytes, 256), "cut off, seed {seed}");
        }
    }

    #[test]
    fn large_arrays_are_hashed_piece_by_piece() {
        let mut bytes = vec![0xdd, 0, 1, 0, 0];
        bytes.extend((0..0x1_0000_u32).flat_map(|n| [0x92, (n % 128) as u8, 0x81, 0xa1, b'k', 0x01]));
        assert_eq!(hash(&bytes, 256), hash_of_decoded(&bytes, 256));
        let mut encoder = Encoder { rest: &bytes, encoded: Vec::new(), maps: 0, hasher: Xxh3::new() };
        encoder.encode_value(256).unwrap();
        assert!(encoder.encoded.capacity() <= 4 * HASHED_AT_ONCE, "{}", encoder.encoded.capacity());
    }
}
