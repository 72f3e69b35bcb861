//! [`Depth`]: how many executions may wait in a queue for their beginning.

/// The depth of a queue that has a [maximum](crate::queue::Limits::max_depth), while something is put into it.
///
/// What a store keeps of it is a bound: there may be fewer than that, for whoever takes of the queue does not change it,
/// but never more. So a store counts only when the bound has reached the maximum, and then the bound is exact again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    max: u64,
    bound: u64,
    is_counted: bool,
}

/// What to do with something that is to be put into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may enter.
    Admitted,
    /// Count first what waits, and then [ask again](Depth::enter).
    CountFirst,
    /// The queue is full.
    Full,
}

impl Depth {
    /// Of a queue with this maximum, and this bound.
    pub fn new(max: u32, bound: u64) -> Self {
        Self { max: max.into(), bound, is_counted: false }
    }

    /// One more is to enter.
    pub fn try_admit(&mut self) -> Admission {
        if self.bound < self.max {
            self.bound += 1;
            Admission::Admitted
        } else if self.is_counted {
            Admission::Full
        } else {
            Admission::CountFirst
        }
    }

    /// One enters that nobody may refuse.
    pub fn admit_unconditionally(&mut self) {
        self.bound = self.bound.saturating_add(1);
    }

    /// So many wait, and what is [admitted](Self::enter) from here on.
    pub fn set_count(&mut self, waiting: u64) {
        self.bound = waiting;
        self.is_counted = true;
    }

    /// What is to be kept.
    pub fn bound(&self) -> u64 {
        self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_before_anything_is_refused_and_only_once() {
        let mut depth = Depth::new(3, 2);
        assert_eq!((depth.try_admit(), depth.try_admit()), (Admission::Admitted, Admission::CountFirst));
        // one had been taken
        depth.set_count(2);
        assert_eq!((depth.try_admit(), depth.try_admit()), (Admission::Admitted, Admission::Full));
        depth.admit_unconditionally();
        assert_eq!((depth.bound(), depth.try_admit()), (4, Admission::Full));
    }
}
