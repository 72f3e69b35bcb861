//! The program `stepfast`, run by tests as its users run it.

use std::process::{Command, Output};

/// Runs a command on a store.
pub(crate) fn stepfast(store: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepfast"));
    command.args(arguments).args(["--store", store]).env_remove("STEPFAST_STORE");
    command.output().unwrap()
}

/// Runs a command that must succeed. Returns what it prints.
pub(crate) fn output_of(store: &str, arguments: &[&str]) -> String {
    let output = stepfast(store, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
