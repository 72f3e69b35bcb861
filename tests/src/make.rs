//! Short ways to make Writes.

use std::sync::Arc;

use bytes::Bytes;
use stepfast_core::attributes::Attributes;
use stepfast_core::clock::Timestamp;
use stepfast_core::key::Key;
use stepfast_core::path::Path;
use stepfast_core::payload::Payload;
use stepfast_core::queue::Placement;
use stepfast_core::store::{
    PendingSleep, Attempt, Checkpoint, CheckpointKind, Chunk, Move, Parent, Request, RequestKind, Start, State,
    Status, Write,
};

use crate::fixture::EPOCH;

/// The workflow of every execution that does not say otherwise.
pub const WORKFLOW: &str = "checkout";

/// The instant `micros` after the tests' clocks began.
pub fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(EPOCH.as_micros() + micros)
}

/// The encoding of a text.
pub fn payload(text: &str) -> Payload {
    Payload::encode(text).unwrap()
}

/// The path of a step of the root branch.
pub fn step(n: u32) -> Path {
    Path::root().child(n)
}

/// `n` fresh keys, ascending.
pub fn keys<const N: usize>() -> [Key; N] {
    std::array::from_fn(|_| Key::mint(0))
}

/// A Start of a root execution in this state.
pub fn start(key: Key, state: State) -> Start {
    Start {
        key,
        root: key,
        parent: None,
        workflow_id: None,
        workflow: WORKFLOW.into(),
        app_version: None,
        placement: None,
        fingerprint: None,
        input: payload("input"),
        created_at: at(0),
        deadline_at: None,
        is_guarded: false,
        has_begun: false,
        self_claims: false,
        dedup_id: None,
        debounce_window: None,
        run_timeout: None,
        attributes: Attributes::NONE,
        state,
    }
}

/// The Write of a Start.
pub fn write(start: Start) -> Write {
    Write::Start(Box::new(start))
}

/// A place in a queue.
#[allow(clippy::unnecessary_wraps)] // as Starts and Moves have it
pub fn ticket(queue: &str, key: &str, priority: i32) -> Option<Arc<Placement>> {
    Some(Arc::new(Placement { queue: queue.into(), key: key.into(), priority }))
}

/// Starts a root execution that is ready to be claimed from a queue.
pub fn enqueue(key: Key, queue: &str, of: &str, priority: i32) -> Write {
    write(Start { placement: ticket(queue, of, priority), ..start(key, queued()) })
}

/// Moves an execution of a queue to a state.
pub fn move_of(key: Key, queue: &str, of: &str, state: State) -> Write {
    Write::Transition(Move { key, ticket: ticket(queue, of, 0), state })
}

/// Starts a root execution that runs.
pub fn start_running(key: Key) -> Write {
    write(start(key, running()))
}

/// Starts a root execution that is ready to be claimed.
pub fn start_queued(key: Key) -> Write {
    write(start(key, queued()))
}

/// Starts a root execution in this state.
pub fn start_in(key: Key, state: State) -> Write {
    write(start(key, state))
}

/// A Start of a child that its parent waits for.
pub fn child_of(parent: Key, key: Key, state: State) -> Start {
    Start { root: parent, parent: Some(Parent { key: parent, is_detached: false }), ..start(key, state) }
}

/// Runs, with nothing armed.
pub fn running() -> State {
    State::Running { armed: Vec::new() }
}

/// Ready, with nothing armed.
pub fn queued() -> State {
    State::Queued { armed: Vec::new() }
}

/// Suspended until a time.
pub fn sleeping(until: Timestamp) -> State {
    State::Waiting { wake_at: Some(until), children: Vec::new(), armed: Vec::new() }
}

/// Not before a time.
pub fn scheduled(due_at: Timestamp) -> State {
    State::Scheduled { due_at }
}

/// Suspended until one of the children ends.
pub fn awaiting(children: &[Key]) -> State {
    State::Waiting { wake_at: None, children: children.to_vec(), armed: Vec::new() }
}

/// Parked for this reason.
pub fn parked(reason: &str) -> State {
    State::Parked { reason: payload(reason), armed: Vec::new() }
}

/// Over, with this status and outcome.
pub fn ended(status: Status, outcome: &str) -> State {
    State::Ended { status, outcome: payload(outcome), at: at(5) }
}

/// Completed with an output.
pub fn completed() -> State {
    ended(Status::Completed, "output")
}

/// Due times of sleeps at these root steps.
pub fn armed(sleeps: &[(u32, i64)]) -> Vec<PendingSleep> {
    sleeps.iter().map(|(n, micros)| PendingSleep { path: step(*n), due_at: at(*micros) }).collect()
}

/// Moves an execution to a state.
pub fn move_to(key: Key, state: State) -> Write {
    Write::Transition(Move { key, ticket: None, state })
}

/// A step's recorded value; `order` is its number.
pub fn checkpoint(execution: Key, n: u32, value: &str) -> Checkpoint {
    Checkpoint {
        execution,
        path: step(n),
        run_no: 1,
        order: n,
        kind: CheckpointKind::Step,
        name: "charge".into(),
        fingerprint: None,
        outcome: payload(value),
        at: at(i64::from(n)),
        took_ms: 3,
    }
}

/// A failed attempt.
pub fn attempt(execution: Key, n: u32, attempt: u32) -> Attempt {
    Attempt { execution, path: step(n), attempt, failure: payload("no"), at: at(i64::from(attempt)) }
}

/// A piece of a large value.
pub fn chunk(execution: Key, value: u64, n: u32, bytes: &[u8]) -> Write {
    Write::Chunk(Chunk { execution, value, index: n, bytes: Bytes::copy_from_slice(bytes), is_unowned: false })
}

/// A request to cancel, with a number of its own.
pub fn cancel(execution: Key) -> Write {
    Write::Request(Request {
        execution,
        id: Key::mint(0),
        kind: RequestKind::Cancel,
        at: at(7),
        reason: payload("cancelled"),
    })
}

/// A request to resume, with a number of its own.
pub fn resume(execution: Key) -> Write {
    let (n, kind) = (Key::mint(0), RequestKind::Resume);
    Write::Request(Request { execution, id: n, kind, at: at(8), reason: Payload::empty() })
}

/// `n` characters that do not compress.
pub fn noise(n: usize) -> Arc<str> {
    let mut rng = fastrand::Rng::with_seed(7);
    (0..n).map(|_| rng.alphanumeric()).collect::<String>().into()
}

/// Names and ids that have hurt somebody.
pub fn nasty_texts() -> Vec<Arc<str>> {
    let texts = [
        "",
        " ",
        "order-7",
        "Order-7",
        "order-7 ",
        "it's",
        "\"quoted\"",
        "'; DROP TABLE executions; --",
        "back\\slash",
        "100%",
        "a_b",
        "{1,2,NULL}",
        "NULL",
        "$1",
        "?1",
        "line\nbreak\ttab\r",
        "\u{1f600}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{feff}bom",
        "\u{10ffff}",
        "7",
    ];
    let mut texts: Vec<Arc<str>> = texts.into_iter().map(Into::into).collect();
    texts.push(noise(10 * 1024));
    texts
}
