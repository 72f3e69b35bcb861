//! [`Depth`]: the number of executions that wait in a queue to begin, checked against the queue's maximum.

/// The depth of a queue with a [maximum](crate::queue::Limits::max_depth), while a flush adds executions to the queue.
///
/// A store keeps an upper bound of the depth. Additions raise the bound, and claims do not lower it. So the depth may
/// be smaller than the bound, but never larger. A store counts the waiting executions only when the bound has reached
/// the maximum; then the bound is exact again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    max: u64,
    bound: u64,
    is_counted: bool,
}

/// The result of trying to add an execution to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The execution may be added, and the bound includes it.
    Admitted,
    /// The bound has reached the maximum. Count the waiting executions, call [`Depth::set_count`], and [try
    /// again](Depth::try_admit).
    CountFirst,
    /// The queue is full.
    Full,
}

impl Depth {
    /// Creates the depth of a queue from its maximum and its stored bound.
    pub fn new(max: u32, bound: u64) -> Self {
        Self { max: max.into(), bound, is_counted: false }
    }

    /// Adds one execution if the queue has capacity for it.
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

    /// Adds one execution, even if the queue is full.
    pub fn admit_unconditionally(&mut self) {
        self.bound = self.bound.saturating_add(1);
    }

    /// Sets the exact number of waiting executions. Later admissions add to this number.
    pub fn set_count(&mut self, waiting: u64) {
        self.bound = waiting;
        self.is_counted = true;
    }

    /// Returns the bound to store.
    pub fn bound(&self) -> u64 {
        self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_once_before_the_queue_is_full() {
        let mut depth = Depth::new(3, 2);
        assert_eq!((depth.try_admit(), depth.try_admit()), (Admission::Admitted, Admission::CountFirst));
        // a claim had taken one
        depth.set_count(2);
        assert_eq!((depth.try_admit(), depth.try_admit()), (Admission::Admitted, Admission::Full));
        depth.admit_unconditionally();
        assert_eq!((depth.bound(), depth.try_admit()), (4, Admission::Full));
    }
}
