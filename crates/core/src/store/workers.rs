//! [`WorkerOverview`]: the registered workers of a database, and the executions that none of them can run.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::key::Key;
use crate::store::WorkerId;

/// A worker's description of itself at registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The name of the worker's machine.
    pub host: String,
    /// The id of the worker's process on this machine.
    pub pid: u32,
    /// The version of the engine.
    pub engine: String,
    /// The version of the program's code; `None` if the program did not set one.
    pub app_version: Option<Arc<str>>,
    /// The workflows that the worker can run.
    pub workflows: Arc<[Arc<str>]>,
    /// The queues that the worker serves; `None` for all.
    pub queues: Option<Arc<[Arc<str>]>>,
    /// Whether this is a client, which runs no executions.
    pub is_client: bool,
}

/// A registered worker, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredWorker {
    /// The id of the worker.
    pub worker: WorkerId,
    /// The worker's description of itself.
    pub info: WorkerInfo,
    /// The time of the registration.
    pub registered_at: Timestamp,
    /// The time at which the worker's lease ends unless the worker renews it; `None` if the store has no leases.
    pub lease_expires_at: Option<Timestamp>,
    /// Whether the worker seems to be alive.
    pub is_alive: bool,
    /// The number of executions that the worker runs.
    pub running: u64,
}

/// Executions that wait for a worker, and that no live worker can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclaimableWork {
    /// The workflow of the executions.
    pub workflow: Arc<str>,
    /// The version of the code to which the executions are pinned; `None` for any.
    pub app_version: Option<Arc<str>>,
    /// The number of the executions.
    pub executions: u64,
    /// Whether a live worker has the workflow, but with another version of the code.
    pub is_version_missing: bool,
}

/// Executions of one workflow and version that wait for a worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitingWork {
    /// The workflow of the executions.
    pub workflow: Arc<str>,
    /// The version of the code to which the executions are pinned; `None` for any.
    pub app_version: Option<Arc<str>>,
    /// The number of the executions.
    pub executions: u64,
}

/// A row of the inbox that could not become an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The number of the dead letter.
    pub id: i64,
    /// The time at which another program's transaction inserted the row into the inbox.
    pub created_at: Timestamp,
    /// The time at which a claim rejected the row.
    pub rejected_at: Timestamp,
    /// The key that the execution would have had.
    pub key: Key,
    /// The reason for the rejection, for people.
    pub reason: String,
    /// The requested workflow.
    pub workflow: String,
    /// The requested workflow_id; `None` if the workflow_id would have been the text of the key.
    pub workflow_id: Option<String>,
    /// The requested queue; `None` if the row has none.
    pub queue: Option<String>,
}

/// The registered workers, and the executions that wait for a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerOverview {
    /// All registered workers, by id.
    pub workers: Vec<RegisteredWorker>,
    /// The executions that are ready, due or in quarantine, by workflow and version.
    pub waiting: Vec<WaitingWork>,
}

impl DeadLetter {
    /// Returns the workflow_id that the execution would have had.
    pub fn requested_id(&self) -> String {
        self.key.workflow_id(self.workflow_id.as_deref())
    }
}

impl WorkerOverview {
    /// Removes the names of built-in workflows from the workers: every worker with other workflows has them.
    #[must_use]
    pub fn without_built_in(mut self) -> Self {
        for worker in &mut self.workers {
            let names = worker.info.workflows.iter().filter(|name| !is_built_in(name));
            worker.info.workflows = names.cloned().collect();
        }
        self
    }
}

/// Whether a workflow of this name is part of the engine.
pub(crate) fn is_built_in(workflow: &str) -> bool {
    workflow.starts_with("stepfast.")
}

impl WorkerInfo {
    /// Whether the worker can run executions of this workflow that are pinned to this version.
    pub fn can_run(&self, workflow: &str, app_version: Option<&str>) -> bool {
        !self.is_client
            && self.has_workflow(workflow)
            && is_same_version(self.app_version.as_deref(), app_version)
    }

    /// Returns the word for the worker in the log.
    pub(crate) fn noun(&self) -> &'static str {
        if self.is_client { "client" } else { "engine" }
    }

    fn has_workflow(&self, workflow: &str) -> bool {
        let has_built_in = is_built_in(workflow) && !self.workflows.is_empty();
        has_built_in || self.workflows.iter().any(|name| **name == *workflow)
    }
}

/// Whether code of version `code` may run executions that are pinned to version `pinned`. `None` matches every version.
pub fn is_same_version(code: Option<&str>, pinned: Option<&str>) -> bool {
    code.is_none() || pinned.is_none() || code == pinned
}

impl WorkerOverview {
    /// Returns the waiting executions that no live worker can run.
    pub fn unclaimable(&self) -> Vec<UnclaimableWork> {
        self.waiting.iter().filter_map(|it| self.check_unclaimable(it)).collect()
    }

    /// Returns these waiting executions as unclaimable if no live worker can run them; `None` if one can.
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
        RegisteredWorker {
            worker,
            info,
            registered_at: now,
            lease_expires_at: None,
            is_alive: true,
            running: 0,
        }
    }

    #[test]
    fn work_without_a_live_worker_is_unclaimable() {
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
