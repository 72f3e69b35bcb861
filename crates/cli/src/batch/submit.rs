//! `stepfast batch submit`: submits a batch with one item for each line of a file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use futures_util::stream::{self, Stream};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use stepfast::text::{abbreviate, quote};
use stepfast::{Error, Workflow};
use tokio::sync::mpsc;

use crate::arguments::parse_seconds;
use crate::client::with_client;
use crate::graph::parse_json;
use crate::input::InputForm;
use crate::output::{self, Exit};
use crate::workflow::{StoreArgs, parse_attribute};

/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: usize = 256 * 1024 * 1024;
/// Maximum number of inputs that the reader sends at a time.
const PAGE_INPUTS: usize = 256;
/// Length of lines after which the reader sends their inputs, in bytes.
const PAGE_BYTES: u64 = 64 * 1024;
/// Maximum number of pages that are read and not submitted.
const MAX_PAGES_AHEAD: usize = 8;
/// The name of the input in the error of a line.
const LINE: &str = "line";

#[derive(Args)]
pub(crate) struct SubmitBatchArgs {
    #[command(flatten)]
    target: StoreArgs,
    /// The name of the items' workflow.
    workflow: String,
    /// The file with one JSON value per line, which is the input of one item; `-` for standard input. Empty lines are
    /// ignored.
    file: String,
    /// The id of the batch. A second submission with the same id and the same lines continues where the first one
    /// ended.
    #[arg(long)]
    id: Option<String>,
    /// The queue of the items.
    #[arg(long)]
    queue: Option<String>,
    /// The queue key of the items.
    #[arg(long)]
    key: Option<String>,
    /// The priority among executions of the same queue and queue key: smaller numbers come first.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Cancels each item unless it ends within this time after it has begun.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    run_timeout: Option<Duration>,
    /// An attribute of the batch. May be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_attribute)]
    attribute: Vec<(String, String)>,
    /// Each line has the arguments of a Python function: an array of the arguments by position, or an object of the
    /// arguments by name. Needed for workflows of Python programs, except graphs.
    #[arg(long)]
    arguments: bool,
}

/// The inputs of some lines.
#[derive(Default)]
struct InputPage {
    inputs: Vec<Value>,
    /// The length of the lines, in bytes.
    bytes: u64,
    /// The error of the line behind these lines.
    error: Option<String>,
}

impl SubmitBatchArgs {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let store = stepfast::connect_existing(&self.target.store).await?;
        let form = InputForm::find(&store, &self.workflow, self.arguments).await?;
        let (reader, name, bar) = open_input(&self.file)?;
        // a submission that fails can only be continued by an id
        let batch_id = self.id.unwrap_or_else(|| format!("batch-{}", uuid::Uuid::now_v7()));
        let (sender, pages) = mpsc::channel(MAX_PAGES_AHEAD);
        // the process does not wait for this thread, which may wait for standard input
        std::thread::Builder::new()
            .name("stepfast-lines".to_owned())
            .spawn(move || send_inputs(reader, &name, &form, &sender))
            .context("cannot start a thread")?;
        let workflow = Workflow::<Value, Value>::named(&self.workflow);
        let submitted = with_client(store, async |client| {
            let inputs = stream_inputs(pages, bar.clone());
            let mut batch = client.submit_batch_stream(&workflow, inputs).batch_id(&batch_id);
            if let Some(queue) = &self.queue {
                batch = batch.queue(queue);
            }
            if let Some(key) = &self.key {
                batch = batch.key(key);
            }
            if let Some(priority) = self.priority {
                batch = batch.priority(priority);
            }
            if let Some(timeout) = self.run_timeout {
                batch = batch.run_timeout(timeout);
            }
            for (name, value) in &self.attribute {
                batch = batch.attribute(name, value);
            }
            match batch.await {
                Err(Error::Invalid { input: LINE, reason }) => bail!(
                    "{reason}; the batch stays open: correct the line, and submit the whole file again with \
                     --id {}",
                    abbreviate(&batch_id)
                ),
                batch => Ok(batch?.counts().await?.submitted),
            }
        })
        .await;
        bar.finish_and_clear();
        let items = submitted?;
        if self.target.json {
            output::print_json(&json!({ "batch_id": batch_id, "items": items }))?;
        } else {
            output::print(&batch_id);
        }
        Ok(Exit::Done)
    }
}

/// Opens a file, or standard input. Returns a reader, a name for messages, and a bar that shows the progress.
fn open_input(path: &str) -> anyhow::Result<(Box<dyn BufRead + Send>, String, ProgressBar)> {
    if path == "-" {
        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
        return Ok((Box::new(BufReader::new(std::io::stdin())), "standard input".to_owned(), bar));
    }
    let name = abbreviate(path);
    let file = File::open(path).with_context(|| format!("cannot open {}", quote(path)))?;
    let bar = ProgressBar::new(file.metadata().map_or(0, |metadata| metadata.len()));
    bar.set_style(ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes}  {msg}  {eta} left")?);
    Ok((Box::new(BufReader::new(file)), name, bar))
}

/// Reads all lines, and sends their inputs in pages. Ends after the first error.
fn send_inputs(
    mut reader: Box<dyn BufRead + Send>,
    name: &str,
    form: &InputForm,
    pages: &mpsc::Sender<InputPage>,
) {
    let mut page = InputPage::default();
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line);
        let input = read.map_err(anyhow::Error::from).and_then(|_| parse_line(&line, form));
        page.bytes += line.len() as u64;
        let is_end = match input {
            Ok(input) => {
                page.inputs.extend(input);
                line.is_empty()
            }
            Err(error) => {
                page.error = Some(format!("{name}, line {number}: {error:#}"));
                true
            }
        };
        let is_full = page.inputs.len() >= PAGE_INPUTS || page.bytes >= PAGE_BYTES;
        if is_end || is_full {
            // the receiver is dropped if the submission has failed
            let is_dropped = pages.blocking_send(std::mem::take(&mut page)).is_err();
            if is_end || is_dropped {
                return;
            }
        }
    }
}

/// Returns the input that a line contains; `None` for an empty line.
fn parse_line(line: &[u8], form: &InputForm) -> anyhow::Result<Option<Value>> {
    if line.len() > MAX_LINE_BYTES {
        bail!("the line is longer than {MAX_LINE_BYTES} bytes");
    }
    let text = std::str::from_utf8(line).context("the line is not UTF-8")?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    form.encode(Some(parse_json(text)?)).map(Some)
}

/// Returns the inputs of all pages, and shows the progress.
fn stream_inputs(
    pages: mpsc::Receiver<InputPage>,
    bar: ProgressBar,
) -> impl Stream<Item = Result<Value, Error>> + Send {
    struct Position {
        pages: mpsc::Receiver<InputPage>,
        inputs: std::vec::IntoIter<Value>,
        error: Option<String>,
        items: usize,
    }
    let position = Position { pages, inputs: Vec::new().into_iter(), error: None, items: 0 };
    stream::unfold(position, move |mut position| {
        let bar = bar.clone();
        async move {
            loop {
                if let Some(input) = position.inputs.next() {
                    return Some((Ok(input), position));
                }
                if let Some(reason) = position.error.take() {
                    return Some((Err(Error::Invalid { input: LINE, reason }), position));
                }
                let page = position.pages.recv().await?;
                position.items += page.inputs.len();
                bar.inc(page.bytes);
                bar.set_message(format!("{} items", position.items));
                position.inputs = page.inputs.into_iter();
                position.error = page.error;
            }
        }
    })
}
