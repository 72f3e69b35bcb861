//! `stepfast batch watch`: shows the progress of a batch until its items have ended.

use std::io::IsTerminal;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use stepfast::Store;
use stepfast::text::escape_controls;

use super::state::BatchState;
use crate::follow::REFRESH_INTERVAL;
use crate::output::{self, Exit};

/// Shows the progress of a batch until all its items have ended: in a terminal in place, otherwise a line after each
/// change. With `is_json`, prints only the final state.
pub(super) async fn watch(store: &Arc<dyn Store>, batch_id: &str, is_json: bool) -> anyhow::Result<Exit> {
    let mut batch = BatchState::find(store, batch_id).await?;
    let bar = (!is_json && std::io::stdout().is_terminal()).then(|| {
        let style = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len}  {per_sec}  {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(batch.total()).with_style(style).with_position(batch.ended())
    });
    let mut last = String::new();
    while !batch.has_ended() {
        match &bar {
            Some(bar) => {
                bar.set_length(batch.total());
                bar.set_position(batch.ended());
                bar.set_message(escape_controls(&batch.counts_text()));
            }
            None if is_json => {}
            None => {
                let line = batch.progress_line();
                if line != last {
                    output::print(&line);
                    last = line;
                }
            }
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
        batch = BatchState::find(store, batch_id).await?;
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if is_json {
        output::print_json(&batch.to_json())?;
    } else {
        output::print(&batch.progress_line());
    }
    Ok(if batch.is_success() { Exit::Done } else { Exit::Failed })
}
