//! `stepfast bench` as somebody at a terminal sees it.

#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn flush_measures_a_named_file_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    for slashes in ["", "//"] {
        let store = format!("sqlite:{slashes}bench.db");
        let output = Command::new(env!("CARGO_BIN_EXE_stepfast"))
            .args(["bench", "flush", "--iterations", "3", "--size", "10,20", "--store", &store])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap().matches("| commit ").count(), 2);
    }
    assert!(folder.path().join("bench.flush.db").exists());
}
