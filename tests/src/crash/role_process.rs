//! [`RoleProcess`]: a test binary that is started again with a role, and that a test kills.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A process that runs the case `child` of this test binary; killed when it is dropped.
pub struct RoleProcess {
    child: Child,
    /// Receives a message when the process has ended.
    end: Receiver<()>,
}

impl RoleProcess {
    /// Starts a process with these variables of its environment.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child"]).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (ended, end) = channel();
        std::thread::spawn(move || {
            let _ = output.read_to_end(&mut Vec::new());
            let _ = ended.send(());
        });
        Self { child, end }
    }

    /// Kills the process. Returns its maximum memory, in KiB.
    pub fn kill(mut self) -> u64 {
        let memory = peak_memory(self.child.id());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        memory
    }

    /// Waits until the process has ended by itself without an error, for at most this time. Returns whether it has.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        if self.end.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "a process failed: {status:?}");
        true
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the maximum memory that a process has taken so far, in KiB; 0 where the system does not report it.
pub fn peak_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    peak.map_or(0, |kib| kib.trim().parse().unwrap())
}
