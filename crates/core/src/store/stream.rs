//! [`Stream`]: the executions of one workflow, version of the code and queue, as stores find them.

use std::sync::Arc;

/// Separates the parts of a stream. The parts contain no control characters, so streams have the order of their parts.
const SEPARATOR: &str = "\u{1}";
/// The first character after [`SEPARATOR`].
const AFTER_SEPARATOR: char = '\u{2}';

/// The executions of one workflow, version of the code and queue: the first column of the indexes of ready executions and of
/// timers. The text consists of the workflow, the version (empty for any) and the queue, separated by U+0001.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream(Arc<str>);

impl Stream {
    /// Returns the stream of a workflow, a version of the code (`None` for any) and a queue.
    pub fn new(workflow: &str, app_version: Option<&str>, queue: &str) -> Self {
        Self([workflow, app_version.unwrap_or_default(), queue].join(SEPARATOR).into())
    }

    /// Returns the stream with this text, as a store has it.
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the stream's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the registered name of the workflow.
    pub fn workflow(&self) -> &str {
        self.part(0)
    }

    /// Returns the version of the code that may run the executions; `None` for any.
    pub fn app_version(&self) -> Option<&str> {
        Some(self.part(1)).filter(|version| !version.is_empty())
    }

    /// Returns the name of the queue.
    pub fn queue(&self) -> &str {
        self.part(2)
    }

    fn part(&self, n: usize) -> &str {
        self.0.split(SEPARATOR).nth(n).unwrap_or_default()
    }

    /// Returns a text before the streams of a workflow, and a text after them. No other stream is between them.
    pub fn bounds(workflow: &str) -> (String, String) {
        (format!("{workflow}{SEPARATOR}"), format!("{workflow}{AFTER_SEPARATOR}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_returns_its_parts() {
        let stream = Stream::new("order", None, "mail");
        assert_eq!((stream.workflow(), stream.app_version(), stream.queue()), ("order", None, "mail"));
        let pinned = Stream::from_text("order\u{1}2.0\u{1}default");
        assert_eq!((pinned.app_version(), pinned.queue()), (Some("2.0"), "default"));
    }

    #[test]
    fn only_the_streams_of_a_workflow_are_within_its_bounds() {
        let (first, end) = Stream::bounds("order");
        let is_within = |stream: &Stream| *first < *stream.as_str() && *stream.as_str() < *end;
        let own = [Stream::new("order", None, "a"), Stream::new("order", Some("~"), "é")];
        assert!(own.iter().all(is_within));
        let others = ["orde", "order ", "orders", ""].map(|workflow| Stream::new(workflow, None, "a"));
        assert!(!others.iter().any(is_within));
    }
}
