//! [`Report`]: the result of a scenario, as a row of a table.

use std::fmt;

use crate::chaos::throughput::FaultImpact;

/// The result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The injected fault.
    pub fault: &'static str,
    /// The store.
    pub store: &'static str,
    /// Number of executions in the database.
    pub executions: u64,
    /// Number of times the fault happened: kills, stops, restarts, cuts.
    pub times: u64,
    /// Number of executions that another worker continued.
    pub takeovers: i64,
    /// The impact on the throughput.
    pub impact: FaultImpact,
    /// Broken promises.
    pub violations: Vec<String>,
    /// Other measurements.
    pub notes: Vec<String>,
}

/// The head of the table of reports.
pub const TABLE_HEAD: &str = "fault                        store     executions  times  takeovers  before/s  during/s  after/s  \
                        90 % after  violations";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, store, executions, times, takeovers, impact, violations, notes } = self;
        let FaultImpact { before, during, after, recovered_after } = impact;
        let recovered_after = match recovered_after {
            Some(time) => format!("{:.2} s", time.as_secs_f64()),
            None => "-".into(),
        };
        let violations = violations.len();
        write!(
            f,
            "{fault:<28} {store:<9} {executions:>10}  {times:>5}  {takeovers:>9}  {before:>8.0}  {during:>8.0}  \
             {after:>7.0}  {recovered_after:>10}  {violations:>10}"
        )?;
        for note in notes {
            write!(f, "\n    {note}")?;
        }
        Ok(())
    }
}
