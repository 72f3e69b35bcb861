//! The language rules of CONTRIBUTING.md that a machine can check, and the size of folders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Words and phrases that sources and documents do not use.
const BANNED: &str = r"(?i)\b(whoever|somebody|nobody|he|him|his|so many|so long as|comes to|came to|told|goes on|went on|anew|gives? up|lets? go|hand(?:s|ed)? back|puts? off|does not answer)\b";

/// First words that leave the subject of a doc comment's first sentence open.
const OPEN_SUBJECTS: &str = r"^(What|Who|Whoever|Whom|That|Those|It|So many|So long)\b";

/// Names of constants that say neither meaning nor unit.
const EMPTY_CONSTANTS: &str = "(MOST|FEW|LARGEST|LONGEST|SMALL|KEPT|FOREVER|MANY|HANGS|EVERY|ALONE)";

/// Largest number of source files in a folder.
const FILES_PER_FOLDER: usize = 15;

/// Folders with more files, each with its reason.
const LARGER_FOLDERS: &[(&str, &str)] = &[
    ("examples/python", "one program per feature"),
    ("tests/src/conformance", "one file per noun of the contract"),
    ("tests/src/engine", "one file per noun of the engine's behaviour"),
    ("tests/tests", "one file per suite"),
    ("tests/tests/postgres_store", "one file per mechanism"),
];

/// Texts that keep their words: applied migrations have checksums, and results are data.
const EXCLUDED: &[&str] = &[
    "/migrations/",
    "/target/",
    "/.venv/",
    "/.git/",
    "/results/",
    "/node_modules/",
    "/.hypothesis/",
    "/__pycache__/",
    "_cache/",
];

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns the files of the workspace with one of these extensions, with their texts.
fn files(extensions: &[&str]) -> BTreeMap<String, String> {
    let (home, mut found, mut folders) = (home(), BTreeMap::new(), vec![home()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(&home).expect("a path below the workspace").display().to_string();
            if EXCLUDED.iter().any(|it| format!("/{name}/").contains(it)) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| extensions.iter().any(|wanted| it == *wanted)) {
                found.insert(name, fs::read_to_string(&path).expect("a file that can be read"));
            }
        }
    }
    assert!(found.len() > 5, "there are files ending in {extensions:?}");
    found
}

/// Returns the lines that match, as "file:line: text", but those of this file.
fn matching(extensions: &[&str], is_match: impl Fn(&[&str], usize) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in files(extensions).iter().filter(|(name, _)| !name.ends_with("tests/language.rs")) {
        let lines: Vec<&str> = text.lines().collect();
        let numbers = (0..lines.len()).filter(|at| is_match(&lines, *at));
        found.extend(numbers.map(|at| format!("{name}:{}: {}", at + 1, lines[at].trim())));
    }
    found
}

#[test]
fn prose_uses_no_banned_words() {
    let banned = Regex::new(BANNED).expect("a pattern");
    let found = matching(&["rs", "py", "pyi", "md", "sql"], |lines, at| banned.is_match(lines[at]));
    assert!(found.is_empty(), "name the noun instead:\n{}", found.join("\n"));
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let open = Regex::new(OPEN_SUBJECTS).expect("a pattern");
    let doc = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        text.map(|it| it.trim().to_owned())
    };
    let begins_open = |lines: &[&str], at: usize| {
        let is_first = at == 0 || doc(lines[at - 1]).is_none_or(|before| before.is_empty());
        is_first && doc(lines[at]).is_some_and(|text| open.is_match(&text))
    };
    let mut found = matching(&["rs"], begins_open);
    let docstring = Regex::new(&format!(r#"^\s*"""{}"#, &OPEN_SUBJECTS[1..])).expect("a pattern");
    found.extend(matching(&["py", "pyi"], |lines, at| docstring.is_match(lines[at])));
    assert!(found.is_empty(), "begin with a noun, or with a verb in the third person:\n{}", found.join("\n"));
}

#[test]
fn constants_say_what_they_limit() {
    let in_rust = Regex::new(&format!(r"\bconst {EMPTY_CONSTANTS}\b")).expect("a pattern");
    let in_python = Regex::new(&format!(r"^_?{EMPTY_CONSTANTS}(: .+)? = ")).expect("a pattern");
    let mut found = matching(&["rs"], |lines, at| in_rust.is_match(lines[at]));
    found.extend(matching(&["py"], |lines, at| in_python.is_match(lines[at])));
    assert!(found.is_empty(), "name meaning and unit:\n{}", found.join("\n"));
}

#[test]
fn type_names_are_unique_in_a_crate() {
    let definition = Regex::new(r"(?m)^[ \t]*(?:pub(?:\([a-z]+\))? )?(?:struct|enum|trait|union) ([A-Z]\w*)")
        .expect("a pattern");
    let mut places: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (name, text) in files(&["rs"]) {
        let Some((package, file)) = name.split_once("/src/") else { continue };
        if !(package.starts_with("crates/") || package == "python") {
            continue;
        }
        // types of tests in a file are nobody else's
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for found in definition.captures_iter(text) {
            places.entry((package.to_owned(), found[1].to_owned())).or_default().insert(file.to_owned());
        }
    }
    assert!(places.len() > 100, "types are found");
    let twice: Vec<_> = places.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "a name stands for one type in a crate: {twice:#?}");
}

#[test]
fn folders_are_small() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in files(&["rs", "py"]).into_keys() {
        if let Some((folder, _)) = name.rsplit_once('/') {
            *counts.entry(folder.to_owned()).or_default() += 1;
        }
    }
    for (folder, _) in LARGER_FOLDERS {
        assert!(counts.get(*folder).is_some_and(|it| *it > FILES_PER_FOLDER), "{folder} needs no exception");
    }
    let large: Vec<_> = counts
        .iter()
        .filter(|(folder, files)| {
            **files > FILES_PER_FOLDER && !LARGER_FOLDERS.iter().any(|(it, _)| it == *folder)
        })
        .collect();
    assert!(large.is_empty(), "more than {FILES_PER_FOLDER} files, make rooms: {large:?}");
}
