//! Pictures of graphs: Mermaid, DOT of Graphviz, SVG, and trees of text.

pub(super) mod execution_tree;
mod tree;

use std::fmt::Write;

use crate::graph::shape::{GraphShape, TaskShape};

/// Height of a task's box, in pixels.
const BOX_HEIGHT: usize = 36;
/// Distance between the rows of boxes, in pixels.
const ROW_DISTANCE: usize = 84;
/// Distance between the boxes of a row, in pixels.
const BOX_DISTANCE: usize = 24;
/// Width of a character, in pixels. Approximate: browsers choose the font.
const CHARACTER_WIDTH: usize = 8;
/// Distance of the picture from its border, in pixels.
const MARGIN: usize = 12;

impl GraphShape {
    /// Returns the graph in the language of Mermaid, which many forges draw.
    pub fn to_mermaid(&self) -> String {
        let mut text = "flowchart TD\n".to_owned();
        for (n, task) in self.tasks().iter().enumerate() {
            let label: Vec<String> = label_lines(task).iter().map(|line| escape_mermaid(line)).collect();
            let _ = writeln!(text, "    t{n}[\"{}\"]", label.join("<br/>"));
        }
        for (n, task) in self.tasks().iter().enumerate() {
            for dependency in &task.dependencies {
                let _ = writeln!(text, "    t{dependency} --> t{n}");
            }
        }
        text
    }

    /// Returns the graph in DOT, the language of Graphviz.
    pub fn to_dot(&self) -> String {
        let mut text = format!("digraph {} {{\n    node [shape=box];\n", quote_dot(self.name()));
        for (n, task) in self.tasks().iter().enumerate() {
            let _ = writeln!(text, "    t{n} [label={}];", quote_dot(&label_lines(task).join("\n")));
        }
        for (n, task) in self.tasks().iter().enumerate() {
            for dependency in &task.dependencies {
                let _ = writeln!(text, "    t{dependency} -> t{n};");
            }
        }
        text.push_str("}\n");
        text
    }

    /// Returns the graph as an SVG picture: a row for each level, and a line for each dependency.
    pub fn to_svg(&self) -> String {
        let boxes = self.place_boxes();
        let right = boxes.iter().map(|place| place.left + place.width).max().unwrap_or(0);
        let rows = self.tasks().iter().map(|task| task.level + 1).max().unwrap_or(0);
        let height = rows.saturating_sub(1) * ROW_DISTANCE + BOX_HEIGHT + 2 * MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<title>{}</title>\n",
            right + MARGIN,
            escape_xml(self.name())
        );
        for (task, place) in self.tasks().iter().zip(&boxes) {
            for &dependency in &task.dependencies {
                let from = &boxes[dependency];
                let (x1, y1, x2, y2) = (
                    from.left + from.width / 2,
                    from.top + BOX_HEIGHT,
                    place.left + place.width / 2,
                    place.top,
                );
                let middle = usize::midpoint(y1, y2);
                let _ = writeln!(
                    text,
                    "<path d=\"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}\" fill=\"none\" stroke=\"#888\"/>"
                );
            }
        }
        for (task, Place { left, top, width }) in self.tasks().iter().zip(&boxes) {
            let name = escape_xml(&task.name);
            let (x, y) = (left + width / 2, top + BOX_HEIGHT / 2 + 5);
            let _ = writeln!(
                text,
                "<g><title>{}</title><rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"6\" \
                 fill=\"#f4f6fa\" stroke=\"#446\"/><text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" \
                 fill=\"#113\">{name}</text></g>",
                escape_xml(&label_lines(task).join("\n")),
            );
        }
        text.push_str("</svg>\n");
        text
    }

    /// Returns the place of each task's box. The rows are centred.
    fn place_boxes(&self) -> Vec<Place> {
        let mut places = vec![Place { left: 0, top: 0, width: 0 }; self.len()];
        let mut ends: Vec<usize> = Vec::new();
        for &task in self.order() {
            let TaskShape { name, level, .. } = &self.tasks()[task];
            if ends.len() <= *level {
                ends.resize(level + 1, MARGIN);
            }
            let width = name.chars().count() * CHARACTER_WIDTH + 24;
            places[task] = Place { left: ends[*level], top: level * ROW_DISTANCE + MARGIN, width };
            ends[*level] += width + BOX_DISTANCE;
        }
        let widest = ends.iter().copied().max().unwrap_or(0);
        for (place, task) in places.iter_mut().zip(self.tasks()) {
            place.left += (widest - ends[task.level]) / 2;
        }
        places
    }
}

/// The place of a task's box, in pixels.
#[derive(Clone, Debug)]
struct Place {
    left: usize,
    top: usize,
    width: usize,
}

/// Returns the name of a task, and its rule unless that is the default.
fn label_lines(task: &TaskShape) -> Vec<String> {
    let mut lines = vec![task.name.to_string()];
    if !task.rule.is_default() {
        lines.push(task.rule.to_string());
    }
    lines
}

fn escape_mermaid(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, char| {
        match char {
            '"' => escaped.push_str("#quot;"),
            '#' => escaped.push_str("#35;"),
            '<' => escaped.push_str("#lt;"),
            '>' => escaped.push_str("#gt;"),
            '&' => escaped.push_str("#amp;"),
            _ => escaped.push(char),
        }
        escaped
    })
}

fn quote_dot(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::shape::declaration::TaskDeclaration;
    use crate::graph::shape::rule::Rule;

    fn shape() -> GraphShape {
        let task = |name: &'static str, dependencies: &[&'static str], rule: Rule| TaskDeclaration {
            name: name.into(),
            dependencies: dependencies.iter().map(|name| (*name).into()).collect(),
            rule,
        };
        GraphShape::new(
            "an \"order\"",
            &[
                task("charge", &[], Rule::default()),
                task("a <b> & \"c\" #1", &["charge"], Rule::default()),
                task("refund", &["charge"], Rule::failed("charge")),
            ],
        )
        .unwrap()
    }

    #[test]
    fn mermaid_shows_names_rules_and_dependencies() {
        assert_eq!(
            shape().to_mermaid(),
            "flowchart TD\n    t0[\"charge\"]\n    t1[\"a #lt;b#gt; #amp; #quot;c#quot; #35;1\"]\n    \
             t2[\"refund<br/>failed(#quot;charge#quot;)\"]\n    t0 --> t1\n    t0 --> t2\n"
        );
    }

    #[test]
    fn dot_quotes_names() {
        assert_eq!(
            shape().to_dot(),
            "digraph \"an \\\"order\\\"\" {\n    node [shape=box];\n    t0 [label=\"charge\"];\n    \
             t1 [label=\"a <b> & \\\"c\\\" #1\"];\n    t2 [label=\"refund\\nfailed(\\\"charge\\\")\"];\n    \
             t0 -> t1;\n    t0 -> t2;\n}\n"
        );
    }

    #[test]
    fn svg_has_a_box_per_task_and_a_line_per_dependency() {
        let svg = shape().to_svg();
        assert_eq!((svg.matches("<rect").count(), svg.matches("<path").count()), (3, 2));
        assert!(svg.contains(">a &lt;b&gt; &amp; &quot;c&quot; #1</text>"), "{svg}");
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        let empty = GraphShape::new("empty", &[]).unwrap().to_svg();
        assert!(empty.contains("<title>empty</title>"), "{empty}");
    }
}
