//! [`start_option_methods`]: the builder methods of start options, each declared once for all builders that have it.

/// Adds methods to a builder: one for each of the listed start options. The path leads from the builder to its
/// `Option<Box<StartOptions>>`.
macro_rules! start_option_methods {
    ($builder:ident.$($field:tt).+: $($option:ident),+ $(,)?) => {
        impl<I, O> $builder<'_, I, O> {
            fn options(&mut self) -> &mut crate::runtime::start::options::StartOptions {
                self.$($field).+.get_or_insert_default()
            }

            $(crate::runtime::start::option_methods::start_option_method! { $option })+
        }
    };
}

/// Declares the builder method of one start option.
macro_rules! start_option_method {
    (workflow_id) => {
        /// Sets the execution's id, which makes the start idempotent. A second start with the same id, workflow and
        /// input returns the first execution. With another workflow or input, the second start fails with
        /// [`Error::Conflict`](crate::Error::Conflict).
        pub fn workflow_id(mut self, id: impl AsRef<str>) -> Self {
            self.options().workflow_id = Some(id.as_ref().into());
            self
        }
    };
    (execution_timeout) => {
        /// Cancels the execution unless it ends within `timeout` from its start.
        pub fn execution_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options().execution_timeout = Some(timeout);
            self
        }
    };
    (run_timeout) => {
        /// Cancels the execution unless it ends within `timeout` after its first run has begun. Time in a queue before
        /// that does not count; waits and recoveries do.
        pub fn run_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options().run_timeout = Some(timeout);
            self
        }
    };
    (wait_timeout) => {
        /// Limits how long the call waits: a start waits for the database, and a run waits for its output. After
        /// `timeout` the call fails with [`Error::Unavailable`](crate::Error::Unavailable). A start stays staged and
        /// may still happen; an execution that has begun continues. Repeating the call with the same workflow_id is
        /// safe.
        pub fn wait_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options().wait_timeout = Some(timeout);
            self
        }
    };
    (queue) => {
        /// Sets the [queue](crate::queue::Queue) in which the execution waits for a worker. The queue must be
        /// declared, in this process or in any other. A full queue never rejects a start from inside a workflow.
        pub fn queue(mut self, queue: impl AsRef<str>) -> Self {
            self.options().queue = Some(queue.as_ref().into());
            self
        }
    };
    (key) => {
        /// Sets the queue key, by which executions of a queue are grouped. The queue keys share the queue fairly: none
        /// waits behind the backlog of another, and each may have limits of its own.
        pub fn key(mut self, key: impl AsRef<str>) -> Self {
            self.options().key = Some(key.as_ref().into());
            self
        }
    };
    (priority) => {
        /// Sets the priority among executions of the same queue and queue key: smaller numbers come first. The default
        /// is 0.
        pub fn priority(mut self, priority: i32) -> Self {
            self.options().priority = Some(priority);
            self
        }
    };
    (dedup_id) => {
        /// Allows at most one unfinished execution with this id per queue, across all queue keys.
        /// [`on_duplicate`](Self::on_duplicate) decides what a second start returns. The id becomes free when the
        /// execution ends.
        pub fn dedup_id(mut self, id: impl AsRef<str>) -> Self {
            self.options().dedup_id = Some(id.as_ref().into());
            self
        }
    };
    (on_duplicate) => {
        /// Sets what the start returns if an unfinished execution has its [`dedup_id`](Self::dedup_id). By default the
        /// start fails with [`Error::Deduplicated`](crate::Error::Deduplicated).
        pub fn on_duplicate(mut self, on_duplicate: crate::queue::OnDuplicate) -> Self {
            self.options().on_duplicate = on_duplicate;
            self
        }
    };
    (on_full) => {
        /// Sets what the start does if its queue is [full](crate::queue::Queue::max_depth). By default the start fails
        /// with [`Error::QueueFull`](crate::Error::QueueFull). A start that waits does so for up to
        /// [`wait_timeout`](Self::wait_timeout), and then fails with that error.
        pub fn on_full(mut self, on_full: crate::queue::OnFull) -> Self {
            self.options().on_full = on_full;
            self
        }
    };
    (debounce) => {
        /// Debounces the start: while the execution is scheduled, all starts of this workflow with this id in this
        /// queue are one execution. Each start moves the due time to the moment of the start plus its own
        /// [`delay`](Self::delay), and replaces the input, queue key, priority and run_timeout. Each start returns a
        /// handle to the execution. The input has at most 64 KiB, and attributes are not allowed.
        pub fn debounce(mut self, id: impl AsRef<str>) -> Self {
            self.options().debounce = Some(id.as_ref().into());
            self
        }
    };
    (max_delay) => {
        /// Limits how long [debounced](Self::debounce) starts postpone the execution: the execution begins no later
        /// than `max_delay` after the first of these starts. By default there is no limit.
        pub fn max_delay(mut self, max_delay: std::time::Duration) -> Self {
            self.options().max_delay = Some(max_delay);
            self
        }
    };
    (delay) => {
        /// Delays the execution: the execution begins no earlier than `delay` after the start was accepted, and enters
        /// its queue only then.
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            self.options().due = Some(crate::Due::After(delay));
            self
        }
    };
    (start_at) => {
        /// Schedules the execution: the execution begins no earlier than `time` by the database's clock, and enters its
        /// queue only then.
        pub fn start_at(mut self, time: crate::clock::Timestamp) -> Self {
            self.options().due = Some(crate::Due::At(time));
            self
        }
    };
    (attribute) => {
        /// Adds an attribute, by which [`Engine::list`](crate::Engine::list) finds the execution. Attributes are
        /// permanent, and children do not inherit them. Call this method again for further attributes. An execution has
        /// at most 64, with names of up to 128 bytes and values of up to 1,024 bytes.
        pub fn attribute(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
            self.options().attributes.set(name.as_ref(), value.as_ref());
            self
        }
    };
}

pub(crate) use {start_option_method, start_option_methods};
