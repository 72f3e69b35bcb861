//! The retry of failed items without rows of their own: each gets a row, and is resumed.

use futures_util::{StreamExt, stream};

use super::results::damaged;
use crate::commit::{FoldTarget, Staged};
use crate::error::Error;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::chunks;
use crate::store::{
    Detail, ExecutionId, ItemOutcome, ItemTemplate, Outcome, Record, RequestKind, Start, State, Status,
    Write, input_of_item, unpack_inputs,
};

/// Number of items that are retried at a time; their Writes share flushes.
pub(crate) const ITEMS_IN_FLIGHT: usize = 1_000;

/// Retries those failed items of a bundle that have no rows and for which `is_chosen` returns true. Returns their number.
pub(crate) async fn retry_items_of(
    engine: &EngineInner,
    bundle: &Record,
    is_chosen: impl Fn(u32) -> bool,
) -> Result<u64, Error> {
    let execution = &bundle.execution;
    let (Some(template), Some(items)) = (ItemTemplate::of(execution), &bundle.bundle) else {
        return Ok(0);
    };
    let outcomes = items.outcomes().ok_or_else(|| damaged(execution.key))?;
    let is_retried = |it: &ItemOutcome| it.status == Status::Failed && is_chosen(it.index);
    let failed: Vec<ItemOutcome> = outcomes.into_iter().filter(is_retried).collect();
    if failed.is_empty() {
        return Ok(0);
    }
    let full = engine.load(ExecutionId::Key(execution.key), Detail::Full).await?;
    let packed = full.map(|record| record.execution.input).unwrap_or_default();
    let packed = chunks::fetch(engine, execution.key, packed).await?;
    let inputs = unpack_inputs(&packed).unwrap_or_default();
    let at = execution.ended_at.unwrap_or_else(|| engine.now());
    let retries = failed.into_iter().map(|ItemOutcome { index, status, outcome }| {
        let input = input_of_item(&inputs, execution.key, index);
        let failed = State::Ended { status, outcome, at };
        let start = template.start(index, input, None, failed);
        retry_item(engine, Start { item_count: Some(1), is_guarded: true, ..start })
    });
    let mut retries = stream::iter(retries).buffer_unordered(ITEMS_IN_FLIGHT);
    let mut retried = 0;
    while let Some(is_retried) = retries.next().await {
        retried += u64::from(is_retried?);
    }
    Ok(retried)
}

/// Gives a failed item a row of its own, and resumes it. Returns whether this call has retried the item.
async fn retry_item(engine: &EngineInner, start: Start) -> Result<bool, Error> {
    let key = start.key;
    let lane = engine.lane_of(key);
    let reserved = lane.reserve(start.input.len() + chunks::ROW_BYTES).await;
    let staged = Staged {
        generation: lane.generation(),
        tree: key,
        write: Write::Start(start.into()),
        reserved,
        fate: None,
    };
    let lsn = lane.stage(staged, &mut FoldTarget::default()).ok_or_else(|| engine.dropped_write_error())?;
    match lane.wait_durable(lsn).await {
        Outcome::Applied => {}
        // another call retries the item
        Outcome::Duplicate(_) => return Ok(false),
        outcome => return Err(engine.unapplied_error("item", outcome)),
    }
    let result = engine.request_by_key(key, RequestKind::Resume).await?;
    Ok(result.is_some())
}
