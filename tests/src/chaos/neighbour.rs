//! [`Neighbour`]: a second service on the database of a deployment, which no fault strikes, and its checks.
//!
//! The neighbour has workers, a client, workflows and queues of its own. Nothing that happens to the first service may
//! cost the neighbour more than time, and little of that: its executions run on its own workers, each body once, and no
//! caller waits long.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::chaos::Form;
use crate::chaos::connection::SqlConnection;
use crate::chaos::worker::{CallKind, Role};
use crate::chaos::worker_process::{WorkerEvent, WorkerOptions, WorkerProcess};

/// The prefix of the names of all workflows and queues of a neighbour.
pub const NEIGHBOUR_PREFIX: &str = "neighbour_";
/// The condition that excludes executions of the neighbour.
pub const NOT_OF_NEIGHBOUR: &str = "workflow NOT LIKE 'neighbour%'";
/// The application name of the neighbour's connections to Postgres.
pub const NEIGHBOUR_APPLICATION: &str = "neighbour";

/// Maximum time from one line of a caller to its next: an acknowledged start, or a result. Outages of the server do not
/// count. In the short form, four scenarios share the machine, so the limit only detects a standstill.
const MAX_CALLER_GAP: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(5)];
/// Interval between two looks at the assignments.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Gaps below this length are not kept.
const MIN_KEPT_GAP: Duration = Duration::from_millis(250);
/// Maximum number of violations of one kind that are listed.
const MAX_LISTED: usize = 5;

/// The services on the database of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// The service that the faults strike.
    #[default]
    First,
    /// The service beside it.
    Neighbour,
}

impl Service {
    /// Returns the name of a workflow or queue of this service.
    pub fn name(self, name: &str) -> String {
        match self {
            Service::First => name.to_owned(),
            Service::Neighbour => format!("{NEIGHBOUR_PREFIX}{name}"),
        }
    }
}

/// Time between two lines of a caller.
struct CallerGap {
    from: Instant,
    to: Instant,
    /// The line that ended the gap.
    line: String,
}

/// A second service.
pub struct Neighbour {
    /// Its workers, then its client.
    pub processes: Vec<WorkerProcess>,
    /// The last line of each caller.
    callers: HashMap<String, (Instant, String)>,
    gaps: Vec<CallerGap>,
    /// The times at which the server was down.
    outages: Vec<(Instant, Instant)>,
    /// Number of bodies that began, by execution and step.
    bodies: BTreeMap<(String, String), u32>,
    ends: u64,
    max_gap: Duration,
    /// The time until which gaps count.
    until: Option<Instant>,
    assignments: AssignmentWatch,
}

impl Neighbour {
    /// Returns the options of its processes. The load is light in the short form, because scenarios run concurrently.
    pub fn plan(url: &str, form: Form) -> Vec<WorkerOptions> {
        let url = if url.starts_with("sqlite:") {
            url.to_owned()
        } else {
            let separator = if url.contains('?') { '&' } else { '?' };
            format!("{url}{separator}application_name={NEIGHBOUR_APPLICATION}&readers=1")
        };
        let worker = WorkerOptions {
            url: Some(url),
            service: Service::Neighbour,
            calls: CallKind::Queued,
            callers: form.pick(1, 4),
            pace: form.pick(Duration::from_millis(250), Duration::from_millis(50)),
            ..WorkerOptions::default()
        };
        let client = WorkerOptions { role: Role::Client, calls: CallKind::Mixed, ..worker.clone() };
        let mut plan = vec![worker; form.pick(1, 2)];
        plan.push(client);
        plan
    }

    /// Creates the neighbour of these processes, and begins to look at the assignments of the database at `url`.
    pub fn new(processes: Vec<WorkerProcess>, url: &str, form: Form) -> Self {
        Self {
            processes,
            callers: HashMap::new(),
            gaps: Vec::new(),
            outages: Vec::new(),
            bodies: BTreeMap::new(),
            ends: 0,
            max_gap: form.pick(MAX_CALLER_GAP[0], MAX_CALLER_GAP[1]),
            until: None,
            assignments: AssignmentWatch::start(url),
        }
    }

    /// Returns the number of its registrations.
    pub fn registration_count(&self) -> usize {
        self.processes.len()
    }

    /// Adds a line of one of its processes.
    pub fn add_line(&mut self, event: &WorkerEvent, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["body", _, execution, step, _] => {
                *self.bodies.entry((execution.to_owned(), step.to_owned())).or_default() += 1;
            }
            ["started" | "ended", id, ..] => {
                self.ends += u64::from(words[0] == "ended");
                let Some((caller, _)) = id.rsplit_once('-').filter(|_| !id.starts_with("held-")) else {
                    return;
                };
                let last = self.callers.insert(caller.to_owned(), (event.at, line.to_owned()));
                if let Some((from, _)) = last {
                    self.add_gap(from, event.at, line);
                }
            }
            _ => {}
        }
    }

    fn add_gap(&mut self, from: Instant, to: Instant, line: &str) {
        let to = self.until.map_or(to, |until| until.min(to));
        if to.saturating_duration_since(from) >= MIN_KEPT_GAP {
            self.gaps.push(CallerGap { from, to, line: line.to_owned() });
        }
    }

    /// Returns whether callers of each process have received results.
    pub fn is_under_load(&self) -> bool {
        self.processes.iter().all(|process| process.end_count > 0)
    }

    /// Excludes a time from the gaps, in which the server was down.
    pub fn excuse(&mut self, from: Instant, to: Instant) {
        self.outages.push((from, to));
    }

    /// Ends the time in which gaps count, because the callers stop.
    pub fn stop_watch(&mut self) {
        let now = *self.until.get_or_insert_with(Instant::now);
        for (caller, (from, line)) in std::mem::take(&mut self.callers) {
            self.add_gap(from, now, &format!("nothing of {caller} after {line:?}"));
        }
        self.assignments.stop();
    }

    /// Returns the violations of gaps, bodies and assignments, and a note for the report.
    pub fn judge(&mut self) -> (Vec<String>, String) {
        let mut gaps: Vec<(Duration, String)> =
            self.gaps.iter().map(|gap| (self.length_of(gap), gap.line.clone())).collect();
        gaps.sort_by_key(|(gap, _)| Reverse(*gap));
        let late = gaps.iter().filter(|(gap, _)| *gap > self.max_gap).take(MAX_LISTED);
        let mut violations: Vec<String> = late
            .map(|(gap, line)| format!("a caller of the neighbour waited {:.1} s: {line}", gap.as_secs_f64()))
            .collect();
        let again = self.bodies.iter().filter(|(_, count)| **count > 1).take(MAX_LISTED);
        violations.extend(
            again.map(|(step, count)| format!("the body of the neighbour's {step:?} began {count} times")),
        );
        let (found, looks, executions) = self.assignments.take();
        violations.extend(found);
        if executions[1] == 0 || self.bodies.is_empty() {
            violations.push(format!(
                "the neighbour was not observed: {looks} looks at {executions:?} executions, {} bodies",
                self.bodies.len()
            ));
        }
        let longest = gaps.first().map_or(Duration::ZERO, |(gap, _)| *gap);
        let note = format!(
            "neighbour: {} ended, no caller waited longer than {:.1} s; {} of its executions were assigned in {looks} looks",
            self.ends,
            longest.as_secs_f64(),
            executions[1],
        );
        (violations, note)
    }

    /// Returns the length of a gap without outages.
    fn length_of(&self, gap: &CallerGap) -> Duration {
        let excused: Duration = self
            .outages
            .iter()
            .map(|(from, to)| (*to).min(gap.to).saturating_duration_since((*from).max(gap.from)))
            .sum();
        gap.to.saturating_duration_since(gap.from).saturating_sub(excused)
    }
}

/// Assignments that list executions of another service than that of the worker, and numbers of listed executions.
#[derive(Default)]
struct AssignmentFindings {
    violations: Vec<String>,
    looks: u64,
    /// Maximum numbers of assigned executions of the first service and of the neighbour in one look.
    executions: [u64; 2],
}

/// A task that looks at the assignments again and again: claims and starts list the executions that they set running,
/// and the rows stay for about a second.
struct AssignmentWatch {
    findings: Arc<Mutex<AssignmentFindings>>,
    task: Option<JoinHandle<()>>,
}

/// The executions of all assignments, by the service of the execution and the kind of worker.
const POSTGRES_SQL: &str = "SELECT CASE WHEN e.workflow = ANY(w.workflows) THEN '' \
      ELSE 'worker ' || w.worker_id || ' of ' || w.workflows::text || ' was assigned ' || e.workflow || ' ' || e.key END, \
      CASE WHEN e.workflow LIKE 'neighbour%' THEN '1' ELSE '0' END, count(*)::text \
    FROM assignments AS a JOIN workers AS w ON w.worker_id = a.worker_id CROSS JOIN unnest(a.executions) AS u (key) \
    JOIN executions AS e ON e.key = u.key GROUP BY 1, 2 ORDER BY 1 LIMIT 20";

/// The statement for SQLite, where a blob lists the keys.
const SQLITE_SQL: &str = "WITH RECURSIVE keys (worker_id, key, rest) AS ( \
      SELECT worker_id, NULL, executions FROM assignments UNION ALL \
      SELECT worker_id, substr(rest, 1, 16), substr(rest, 17) FROM keys WHERE length(rest) > 0) \
    SELECT CASE WHEN instr(char(10) || w.workflows || char(10), char(10) || e.workflow || char(10)) > 0 THEN '' \
      ELSE 'worker ' || w.worker_id || ' of ' || w.workflows || ' was assigned ' || e.workflow || ' ' || hex(e.key) END, \
      CASE WHEN e.workflow LIKE 'neighbour%' THEN '1' ELSE '0' END, CAST(count(*) AS TEXT) \
    FROM keys AS k JOIN workers AS w ON w.worker_id = k.worker_id JOIN executions AS e ON e.key = k.key \
    GROUP BY 1, 2 ORDER BY 1 LIMIT 20";

fn lock(findings: &Mutex<AssignmentFindings>) -> MutexGuard<'_, AssignmentFindings> {
    findings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AssignmentWatch {
    fn start(url: &str) -> Self {
        let findings = Arc::new(Mutex::new(AssignmentFindings::default()));
        let task = tokio::spawn(watch_assignments(url.to_owned(), findings.clone()));
        Self { findings, task: Some(task) }
    }

    fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// Returns violations, the number of looks, and the numbers of executions.
    fn take(&self) -> (Vec<String>, u64, [u64; 2]) {
        let AssignmentFindings { violations, looks, executions } = std::mem::take(&mut *lock(&self.findings));
        (violations, looks, executions)
    }
}

impl Drop for AssignmentWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn watch_assignments(url: String, findings: Arc<Mutex<AssignmentFindings>>) {
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut connection = None;
    loop {
        ticks.tick().await;
        if connection.is_none() {
            connection = SqlConnection::open(&url).await;
        }
        let Some(open) = &connection else { continue };
        let sql = if url.starts_with("sqlite:") { SQLITE_SQL } else { POSTGRES_SQL };
        let Some(rows) = open.query_rows(sql).await else {
            connection = None;
            continue;
        };
        let mut findings = lock(&findings);
        findings.looks += 1;
        let mut counts = [0; 2];
        for row in rows {
            let text = |i: usize| row[i].as_deref().unwrap_or_default();
            let service = usize::from(text(1) == "1");
            counts[service] += text(2).parse::<u64>().unwrap_or_default();
            let violation = text(0).to_owned();
            let is_listed = violation.is_empty() || findings.violations.contains(&violation);
            if !is_listed && findings.violations.len() < MAX_LISTED {
                findings.violations.push(violation);
            }
        }
        findings.executions = [0, 1].map(|service| findings.executions[service].max(counts[service]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_exclude_outages() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut neighbour = Neighbour {
            processes: Vec::new(),
            callers: HashMap::new(),
            gaps: Vec::new(),
            outages: Vec::new(),
            bodies: BTreeMap::from([(("execution".into(), "step".into()), 1)]),
            ends: 0,
            max_gap: Duration::from_secs(5),
            until: None,
            assignments: AssignmentWatch {
                findings: Arc::new(Mutex::new(AssignmentFindings {
                    violations: Vec::new(),
                    looks: 1,
                    executions: [1, 1],
                })),
                task: None,
            },
        };
        let mut add = |line: &str, millis: u64| {
            let event = WorkerEvent {
                at: after(millis),
                service: Service::Neighbour,
                number: 0,
                line: Some(line.to_owned()),
            };
            neighbour.add_line(&event, line);
        };
        add("started w0.0-1", 0);
        add("ended w0.0-1 x", 7_000);
        // another caller
        add("started w0.1-2", 7_100);
        add("ended w0.1-2 x", 13_000);
        add("ended held-1 x", 60_000);
        neighbour.excuse(after(1_000), after(4_000));
        neighbour.until = Some(after(14_000));
        neighbour.stop_watch();
        let (violations, note) = neighbour.judge();
        assert_eq!(violations.len(), 2, "{violations:?}");
        assert!(violations[0].contains("waited 7.0 s: nothing of w0.0"), "{violations:?}");
        assert!(violations[1].contains("waited 5.9 s: ended w0.1-2"), "{violations:?}");
        assert!(note.contains("3 ended"), "{note}");
    }
}
