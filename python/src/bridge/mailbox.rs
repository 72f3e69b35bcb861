//! [`Shared`]: messages of the engine for one event loop, or for one pool of threads.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;

use stepfast::guest::Gate;
use stepfast::sync::Condvar;
use stepfast::{Key, Payload};

use crate::bridge::waiter::Waiter;
use crate::lock::Mutex;
use crate::outcome_slot::Slot;

/// What the engine has to tell.
pub(crate) enum Note {
    /// Something waits no longer.
    Wake(Arc<Waiter>),
    /// An execution begins here.
    Begin(Begin),
    /// The code of this run has to unwind, or what it has left behind.
    Unwind(Gate),
}

/// Code that is to run.
pub(crate) struct Begin {
    pub(crate) workflow: usize,
    pub(crate) branch: stepfast::guest::Branch,
    pub(crate) input: Payload,
    pub(crate) slot: Arc<Slot>,
}

pub(crate) struct Shared {
    pub(super) notes: Mutex<VecDeque<Note>>,
    /// Threads that wait for a child, which they run themselves: by the child's key.
    pub(super) hosts: Mutex<HashMap<Key, Host>>,
    /// No thread is to wait for notes any more; changed under the lock of the notes.
    pub(super) is_closed: AtomicBool,
    /// Readable while there are notes; for loops.
    pub(super) fd: Option<OwnedFd>,
    /// For threads.
    pub(super) came: Condvar,
}

pub(super) struct Host {
    waiter: Arc<Waiter>,
    offer: Option<Begin>,
}

impl Shared {
    /// True if threads take its notes, and no loop.
    pub(crate) fn is_for_threads(&self) -> bool {
        self.fd.is_none()
    }

    /// Whoever waits with `waiter` runs this child when it begins.
    pub(crate) fn host(&self, child: Key, waiter: Arc<Waiter>) {
        drop(self.hosts.with(|hosts| hosts.insert(child, Host { waiter, offer: None })));
    }

    /// Any thread may run the child again.
    pub(crate) fn unhost(&self, child: Key) {
        let host = self.hosts.with(|hosts| hosts.remove(&child));
        if let Some(begin) = host.and_then(|host| host.offer) {
            self.push(Note::Begin(begin));
        }
    }

    pub(crate) fn has_offer(&self, child: Key) -> bool {
        self.hosts.with(|hosts| hosts.get(&child).is_some_and(|host| host.offer.is_some()))
    }

    pub(crate) fn take_offer(&self, child: Key) -> Option<Begin> {
        self.hosts.with(|hosts| hosts.get_mut(&child).and_then(|host| host.offer.take()))
    }

    /// Offers what begins to the thread that waits for it; gives it back if there is none.
    fn offer(&self, begin: Begin) -> Option<Begin> {
        let offered = self.hosts.with(|hosts| match hosts.get_mut(&begin.branch.key()) {
            Some(host) => {
                host.offer = Some(begin);
                Ok(host.waiter.clone())
            }
            None => Err(begin),
        });
        match offered {
            Ok(waiter) => {
                waiter.wake();
                None
            }
            Err(begin) => Some(begin),
        }
    }

    /// Notes that were taken, and that nobody has come to: they are the next.
    pub(super) fn put_back(&self, taken: impl DoubleEndedIterator<Item = Note> + Send) {
        self.notes.with(|notes| taken.rev().for_each(|note| notes.push_front(note)));
        if let Some(fd) = &self.fd {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn push(&self, note: Note) {
        let note = match note {
            Note::Begin(begin) if self.is_for_threads() => match self.offer(begin) {
                Some(begin) => Note::Begin(begin),
                None => return,
            },
            note => note,
        };
        let pushed = self.notes.with(|notes| {
            if self.is_closed.load(SeqCst) {
                return Err(note);
            }
            notes.push_back(note);
            Ok(notes.len() == 1)
        });
        let Ok(was_empty) = pushed else { return };
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
