//! [`RowBatches`]: rows of a flush that are collected for batch inserts.

use stepfast_core::store::{Checkpoint, Start, State};

use crate::conn::statements::{BATCH_ROWS, Sql};

/// The shape of a row that batch statements insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowShape {
    Running,
    Ended,
    Checkpoint,
}

impl RowShape {
    /// Returns the shape of a Start's row; `None` if the row is inserted without a batch.
    pub(crate) fn of(start: &Start) -> Option<Self> {
        let is_plain = start.parent.is_none()
            && start.workflow_id.is_none()
            && start.fingerprint.is_none()
            && start.deadline_at.is_none()
            && start.app_version.is_none()
            && start.placement.is_none()
            && start.dedup_id.is_none()
            && start.attributes.is_empty()
            && start.root == start.key;
        match &start.state {
            State::Running { pending_sleeps } if is_plain && pending_sleeps.is_empty() => {
                Some(RowShape::Running)
            }
            State::Ended { .. } if is_plain => Some(RowShape::Ended),
            _ => None,
        }
    }

    pub(super) fn sql(self, rows: usize) -> Sql {
        match (self, rows) {
            (RowShape::Running, 1) => Sql::StartRunning,
            (RowShape::Ended, 1) => Sql::StartEnded,
            (RowShape::Checkpoint, 1) => Sql::InsertCheckpoint,
            (RowShape::Running, _) => Sql::StartRunningBatch,
            (RowShape::Ended, _) => Sql::StartEndedBatch,
            (RowShape::Checkpoint, _) => Sql::InsertCheckpointBatch,
        }
    }

    /// Returns the number of parameters of a row.
    pub(super) fn parameter_count(self) -> usize {
        match self {
            RowShape::Running => 5,
            RowShape::Ended => 7,
            RowShape::Checkpoint => 11,
        }
    }
}

/// Rows that are collected for a batch, with the indexes of their Writes.
pub(crate) struct RowBatches<'f> {
    pub(super) starts: [Vec<(usize, &'f Start)>; 2],
    pub(super) checkpoints: Vec<(usize, &'f Checkpoint)>,
    /// The name that is bound for each row of the statements for Starts. Names stay bound, because the next batch often has
    /// the same names.
    pub(super) bound_names: [[Option<&'f str>; BATCH_ROWS + 1]; 2],
    /// The values that are bound for each row of the statements for checkpoints.
    pub(super) bound_checkpoints: [BoundCheckpoint<'f>; BATCH_ROWS + 1],
}

/// The values of a row of checkpoints that stay bound, because the next batch often has the same. `None` before the first batch.
#[derive(Clone, Copy, Default)]
pub(super) struct BoundCheckpoint<'f> {
    pub(super) stripe: Option<u8>,
    pub(super) run_no: Option<u32>,
    pub(super) order: Option<u32>,
    pub(super) kind: Option<u8>,
    pub(super) name: Option<&'f str>,
    /// NULL at first: a parameter to which nothing is bound is NULL.
    pub(super) fingerprint: Option<i64>,
    pub(super) duration_ms: Option<i64>,
}

impl RowBatches<'_> {
    pub(crate) fn new() -> Self {
        Self {
            starts: [Vec::new(), Vec::new()],
            checkpoints: Vec::new(),
            bound_names: [[None; BATCH_ROWS + 1]; 2],
            bound_checkpoints: [BoundCheckpoint::default(); BATCH_ROWS + 1],
        }
    }
}
