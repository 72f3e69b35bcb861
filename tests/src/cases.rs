//! How a suite lists its cases: one file per noun, one function per case.

/// The cases of a file, by their functions' names, for a suite that says in `Run` what a case is. A function
/// that is not listed is dead code, and warned of.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        pub(super) const CASES: &[(&str, super::Run)] =
            &[$((stringify!($case), |fixture| Box::pin($case(fixture)))),*];
    };
}
pub(crate) use cases;

/// The files of a suite, by their nouns. They are declared beside it, where rustfmt sees them.
macro_rules! nouns {
    ($($noun:ident),* $(,)?) => {
        /// All cases, as (noun, behaviour, what to run).
        pub fn all() -> Vec<(&'static str, &'static str, Run)> {
            let mut all: Vec<(&'static str, &'static str, Run)> = Vec::new();
            $(all.extend($noun::CASES.iter().map(|(name, run)| (stringify!($noun), *name, *run)));)*
            all
        }
    };
}
pub(crate) use nouns;
