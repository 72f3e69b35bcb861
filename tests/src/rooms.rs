//! [`ModuleGraph`]: the imports between a crate's modules, and between its rooms (folders of `src`).
//!
//! The graph is read from the tokens of the source: every path that begins with `crate`, `super` or `self`, and
//! every `use` of a child module. Items under `#[cfg(test)]` are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The path of a module below its crate: empty for `lib.rs`, `["commit", "lane"]` for `commit/lane.rs`.
type ModulePath = Vec<String>;

/// The modules of one crate with their imports.
pub struct ModuleGraph {
    imports: BTreeMap<ModulePath, BTreeSet<ModulePath>>,
}

/// The imports of one file, before re-exports are resolved.
#[derive(Default)]
struct FileImports {
    /// Full paths of what is imported, from the root of the crate.
    paths: BTreeSet<Vec<String>>,
    /// Names that a `use` binds in this module, with the full path of each.
    bound: BTreeMap<String, Vec<String>>,
}

impl ModuleGraph {
    /// Reads all files below `source`, the folder of a crate's `lib.rs`. Panics if a file cannot be read or parsed.
    pub fn of_crate(source: &Path) -> Self {
        let mut texts = BTreeMap::new();
        collect(source, &mut Vec::new(), &mut texts);
        let modules: BTreeSet<ModulePath> = texts.keys().cloned().collect();
        let files: BTreeMap<ModulePath, FileImports> = texts
            .into_iter()
            .map(|(module, text)| {
                let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{module:?}: {error}"));
                let mut file = FileImports::default();
                read(&tokens.into_iter().collect::<Vec<_>>(), &module, &modules, &mut file);
                (module, file)
            })
            .collect();
        let imports = files
            .iter()
            .map(|(module, file)| {
                let targets = file.paths.iter().filter_map(|path| definer(path, &modules, &files));
                (module.clone(), targets.filter(|target| target != module).collect())
            })
            .collect();
        Self { imports }
    }

    /// Returns the number of modules, `lib.rs` included.
    pub fn len(&self) -> usize {
        self.imports.len()
    }

    /// Returns whether the crate has no modules.
    pub fn is_empty(&self) -> bool {
        self.imports.is_empty()
    }

    /// Returns the sets of modules that import each other, directly or through others, largest first. The root module
    /// is excluded because its re-exports name every module.
    pub fn cycles(&self) -> Vec<Vec<String>> {
        let mut graph = DiGraph::new();
        let nodes: BTreeMap<_, _> = self
            .imports
            .keys()
            .filter(|module| !module.is_empty())
            .map(|it| (it, graph.add_node(it.join("::"))))
            .collect();
        for (module, targets) in &self.imports {
            for target in targets {
                if let (Some(&from), Some(&to)) = (nodes.get(module), nodes.get(target)) {
                    graph.update_edge(from, to, ());
                }
            }
        }
        let mut cycles: Vec<Vec<String>> = tarjan_scc(&graph)
            .into_iter()
            .filter(|members| members.len() > 1)
            .map(|members| {
                let mut names: Vec<String> = members.into_iter().map(|it| graph[it].clone()).collect();
                names.sort();
                names
            })
            .collect();
        cycles.sort_by_key(|members| std::cmp::Reverse(members.len()));
        cycles
    }

    /// Returns the imports between rooms that `allowed` does not list, each as "module → module". A room is a top-level
    /// folder of the crate; the files beside `lib.rs` form the room "". `allowed` lists the rooms that a room may use
    /// directly. A room may also use the rooms that those may use, and every room may use "".
    pub fn forbidden(&self, allowed: &[(&str, &[&str])]) -> Vec<String> {
        let direct: BTreeMap<&str, &[&str]> = allowed.iter().copied().collect();
        let mut forbidden = Vec::new();
        for (module, targets) in &self.imports {
            let Some(from) = room(module, &direct) else { continue };
            for target in targets {
                let Some(to) = room(target, &direct) else {
                    forbidden.push(format!("{} → {} (lib.rs)", module.join("::"), target.join("::")));
                    continue;
                };
                if from != to && !reachable(from, &direct).contains(to) {
                    forbidden.push(format!("{} → {}", module.join("::"), target.join("::")));
                }
            }
        }
        forbidden
    }
}

/// Returns the room of a module, or `None` for `lib.rs`. Panics if `allowed` does not list the folder.
fn room<'a>(module: &[String], allowed: &BTreeMap<&'a str, &'a [&'a str]>) -> Option<&'a str> {
    let first = module.first()?;
    match allowed.get_key_value(first.as_str()) {
        Some((room, _)) => Some(room),
        None if module.len() == 1 => Some(""),
        None => panic!("the folder {first:?} is not a room that the list names"),
    }
}

/// Returns the rooms that a room may use.
fn reachable<'a>(room: &str, direct: &BTreeMap<&'a str, &'a [&'a str]>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([""]);
    let mut open: Vec<&str> = direct.get(room).copied().unwrap_or_default().to_vec();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(direct.get(next).copied().unwrap_or_default());
        }
    }
    found
}

/// Collects the files of a folder by their module paths.
fn collect(folder: &Path, prefix: &mut ModulePath, texts: &mut BTreeMap<ModulePath, String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|it| it.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if name != "bin" {
                prefix.push(name);
                collect(&path, prefix, texts);
                prefix.pop();
            }
        } else if path.extension().is_some_and(|it| it == "rs") && name != "main" {
            let mut module = prefix.clone();
            if name != "mod" && name != "lib" {
                module.push(name);
            }
            texts.insert(module, fs::read_to_string(&path).expect("a file that can be read"));
        }
    }
}

/// Adds the imports among `tokens` to `file`.
fn read(tokens: &[TokenTree], module: &[String], modules: &BTreeSet<ModulePath>, file: &mut FileImports) {
    let mut at = 0;
    let mut is_use = false;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(it) if it.as_char() == '#' && is_cfg_test(tokens.get(at + 1)) => {
                at = end_of_item(tokens, at + 2);
                continue;
            }
            TokenTree::Punct(it) if it.as_char() == ';' => is_use = false,
            TokenTree::Ident(it) if it == "use" => {
                is_use = true;
                let starts_with_child = matches!(tokens.get(at + 1), Some(TokenTree::Ident(first))
                    if modules.contains(&child(module, &first.to_string())));
                if starts_with_child {
                    at = read_path(tokens, at + 1, module.to_vec(), true, file);
                    continue;
                }
            }
            TokenTree::Ident(it) if it == "crate" || it == "super" || it == "self" => {
                let mut base = if it == "crate" { Vec::new() } else { module.to_vec() };
                if it == "super" {
                    base.pop();
                }
                if is_path_separator(tokens, at + 1) {
                    at += 3;
                    while matches!(tokens.get(at), Some(TokenTree::Ident(next)) if next == "super") {
                        base.pop();
                        at += 3;
                    }
                    at = read_path(tokens, at, base, is_use, file);
                    continue;
                }
            }
            TokenTree::Group(group) => {
                read(&group.stream().into_iter().collect::<Vec<_>>(), module, modules, file);
            }
            _ => {}
        }
        at += 1;
    }
}

/// Reads one path, or the paths of one tree of a `use`. Returns the position after it.
fn read_path(
    tokens: &[TokenTree],
    mut at: usize,
    mut path: Vec<String>,
    is_use: bool,
    file: &mut FileImports,
) -> usize {
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(it)) => {
                path.push(it.to_string());
                at += 1;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace && is_use => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut next = 0;
                while next < inner.len() {
                    next = read_path(&inner, next, path.clone(), true, file) + 1;
                }
                return at + 1;
            }
            Some(TokenTree::Punct(it)) if it.as_char() == '*' && is_use => {
                at += 1;
                break;
            }
            _ => break,
        }
        if !is_path_separator(tokens, at) {
            break;
        }
        at += 2;
    }
    if path.last().is_some_and(|it| it == "self") {
        path.pop();
    }
    if is_use {
        let mut name = path.last().cloned().unwrap_or_default();
        if let (Some(TokenTree::Ident(keyword)), Some(TokenTree::Ident(alias))) =
            (tokens.get(at), tokens.get(at + 1))
            && keyword == "as"
        {
            name = alias.to_string();
            at += 2;
        }
        file.bound.insert(name, path.clone());
    }
    file.paths.insert(path);
    at
}

/// Returns the module that defines the item at `path`, with re-exports resolved; `None` for items of the root.
fn definer(
    path: &[String],
    modules: &BTreeSet<ModulePath>,
    files: &BTreeMap<ModulePath, FileImports>,
) -> Option<ModulePath> {
    let mut path = path.to_vec();
    // follows a re-export of a re-export, but not a cycle of them
    for _ in 0..8 {
        let length = (0..=path.len()).rev().find(|length| modules.contains(&path[..*length]))?;
        let module = path[..length].to_vec();
        let Some(target) = path.get(length).and_then(|name| files[&module].bound.get(name)) else {
            return (!module.is_empty()).then_some(module);
        };
        if *target == path[..=length] {
            return (!module.is_empty()).then_some(module);
        }
        path = target.iter().chain(&path[length + 1..]).cloned().collect();
    }
    None
}

fn child(module: &[String], name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon = |it: Option<&TokenTree>| matches!(it, Some(TokenTree::Punct(it)) if it.as_char() == ':');
    is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))
}

fn is_cfg_test(attribute: Option<&TokenTree>) -> bool {
    matches!(attribute, Some(TokenTree::Group(it)) if it.stream().to_string().replace(' ', "") == "cfg(test)")
}

/// Returns the position after the item that begins at `at`.
fn end_of_item(tokens: &[TokenTree], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Punct(it) if it.as_char() == ';' => break,
            TokenTree::Group(it) if it.delimiter() == Delimiter::Brace => break,
            _ => {}
        }
    }
    at
}
