//! `stepfast bench` as its users see it. The experiments in Python are tested with the package.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stepfast")).arg("bench").args(arguments).output().unwrap()
}

/// Runs an experiment that must succeed. Returns what it prints and what it writes to `--json`.
fn run_bench(arguments: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let output = bench(&[arguments, &["--json", json.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), report)
}

fn bench_failure(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(output.stdout.is_empty() && output.status.code() == Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn rows<'r>(report: &'r Value, mode: &str) -> Vec<&'r Value> {
    report["rows"].as_array().unwrap().iter().filter(|row| row["mode"] == mode).collect()
}

#[test]
fn steps_have_a_row_for_each_combination() {
    let sweep = ["steps", "--iterations", "20", "--concurrency", "1,4", "--steps", "0,2"];
    let (printed, report) = run_bench(&sweep);
    assert!(
        printed.starts_with("steps on SQLite") && printed.contains(", rust, durability full,"),
        "{printed}"
    );
    assert_eq!(report["sdk"], "rust");
    for mode in ["start", "run"] {
        let rows = rows(&report, mode);
        let of: Vec<_> =
            rows.iter().map(|row| (row["steps"].as_u64(), row["concurrency"].as_u64())).collect();
        assert_eq!(of, [(0, 1), (0, 4), (2, 1), (2, 4)].map(|(steps, callers)| (Some(steps), Some(callers))));
        for row in rows {
            assert_eq!((row["completed"].as_u64(), row["failed"].as_u64()), (Some(20), Some(0)), "{row}");
            assert!(row["flushes"].as_u64() > Some(0) && row["bytes_written"].as_u64().is_some(), "{row}");
        }
    }
}

#[test]
fn size_sweep_reports_disk_bytes_per_workflow() {
    let sweep =
        ["steps", "--iterations", "200", "--concurrency", "64", "--size", "100,20000", "--mode", "run"];
    let (printed, report) = run_bench(&[&sweep[..], &["--steps", "0,2"]].concat());
    assert!(printed.contains("| disk bytes each |"), "{printed}");
    let rows = rows(&report, "run");
    let of: Vec<_> = rows.iter().map(|row| (row["steps"].as_u64(), row["size"].as_u64())).collect();
    let expected = [(0, 100), (0, 20_000), (2, 100), (2, 20_000)];
    assert_eq!(of, expected.map(|(steps, size)| (Some(steps), Some(size))));
    for row in rows {
        assert_eq!((row["completed"].as_u64(), row["failed"].as_u64()), (Some(200), Some(0)), "{row}");
        // two steps, or input and output
        let least = 2.0 * row["size"].as_f64().unwrap();
        let each = row["disk_bytes_each"].as_f64().unwrap();
        assert!((least..2.0 * least + 2_000.0).contains(&each), "{row}");
    }
}

#[test]
fn payload_report_has_every_size_and_target() {
    let (printed, report) = run_bench(&["payload", "--sdk", "rust", "--iterations", "5"]);
    for arm in ["ordinary", "durable", "speculative"] {
        let sizes: Vec<_> = rows(&report, arm).iter().map(|row| row["size"].as_u64()).collect();
        let expected: Vec<_> = (0..7).map(|i| Some(10u64.pow(i))).chain([None]).collect();
        assert_eq!(sizes, expected, "{arm}");
    }
    for row in report["rows"].as_array().unwrap() {
        let [min, median, max] = ["min_ms", "p50_ms", "max_ms"].map(|name| row[name].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{row}");
        assert!(row["completed"].as_u64() >= Some(5), "{row}");
    }
    assert_eq!(rows(&report, "batched")[0]["published_ms"], 157.82);
    assert_eq!(rows(&report, "commit").len(), 2);
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.iter().filter(|figure| figure["limit"].is_f64()).count(), 6, "{figures:?}");
    let judged = printed.matches(" met ").count() + printed.matches(" MISSED ").count();
    assert_eq!(judged, 6, "{printed}");
    assert!(printed.contains("| 1 MB ") && printed.contains("| 120.46 "), "{printed}");
}

#[test]
fn memory_store_has_no_bare_commit_row() {
    let (_, report) = run_bench(&["payload", "--sdk", "rust", "--iterations", "5", "--store", "memory"]);
    assert!(rows(&report, "commit").is_empty() && rows(&report, "append").len() == 1);
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.iter().filter(|figure| figure["limit"].is_f64()).count(), 2, "{figures:?}");
}

#[test]
fn flush_measures_named_file_repeatedly() {
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

#[test]
fn memory_report_has_bytes_per_execution() {
    let (printed, report) = run_bench(&["memory", "--iterations", "2000"]);
    let weighs = &report["figures"][0];
    assert!(weighs["name"].as_str().unwrap().contains("waits in a step"), "{weighs}");
    assert!(printed.contains("bytes") && rows(&report, "blocked")[0]["completed"] == 2000, "{printed}");
}

#[test]
fn python_without_package_is_rejected() {
    let missing = bench_failure(&["payload", "--python", "/nowhere/python"]);
    assert!(
        missing.contains("cannot start /nowhere/python") && missing.contains("--python PATH"),
        "{missing}"
    );
    let folder = tempfile::tempdir().unwrap();
    for (name, code, says) in [
        ("talks", "echo whatever", "is not a Python interpreter"),
        (
            "lacks",
            "echo No module named stepfast >&2; exit 1",
            "(No module named stepfast): install the package",
        ),
        ("dies", "exit 3", "(exit status: 3): install the package"),
        ("other", r#"echo '{"stepfast": "0.0.1"}'"#, "is version 0.0.1, this program is"),
    ] {
        let program = script(&folder.path().join(name), code);
        let refused = bench_failure(&["workflows", "--sdk", "python", "--python", &program]);
        assert!(refused.contains(says) && refused.contains(&program), "{name}: {refused}");
    }
}

#[test]
fn options_without_effect_are_refused() {
    for (options, says) in [
        (&["workflows", "--threads", "2"][..], "--threads is for --sdk python"),
        (&["steps", "--python", "python3"], "--python is for --sdk python"),
        (&["payload", "--sdk", "rust", "--python", "python3"], "--python is for --sdk python"),
        (&["queue", "--sdk", "python", "--workers", "2"], "--workers is for --sdk rust"),
        (
            &["steps", "--iterations", "3", "--concurrency", "1,4"],
            "--concurrency 4 is more than --iterations 3",
        ),
        (&["steps", "--iterations", "3", "--sdk", "python", "--threads", "4"], "--threads 4 is more than"),
        (&["steps", "--directory", "absent"], "create it first"),
    ] {
        let output = bench(options);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {message}");
        assert!(output.stdout.is_empty() && message.contains(says), "{options:?}: {message}");
    }
}

#[test]
fn each_caller_runs_a_workflow_by_default() {
    let (_, report) = run_bench(&["workflows", "--iterations", "300", "--mode", "run", "--store", "memory"]);
    let callers: Vec<_> = rows(&report, "run").iter().map(|row| row["concurrency"].as_u64()).collect();
    assert_eq!(callers, [Some(1), Some(256)]);
    // 400 workflows per caller, divided by a thousand, are fewer than the callers
    let steps = ["--steps", "999", "--concurrency", "8"];
    let (_, report) = run_bench(&[&["steps", "--mode", "run", "--store", "memory"], &steps[..]].concat());
    assert_eq!(rows(&report, "run")[0]["completed"], 8);
}

/// Writes a shell program of one line, by another process. If this process wrote the file, the child of another test
/// could inherit the open file, and a file that is open for writing cannot be run.
fn script(path: &Path, code: &str) -> String {
    let path = path.to_str().unwrap();
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
    assert!(Command::new("sh").args(["-c", write, path, code]).status().unwrap().success());
    path.to_owned()
}

#[test]
fn numbers_that_cannot_be_measured_are_refused() {
    const COUNTS: usize = 100_000_000;
    const CALLERS: usize = 1_000_000;
    let refused = [
        ("history", "--runs", "0", 1, COUNTS),
        ("idle", "--iterations", "0", 1, COUNTS),
        ("neighbours", "--concurrency", "0", 1, CALLERS),
        ("queue", "--queues", "1,0", 1, COUNTS),
        ("writes", "--callers", "0", 1, CALLERS),
        ("flush", "--size", "0", 1, COUNTS),
        ("takeover", "--kills", "0", 1, COUNTS),
        ("sleepers", "--iterations", "9", 10, COUNTS),
        ("backlog", "--iterations", "99", 100, COUNTS),
        ("memory", "--iterations", "1999", 2_000, COUNTS),
        ("steps", "--steps", "1x", 0, COUNTS),
        ("steps", "--steps", "1,100000001", 0, COUNTS),
        ("steps", "--concurrency", "1000001", 1, CALLERS),
        ("steps", "--size", "-1", 0, 4_194_304),
        ("workflows", "--iterations", "99999999999999999999", 1, COUNTS),
    ];
    for (experiment, option, value, minimum, maximum) in refused {
        let output = bench(&[experiment, option, value]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{experiment} {option} {value}: {message}");
        let says = format!("give a number from {minimum} to {maximum}");
        assert!(message.contains(&says) && message.contains(option), "{message}");
    }
}

#[test]
fn bytes_of_items_exclude_the_schema() {
    let sizes = ["--items", "200", "--batch", "1", "--callers", "1", "--search-items", "0"];
    let (_, report) = run_bench(&[&["batching", "--seconds", "1"], &sizes[..]].concat());
    let figures = report["figures"].as_array().unwrap();
    let stored: Vec<_> = figures
        .iter()
        .filter(|figure| figure["name"].as_str().unwrap().ends_with("stored per item"))
        .map(|figure| figure["value"].as_f64().unwrap())
        .collect();
    // the schema would add a thousand bytes per item; a few items fit into its pages
    assert!(!stored.is_empty() && stored.iter().all(|bytes| (0.0..800.0).contains(bytes)), "{stored:?}");
}

/// Returns the options of an experiment whose values are numbers.
fn number_options(experiment: &str) -> Vec<String> {
    const OTHERS: [&str; 8] = ["store", "durability", "directory", "json", "python", "plot", "sdk", "mode"];
    let help = String::from_utf8(bench(&[experiment, "--help"]).stdout).unwrap();
    let with_values = help.lines().filter_map(|line| line.trim().strip_prefix("--")?.split_once(" <"));
    with_values
        .map(|(option, _)| option.to_owned())
        .filter(|option| !OTHERS.contains(&option.as_str()))
        .collect()
}

#[test]
fn every_number_has_a_maximum() {
    let help = String::from_utf8(bench(&["--help"]).stdout).unwrap();
    let experiments = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let experiments = experiments.map_while(|line| line.split_whitespace().next());
    let mut options = 0;
    for experiment in experiments.filter(|name| *name != "help") {
        for option in number_options(experiment) {
            // an accepted number would fail at the store
            let output = bench(&[experiment, &format!("--{option}"), "1000000000000", "--store", "nowhere:"]);
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{experiment} --{option}: {message}");
            assert!(message.contains("give a number from"), "{experiment} --{option}: {message}");
            options += 1;
        }
    }
    assert!(options > 50, "{options} options found");
}

#[test]
fn path_of_report_is_checked_before_the_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent").join("report.json");
    for (path, says) in [
        (absent.as_path(), "create it first"),
        (folder.path(), "give the path of a file"),
        (Path::new("absent/"), "give the path of a file"),
        (Path::new(""), "a value is required"),
    ] {
        let output = bench(&["workflows", "--json", path.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(says), "{message}");
    }
}

#[test]
fn backlog_is_measured_beside_empty_queue() {
    let sweep = ["backlog", "--backlog", "0,2000", "--iterations", "500", "--runs", "1"];
    let (printed, report) = run_bench(&sweep);
    assert!(printed.contains("| drain, 2000 waiting "), "{printed}");
    let drained = rows(&report, "drain");
    let of: Vec<_> = drained.iter().map(|row| (row["stored"].as_u64(), row["completed"].as_u64())).collect();
    assert_eq!(of, [(Some(0), Some(500)), (Some(2000), Some(500))]);
    for row in rows(&report, "ten of another key, to start") {
        assert_eq!(row["completed"], 10, "{row}");
    }
    assert_eq!(report["figures"].as_array().unwrap().len(), 4);
}

#[test]
fn operations_are_measured_beside_another_service_and_alone() {
    let counts = ["--finished", "300", "--waiting", "200", "--sleeping", "100"];
    let (printed, report) =
        run_bench(&[&["neighbours"], &counts[..], &["--iterations", "200", "--runs", "1"]].concat());
    assert!(printed.contains("| claim of nothing, beside another service "), "{printed}");
    assert_eq!(report["figures"].as_array().unwrap().len(), 8);
    for operation in ["start", "run, 3 steps", "enqueue", "drain"] {
        for place in ["beside another service", "alone"] {
            let row = &rows(&report, &format!("{operation}, {place}"))[0];
            assert_eq!(row["completed"], 200, "{row}");
            assert!(row["per_second"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn sleepers_continue_in_ten_parts() {
    let (_, report) = run_bench(&["sleepers", "--iterations", "1000", "--seconds", "5"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 11);
    assert!(rows[..10].iter().all(|row| row["completed"] == 100), "{report}");
    let refused = bench_failure(&["sleepers", "--iterations", "1000", "--seconds", "0"]);
    assert!(refused.contains("give more seconds"), "{refused}");
}

#[test]
fn pauses_and_limits_of_a_busy_queue_are_timed() {
    let arguments = ["pauses", "--per-second", "500", "--workers", "2", "--changes", "1"];
    let (_, report) = run_bench(&arguments);
    for change in ["pause", "concurrency of 1"] {
        assert_eq!(rows(&report, change)[0]["completed"], 1, "{report}");
    }
    assert_eq!(report["figures"].as_array().unwrap().len(), 2);
}

#[test]
fn even_rate_reports_its_intervals() {
    let (printed, report) = run_bench(&["rate", "--per-second", "50", "--workers", "0,1", "--seconds", "1"]);
    let rows = report["rows"].as_array().unwrap();
    for (row, workers) in rows.iter().zip([0, 1]) {
        assert_eq!((row["workers"].as_u64(), row["completed"].as_u64()), (Some(workers), Some(49)), "{row}");
    }
    assert_eq!(printed.matches(" the mean is off ").count(), 2, "{printed}");
}

#[test]
fn queue_sweep_has_row_for_each_combination() {
    let sweep = ["queue", "--iterations", "400", "--concurrency", "8", "--queues", "1,2", "--workers", "0,1"];
    let (printed, report) = run_bench(&sweep);
    assert!(printed.contains("| queues | workers |"), "{printed}");
    for mode in ["enqueue", "drain", "both"] {
        let rows = rows(&report, mode);
        let of: Vec<_> = rows.iter().map(|row| (row["workers"].as_u64(), row["queues"].as_u64())).collect();
        assert_eq!(
            of,
            [(0, 1), (0, 2), (1, 1), (1, 2)].map(|(workers, queues)| (Some(workers), Some(queues)))
        );
        for row in rows {
            assert_eq!((row["completed"].as_u64(), row["failed"].as_u64()), (Some(400), Some(0)), "{row}");
        }
    }
}

#[test]
fn graphs_print_a_sweep_and_draw_it() {
    let folder = tempfile::tempdir().unwrap();
    let plots = folder.path().join("new").join("plots");
    let sweep = ["pipeline", "--iterations", "30", "--concurrency", "1,8", "--plot", plots.to_str().unwrap()];
    let (printed, report) = run_bench(&sweep);
    assert!(
        printed.starts_with("Performance test completed!\nConfiguration: 30 iterations, 1 concurrency\n"),
        "{printed}"
    );
    assert_eq!(printed.matches("Success rate: 30/30 (100.0%)").count(), 2, "{printed}");
    for row in report["rows"].as_array().unwrap() {
        assert!(row["tasks_per_second"].as_f64() > row["per_second"].as_f64(), "{row}");
    }
    for (file, label) in
        [("pipeline-throughput.svg", "workflows per second"), ("pipeline-time.svg", "seconds")]
    {
        let svg = std::fs::read_to_string(plots.join(file)).unwrap();
        assert!(svg.contains(label) && svg.matches("<circle").count() == 2, "{svg}");
        assert!(printed.contains(file), "{printed}");
    }
}
