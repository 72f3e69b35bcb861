//! `--follow`: shows an execution until it has ended.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use stepfast::{Status, Store};

use crate::execution_tree::{execution_tree, graph_of};
use crate::output::{self, Exit};
use crate::show::load_shown;

/// Time between two pictures. A reader sees no faster changes.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// Shows an execution until it has ended or is parked: in a terminal in place, otherwise again after each change.
pub(crate) async fn follow(store: &Arc<dyn Store>, workflow_id: &str) -> anyhow::Result<Exit> {
    let live = std::io::stdout().is_terminal().then(|| {
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar
    });
    let mut shown = load_shown(store, workflow_id).await?;
    let graph = graph_of(store, &shown.record.execution.workflow).await?;
    let mut last = String::new();
    loop {
        let execution = &shown.record.execution;
        // a parked execution continues only after a resume
        let has_ended = execution.status.is_terminal() || execution.is_parked;
        let text = match &graph {
            Some(shape) => {
                let tree = execution_tree(shape, &shown);
                format!("{}\n{}", output::status_lines(&shown), tree.trim_end())
            }
            None => output::record_text(&shown),
        };
        match &live {
            Some(bar) if !has_ended => bar.set_message(output::escape_lines(&text)),
            Some(bar) => {
                bar.finish_and_clear();
                output::print(&text);
            }
            None if text != last => output::print(&text),
            None => {}
        }
        if has_ended {
            return Ok(if execution.status == Status::Completed { Exit::Done } else { Exit::Failed });
        }
        last = text;
        tokio::time::sleep(REFRESH_INTERVAL).await;
        shown = load_shown(store, workflow_id).await?;
    }
}
