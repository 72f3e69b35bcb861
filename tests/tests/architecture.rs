//! Rules that a machine can check: dependencies between packages and rooms, lengths of files, tests without sleeping,
//! and links in documents.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::MetadataCommand;
use stepfast_tests::crash::crash_points::{ENGINE_POINTS, POSTGRES_POINTS, SQLITE_POINTS};
use stepfast_tests::rooms::ModuleGraph;

/// Every allowed dependency between packages of this workspace: from, to.
const ALLOWED: &[(&str, &str)] = &[
    ("stepfast-sqlite", "stepfast-core"),
    ("stepfast-postgres", "stepfast-core"),
    ("stepfast", "stepfast-core"),
    ("stepfast", "stepfast-sqlite"),
    ("stepfast", "stepfast-postgres"),
    ("stepfast-benchmarks", "stepfast"),
    ("stepfast-cli", "stepfast"),
    ("stepfast-cli", "stepfast-benchmarks"),
    ("stepfast-python", "stepfast"),
    ("stepfast-tests", "stepfast"),
    // the suite also tests the stores directly
    ("stepfast-tests", "stepfast-core"),
    ("stepfast-tests", "stepfast-sqlite"),
    ("stepfast-tests", "stepfast-postgres"),
];

/// The rooms of a package, and the rooms that each may use directly.
type Rooms = &'static [(&'static str, &'static [&'static str])];

/// The rooms of the packages that have them, lowest first. A room may use what its list names, and what those may use.
/// A file beside `lib.rs` that the list names is a room of its own; all others together are the room "", which every
/// room may use.
const ROOMS: &[(&str, Rooms)] = &[
    (
        "crates/core",
        &[
            ("", &[]),
            ("queue", &[]),
            ("store", &["queue"]),
            ("memory", &["store"]),
            ("commit", &["store"]),
            ("runtime", &["commit"]),
            ("workflow", &["runtime"]),
            ("graph", &["workflow"]),
            ("schedule", &["workflow"]),
            ("worker", &["runtime"]),
            ("engine", &["memory", "graph", "schedule", "worker"]),
            ("guest", &["engine"]),
        ],
    ),
    (
        "crates/sqlite",
        &[
            ("", &[]),
            ("companions", &[]),
            ("notify", &["companions"]),
            ("file_share", &["notify"]),
            ("fork", &["file_share"]),
            ("conn", &["companions"]),
            ("rows", &["conn"]),
            ("database", &["conn", "fork"]),
            ("flush", &["rows", "database"]),
            ("read", &["rows", "database"]),
            ("claim", &["read"]),
            ("control", &["read"]),
            ("admin", &["rows", "fork"]),
        ],
    ),
    (
        "crates/postgres",
        &[
            ("", &[]),
            ("rows", &[]),
            ("conn", &["rows"]),
            ("notify", &["conn"]),
            ("lane", &["conn"]),
            ("flush", &["lane"]),
            ("claim", &["lane"]),
            ("read", &["conn"]),
            ("control", &["read", "lane"]),
            ("admin", &["notify"]),
        ],
    ),
    ("python", &[("", &[]), ("convert", &[]), ("bridge", &["convert"])]),
];

/// Maximum length of a source file, in lines.
const MAX_FILE_LINES: usize = 700;

/// Folders without files of this project.
const FOREIGN: &[&str] = &[
    "target",
    ".git",
    ".venv",
    "node_modules",
    "peers",
    "__pycache__",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
];

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns all files of the workspace with these extensions.
fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![home()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !FOREIGN.contains(&name) {
                folders.push(path);
            } else if path.extension().is_some_and(|it| extensions.iter().any(|wanted| it == *wanted)) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty() || extensions == ["md"], "there are files ending in {extensions:?}");
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

#[test]
fn packages_depend_only_downwards() {
    let metadata = MetadataCommand::new()
        .manifest_path(home().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let ours: BTreeSet<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    assert!(ours.contains("stepfast-core"));
    let mut forbidden = Vec::new();
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let edge = (package.name.as_str(), dependency.name.as_str());
            if ours.contains(&dependency.name) && !ALLOWED.contains(&edge) {
                forbidden.push(edge);
            }
        }
    }
    assert!(forbidden.is_empty(), "not allowed (see ALLOWED in this file): {forbidden:?}");
}

#[test]
fn rooms_depend_only_downwards() {
    for (package, rooms) in ROOMS {
        let forbidden = ModuleGraph::of_crate(&home().join(package).join("src")).forbidden(rooms);
        assert!(
            forbidden.is_empty(),
            "{package}, imports that ROOMS in this file does not allow: {forbidden:#?}"
        );
    }
}

#[test]
fn core_depends_on_no_database_and_no_network() {
    let metadata = MetadataCommand::new()
        .manifest_path(home().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let core = metadata.packages.iter().find(|package| package.name.as_str() == "stepfast-core");
    for dependency in &core.expect("stepfast-core").dependencies {
        let name = dependency.name.as_str();
        assert!(!["rusqlite", "tokio-postgres", "refinery", "clap", "pyo3", "axum", "tonic"].contains(&name));
        let has_net = dependency.features.iter().any(|feature| feature == "net" || feature == "full");
        assert!(!(name == "tokio" && has_net), "core has no network");
    }
}

#[test]
fn files_stay_below_line_limit() {
    let too_long: Vec<_> = files(&["rs", "py", "sql"])
        .into_iter()
        .map(|path| (read(&path).lines().count(), path))
        .filter(|(lines, _)| *lines > MAX_FILE_LINES)
        .collect();
    assert!(too_long.is_empty(), "split by noun, above {MAX_FILE_LINES} lines: {too_long:?}");
}

#[test]
fn tests_never_sleep() {
    // split, so that this file does not match itself
    let call = concat!("sle", "ep(");
    let is_test = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "tests");
    let mut sleeping = Vec::new();
    for path in files(&["rs"]).into_iter().filter(is_test) {
        for (n, line) in (1..).zip(read(&path).lines()) {
            let code = line.split("//").next().unwrap_or_default();
            let is_call = code.match_indices(call).any(|(at, _)| {
                let before = &code[..at];
                // durable sleeps of workflows, and names that only end in the word, are allowed
                !before.ends_with(|it: char| it.is_alphanumeric() || it == '_') && !before.ends_with("cx.")
            });
            if is_call {
                sleeping.push(format!("{}:{n}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(sleeping.is_empty(), "wait for an event, or move a clock: {sleeping:#?}");
}

/// Two files need unsafe code; the compiler rejects it everywhere else.
#[test]
fn unsafe_code_is_confined_to_two_files() {
    // split, so that this file does not match itself
    let permit = concat!("allow(", "unsafe_code)");
    let found: BTreeSet<_> = files(&["rs"]).into_iter().filter(|path| read(path).contains(permit)).collect();
    let needed = ["python/src/interpreter.rs", "tests/src/crash/vfs.rs"].map(|path| home().join(path));
    assert_eq!(found, BTreeSet::from(needed));
}

#[test]
fn crash_points_are_listed_once() {
    let mut found = BTreeSet::new();
    for path in files(&["rs"]).into_iter().filter(|path| path.starts_with(home().join("crates"))) {
        let text = read(&path);
        for (at, call) in text.match_indices("crash_point!(\"") {
            let name = text[at + call.len()..].split('"').next().unwrap_or_default();
            assert!(found.insert(name.to_owned()), "the crash point {name:?} is there twice");
        }
    }
    let listed: Vec<&str> = [ENGINE_POINTS, SQLITE_POINTS, POSTGRES_POINTS]
        .into_iter()
        .flatten()
        .map(|(name, _)| *name)
        .collect();
    let unique: BTreeSet<String> = listed.iter().map(ToString::to_string).collect();
    assert_eq!(unique.len(), listed.len(), "tests/src/crash/crash_points.rs lists a point twice");
    assert_eq!(found, unique, "the source on the left, tests/src/crash/crash_points.rs on the right");
}

/// Cargo unites the features of packages that it builds together: a program that is built alone has none of the tests.
#[test]
fn programs_are_built_without_crash_points() {
    for (package, has_them) in [("stepfast-cli", false), ("stepfast", false), ("stepfast-tests", true)] {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--format", "{p} {f}", "--package", package])
            .current_dir(home())
            .output()
            .expect("cargo tree");
        let tree = String::from_utf8_lossy(&tree.stdout);
        assert!(tree.contains("stepfast-core"), "{tree}");
        assert_eq!(tree.contains("crash-points"), has_them, "{package}:\n{tree}");
    }
}

#[test]
fn document_links_resolve() {
    let mut dead = Vec::new();
    for document in files(&["md"]) {
        let text = read(&document);
        let folder = document.parent().expect("a folder");
        for target in links(&text) {
            let path = target.split(['#', '?']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !is_elsewhere && !path.is_empty() && !folder.join(path).exists() {
                dead.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links: {dead:#?}");
}

/// The targets of `[text](target)` outside of code.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for part in line.split('`').step_by(2) {
            found.extend(part.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()));
        }
    }
    found
}

#[test]
fn links_are_found_outside_code_only() {
    let text = "a [b](c.md) [d](e/f.md#g \"title\") `[x](y)`\n```\n[no](no.md)\n```\n[h](https://x.org)";
    assert_eq!(links(text), ["c.md", "e/f.md#g", "https://x.org"]);
}
