//! [`Inquiry`]: many who ask for executions, and one question to the database at a time.
//!
//! As Writes share flushes, those who wait for executions elsewhere share reads: while one is on its way the next
//! ones gather, and there is no timer.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::engine::Core;
use crate::error::Error;
use crate::key::Key;
use crate::lock::Mutex;
use crate::record::{Detail, Execution, ExecutionId};

/// Most executions in one question.
const MOST: usize = 1_000;

type Answer = Result<Option<Execution>, Error>;

/// What is to be asked next.
#[derive(Default)]
pub(crate) struct Inquiry {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    asked: Vec<(Key, oneshot::Sender<Answer>)>,
    /// Somebody is asking, and will ask these too.
    is_asking: bool,
}

impl Core {
    /// The execution with its outcome, without its input. Shares the question with whoever else asks just then.
    pub(crate) async fn inquire(self: &Arc<Self>, key: Key) -> Answer {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut open = self.inquiry.open.lock();
            open.asked.push((key, answer));
            !std::mem::replace(&mut open.is_asking, true)
        };
        if is_first {
            // in a task of its own: whoever asks may go away, and leave others without an answer
            self.runtime.spawn(ask(self.clone()));
        }
        answered.await.unwrap_or_else(|_| Err(self.why_dropped()))
    }
}

/// Asks until nobody wants to know anything.
async fn ask(core: Arc<Core>) {
    loop {
        let asked = {
            let mut open = core.inquiry.open.lock();
            let first = open.asked.len().min(MOST);
            let asked: Vec<_> = open.asked.drain(..first).collect();
            open.is_asking = !asked.is_empty();
            asked
        };
        if asked.is_empty() {
            return;
        }
        let ids: Vec<ExecutionId> = asked.iter().map(|(key, _)| ExecutionId::Key(*key)).collect();
        match core.store.load(&ids, Detail::Outcome).await {
            Ok(records) => {
                for ((_, answer), record) in asked.into_iter().zip(records) {
                    let _ = answer.send(Ok(record.map(|record| record.execution)));
                }
            }
            Err(error) => {
                let error = Error::from(error);
                for (_, answer) in asked {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}
