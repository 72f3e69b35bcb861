//! [`Mailbox`]: messages of the engine for one event loop, or for one pool of threads.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;

use stepfast::guest::RunControl;
use stepfast::sync::Condvar;
use stepfast::{Key, Payload};

use crate::bridge::waiter::Waiter;
use crate::lock::Mutex;
use crate::outcome_slot::OutcomeSlot;

/// A message of the engine.
pub(crate) enum Message {
    /// A wait is over.
    Wake(Arc<Waiter>),
    /// An execution begins here.
    Begin(NewRun),
    /// The code of this run has to unwind, or the branches that the code has left behind.
    Unwind(RunControl),
}

/// An execution whose code is to run here.
pub(crate) struct NewRun {
    pub(crate) workflow: usize,
    pub(crate) branch: stepfast::guest::GuestBranch,
    pub(crate) input: Payload,
    pub(crate) outcome_slot: Arc<OutcomeSlot>,
}

pub(crate) struct Mailbox {
    pub(super) messages: Mutex<VecDeque<Message>>,
    /// The waiting threads that run a child themselves, by the child's key.
    pub(super) hosted_children: Mutex<HashMap<Key, HostedChild>>,
    /// Set once no thread may wait for messages any more. Changed under the lock of the messages.
    pub(super) is_closed: AtomicBool,
    /// A descriptor that is readable while there are messages; `None` for threads.
    pub(super) event_fd: Option<OwnedFd>,
    /// Notified when a message arrives. Used by threads.
    pub(super) message_arrived: Condvar,
}

pub(super) struct HostedChild {
    waiter: Arc<Waiter>,
    offered: Option<NewRun>,
}

impl Mailbox {
    /// Returns true if threads take the messages, not a loop.
    pub(crate) fn is_for_threads(&self) -> bool {
        self.event_fd.is_none()
    }

    /// Makes the thread that waits with `waiter` run this child when it begins.
    pub(crate) fn host_child(&self, child: Key, waiter: Arc<Waiter>) {
        drop(
            self.hosted_children
                .with(|children| children.insert(child, HostedChild { waiter, offered: None })),
        );
    }

    /// Allows every thread to run the child again.
    pub(crate) fn stop_hosting(&self, child: Key) {
        let hosted = self.hosted_children.with(|children| children.remove(&child));
        if let Some(new_run) = hosted.and_then(|child| child.offered) {
            self.push(Message::Begin(new_run));
        }
    }

    pub(crate) fn has_offer(&self, child: Key) -> bool {
        self.hosted_children
            .with(|children| children.get(&child).is_some_and(|child| child.offered.is_some()))
    }

    pub(crate) fn take_offer(&self, child: Key) -> Option<NewRun> {
        self.hosted_children.with(|children| children.get_mut(&child).and_then(|child| child.offered.take()))
    }

    /// Offers a new run to the thread that waits for this child; returns the run if there is no such thread.
    fn offer(&self, new_run: NewRun) -> Option<NewRun> {
        let offered = self.hosted_children.with(|children| match children.get_mut(&new_run.branch.key()) {
            Some(hosted) => {
                hosted.offered = Some(new_run);
                Ok(hosted.waiter.clone())
            }
            None => Err(new_run),
        });
        match offered {
            Ok(waiter) => {
                waiter.wake();
                None
            }
            Err(new_run) => Some(new_run),
        }
    }

    /// Returns taken but unhandled messages to the front.
    pub(super) fn return_messages(&self, taken: impl DoubleEndedIterator<Item = Message> + Send) {
        self.messages.with(|messages| taken.rev().for_each(|message| messages.push_front(message)));
        if let Some(event_fd) = &self.event_fd {
            let _ = rustix::io::write(event_fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn push(&self, message: Message) {
        let message = match message {
            Message::Begin(new_run) if self.is_for_threads() => match self.offer(new_run) {
                Some(new_run) => Message::Begin(new_run),
                None => return,
            },
            message => message,
        };
        let pushed = self.messages.with(|messages| {
            if self.is_closed.load(SeqCst) {
                return Err(message);
            }
            messages.push_back(message);
            Ok(messages.len() == 1)
        });
        let Ok(was_empty) = pushed else { return };
        match &self.event_fd {
            Some(event_fd) if was_empty => {
                // fails only after 2^64 writes
                let _ = rustix::io::write(event_fd, &1u64.to_ne_bytes());
            }
            Some(_) => {}
            None => {
                self.message_arrived.notify_one();
            }
        }
    }
}
