//! [`Rule`]: the condition on which a task of a graph runs, once all its dependencies have ended.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

use serde::{Deserialize, Serialize};

use crate::graph::shape::condition::{ValueCondition, ValueSource};
use crate::graph::state::TaskState;
use crate::name::Name;

/// The condition on which a task runs. The graph evaluates the rule when all dependencies of the task have ended; if
/// the rule is false, the task is skipped.
///
/// Rules combine with `&`, `|` and `!`:
///
/// ```
/// use stepfast_core::graph::Rule;
///
/// let rule = Rule::all_done() & !Rule::failed("charge");
/// assert_eq!(rule.to_string(), "all_done() & ~failed(\"charge\")");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule(RuleNode);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RuleNode {
    Every(Condition),
    Any(Condition),
    Task(Condition, Name),
    Value(Box<ValueCondition>),
    And(Vec<Rule>),
    Or(Vec<Rule>),
    Not(Box<Rule>),
}

/// A condition on the state of one ended task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Condition {
    Ended,
    Succeeded,
    Failed,
    Skipped,
    NotFailed,
}

impl Condition {
    fn holds(self, state: TaskState) -> bool {
        match self {
            Condition::Ended => true,
            Condition::Succeeded => state == TaskState::Succeeded,
            Condition::Failed => state == TaskState::Failed,
            Condition::Skipped => state == TaskState::Skipped,
            Condition::NotFailed => state != TaskState::Failed,
        }
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::all_success()
    }
}

impl Rule {
    /// Every dependency has succeeded. The default rule.
    pub const fn all_success() -> Self {
        Self(RuleNode::Every(Condition::Succeeded))
    }

    /// Every dependency has ended, in any state.
    pub const fn all_done() -> Self {
        Self(RuleNode::Every(Condition::Ended))
    }

    /// The same as [`all_done`](Self::all_done).
    pub const fn always() -> Self {
        Self::all_done()
    }

    /// At least one dependency has succeeded.
    pub const fn any_success() -> Self {
        Self(RuleNode::Any(Condition::Succeeded))
    }

    /// At least one dependency has failed.
    pub const fn one_failed() -> Self {
        Self(RuleNode::Any(Condition::Failed))
    }

    /// No dependency has failed: each has succeeded or was skipped.
    pub const fn none_failed() -> Self {
        Self(RuleNode::Every(Condition::NotFailed))
    }

    /// The task has succeeded. The task becomes a dependency.
    pub fn succeeded(task: impl Into<Name>) -> Self {
        Self(RuleNode::Task(Condition::Succeeded, task.into()))
    }

    /// The task has failed, after all its retries. The task becomes a dependency.
    pub fn failed(task: impl Into<Name>) -> Self {
        Self(RuleNode::Task(Condition::Failed, task.into()))
    }

    /// The task was skipped. The task becomes a dependency.
    pub fn skipped(task: impl Into<Name>) -> Self {
        Self(RuleNode::Task(Condition::Skipped, task.into()))
    }

    /// The rule that a condition on a value holds.
    pub fn of_value(condition: ValueCondition) -> Self {
        Self(RuleNode::Value(Box::new(condition)))
    }

    /// Whether the rule is the default.
    pub(in crate::graph) fn is_default(&self) -> bool {
        *self == Self::all_success()
    }

    /// Whether the rule can hold only if `task` has succeeded. May return false although it is so for complex rules.
    pub fn requires_success(&self, task: &str) -> bool {
        match &self.0 {
            RuleNode::Every(Condition::Succeeded) => true,
            RuleNode::Task(Condition::Succeeded, named) => **named == *task,
            RuleNode::Value(condition) => {
                matches!(&condition.source, ValueSource::Task(named) if **named == *task)
            }
            RuleNode::And(rules) => rules.iter().any(|rule| rule.requires_success(task)),
            RuleNode::Or(rules) => rules.iter().all(|rule| rule.requires_success(task)),
            _ => false,
        }
    }

    /// Calls `visit` with each task that the rule names.
    pub(in crate::graph) fn visit_tasks(&self, visit: &mut dyn FnMut(&Name)) {
        match &self.0 {
            RuleNode::Every(_) | RuleNode::Any(_) => {}
            RuleNode::Task(_, task) => visit(task),
            RuleNode::Value(condition) => {
                if let ValueSource::Task(task) = &condition.source {
                    visit(task);
                }
            }
            RuleNode::And(rules) | RuleNode::Or(rules) => {
                for rule in rules {
                    rule.visit_tasks(visit);
                }
            }
            RuleNode::Not(rule) => rule.visit_tasks(visit),
        }
    }

    /// Calls `visit` with each condition on a value.
    pub fn visit_conditions(&self, visit: &mut dyn FnMut(&ValueCondition)) {
        match &self.0 {
            RuleNode::Every(_) | RuleNode::Any(_) | RuleNode::Task(..) => {}
            RuleNode::Value(condition) => visit(condition),
            RuleNode::And(rules) | RuleNode::Or(rules) => {
                for rule in rules {
                    rule.visit_conditions(visit);
                }
            }
            RuleNode::Not(rule) => rule.visit_conditions(visit),
        }
    }

    /// Returns whether the rule holds; `None` if that depends on a value that cannot be read. `dependencies` are the states
    /// of the task's dependencies, and `state_of` returns the state of a dependency by name. All of them have ended.
    /// `value_holds` returns whether a condition holds, and is called for tasks that have succeeded and for the context.
    pub(in crate::graph) fn holds(
        &self,
        dependencies: &[TaskState],
        state_of: &dyn Fn(&str) -> TaskState,
        value_holds: &mut dyn FnMut(&ValueCondition) -> Option<bool>,
    ) -> Option<bool> {
        match &self.0 {
            RuleNode::Every(condition) => Some(dependencies.iter().all(|state| condition.holds(*state))),
            RuleNode::Any(condition) => Some(dependencies.iter().any(|state| condition.holds(*state))),
            RuleNode::Task(condition, task) => Some(condition.holds(state_of(task))),
            RuleNode::Value(condition) => match &condition.source {
                ValueSource::Task(task) if state_of(task) != TaskState::Succeeded => Some(false),
                _ => value_holds(condition),
            },
            RuleNode::And(rules) => {
                decide(rules.iter().map(|rule| rule.holds(dependencies, state_of, value_holds)), false)
            }
            RuleNode::Or(rules) => {
                decide(rules.iter().map(|rule| rule.holds(dependencies, state_of, value_holds)), true)
            }
            RuleNode::Not(rule) => rule.holds(dependencies, state_of, value_holds).map(|holds| !holds),
        }
    }
}

/// Returns `decisive` if one of the parts has this value, and otherwise the other value; `None` if a part that is not
/// known could be decisive.
fn decide(mut parts: impl Iterator<Item = Option<bool>>, decisive: bool) -> Option<bool> {
    let mut is_known = true;
    let is_decided = parts.any(|part| {
        is_known &= part.is_some();
        part == Some(decisive)
    });
    if is_decided { Some(decisive) } else { is_known.then_some(!decisive) }
}

impl BitAnd for Rule {
    type Output = Rule;

    fn bitand(self, other: Rule) -> Rule {
        // a chain of rules is one node: a stored rule may be nested to a limited depth only
        let rules = |rule| match rule {
            Rule(RuleNode::And(rules)) => rules,
            rule => vec![rule],
        };
        let mut joined = rules(self);
        joined.extend(rules(other));
        Rule(RuleNode::And(joined))
    }
}

impl BitOr for Rule {
    type Output = Rule;

    fn bitor(self, other: Rule) -> Rule {
        // a chain of rules is one node: a stored rule may be nested to a limited depth only
        let rules = |rule| match rule {
            Rule(RuleNode::Or(rules)) => rules,
            rule => vec![rule],
        };
        let mut joined = rules(self);
        joined.extend(rules(other));
        Rule(RuleNode::Or(joined))
    }
}

impl Not for Rule {
    type Output = Rule;

    fn not(self) -> Rule {
        Rule(RuleNode::Not(Box::new(self)))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            RuleNode::Every(Condition::Succeeded) => f.write_str("all_success()"),
            RuleNode::Every(Condition::NotFailed) => f.write_str("none_failed()"),
            RuleNode::Every(_) => f.write_str("all_done()"),
            RuleNode::Any(Condition::Succeeded) => f.write_str("any_success()"),
            RuleNode::Any(_) => f.write_str("one_failed()"),
            RuleNode::Task(Condition::Succeeded, task) => write!(f, "succeeded({task:?})"),
            RuleNode::Task(Condition::Skipped, task) => write!(f, "skipped({task:?})"),
            RuleNode::Task(_, task) => write!(f, "failed({task:?})"),
            RuleNode::Value(condition) => write!(f, "{condition}"),
            RuleNode::And(rules) => write_joined(f, rules, " & "),
            RuleNode::Or(rules) => write_joined(f, rules, " | "),
            RuleNode::Not(rule) => {
                f.write_str("~")?;
                write_operand(f, rule)
            }
        }
    }
}

fn write_joined(f: &mut fmt::Formatter<'_>, rules: &[Rule], operator: &str) -> fmt::Result {
    for (number, rule) in rules.iter().enumerate() {
        if number > 0 {
            f.write_str(operator)?;
        }
        write_operand(f, rule)?;
    }
    Ok(())
}

fn write_operand(f: &mut fmt::Formatter<'_>, rule: &Rule) -> fmt::Result {
    if matches!(rule.0, RuleNode::And(_) | RuleNode::Or(_) | RuleNode::Value(_)) {
        write!(f, "({rule})")
    } else {
        write!(f, "{rule}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [TaskState; 3] = [TaskState::Succeeded, TaskState::Failed, TaskState::Skipped];

    fn holds(rule: &Rule, states: &[TaskState]) -> bool {
        rule.holds(states, &|name| states[name.parse::<usize>().unwrap()], &mut |_| Some(true)).unwrap()
    }

    #[test]
    fn rules_without_dependencies_hold_unless_they_need_one() {
        for (rule, expected) in [
            (Rule::all_success(), true),
            (Rule::all_done(), true),
            (Rule::always(), true),
            (Rule::none_failed(), true),
            (Rule::any_success(), false),
            (Rule::one_failed(), false),
        ] {
            assert_eq!(holds(&rule, &[]), expected, "{rule}");
        }
    }

    #[test]
    fn rules_depend_on_the_states_of_all_dependencies() {
        for a in STATES {
            for b in STATES {
                let states = [a, b];
                let has = |state| states.contains(&state);
                for (rule, expected) in [
                    (Rule::all_success(), !has(TaskState::Failed) && !has(TaskState::Skipped)),
                    (Rule::all_done(), true),
                    (Rule::any_success(), has(TaskState::Succeeded)),
                    (Rule::one_failed(), has(TaskState::Failed)),
                    (Rule::none_failed(), !has(TaskState::Failed)),
                    (Rule::succeeded("0"), a == TaskState::Succeeded),
                    (Rule::failed("1"), b == TaskState::Failed),
                    (
                        Rule::skipped("0") & Rule::failed("1"),
                        states == [TaskState::Skipped, TaskState::Failed],
                    ),
                    (
                        Rule::skipped("0") | Rule::failed("1"),
                        a == TaskState::Skipped || b == TaskState::Failed,
                    ),
                    (!Rule::succeeded("0"), a != TaskState::Succeeded),
                    (Rule::value("0").eq(1), a == TaskState::Succeeded),
                ] {
                    assert_eq!(holds(&rule, &states), expected, "{rule} {states:?}");
                }
            }
        }
    }

    #[test]
    fn unreadable_value_leaves_a_rule_open_unless_another_part_decides() {
        let unreadable = || Rule::context_value("key").gt(0);
        let (holds, fails) = (Rule::all_done, Rule::any_success);
        for (rule, expected) in [
            (unreadable(), None),
            (!unreadable(), None),
            (unreadable() & holds(), None),
            (holds() & unreadable(), None),
            (unreadable() & fails(), Some(false)),
            (fails() & unreadable(), Some(false)),
            (unreadable() | holds(), Some(true)),
            (holds() | unreadable(), Some(true)),
            (unreadable() | fails(), None),
            (!(unreadable() & fails()), Some(true)),
        ] {
            assert_eq!(rule.holds(&[], &|_| TaskState::Skipped, &mut |_| None), expected, "{rule}");
        }
    }

    #[test]
    fn text_of_a_rule_keeps_its_structure() {
        let rule = (Rule::all_done() & Rule::succeeded("a")) | !(Rule::failed("b") | Rule::one_failed());
        assert_eq!(rule.to_string(), "(all_done() & succeeded(\"a\")) | ~(failed(\"b\") | one_failed())");
        let rule = Rule::value("a").gt(10) & !Rule::value("b").field("c").eq("d");
        assert_eq!(rule.to_string(), "(value(\"a\") > 10) & ~(value(\"b\")[\"c\"] == \"d\")");
    }
}
