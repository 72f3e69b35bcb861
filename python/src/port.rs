//! [`Port`]: how the engine reaches an event loop, or the threads of a pool: one wake-up for all that came in
//! meanwhile.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::branch::Branch;
use crate::error::unavailable;
use crate::slot::Slot;
use crate::waiter::Waiter;
use stepfast::Payload;

/// So many notes are taken at a time: the loop has other things to do.
const AT_ONCE: usize = 256;

/// What the engine has to tell.
pub(crate) enum Note {
    /// Something waits no longer.
    Wake(Arc<Waiter>),
    /// An execution begins here.
    Begin(Begin),
    /// The code of the execution with this key has to unwind.
    Unwind(String),
}

/// Code that is to run.
pub(crate) struct Begin {
    pub(crate) workflow: usize,
    pub(crate) branch: stepfast::guest::Branch,
    pub(crate) input: Payload,
    pub(crate) slot: Arc<Slot>,
}

pub(crate) struct Shared {
    notes: Mutex<VecDeque<Note>>,
    /// Readable while there are notes; for loops.
    fd: Option<OwnedFd>,
    /// For threads.
    came: Condvar,
}

impl Shared {
    pub(crate) fn push(&self, note: Note) {
        let was_empty = {
            let mut notes = self.notes.lock();
            notes.push_back(note);
            notes.len() == 1
        };
        match &self.fd {
            Some(fd) if was_empty => {
                // full only after 2^64 writes
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
            Some(_) => {}
            None => {
                self.came.notify_one();
            }
        }
    }
}

/// Where an engine leaves its notes for one event loop, or one pool of threads.
#[pyclass(frozen)]
pub(crate) struct Port {
    pub(crate) shared: Arc<Shared>,
    event_loop: Option<Py<PyAny>>,
}

impl Port {
    pub(crate) fn event_loop(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py))
    }
}

#[pymethods]
impl Port {
    /// A port for a loop, which watches its `fileno()`; or for threads.
    #[new]
    fn new(event_loop: Option<Py<PyAny>>) -> PyResult<Self> {
        let fd = if event_loop.is_some() {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Some(fd.map_err(|error| unavailable(&format!("cannot watch for wake-ups: {error}")))?)
        } else {
            None
        };
        let shared = Shared { notes: Mutex::default(), fd, came: Condvar::new() };
        Ok(Self { shared: Arc::new(shared), event_loop })
    }

    /// What the loop watches; -1 for threads.
    fn fileno(&self) -> i32 {
        self.shared.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// In the loop's thread: wakes whoever waits no longer. Returns what else came: tuples of a workflow's
    /// number, branch and input for what begins, text for what has to unwind; `None` if nothing.
    fn drain(&self, py: Python<'_>) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let mut buffer = [0; 8];
        if let Some(fd) = &self.shared.fd {
            let _ = rustix::io::read(fd, &mut buffer);
        }
        let (notes, has_more) = {
            let mut notes = self.shared.notes.lock();
            let many = notes.len().min(AT_ONCE);
            (notes.drain(..many).collect::<Vec<_>>(), !notes.is_empty())
        };
        if let (true, Some(fd)) = (has_more, &self.shared.fd) {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
        let mut others = None;
        for note in notes {
            match note {
                Note::Wake(waiter) => {
                    if let Some(callback) = waiter.take() {
                        let run = pyo3::intern!(py, "run");
                        callback.context.call_method1(py, run, (callback.function, callback.argument))?;
                    } else if let Some(owner) = waiter.owner(py) {
                        owner.get().advance();
                    }
                }
                other => others.get_or_insert_with(Vec::new).push(told(py, other)?),
            }
        }
        Ok(others)
    }

    /// In a thread of a pool: the next note, or `None` after `seconds` without one.
    fn next(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<Py<PyAny>>> {
        let patience = std::time::Duration::from_secs_f64(seconds);
        let note = py.detach(|| {
            let mut notes = self.shared.notes.lock();
            if notes.is_empty() {
                self.shared.came.wait_for(&mut notes, patience);
            }
            notes.pop_front()
        });
        note.map(|note| told(py, note)).transpose()
    }

    /// How many notes wait.
    fn __len__(&self) -> usize {
        self.shared.notes.lock().len()
    }
}

fn told(py: Python<'_>, note: Note) -> PyResult<Py<PyAny>> {
    match note {
        Note::Wake(_) => Ok(py.None()),
        Note::Unwind(key) => Ok(key.into_pyobject(py)?.into_any().unbind()),
        Note::Begin(Begin { workflow, branch, input, slot }) => {
            let branch = Branch::new(branch, Some(slot));
            let input = crate::call::bytes(py, &input);
            Ok((workflow, branch, input).into_pyobject(py)?.into_any().unbind())
        }
    }
}
