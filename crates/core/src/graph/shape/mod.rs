//! [`GraphShape`]: the structure of a graph, without the code of its tasks.

pub(super) mod condition;
pub(super) mod declaration;
pub(super) mod rule;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::graph::place::TaskPlace;
use crate::graph::shape::declaration::TaskDeclaration;
use crate::graph::shape::rule::Rule;
use crate::graph::state::TaskState;
use crate::name::Name;
use crate::name_checks::check_name;
use crate::path::{MIN_TASK_NUMBER, Path};
use crate::text::list_names;
/// Maximum number of tasks of a cycle that a message names.
const MAX_SHOWN_CYCLE: usize = 20;
/// Least similarity, from 0 to 1, of a name that an error suggests.
const MIN_SIMILARITY: f64 = 0.7;

/// The structure of a graph: its tasks, their dependencies and their rules. Every shape is valid: names are unique,
/// dependencies exist, and no task depends on itself.
#[derive(Clone, Debug)]
pub struct GraphShape {
    name: Arc<str>,
    /// The tasks, in the order of their definition.
    tasks: Vec<TaskShape>,
    by_name: HashMap<Name, usize>,
    /// The dependents of all tasks, one task after the other.
    dependents: Vec<usize>,
    /// The end of each task's part of `dependents`.
    dependent_ends: Vec<usize>,
    topological_order: Vec<usize>,
}

/// A task without its code.
#[derive(Clone, Debug)]
pub struct TaskShape {
    pub(super) name: Name,
    pub(super) dependencies: Vec<usize>,
    pub(super) rule: Rule,
    /// The length of the longest chain of dependencies.
    pub(super) level: usize,
    pub(super) place: TaskPlace,
}

impl GraphShape {
    /// Returns the shape of the graph `name` with these tasks.
    ///
    /// Fails with [`Error::Invalid`] if a name is invalid or not unique, if a dependency or a task named by a rule does
    /// not exist, if tasks depend on each other in a cycle, or if a rule can never hold.
    pub fn new(name: &str, declarations: &[TaskDeclaration]) -> Result<Self, Error> {
        check_name("graph name", name)?;
        let invalid =
            |reason: String| Error::Invalid { input: "graph", reason: format!("{name:?}: {reason}") };
        let mut by_name = HashMap::with_capacity(declarations.len());
        for (i, task) in declarations.iter().enumerate() {
            check_name("task name", &task.name)?;
            if by_name.insert(task.name.clone(), i).is_some() {
                return Err(invalid(format!(
                    "two tasks are named {:?}; give one of them another name",
                    task.name
                )));
            }
        }
        let mut tasks = Vec::with_capacity(declarations.len());
        for declaration in declarations {
            tasks.push(resolve(declaration, declarations, &by_name).map_err(&invalid)?);
        }
        assign_numbers(&mut tasks);
        let (dependents, dependent_ends) = invert(&tasks);
        let mut shape = Self {
            name: name.into(),
            tasks,
            by_name,
            dependents,
            dependent_ends,
            topological_order: Vec::new(),
        };
        shape.sort().map_err(invalid)?;
        Ok(shape)
    }

    /// Returns the graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the graph has no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns the tasks' names, in the order of their definition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|task| &*task.name)
    }

    /// Returns the tasks' names, each after the names of its dependencies. Tasks of one level come in the order of
    /// their definition.
    pub fn topological_order(&self) -> Vec<&str> {
        self.topological_order.iter().map(|&task| &*self.tasks[task].name).collect()
    }

    /// Returns the names of the tasks by level: a task of level n has a longest chain of n dependencies. The tasks of one
    /// level do not depend on each other.
    pub fn levels(&self) -> Vec<Vec<&str>> {
        let mut levels = Vec::new();
        for &task in &self.topological_order {
            let TaskShape { name, level, .. } = &self.tasks[task];
            if levels.len() <= *level {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[*level].push(&**name);
        }
        levels
    }

    /// Returns the names of the tasks without dependencies.
    pub fn roots(&self) -> Vec<&str> {
        self.tasks.iter().filter(|task| task.dependencies.is_empty()).map(|task| &*task.name).collect()
    }

    /// Returns the names of the tasks on which no task depends.
    pub fn leaves(&self) -> Vec<&str> {
        self.leaf_indexes().map(|task| &*self.tasks[task].name).collect()
    }

    /// Returns the names of the dependencies of a task; `None` if there is no such task.
    pub fn dependencies(&self, task: &str) -> Option<Vec<&str>> {
        let task = &self.tasks[*self.by_name.get(task)?];
        Some(task.dependencies.iter().map(|&dependency| &*self.tasks[dependency].name).collect())
    }

    /// Returns the rule of a task; `None` if there is no such task.
    pub fn rule(&self, task: &str) -> Option<&Rule> {
        Some(&self.tasks[*self.by_name.get(task)?].rule)
    }

    /// Returns the path of a task's checkpoint; `None` if there is no such task.
    pub fn path_of(&self, task: &str) -> Option<Path> {
        self.index_of(task).map(|task| self.place(task).path())
    }

    /// Returns the chain of tasks that takes longest: each depends on the one before. `duration` returns the time that a
    /// task takes; with the same time for all tasks, the chain is the longest one.
    pub fn critical_path(&self, mut duration: impl FnMut(&str) -> f64) -> Vec<&str> {
        let mut ends: Vec<(f64, Option<usize>)> = vec![(0.0, None); self.tasks.len()];
        let mut last: Option<usize> = None;
        for &task in &self.topological_order {
            let TaskShape { name, dependencies, .. } = &self.tasks[task];
            let longest =
                dependencies.iter().copied().reduce(|a, b| if ends[b].0 > ends[a].0 { b } else { a });
            let begin = longest.map_or(0.0, |dependency| ends[dependency].0);
            ends[task] = (begin + duration(name), longest);
            if last.is_none_or(|last| ends[task].0 > ends[last].0) {
                last = Some(task);
            }
        }
        let mut path: Vec<&str> =
            std::iter::successors(last, |&task| ends[task].1).map(|task| &*self.tasks[task].name).collect();
        path.reverse();
        path
    }

    pub(super) fn tasks(&self) -> &[TaskShape] {
        &self.tasks
    }

    /// Returns the place of a task in the records of its executions.
    pub fn place(&self, task: usize) -> TaskPlace {
        self.tasks[task].place
    }

    /// Returns the places of the tasks that depend on a task, directly or through others: the nearer ones first.
    pub fn dependent_places(&self, task: usize) -> impl Iterator<Item = TaskPlace> {
        let mut found = HashSet::new();
        let mut next = VecDeque::new();
        let mut dependents = self.dependents(task);
        std::iter::from_fn(move || {
            loop {
                while let [dependent, rest @ ..] = dependents {
                    dependents = rest;
                    if found.insert(*dependent) {
                        next.push_back(*dependent);
                        return Some(self.place(*dependent));
                    }
                }
                dependents = self.dependents(next.pop_front()?);
            }
        })
    }

    pub(super) fn index_of(&self, task: &str) -> Option<usize> {
        self.by_name.get(task).copied()
    }

    /// Returns the indexes of the tasks in topological order.
    pub(super) fn order(&self) -> &[usize] {
        &self.topological_order
    }

    pub(super) fn dependents(&self, task: usize) -> &[usize] {
        let begin = if task == 0 { 0 } else { self.dependent_ends[task - 1] };
        &self.dependents[begin..self.dependent_ends[task]]
    }

    /// Returns the position of a task in the topological order.
    pub(super) fn position(&self, task: usize) -> (usize, usize) {
        (self.tasks[task].level, task)
    }

    /// Returns the indexes of the tasks on which no task depends.
    pub(super) fn leaf_indexes(&self) -> impl Iterator<Item = usize> {
        (0..self.tasks.len()).filter(|&task| self.dependents(task).is_empty())
    }

    /// Fills the topological order and the levels. Fails if there is a cycle.
    fn sort(&mut self) -> Result<(), String> {
        let mut unmet: Vec<usize> = self.tasks.iter().map(|task| task.dependencies.len()).collect();
        let mut next: VecDeque<usize> = (0..unmet.len()).filter(|&task| unmet[task] == 0).collect();
        let mut order = Vec::with_capacity(unmet.len());
        while let Some(task) = next.pop_front() {
            order.push(task);
            let level = self.tasks[task].level + 1;
            for i in 0..self.dependents(task).len() {
                let dependent = self.dependents(task)[i];
                unmet[dependent] -= 1;
                self.tasks[dependent].level = self.tasks[dependent].level.max(level);
                if unmet[dependent] == 0 {
                    next.push_back(dependent);
                }
            }
        }
        if order.len() < unmet.len() {
            return Err(self.describe_cycle(&unmet));
        }
        // the queue yields a task when its last dependency is done, which need not be in the order of levels
        order.sort_by_key(|&task| (self.tasks[task].level, task));
        self.topological_order = order;
        Ok(())
    }

    /// Describes a cycle among the tasks with unmet dependencies.
    fn describe_cycle(&self, unmet: &[usize]) -> String {
        let unmet_dependency = |task: usize| {
            self.tasks[task].dependencies.iter().copied().find(|&dependency| unmet[dependency] > 0)
        };
        let first = (0..unmet.len()).find(|&task| unmet[task] > 0);
        // as many steps backwards as there are tasks end inside of a cycle
        let mut on_cycle = first;
        for _ in 0..unmet.len() {
            on_cycle = on_cycle.and_then(unmet_dependency);
        }
        let Some(begin) = on_cycle else { return "its tasks depend on each other in a cycle".to_owned() };
        let mut cycle = vec![begin];
        while let Some(dependency) = cycle.last().copied().and_then(unmet_dependency)
            && dependency != begin
        {
            cycle.push(dependency);
        }
        cycle.reverse();
        let mut names: Vec<&str> = cycle.iter().map(|&task| &*self.tasks[task].name).collect();
        if names.len() > MAX_SHOWN_CYCLE {
            names.truncate(MAX_SHOWN_CYCLE);
            names.push("…");
        }
        names.push(names[0]);
        format!(
            "its tasks depend on each other in a cycle: {}; remove one of these dependencies",
            names.join(" -> ")
        )
    }
}

/// Finds the dependencies of a declared task.
fn resolve(
    declaration: &TaskDeclaration,
    declarations: &[TaskDeclaration],
    by_name: &HashMap<Name, usize>,
) -> Result<TaskShape, String> {
    let TaskDeclaration { name, dependencies, rule } = declaration;
    let find = |dependency: &Name, role: &str| {
        by_name.get(dependency).copied().ok_or_else(|| describe_unknown(name, role, dependency, by_name))
    };
    let mut found = Vec::with_capacity(dependencies.len());
    for dependency in dependencies {
        found.push(find(dependency, "depends on")?);
    }
    let mut from_rule = Ok(());
    rule.visit_tasks(&mut |task| match find(task, "has a rule about") {
        Ok(task) => found.push(task),
        Err(reason) => from_rule = Err(reason),
    });
    from_rule?;
    let mut dependencies = found;
    let mut seen = HashSet::with_capacity(dependencies.len());
    dependencies.retain(|dependency| seen.insert(*dependency));
    if dependencies.is_empty() && rule.holds(&[], &|_| TaskState::Skipped, &mut |_| None) == Some(false) {
        return Err(format!(
            "task {name:?} never runs: it has no dependencies, and its rule {rule} needs at least one; name its \
             dependencies, or change the rule"
        ));
    }
    let mut sorted: Vec<&str> =
        dependencies.iter().map(|&dependency| &*declarations[dependency].name).collect();
    sorted.sort_unstable();
    let fingerprint = xxh3_64(format!("{rule}\n{}", sorted.join("\n")).as_bytes());
    let place = TaskPlace { number: 0, fingerprint, item: None, repetition: 0, callback: None };
    Ok(TaskShape { name: name.clone(), dependencies, rule: rule.clone(), level: 0, place })
}

fn describe_unknown(task: &Name, role: &str, unknown: &Name, by_name: &HashMap<Name, usize>) -> String {
    let similarity = |name: &str| strsim::jaro_winkler(name, unknown);
    let nearest = by_name
        .keys()
        .filter(|name| *name != task)
        .map(|name| (similarity(name), name))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (**b.1).cmp(&**a.1)));
    let hint = match nearest {
        Some((_, name)) => format!("did you mean {name:?}?"),
        None => {
            let names: BTreeSet<&str> = by_name.keys().map(|name| &**name).collect();
            format!("its tasks are {}", list_names(names))
        }
    };
    format!("task {task:?} {role} {unknown:?}, which is no task of the graph; {hint}")
}

/// Assigns each task its number, by its name. Of tasks with the same number, those that are defined later get the next
/// free numbers.
fn assign_numbers(tasks: &mut [TaskShape]) {
    let mut taken = HashSet::with_capacity(tasks.len());
    for task in tasks {
        let mut number = number_of(&task.name);
        while !taken.insert(number) {
            number = number.checked_add(1).unwrap_or(MIN_TASK_NUMBER);
        }
        task.place.number = number;
    }
}

/// Returns the number of a task before collisions are resolved: a hash of the name without the count at its end, plus the
/// count. Tasks with counts often run at the same time. As neighbours, their checkpoints share pages of the database.
fn number_of(name: &str) -> u32 {
    let digits = &name[name.trim_end_matches(|c: char| c.is_ascii_digit()).len()..];
    // zeros at the begin belong to the name, so that `t1` and `t01` have different numbers
    let counter = digits.trim_start_matches('0');
    let (stem, count) = match counter.parse::<u32>() {
        Ok(count) => (&name[..name.len() - counter.len()], count),
        Err(_) => (name, 0),
    };
    (xxh3_64(stem.as_bytes()) as u32).wrapping_add(count).max(MIN_TASK_NUMBER)
}

/// Returns the dependents of all tasks, one task after the other, and the end of each task's part.
fn invert(tasks: &[TaskShape]) -> (Vec<usize>, Vec<usize>) {
    let mut ends = vec![0; tasks.len()];
    for task in tasks {
        for &dependency in &task.dependencies {
            ends[dependency] += 1;
        }
    }
    let mut total = 0;
    for end in &mut ends {
        total += *end;
        *end = total;
    }
    let mut positions: Vec<usize> = ends.clone();
    let mut dependents = vec![0; total];
    // backwards, so that the dependents of a task come in the order of their definition
    for (index, task) in tasks.iter().enumerate().rev() {
        for &dependency in &task.dependencies {
            positions[dependency] -= 1;
            dependents[positions[dependency]] = index;
        }
    }
    (dependents, ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &str, dependencies: &[&str]) -> TaskDeclaration {
        TaskDeclaration {
            name: name.to_owned().into(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned().into()).collect(),
            rule: Rule::default(),
        }
    }

    fn reason(tasks: &[TaskDeclaration]) -> String {
        GraphShape::new("g", tasks).unwrap_err().to_string()
    }

    #[test]
    fn order_levels_and_ends_follow_the_dependencies() {
        let tasks = [
            task("load", &["double", "extract", "double"]),
            task("double", &["extract"]),
            task("extract", &[]),
            task("alone", &[]),
        ];
        let shape = GraphShape::new("g", &tasks).unwrap();
        assert_eq!(shape.topological_order(), ["extract", "alone", "double", "load"]);
        assert_eq!(shape.levels(), [vec!["extract", "alone"], vec!["double"], vec!["load"]]);
        assert_eq!((shape.roots(), shape.leaves()), (vec!["extract", "alone"], vec!["load", "alone"]));
        assert_eq!(shape.dependencies("load").unwrap(), ["double", "extract"]);
        assert_eq!(shape.dependencies("nothing"), None);
        assert_eq!(shape.critical_path(|_| 1.0), ["extract", "double", "load"]);
        assert_eq!(shape.critical_path(|task| if task == "alone" { 9.0 } else { 1.0 }), ["alone"]);
        let empty = GraphShape::new("g", &[]).unwrap();
        assert!(empty.is_empty() && empty.levels().is_empty() && empty.critical_path(|_| 1.0).is_empty());
    }

    #[test]
    fn task_of_a_rule_is_a_dependency() {
        let refund = TaskDeclaration { rule: Rule::failed("ship"), ..task("refund", &[]) };
        let shape = GraphShape::new("g", &[refund, task("ship", &[])]).unwrap();
        assert_eq!(shape.dependencies("refund").unwrap(), ["ship"]);
    }

    #[test]
    fn wrong_shapes_are_rejected_with_names() {
        let unknown = reason(&[task("extract", &[]), task("load", &["extrat"])]);
        assert!(
            unknown.contains("task \"load\" depends on \"extrat\", which is no task of the graph"),
            "{unknown}"
        );
        assert!(unknown.contains("did you mean \"extract\"?"), "{unknown}");
        let unlike = reason(&[task("a", &[]), task("b", &["zzzzzz"])]);
        assert!(unlike.contains("its tasks are a, b"), "{unlike}");
        let twice = reason(&[task("a", &[]), task("a", &[])]);
        assert!(twice.contains("two tasks are named \"a\""), "{twice}");
        let itself = reason(&[task("a", &["a"])]);
        assert!(itself.contains("in a cycle: a -> a; remove"), "{itself}");
        let cycle = reason(&[task("x", &[]), task("a", &["c", "x"]), task("b", &["a"]), task("c", &["b"])]);
        assert!(cycle.contains("a -> b -> c -> a") || cycle.contains("b -> c -> a -> b"), "{cycle}");
        let rule = TaskDeclaration { rule: Rule::skipped("nothing"), ..task("a", &[]) };
        assert!(reason(&[rule]).contains("task \"a\" has a rule about \"nothing\", which is no task"));
        let never = TaskDeclaration { rule: Rule::any_success(), ..task("a", &[]) };
        assert!(reason(&[never]).contains("task \"a\" never runs"));
        for name in ["", "a\0b", "a\nb"] {
            assert!(GraphShape::new("g", &[task(name, &[])]).is_err(), "{name:?}");
            assert!(GraphShape::new(name, &[]).is_err(), "{name:?}");
        }
    }

    #[test]
    fn long_cycle_is_cut() {
        let names: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
        let tasks: Vec<_> = (0..100).map(|n| task(&names[n], &[&names[(n + 99) % 100]])).collect();
        let message = reason(&tasks);
        assert!(message.contains('…') && message.len() < 500, "{message}");
    }

    #[test]
    fn place_of_a_task_is_independent_of_other_tasks() {
        let few = GraphShape::new("g", &[task("a", &[]), task("b", &["a"])]).unwrap();
        let many = GraphShape::new("h", &[task("z", &[]), task("b", &["a"]), task("a", &["z"])]).unwrap();
        assert_eq!(few.place(1), many.place(1));
        assert_ne!(few.place(0), many.place(2), "the dependencies of a differ");
        assert_eq!(few.place(0).path(), many.place(2).path());
    }

    #[test]
    fn tasks_with_counts_have_neighbouring_numbers() {
        for (name, next) in [("t1", "t2"), ("t9", "t10"), ("t3.99", "t3.100"), ("1", "2"), ("ä7", "ä8")] {
            assert_eq!(number_of(name).wrapping_add(1), number_of(next), "{name} {next}");
        }
        let names = ["t", "t0", "t1", "t01", "t001", "t11", "u1", "t1a", "t99999999999", "t99999999998"];
        let numbers: HashSet<u32> = names.iter().map(|name| number_of(name)).collect();
        assert_eq!(numbers.len(), names.len());
    }

    #[test]
    fn tasks_with_one_hash_get_different_places() {
        let mut tasks = vec![task("a", &[]); 3];
        for (n, declared) in tasks.iter_mut().enumerate() {
            declared.name = format!("t{n}").into();
        }
        let mut shapes = GraphShape::new("g", &tasks).unwrap().tasks;
        // the same name thrice, as if three names had one hash
        for shape in &mut shapes {
            shape.name = "t0".into();
        }
        assign_numbers(&mut shapes);
        let numbers: HashSet<u32> = shapes.iter().map(|shape| shape.place.number).collect();
        assert_eq!(numbers.len(), 3);
        assert!(numbers.iter().all(|number| *number >= MIN_TASK_NUMBER));
    }
}
