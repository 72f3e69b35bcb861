//! [`Route`]: the executions of one workflow, version of the code and queue, as stores find them.

use std::sync::Arc;

/// Separates the parts of a route. The parts contain no control characters, so routes have the order of their parts.
const SEPARATOR: &str = "\u{1}";
/// The first character after [`SEPARATOR`].
const AFTER_SEPARATOR: char = '\u{2}';

/// The executions of one workflow, version of the code and queue: the first column of the indexes of ready executions and of
/// timers. The text consists of the workflow, the version (empty for any) and the queue, separated by U+0001.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route(Arc<str>);

impl Route {
    /// Returns the route of a workflow, a version of the code (`None` for any) and a queue.
    pub fn new(workflow: &str, app_version: Option<&str>, queue: &str) -> Self {
        Self([workflow, app_version.unwrap_or_default(), queue].join(SEPARATOR).into())
    }

    /// Returns the route with this text, as a store has it.
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the route's text.
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

    /// Returns a text before the routes of a workflow, and a text after them. No other route is between them.
    pub fn bounds(workflow: &str) -> (String, String) {
        (format!("{workflow}{SEPARATOR}"), format!("{workflow}{AFTER_SEPARATOR}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_returns_its_parts() {
        let route = Route::new("order", None, "mail");
        assert_eq!((route.workflow(), route.app_version(), route.queue()), ("order", None, "mail"));
        let pinned = Route::from_text("order\u{1}2.0\u{1}default");
        assert_eq!((pinned.app_version(), pinned.queue()), (Some("2.0"), "default"));
    }

    #[test]
    fn only_the_routes_of_a_workflow_are_within_its_bounds() {
        let (first, end) = Route::bounds("order");
        let is_within = |route: &Route| *first < *route.as_str() && *route.as_str() < *end;
        let own = [Route::new("order", None, "a"), Route::new("order", Some("~"), "é")];
        assert!(own.iter().all(is_within));
        let others = ["orde", "order ", "orders", ""].map(|workflow| Route::new(workflow, None, "a"));
        assert!(!others.iter().any(is_within));
    }
}
