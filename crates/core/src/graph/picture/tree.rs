//! Trees of graphs, as text: a line for each task, below the last of its dependencies.

use std::fmt::Write;

use crate::graph::shape::GraphShape;
use crate::text::list_names;

/// Maximum width of the column with the tree, in characters. Longer lines push their descriptions to the right.
const MAX_TREE_WIDTH: usize = 60;

impl GraphShape {
    /// Returns the graph as a tree of text. The first line is the name of the graph. Each task has a line with the text of
    /// `describe`, below the last of its dependencies in topological order. The line names its other dependencies.
    pub fn to_tree(&self, describe: impl Fn(&str) -> String) -> String {
        let lines = self.tree_lines();
        let width = lines.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0).min(MAX_TREE_WIDTH);
        let mut tree = format!("{}\n", self.name());
        for (text, task) in lines {
            let task = &self.tasks()[task];
            let mut notes = vec![describe(&task.name)];
            let parent = self.last_dependency(&task.dependencies);
            let others = task.dependencies.iter().filter(|&&dependency| Some(dependency) != parent);
            let others: Vec<&str> = others.map(|&dependency| &*self.tasks()[dependency].name).collect();
            if !others.is_empty() {
                notes.push(format!("(also after {})", list_names(others)));
            }
            notes.retain(|note| !note.is_empty());
            let line = format!("{text:<width$}  {}", notes.join("  "));
            let _ = writeln!(tree, "{}", line.trim_end());
        }
        tree
    }

    /// Returns the lines of the tree without descriptions, each with its task.
    fn tree_lines(&self) -> Vec<(String, usize)> {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.len()];
        let mut roots = Vec::new();
        for &task in self.order() {
            match self.last_dependency(&self.tasks()[task].dependencies) {
                Some(parent) => children[parent].push(task),
                None => roots.push(task),
            }
        }
        let mut lines = Vec::with_capacity(self.len());
        let mut waiting: Vec<(usize, String, bool)> = Vec::new();
        let push = |waiting: &mut Vec<(usize, String, bool)>, tasks: &[usize], indent: &str| {
            // the last one first, because the list is taken from its end
            for (n, &task) in tasks.iter().rev().enumerate() {
                waiting.push((task, indent.to_owned(), n == 0));
            }
        };
        push(&mut waiting, &roots, "");
        while let Some((task, indent, is_last)) = waiting.pop() {
            let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            lines.push((format!("{indent}{branch}{}", self.tasks()[task].name), task));
            push(&mut waiting, &children[task], &format!("{indent}{below}"));
        }
        lines
    }

    fn last_dependency(&self, dependencies: &[usize]) -> Option<usize> {
        dependencies.iter().copied().max_by_key(|&dependency| self.position(dependency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::shape::declaration::TaskDeclaration;
    use crate::graph::shape::rule::Rule;

    fn shape(tasks: &[(&'static str, &[&'static str])]) -> GraphShape {
        let declarations: Vec<TaskDeclaration> = tasks
            .iter()
            .map(|(name, dependencies)| TaskDeclaration {
                name: (*name).into(),
                dependencies: dependencies.iter().map(|name| (*name).into()).collect(),
                rule: Rule::default(),
            })
            .collect();
        GraphShape::new("etl", &declarations).unwrap()
    }

    #[test]
    fn tree_has_a_line_for_each_task_below_its_last_dependency() {
        let shape = shape(&[
            ("extract", &[]),
            ("double", &["extract"]),
            ("triple", &["extract"]),
            ("load", &["double", "triple", "extract"]),
            ("alone", &[]),
        ]);
        let tree =
            shape.to_tree(|task| if task == "double" { "succeeded".to_owned() } else { String::new() });
        assert_eq!(
            tree,
            "etl\n\
             ├─ extract\n\
             │  ├─ double   succeeded\n\
             │  └─ triple\n\
             │     └─ load  (also after double, extract)\n\
             └─ alone\n"
        );
        assert_eq!(self::shape(&[]).to_tree(|_| String::new()), "etl\n");
    }
}
