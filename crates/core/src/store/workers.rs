//! [`Survey`]: who works on a database, and what nobody there can run.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::WorkerId;

/// What a worker says of itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Name of its machine.
    pub host: String,
    /// Number of its process there.
    pub pid: u32,
    /// Version of the engine.
    pub engine: String,
    /// Which version of the program's code it runs, where it was told.
    pub app_version: Option<Arc<str>>,
    /// The workflows that it has registered.
    pub workflows: Arc<[Arc<str>]>,
    /// The queues that it serves; `None` for all.
    pub queues: Option<Arc<[Arc<str>]>>,
    /// True for a client: it starts, waits and asks, and runs nothing.
    pub is_client: bool,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredWorker {
    /// Its id.
    pub worker: WorkerId,
    /// What it said of itself.
    pub info: WorkerInfo,
    /// When it registered.
    pub registered_at: Timestamp,
    /// Until when it counts as alive without renewing, where leases decide that.
    pub lease_expires_at: Option<Timestamp>,
    /// True if it seems to be alive.
    pub is_alive: bool,
    /// How many executions it runs.
    pub running: u64,
}

/// Executions that wait for a worker which is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclaimableWork {
    /// Their workflow.
    pub workflow: Arc<str>,
    /// The version of the code that they are pinned to.
    pub app_version: Option<Arc<str>>,
    /// How many.
    pub executions: u64,
    /// True if a live worker has the workflow, but none of that version.
    pub is_version_missing: bool,
}

/// Executions that wait for a worker, by what it must have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitingWork {
    /// Their workflow.
    pub workflow: Arc<str>,
    /// The version of the code that they are pinned to.
    pub app_version: Option<Arc<str>>,
    /// How many.
    pub executions: u64,
}

/// A row of the inbox that could not become an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number among the dead letters.
    pub id: i64,
    /// When its transaction put it into the inbox.
    pub created_at: Timestamp,
    /// When a worker refused it.
    pub rejected_at: Timestamp,
    /// The key that its execution would have had.
    pub key: Key,
    /// Why it was refused, for people.
    pub reason: String,
    /// The workflow that it asks for.
    pub workflow: String,
    /// The workflow_id that it asks for; `None` if it left that to the key.
    pub workflow_id: Option<String>,
    /// The queue that it asks for.
    pub queue: Option<String>,
}

/// Who is there, and what waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerOverview {
    /// All registrations, by id.
    pub workers: Vec<RegisteredWorker>,
    /// What is ready, due or in quarantine, by workflow and version.
    pub waiting: Vec<WaitingWork>,
}

impl DeadLetter {
    /// Returns the workflow_id that the execution would have had.
    pub fn requested_id(&self) -> String {
        self.key.workflow_id(self.workflow_id.as_deref())
    }
}

impl WorkerInfo {
    /// True if it can run executions of this workflow that are pinned to this version.
    pub fn can_run(&self, workflow: &str, app_version: Option<&str>) -> bool {
        !self.is_client && self.has_workflow(workflow) && is_same_version(self.app_version.as_deref(), app_version)
    }

    /// What it is, for the log.
    pub(crate) fn noun(&self) -> &'static str {
        if self.is_client { "client" } else { "engine" }
    }

    fn has_workflow(&self, workflow: &str) -> bool {
        self.workflows.iter().any(|name| **name == *workflow)
    }
}

/// True if code of the one version may run what is pinned to the other: none matches all.
pub fn is_same_version(code: Option<&str>, pinned: Option<&str>) -> bool {
    code.is_none() || pinned.is_none() || code == pinned
}

impl WorkerOverview {
    /// What waits and can be run by no live worker.
    pub fn unclaimable(&self) -> Vec<UnclaimableWork> {
        self.waiting.iter().filter_map(|it| self.check_unclaimable(it)).collect()
    }

    /// These executions, if they can be run by no live worker.
    pub fn check_unclaimable(&self, waiting: &WaitingWork) -> Option<UnclaimableWork> {
        let WaitingWork { workflow, app_version, executions } = waiting.clone();
        let can_run = |app_version: Option<&str>| {
            let mut alive = self.workers.iter().filter(|worker| worker.is_alive);
            alive.any(|worker| worker.info.can_run(&workflow, app_version))
        };
        if can_run(app_version.as_deref()) {
            return None;
        }
        let is_version_missing = can_run(None);
        Some(UnclaimableWork { workflow, app_version, executions, is_version_missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(number: i64, workflow: &str, version: Option<&str>) -> RegisteredWorker {
        let (worker, workflows) = (WorkerId(number), Arc::from([Arc::from(workflow)]));
        let info = WorkerInfo { workflows, app_version: version.map(Into::into), ..WorkerInfo::default() };
        let now = Timestamp::from_micros(0);
        RegisteredWorker { worker, info, registered_at: now, lease_expires_at: None, is_alive: true, running: 0 }
    }

    #[test]
    fn what_nobody_can_run_is_found() {
        let client = WorkerInfo { is_client: true, ..worker(3, "c", None).info };
        let dead = RegisteredWorker { is_alive: false, ..worker(4, "d", None) };
        let workers = vec![
            worker(1, "a", None),
            worker(2, "b", Some("2")),
            RegisteredWorker { info: client, ..dead.clone() },
            dead,
        ];
        let waits = |workflow: &str, version: Option<&str>| WaitingWork {
            workflow: workflow.into(),
            app_version: version.map(Into::into),
            executions: 5,
        };
        let waiting = vec![
            waits("a", Some("1")),
            waits("b", Some("1")),
            waits("b", None),
            waits("c", None),
            waits("d", None),
        ];
        let found = WorkerOverview { workers, waiting }.unclaimable();
        let found: Vec<_> =
            found.iter().map(|it| (&*it.workflow, it.is_version_missing, it.executions)).collect();
        assert_eq!(found, [("b", true, 5), ("c", false, 5), ("d", false, 5)]);
    }
}
