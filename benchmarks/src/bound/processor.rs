//! [`ProcessorTime`]: processor time of the process with the engine, of the database's server, and of the whole machine.

use serde::{Deserialize, Serialize};
use stepfast::Error;
use tokio_postgres::Client;

use crate::target::postgres_error;

/// The kernel's unit of processor time: hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time per completed operation, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuEach {
    /// The time of the process with the engine, outside of the kernel.
    pub user_us: f64,
    /// The time of the process with the engine in the kernel.
    pub system_us: f64,
    /// Postgres: the time of all processes of the server, if it runs on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_us: Option<f64>,
}

/// The processor time used up to one moment, in seconds.
pub(super) struct ProcessorTime {
    process: ProcessTime,
    server: Option<f64>,
    machine: Option<f64>,
}

impl ProcessorTime {
    /// Reads the current values.
    pub(super) fn now(process: &str, server: Option<&ServerProcesses>) -> Self {
        Self {
            process: ProcessTime::read(process),
            server: server.and_then(ServerProcesses::seconds),
            machine: machine_seconds(),
        }
    }

    /// Returns the time used between two moments. Kernels may report less than before: then the time is 0.
    pub(super) fn since(&self, then: &Self) -> Self {
        let difference =
            |then: Option<f64>, now: Option<f64>| then.zip(now).map(|(then, now)| (now - then).max(0.0));
        Self {
            process: ProcessTime {
                user: (self.process.user - then.process.user).max(0.0),
                system: (self.process.system - then.process.system).max(0.0),
            },
            server: difference(then.server, self.server),
            machine: difference(then.machine, self.machine),
        }
    }

    /// The time of the process with the engine.
    pub(super) fn of_process(&self) -> f64 {
        self.process.user + self.process.system
    }

    /// The time of the whole machine, for any purpose.
    pub(super) fn of_machine(&self) -> Option<f64> {
        self.machine
    }

    /// Returns the time for each of `operations`.
    pub(super) fn each(&self, operations: u64) -> CpuEach {
        let each = |seconds: f64| seconds * 1e6 / operations.max(1) as f64;
        CpuEach {
            user_us: each(self.process.user),
            system_us: each(self.process.system),
            server_us: self.server.map(each),
        }
    }
}

/// The processor time of a process so far, in seconds. 0 if the system does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessTime {
    user: f64,
    system: f64,
}

impl ProcessTime {
    /// Reads the time of a process: its number, or `self`.
    fn read(process: &str) -> Self {
        ProcessStat::read(process).map_or_else(Self::default, |stat| stat.time)
    }
}

/// Returns the processor time of this process so far, in seconds. 0 if the system does not report it.
pub fn cpu_seconds() -> f64 {
    let time = ProcessTime::read("self");
    time.user + time.system
}

/// The entries of `/proc/PROCESS/stat` that are needed here.
#[derive(Debug, PartialEq)]
struct ProcessStat {
    name: String,
    parent: u32,
    time: ProcessTime,
    /// The time of children that have ended and were waited for.
    children: f64,
}

impl ProcessStat {
    fn read(process: &str) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // the name is in parentheses, and may contain any character
        let (head, fields) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let seconds = |i: usize| {
            fields.get(i).and_then(|it| it.parse::<u64>().ok()).map(|it| it as f64 / TICKS_PER_SECOND)
        };
        Some(Self {
            name: name.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            time: ProcessTime { user: seconds(11)?, system: seconds(12)? },
            children: seconds(13)? + seconds(14)?,
        })
    }
}

/// The processes of a Postgres server on this machine.
pub(super) struct ServerProcesses {
    postmaster: u32,
}

impl ServerProcesses {
    /// Finds the processes of the server of a connection. `None` if the server runs elsewhere, or the system does not list
    /// processes.
    pub(super) async fn find(client: &Client) -> Result<Option<Self>, Error> {
        let sql = "SELECT pg_backend_pid(), coalesce(inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1', true)";
        let row = client.query_one(sql, &[]).await.map_err(postgres_error)?;
        let is_local: bool = row.get(1);
        let session = ProcessStat::read(&row.get::<_, i32>(0).to_string());
        Ok(session
            .filter(|session| is_local && session.name.starts_with("postgres"))
            .map(|session| Self { postmaster: session.parent }))
    }

    /// Returns the time of the postmaster and of all its children so far.
    fn seconds(&self) -> Option<f64> {
        let postmaster = ProcessStat::read(&self.postmaster.to_string())?;
        let processes = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
            let number = entry.ok()?.file_name().into_string().ok()?;
            number.parse::<u32>().ok()?;
            ProcessStat::read(&number)
        });
        let children: f64 = processes
            .filter(|process| process.parent == self.postmaster)
            .map(|process| process.time.user + process.time.system)
            .sum();
        Some(postmaster.time.user + postmaster.time.system + postmaster.children + children)
    }
}

/// Returns the machine's processor time for any purpose, in seconds: user, nice, system, irq, softirq.
fn machine_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|it| it.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|&i| fields.get(i)).sum();
    Some(busy as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_process_are_parsed() {
        let stat = "4711 (a b) (c) S 42 1 1 0 -1 4194560 1 2 3 4 150 50 25 75 20 0 9 0 100";
        let expected = ProcessStat {
            name: "a b) (c".to_owned(),
            parent: 42,
            time: ProcessTime { user: 1.5, system: 0.5 },
            children: 1.0,
        };
        assert_eq!(ProcessStat::parse(stat), Some(expected));
        assert_eq!(ProcessStat::parse("4711 (cut) S 42"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processor_time_grows_with_work() {
        let before = ProcessorTime::now("self", None);
        let mut n = 0u64;
        while cpu_seconds() - before.of_process() < 0.05 {
            n = std::hint::black_box(n.wrapping_mul(31).wrapping_add(7));
        }
        let used = ProcessorTime::now("self", None).since(&before);
        assert!(used.of_process() >= 0.05 && used.of_machine().is_some_and(|it| it > 0.0));
        let each = used.each(50);
        assert!(each.user_us + each.system_us >= 1_000.0 && each.server_us.is_none(), "{each:?}");
    }
}
