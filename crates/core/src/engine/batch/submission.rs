//! The submission of a batch by a program.

use std::pin::pin;

use futures_util::stream::Stream;

use super::BatchHandle;
use crate::engine::submission::Submission;
use crate::error::Error;
use crate::name_checks::check_new_id;
use crate::runtime::batch::submission::{BatchSubmission, BatchTemplate, PackInput, check_count};

/// Submits a batch. `submission` has the batch's options, and no input. If `has_exact_size` is true, a size hint of the
/// inputs that is exact is the number of items, so that the batch is closed from its beginning.
pub(crate) async fn submit<O>(
    submission: Submission<'_>,
    inputs: impl Stream<Item: PackInput>,
    has_exact_size: bool,
) -> Result<BatchHandle<O>, Error> {
    submission.check()?;
    let (engine, options) = (&*submission.engine, submission.options());
    let placement = options.placement()?;
    let attributes = options.attributes.clone();
    attributes.check()?;
    if let Some(placement) = &placement {
        engine.check_queue(&placement.queue).await?;
    }
    let batch_id = submission.workflow_id();
    let mut id_lock = None;
    if let Some(id) = &batch_id {
        check_new_id("batch_id", id)?;
        id_lock = Some(engine.id_locks.lock(id).await);
    }
    let inputs = pin!(inputs);
    let expected_count = match inputs.size_hint() {
        (lower, Some(upper)) if has_exact_size && lower == upper => Some(lower as u64),
        _ => None,
    };
    if let Some(count) = expected_count {
        check_count(count)?;
    }
    let workflow = submission.definition.name.clone();
    let run_timeout = options.run_timeout;
    let template = BatchTemplate { batch_id, workflow, placement, attributes, run_timeout };
    let mut new = BatchSubmission::begin(engine, &template, expected_count).await;
    let mut is_closed = expected_count.is_some();
    if id_lock.is_some() {
        // another batch may have the id
        is_closed &= new.resolve_start().await?;
    }
    let count = new.submit_inputs(inputs).await?;
    if expected_count.is_some_and(|expected| expected != count) {
        let reason = format!(
            "there were {count} inputs, although their size hint was {}",
            expected_count.unwrap_or(0)
        );
        return Err(Error::Invalid { input: "inputs", reason });
    }
    if id_lock.is_none() {
        new.resolve_start().await?;
    }
    if !is_closed {
        new.close(count).await?;
    }
    drop(id_lock);
    Ok(BatchHandle::new(engine.clone(), new.batch(), template.batch_id.clone()))
}
