//! [`Path`]: the structural position of a durable call in its execution.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

/// Smallest number of a task in the paths of its calls. Calls of other kinds have smaller numbers.
pub(crate) const MIN_TASK_NUMBER: u32 = 1 << 24;

/// Smallest number of the part of an execution that begins when its code continues as new. Calls that are no tasks have
/// smaller numbers.
const MIN_PART_NUMBER: u32 = 1 << 23;

/// The structural position of a durable call: its number in its branch, below the numbers of the enclosing branches.
///
/// Numbers are stored as order-preserving variable-length integers, so comparing the bytes compares the paths:
/// `1 < 1.1 < 1.2 < 2`. A call in the root branch takes one byte up to number 240, and two up to 2,287.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(SmallVec<[u8; 16]>);

impl Clone for Path {
    fn clone(&self) -> Self {
        // copies all bytes at once; the derived Clone of SmallVec copies them one by one
        Self(SmallVec::from_slice(&self.0))
    }
}

impl Path {
    /// Returns the path of the root branch, which has no numbers.
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns the path of the call or branch with number `n` below this path.
    #[must_use]
    pub fn child(&self, n: u32) -> Self {
        let mut path = self.clone();
        // the first byte determines the length, so that longer encodings sort later; up to 240 it is the number itself
        match n {
            0..=240 => path.0.push(n as u8),
            241..=2287 => {
                let rest = n - 240;
                path.0.extend_from_slice(&[241 + (rest >> 8) as u8, rest as u8]);
            }
            2288..=67823 => {
                path.0.push(249);
                path.0.extend_from_slice(&((n - 2288) as u16).to_be_bytes());
            }
            67824..=0x00ff_ffff => {
                path.0.push(250);
                path.0.extend_from_slice(&n.to_be_bytes()[1..]);
            }
            _ => {
                path.0.push(251);
                path.0.extend_from_slice(&n.to_be_bytes());
            }
        }
        path
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Decodes a path; `None` if the bytes are not a path.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let path = Self(SmallVec::from_slice(bytes));
        path.numbers().map(|_| path)
    }

    /// Returns the path of a part of an execution: the root path for part 0, where an execution begins, and a path after
    /// those of all earlier parts for a later one. Returns `None` for a part beyond the range of paths.
    pub(crate) fn of_part(part: u32) -> Option<Self> {
        match part {
            0 => Some(Self::root()),
            1..=MIN_PART_NUMBER => Some(Self::root().child(MIN_PART_NUMBER + part - 1)),
            _ => None,
        }
    }

    /// Returns the range of the paths of all parts after the first one.
    pub(crate) fn later_parts() -> Range<Self> {
        Self::root().child(MIN_PART_NUMBER)..Self::root().child(MIN_TASK_NUMBER)
    }

    /// Returns the part of its execution to which the call belongs.
    pub(crate) fn part(&self) -> u32 {
        let first = self.numbers().and_then(|numbers| numbers.first().copied()).unwrap_or_default();
        if (MIN_PART_NUMBER..MIN_TASK_NUMBER).contains(&first) { first - MIN_PART_NUMBER + 1 } else { 0 }
    }

    /// Whether the call is a task of a graph, or a call of such a task.
    pub(crate) fn is_of_task(&self) -> bool {
        self.numbers().is_some_and(|numbers| numbers.first() >= Some(&MIN_TASK_NUMBER))
    }

    /// Returns the numbers from the root down; `None` if the bytes are not a path.
    pub fn numbers(&self) -> Option<Vec<u32>> {
        let mut numbers = Vec::new();
        let mut rest = self.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            let (number, width) = match first {
                0..=240 => (u32::from(first), 0),
                241..=248 => (240 + (u32::from(first) - 241) * 256 + u32::from(*tail.first()?), 1),
                249 => (2288 + u32::from(u16::from_be_bytes([*tail.first()?, *tail.get(1)?])), 2),
                250 => (u32::from_be_bytes([0, *tail.first()?, *tail.get(1)?, *tail.get(2)?]), 3),
                251 => (u32::from_be_bytes(tail.get(..4)?.try_into().ok()?), 4),
                _ => return None,
            };
            numbers.push(number);
            rest = &tail[width..];
        }
        Some(numbers)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, number) in self.numbers().unwrap_or_default().iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            write!(f, "{number}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [u32; 14] =
        [0, 1, 239, 240, 241, 495, 496, 2287, 2288, 67823, 67824, 0x00ff_ffff, 0x0100_0000, u32::MAX];

    #[test]
    fn parts_follow_each_other() {
        let call = |part| Path::of_part(part).unwrap().child(7);
        assert_eq!(call(0), Path::root().child(7));
        for part in [1, 2, 300, MIN_PART_NUMBER] {
            assert_eq!((call(part).part(), call(part - 1).part()), (part, part - 1));
            let begin = Path::of_part(part).unwrap();
            assert!(call(part - 1) < begin && begin < call(part));
            // stores find the last part by the first bytes of its paths
            assert_eq!(
                (begin.as_bytes().len(), begin.as_bytes()[0], begin.as_bytes()[1] & 0x80),
                (4, 250, 0x80)
            );
            assert!(!call(part).is_of_task());
        }
        assert_eq!(Path::of_part(MIN_PART_NUMBER + 1), None);
        assert_eq!(Path::root().child(MIN_TASK_NUMBER).part(), 0);
    }

    #[test]
    fn encoded_paths_sort_by_number_and_decode() {
        let paths: Vec<Path> = EDGES.iter().map(|&n| Path::root().child(n)).collect();
        for (pair, numbers) in paths.windows(2).zip(EDGES.windows(2)) {
            assert!(pair[0].as_bytes() < pair[1].as_bytes(), "{numbers:?}");
        }
        for (path, n) in paths.iter().zip(EDGES) {
            assert_eq!(path.numbers(), Some(vec![n]));
            assert!(path.child(0).as_bytes() > path.as_bytes());
            assert_eq!(Path::from_bytes(path.child(7).as_bytes()), Some(path.child(7)));
        }
        let random = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(random);
        for _ in 0..10_000 {
            let (a, b) = (rng.u32(..) >> rng.u32(0..32), rng.u32(..) >> rng.u32(0..32));
            let (p, q) = (Path::root().child(a), Path::root().child(b));
            assert_eq!(a.cmp(&b), p.as_bytes().cmp(q.as_bytes()), "{a} {b}, seed {random}");
        }
    }

    #[test]
    fn path_text_separates_numbers_by_dots() {
        assert_eq!(Path::root().child(3).child(300).child(1).to_string(), "3.300.1");
        assert_eq!(Path::from_bytes(&[255]), None);
        assert_eq!(Path::from_bytes(&[250, 1]), None);
    }
}
