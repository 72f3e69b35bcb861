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
    Count,
    /// The queue is full.
    Refused,
}

impl Depth {
    /// Of a queue with this maximum, and this bound.
    pub fn new(max: u32, bound: u64) -> Self {
        Self { max: max.into(), bound, is_counted: false }
    }

    /// One more is to enter.
    pub fn enter(&mut self) -> Admission {
        if self.bound < self.max {
            self.bound += 1;
            Admission::Admitted
        } else if self.is_counted {
            Admission::Refused
        } else {
            Admission::Count
        }
    }

    /// One enters that nobody may refuse.
    pub fn enter_anyway(&mut self) {
        self.bound = self.bound.saturating_add(1);
    }

    /// So many wait, and what is [admitted](Self::enter) from here on.
    pub fn counted(&mut self, waiting: u64) {
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
        assert_eq!((depth.enter(), depth.enter()), (Admission::Admitted, Admission::Count));
        // one had been taken
        depth.counted(2);
        assert_eq!((depth.enter(), depth.enter()), (Admission::Admitted, Admission::Refused));
        depth.enter_anyway();
        assert_eq!((depth.bound(), depth.enter()), (4, Admission::Refused));
    }
}
