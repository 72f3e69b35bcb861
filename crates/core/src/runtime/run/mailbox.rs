//! [`Mailbox`]: the messages that a run has loaded, until calls of the run receive them, and the numbers of those that its
//! steps send.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::call::BodyAttempt;
use crate::commit::Lsn;
use crate::store::PendingMessage;

/// The messages that a run has loaded, by topic.
#[derive(Default)]
pub(crate) struct Mailbox {
    topics: HashMap<Arc<str>, Topic>,
    /// Number of loads that are under way.
    loads: u32,
    /// The last attempt of each call that has sent messages, with their number.
    senders: SmallVec<[(BodyAttempt, u32); 1]>,
}

#[derive(Default)]
struct Topic {
    /// Whether the messages that were kept before the execution began have been forwarded.
    is_complete: bool,
    /// The calls that wait for a message, in the order in which they began.
    receivers: VecDeque<usize>,
    /// The messages that no call has taken, by number.
    loaded: BTreeMap<i64, PendingMessage>,
    /// The messages that a call has taken, by number. The row of such a message exists until its checkpoint is durable.
    taken: HashMap<i64, Taken>,
}

struct Taken {
    message: PendingMessage,
    /// The Lsn of the checkpoint that records the receipt; `None` before the delivery.
    lsn: Option<Lsn>,
}

/// The messages that were received before a load began, so the load cannot return them.
pub(crate) struct Received(Vec<i64>);

impl Mailbox {
    /// Whether the messages of a topic that were kept before the execution began have been forwarded.
    pub(crate) fn is_complete(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.is_complete)
    }

    /// Notes that a topic is [complete](Self::is_complete).
    pub(crate) fn set_complete(&mut self, topic: &Arc<str>) {
        self.topics.entry(topic.clone()).or_default().is_complete = true;
    }

    /// Returns the number of the next message that an attempt of a step sends, from 1.
    pub(crate) fn count_sent(&mut self, attempt: BodyAttempt) -> u32 {
        let last = self.senders.iter_mut().find(|(other, _)| other.call == attempt.call);
        match last {
            Some((other, count)) if *other == attempt => {
                *count += 1;
                *count
            }
            Some(last) => {
                // the earlier attempt sends no more
                *last = (attempt, 1);
                1
            }
            None => {
                self.senders.push((attempt, 1));
                1
            }
        }
    }

    /// Adds a call to the receivers of a topic.
    pub(crate) fn add_receiver(&mut self, topic: &Arc<str>, call: usize) {
        self.topics.entry(topic.clone()).or_default().receivers.push_back(call);
    }

    /// Removes a call from the receivers of a topic. Returns whether other calls wait.
    pub(crate) fn remove_receiver(&mut self, topic: &str, call: usize) -> bool {
        let Some(topic) = self.topics.get_mut(topic) else { return false };
        topic.receivers.retain(|other| *other != call);
        !topic.receivers.is_empty()
    }

    /// Takes the earliest loaded message for a call, if no other call waits longer.
    pub(crate) fn take(&mut self, topic: &str, call: usize) -> Option<PendingMessage> {
        let topic = self.topics.get_mut(topic)?;
        if topic.receivers.front() != Some(&call) {
            return None;
        }
        let (number, message) = topic.loaded.pop_first()?;
        topic.receivers.pop_front();
        topic.taken.insert(number, Taken { message: message.clone(), lsn: None });
        Some(message)
    }

    /// Puts back a message that its call has taken, but that was not delivered.
    pub(crate) fn put_back(&mut self, topic: &str, number: i64) {
        let Some(topic) = self.topics.get_mut(topic) else { return };
        if let Some(Taken { message, .. }) = topic.taken.remove(&number) {
            topic.loaded.insert(number, message);
        }
    }

    /// Notes that the receipt of a message was staged.
    pub(crate) fn note_received(&mut self, topic: &str, number: i64, lsn: Lsn) {
        if let Some(taken) = self.topics.get_mut(topic).and_then(|topic| topic.taken.get_mut(&number)) {
            taken.lsn = Some(lsn);
        }
    }

    /// Notes that a load of a topic's messages begins. `is_durable` says whether a Write is durable.
    pub(crate) fn begin_load(&mut self, topic: &str, is_durable: impl Fn(Lsn) -> bool) -> Received {
        self.loads += 1;
        let taken = self.topics.get(topic).map(|topic| &topic.taken);
        let is_gone = |taken: &Taken| taken.lsn.is_some_and(&is_durable);
        let gone = taken.into_iter().flatten().filter(|(_, taken)| is_gone(taken));
        // another load may have begun earlier, and return these messages
        Received(if self.loads == 1 { gone.map(|(number, _)| *number).collect() } else { Vec::new() })
    }

    /// Adds the result of a load.
    pub(crate) fn finish_load(
        &mut self,
        topic: &Arc<str>,
        messages: Vec<PendingMessage>,
        received: &Received,
    ) {
        self.loads -= 1;
        let topic = self.topics.entry(topic.clone()).or_default();
        for message in messages {
            if !topic.taken.contains_key(&message.number) {
                topic.loaded.insert(message.number, message);
            }
        }
        if self.loads == 0 {
            for number in &received.0 {
                topic.taken.remove(number);
            }
        }
    }

    /// Notes that a load has failed or was dropped.
    pub(crate) fn cancel_load(&mut self) {
        self.loads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::payload::Payload;

    fn message(number: i64) -> PendingMessage {
        PendingMessage { number, value: Payload::empty(), sent_at: Timestamp::from_micros(0) }
    }

    fn load(mailbox: &mut Mailbox, numbers: &[i64], durable: Lsn) {
        let received = mailbox.begin_load("t", |lsn| lsn <= durable);
        mailbox.finish_load(&"t".into(), numbers.iter().map(|n| message(*n)).collect(), &received);
    }

    #[test]
    fn each_message_is_taken_once_in_the_order_of_the_receivers() {
        let mut mailbox = Mailbox::default();
        for call in [4, 7] {
            mailbox.add_receiver(&"t".into(), call);
        }
        load(&mut mailbox, &[3, 1, 2], Lsn(0));
        assert_eq!(mailbox.take("t", 7), None, "another call waits longer");
        assert_eq!(mailbox.take("t", 4), Some(message(1)));
        assert_eq!(mailbox.take("t", 7), Some(message(2)));
        mailbox.add_receiver(&"t".into(), 4);
        // the rows of the taken messages still exist
        load(&mut mailbox, &[1, 2, 3], Lsn(0));
        assert_eq!(mailbox.take("t", 4), Some(message(3)));
        mailbox.put_back("t", 2);
        mailbox.add_receiver(&"t".into(), 9);
        assert_eq!(mailbox.take("t", 9), Some(message(2)));
    }

    #[test]
    fn received_messages_are_forgotten_when_no_load_can_return_them() {
        let mut mailbox = Mailbox::default();
        mailbox.add_receiver(&"t".into(), 1);
        load(&mut mailbox, &[1], Lsn(0));
        assert_eq!(mailbox.take("t", 1), Some(message(1)));
        mailbox.note_received("t", 1, Lsn(5));
        mailbox.add_receiver(&"t".into(), 1);
        let early = mailbox.begin_load("t", |_| false);
        // while an earlier load is under way, this one forgets nothing
        load(&mut mailbox, &[], Lsn(5));
        mailbox.finish_load(&"t".into(), vec![message(1)], &early);
        assert_eq!(mailbox.take("t", 1), None);
        load(&mut mailbox, &[], Lsn(5));
        assert!(mailbox.topics["t"].taken.is_empty());
    }
}
