//! Stripes: the groups of checkpoints that the table `checkpoints` keeps apart.
//!
//! SQLite writes whole pages to the log. If all checkpoints of an execution were neighbours, each checkpoint would write the
//! earlier ones again. So the later checkpoints of many executions lie together instead, in stripes of their own. A read of
//! an execution searches all stripes.

use stepfast_core::path::Path;

/// Number of the last stripe.
const LAST_STRIPE: u8 = 5;

/// Returns the stripe of the checkpoint at this path, by the path's last byte: 0 up to 4, 1 up to 8, and so on by powers of two.
/// The stripe of the parts of an execution is the last one, so that a search for the last part reads few other rows.
pub(crate) fn stripe_of(path: &Path) -> u8 {
    match path.as_bytes() {
        [0xfa, _, _, _] => LAST_STRIPE,
        [.., last] => (u8::BITS - (last.saturating_sub(1) / 4).leading_zeros()).min(LAST_STRIPE.into()) as u8,
        [] => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_double_in_width() {
        let of = |n: u32| stripe_of(&Path::root().child(7).child(n));
        for (first, last, stripe) in
            [(0, 4, 0), (5, 8, 1), (9, 16, 2), (17, 32, 3), (33, 64, 4), (65, 240, 5)]
        {
            assert!((first..=last).all(|n| of(n) == stripe), "{first} to {last}");
        }
        assert_eq!(stripe_of(&Path::root()), 0);
        // parts of an execution
        for part in [1 << 23, (1 << 23) + 1, (1 << 24) - 1] {
            assert_eq!(stripe_of(&Path::root().child(part)), LAST_STRIPE);
            assert_eq!(stripe_of(&Path::root().child(part).child(3)), 0);
        }
    }
}
