//! The retry of a batch's failed items.

use futures_util::StreamExt;
use futures_util::stream;

use super::BatchHandle;
use crate::commit::{FoldTarget, Staged};
use crate::error::Error;
use crate::key::Key;
use crate::runtime::batch::results::damaged;
use crate::runtime::inner::EngineInner;
use crate::runtime::run::chunks;
use crate::store::{
    Detail, ExecutionId, Filter, ItemOutcome, ItemTemplate, Outcome, Record, RequestKind, Start, State,
    Status, Write, input_of_item, unpack_inputs,
};

/// Number of bundles that are read at a time.
const PAGE_BUNDLES: u64 = 8;
/// Number of items that are retried at a time; their Writes share flushes.
const ITEMS_IN_FLIGHT: usize = 1_000;

impl<O> BatchHandle<O> {
    /// Retries the failed items: each continues as [`resume`](crate::Engine::resume) continues an execution. Its failed steps
    /// are tried again, and its other steps keep their outcomes. Returns the number of retried items.
    ///
    /// The status of the batch stays as it is; [`wait`](Self::wait) waits for the retried items. Items that fail while the
    /// method runs may be retried or not. After an error, some items may be retried; call the method again.
    pub async fn retry_failed(&self) -> Result<u64, Error> {
        let engine = &**self.engine();
        engine.check_open()?;
        // first the items that have rows: a retried item gets one
        let mut retried = self.resume_promoted().await?;
        let mut next_index = 0;
        loop {
            let bundles = engine.store.bundles(self.key(), next_index, PAGE_BUNDLES).await?;
            let Some(last) = bundles.last().and_then(|key| key.last_index()) else { return Ok(retried) };
            let ids: Vec<ExecutionId> = bundles.into_iter().map(ExecutionId::Key).collect();
            for record in engine.store.load(&ids, Detail::Outcome).await?.into_iter().flatten() {
                retried += self.retry_items_of(&record).await?;
            }
            next_index = last + 1;
        }
    }

    /// Resumes the failed items with rows of their own. Returns their number.
    async fn resume_promoted(&self) -> Result<u64, Error> {
        let (parent, statuses) = (Some(self.key()), vec![Status::Failed]);
        let mut filter = Filter { parent, statuses, limit: ITEMS_IN_FLIGHT, ..Filter::default() };
        let mut resumed = 0;
        loop {
            let failed = self.engine().store.list(&filter).await?.executions;
            let Some(last) = failed.last() else { return Ok(resumed) };
            filter.after = Some(last.key);
            let keys: Vec<Key> = failed.iter().map(|item| item.key).collect();
            let requests = keys.into_iter().map(|key| self.engine().request_by_key(key, RequestKind::Resume));
            let mut requests = stream::iter(requests).buffer_unordered(ITEMS_IN_FLIGHT);
            while let Some(result) = requests.next().await {
                resumed += u64::from(result?.is_some());
            }
        }
    }

    /// Retries the failed items of a bundle that have no rows. Returns their number.
    async fn retry_items_of(&self, bundle: &Record) -> Result<u64, Error> {
        let engine = &**self.engine();
        let execution = &bundle.execution;
        let (Some(template), Some(items)) = (ItemTemplate::of(execution), &bundle.bundle) else {
            return Ok(0);
        };
        let outcomes = items.outcomes().ok_or_else(|| damaged(execution.key))?;
        let failed: Vec<ItemOutcome> =
            outcomes.into_iter().filter(|it| it.status == Status::Failed).collect();
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
            let start = template.start(index, input, failed);
            retry_item(engine, Start { item_count: Some(1), is_guarded: true, ..start })
        });
        let mut retries = stream::iter(retries).buffer_unordered(ITEMS_IN_FLIGHT);
        let mut retried = 0;
        while let Some(is_retried) = retries.next().await {
            retried += u64::from(is_retried?);
        }
        Ok(retried)
    }
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
