//! [`StatementCounts`]: the numbers of rows that the statements of a transaction changed, for the store's counters.

use stepfast_core::store::counters::{Counters, Table};

/// Counts of a transaction's rows and statements. They are added to the store's totals when the transaction is
/// committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatementCounts {
    pub(crate) inserted: [u64; Table::COUNT],
    pub(crate) updated: [u64; Table::COUNT],
    pub(crate) deleted: [u64; Table::COUNT],
    pub(crate) statements: u64,
}

impl StatementCounts {
    /// Adds the counts to the totals. BEGIN and COMMIT count as two more statements.
    pub(crate) fn add_to(&self, counters: &Counters) {
        for table in Table::ALL {
            let i = table as usize;
            for (rows, count) in [
                (self.inserted[i], Counters::add_inserted as fn(&Counters, Table, u64)),
                (self.updated[i], Counters::add_updated),
                (self.deleted[i], Counters::add_deleted),
            ] {
                if rows > 0 {
                    count(counters, table, rows);
                }
            }
        }
        counters.add_statements(self.statements + 2);
    }
}
