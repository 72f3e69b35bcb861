//! [`Report`]: what a scenario comes to, and the closing table.

use std::fmt;

use crate::chaos::throughput::Dent;

/// What a scenario comes to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was done.
    pub fault: &'static str,
    /// On which store.
    pub store: &'static str,
    /// Executions in the database.
    pub executions: u64,
    /// How often the fault struck: kills, stops, restarts, cuts.
    pub times: u64,
    /// How often an execution was continued by another worker.
    pub takeovers: i64,
    /// What became of the pace.
    pub dent: Dent,
    /// What is not as promised.
    pub violations: Vec<String>,
    /// What else was measured.
    pub notes: Vec<String>,
}

/// The line above all reports.
pub const HEAD: &str = "fault                        store     executions  times  takeovers  before/s  during/s  after/s  \
                        90 % after  violations";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, store, executions, times, takeovers, dent, violations, notes } = self;
        let Dent { before, during, after, back } = dent;
        let back = match back {
            Some(back) => format!("{:.2} s", back.as_secs_f64()),
            None => "-".into(),
        };
        let violations = violations.len();
        write!(
            f,
            "{fault:<28} {store:<9} {executions:>10}  {times:>5}  {takeovers:>9}  {before:>8.0}  {during:>8.0}  \
             {after:>7.0}  {back:>10}  {violations:>10}"
        )?;
        for note in notes {
            write!(f, "\n    {note}")?;
        }
        Ok(())
    }
}
