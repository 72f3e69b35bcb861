//! The overview of registered workers and waiting executions.

use std::collections::BTreeMap;

use super::tables::{Tables, WorkerRow};
use crate::clock::Timestamp;
use crate::store::{RegisteredWorker, WaitingWork, WorkerOverview};

impl Tables {
    pub(super) fn worker_overview(&self, limit: u64, now: Timestamp) -> WorkerOverview {
        let row = |(id, worker): (&_, &WorkerRow)| RegisteredWorker {
            worker: *id,
            info: worker.info.clone(),
            registered_at: worker.registered_at,
            lease_expires_at: None,
            is_alive: !worker.is_dead,
            running: self.owned_by(*id).count() as u64,
        };
        let due = self.due.iter().take_while(|(due_at, _)| *due_at <= now).map(|(_, key)| key);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for row in self.quarantine.keys().take(limit).filter_map(|key| self.executions.get(key)) {
            *counts.entry((row.workflow.clone(), row.app_version.clone())).or_default() += 1;
        }
        let roles: [Box<dyn Iterator<Item = _>>; 2] = [Box::new(self.ready.values()), Box::new(due)];
        for keys in roles {
            let mut routes: BTreeMap<_, usize> = BTreeMap::new();
            for (key, row) in keys.filter_map(|key| Some((key, self.executions.get(key)?))) {
                let version = (row.workflow.clone(), row.app_version.clone());
                let count = routes.entry((version.clone(), self.placement(*key).queue.clone())).or_default();
                *count += 1;
                if *count <= limit {
                    *counts.entry(version).or_default() += 1;
                }
            }
        }
        let waiting = counts.into_iter().map(|((workflow, app_version), executions)| WaitingWork {
            workflow,
            app_version,
            executions,
        });
        WorkerOverview { workers: self.workers.iter().map(row).collect(), waiting: waiting.collect() }
    }
}
