//! [`Python`]: an experiment in a Python process, which exchanges lines of JSON with this program.
//!
//! The Python code is in the package (`stepfast.bench`), not in this program: it runs wherever the package is installed and
//! is checked with it. A version that does not match is reported before anything is measured.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Returns the Python that `--python` names. The default is the one in this program's directory, such as `.venv/bin`, or
/// else the one on the path.
pub fn find_python(path_option: Option<&Path>) -> PathBuf {
    let own_interpreter = || Some(std::env::current_exe().ok()?.parent()?.join("python"));
    match path_option {
        Some(path) => path.to_owned(),
        None => own_interpreter().filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("python3")),
    }
}

/// A process that runs one experiment. Dropping it kills the process.
pub struct Python {
    program: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: Option<JoinHandle<String>>,
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Python {
    /// Starts `experiment`, and waits until it is ready.
    pub fn start(program: &Path, experiment: &str, mut parameters: Value) -> Result<Self> {
        let started = Command::new(program)
            .args(["-m", "stepfast.bench"])
            // modules in the current directory must not be imported
            .env("PYTHONSAFEPATH", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = started.with_context(|| {
            format!(
                "cannot start {}; name a Python that has the package stepfast: --python PATH",
                program.display()
            )
        })?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let output = BufReader::new(output.context("no output")?);
        let mut errors = errors.context("no errors")?;
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut python = Self { program: program.to_owned(), child, input, output, errors: Some(errors) };
        python.check_version()?;
        parameters["experiment"] = experiment.into();
        python.send(&parameters)?;
        let _: Value = python.receive("ready", &|_| {})?;
        Ok(python)
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn check_version(&mut self) -> Result<()> {
        let own_version = env!("CARGO_PKG_VERSION");
        let message = self.read_line()?;
        match message.as_ref().map(|message| message["stepfast"].as_str()) {
            Some(Some(version)) if version == own_version => Ok(()),
            Some(Some(version)) => bail!(
                "the package stepfast of {} is version {version}, this program is {own_version}: install both from one \
                 build, or name another Python with --python PATH",
                self.program.display()
            ),
            Some(None) => {
                bail!("{} is not a Python interpreter: name one with --python PATH", self.program.display())
            }
            None => {
                let errors = self.wait_for_error_text();
                bail!(
                    "{} cannot run stepfast.bench ({}): install the package stepfast {own_version} there, or name \
                     another Python with --python PATH",
                    self.program.display(),
                    errors.lines().last().unwrap_or_default().trim()
                )
            }
        }
    }

    /// Sends a message, which lets the process continue.
    pub fn send(&mut self, message: &Value) -> Result<()> {
        let written =
            self.input.as_mut().context("its input is closed")?.write_all(format!("{message}\n").as_bytes());
        // if the process has ended, the next `receive` reports that
        if let Err(error) = written
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            return Err(error.into());
        }
        Ok(())
    }

    /// Waits for a message with the key `key`. `progress` receives the progress until then.
    pub fn receive<T: DeserializeOwned>(&mut self, key: &str, progress: &dyn Fn(u64)) -> Result<T> {
        loop {
            let Some(mut message) = self.read_line()? else {
                let errors = self.wait_for_error_text();
                bail!("the benchmark in {} has failed: {errors}", self.program.display())
            };
            if let Some(done) = message["done"].as_u64() {
                progress(done);
            } else if message.get(key).is_some() {
                return Ok(serde_json::from_value(message[key].take())?);
            }
        }
    }

    /// Lets the process continue.
    pub fn resume(&mut self) -> Result<()> {
        self.send(&json!({}))
    }

    /// Lets the process continue, and waits for a message with the key `key`.
    pub fn resume_until<T: DeserializeOwned>(&mut self, key: &str, progress: &dyn Fn(u64)) -> Result<T> {
        self.resume()?;
        self.receive(key, progress)
    }

    /// Waits for the end of the process. Returns its messages for the user.
    pub fn finish(mut self) -> Result<String> {
        self.input = None;
        let status = self.child.wait()?;
        let errors = self.errors.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if !status.success() {
            bail!("the benchmark in {} has failed: {errors}", self.program.display());
        }
        Ok(errors)
    }

    /// Reads the next line. `None` means that the output is closed.
    fn read_line(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        // other tasks of this program must not be blocked
        let read = tokio::task::block_in_place(|| self.output.read_line(&mut line));
        match read {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line).unwrap_or(Value::Null))),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Ok(Some(Value::Null)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the end of the process. Returns its error output, or its exit status if it has written none.
    fn wait_for_error_text(&mut self) -> String {
        self.input = None;
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let errors = self.errors.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if errors.trim().is_empty() { status } else { errors.trim().to_owned() }
    }
}
