//! [`Python`]: an experiment whose code is Python's, in a process of its own that speaks lines of JSON.
//!
//! The code is in the package (`stepfast.bench`), not in this program: it runs wherever the package is installed, is
//! checked with it, and a version that does not fit is noticed before anything is measured.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The Python that is meant by `--python`; by default the one beside this program, as in `.venv/bin`, else the
/// one on the path.
pub fn find(named: Option<&Path>) -> PathBuf {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("python"));
    match named {
        Some(path) => path.to_owned(),
        None => beside().filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("python3")),
    }
}

/// A process that runs one experiment. It ends with this.
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
    /// Starts `experiment`, and waits until it is ready to be measured.
    pub fn start(program: &Path, experiment: &str, mut parameters: Value) -> Result<Self> {
        let spawned = Command::new(program)
            .args(["-m", "stepfast.bench"])
            // not what happens to lie in the current directory
            .env("PYTHONSAFEPATH", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.with_context(|| {
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
        python.tell(&parameters)?;
        let _: Value = python.hear("ready", &|_| {})?;
        Ok(python)
    }

    fn check_version(&mut self) -> Result<()> {
        let ours = env!("CARGO_PKG_VERSION");
        let said = self.line()?;
        match said.as_ref().map(|said| said["stepfast"].as_str()) {
            Some(Some(version)) if version == ours => Ok(()),
            Some(Some(version)) => bail!(
                "the package stepfast of {} is version {version}, this program is {ours}: install both from one \
                 build, or name another Python with --python PATH",
                self.program.display()
            ),
            Some(None) => bail!("{} is no Python: name one with --python PATH", self.program.display()),
            None => {
                let said = self.said();
                bail!(
                    "{} cannot run stepfast.bench ({}): install the package stepfast {ours} there, or name \
                     another Python with --python PATH",
                    self.program.display(),
                    said.lines().last().unwrap_or_default().trim()
                )
            }
        }
    }

    /// Tells it something; it goes on from there.
    pub fn tell(&mut self, what: &Value) -> Result<()> {
        let told =
            self.input.as_mut().context("it was told to end")?.write_all(format!("{what}\n").as_bytes());
        // if it has ended, that shows when it is listened to
        if let Err(error) = told
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            return Err(error.into());
        }
        Ok(())
    }

    /// Waits until it tells its `what`; `progress` hears how far it is meanwhile.
    pub fn hear<T: DeserializeOwned>(&mut self, what: &str, progress: &dyn Fn(u64)) -> Result<T> {
        loop {
            let Some(mut said) = self.line()? else {
                let said = self.said();
                bail!("the benchmark in {} has failed: {said}", self.program.display())
            };
            if let Some(done) = said["done"].as_u64() {
                progress(done);
            } else if said.get(what).is_some() {
                return Ok(serde_json::from_value(said[what].take())?);
            }
        }
    }

    /// Tells it to go on, and waits for its `what`.
    pub fn go<T: DeserializeOwned>(&mut self, what: &str, progress: &dyn Fn(u64)) -> Result<T> {
        self.tell(&json!({}))?;
        self.hear(what, progress)
    }

    /// Lets it end; what it had to say to people.
    pub fn end(mut self) -> Result<String> {
        self.input = None;
        let ended = self.child.wait()?;
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        if !ended.success() {
            bail!("the benchmark in {} has failed: {said}", self.program.display());
        }
        Ok(said)
    }

    /// Its next line; `None` if there is none.
    fn line(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        // others of this program go on meanwhile
        let read = tokio::task::block_in_place(|| self.output.read_line(&mut line));
        match read {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line).unwrap_or(Value::Null))),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Ok(Some(Value::Null)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for its end: what it had to say to people, or how it ended if that is nothing.
    fn said(&mut self) -> String {
        self.input = None;
        let ended = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        if said.trim().is_empty() { ended } else { said.trim().to_owned() }
    }
}
