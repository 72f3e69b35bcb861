//! [`Companions`]: the files beside a database, which are open while this process uses them. [`FileIdentity`] shows
//! whether a path still leads to the file that was opened.
//!
//! `fcntl` locks do not exclude threads of one process, and closing *any* descriptor of a file drops all locks that the
//! process has on it. Therefore a process has one descriptor per file. The process counts the users of the descriptor.
//! A lock on this count is held while the descriptor is opened or closed.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepfast_core::store::StoreError;
use stepfast_core::sync::Mutex;

/// The companion files of one database.
pub(crate) struct Companions {
    /// The path of the database.
    path: PathBuf,
    usage: Mutex<CompanionUsage>,
}

/// The open files of a database, and the number of their users.
#[derive(Default)]
struct CompanionUsage {
    files: Option<Arc<CompanionFiles>>,
    users: usize,
}

/// The open companion files.
pub(crate) struct CompanionFiles {
    pub(crate) presence: File,
    pub(crate) turnstile: File,
    pub(crate) wake: File,
}

/// A use of the companion files, which stay open until all uses are dropped.
pub(crate) struct OpenCompanions {
    companions: Arc<Companions>,
    /// Always `Some`, until the drop takes it under the lock.
    files: Option<Arc<CompanionFiles>>,
}

impl Companions {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Self { path: path.to_owned(), usage: Mutex::default() })
    }

    /// Returns the path of a companion file, or of another file beside the database.
    pub(crate) fn path(&self, suffix: &str) -> PathBuf {
        companion_path(&self.path, suffix)
    }

    /// Returns the files, and opens them if they are not open.
    pub(crate) fn open(self: &Arc<Self>) -> io::Result<OpenCompanions> {
        let mut usage = self.usage.lock();
        let files = match &usage.files {
            Some(files) => files.clone(),
            None => usage.files.insert(Arc::new(CompanionFiles::open(&self.path)?)).clone(),
        };
        usage.users += 1;
        Ok(OpenCompanions { companions: self.clone(), files: Some(files) })
    }

    /// Returns the files if they are open.
    pub(crate) fn if_open(self: &Arc<Self>) -> Option<OpenCompanions> {
        let mut usage = self.usage.lock();
        let files = usage.files.clone()?;
        usage.users += 1;
        Some(OpenCompanions { companions: self.clone(), files: Some(files) })
    }

    /// Fails if the presence file was replaced since this process opened it: other processes do not see the locks on
    /// the old file.
    pub(crate) fn check_presence(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(open_files) = self.if_open() else { return Ok(()) };
        let Ok(opened) = open_files.presence.metadata() else { return Ok(()) };
        FileIdentity::of_metadata(&opened).check(&self.path("-presence")).map(drop)
    }
}

impl CompanionFiles {
    fn open(path: &Path) -> io::Result<Self> {
        let open = |suffix: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(companion_path(path, suffix))
        };
        Ok(Self { presence: open("-presence")?, turnstile: open("-turnstile")?, wake: open("-wake")? })
    }

    /// Reads the copy of the flush count from the presence file; `None` if there is no copy.
    pub(crate) fn read_flush_count(&self) -> Option<FlushCount> {
        let mut bytes = [0; 16];
        self.presence.read_exact_at(&mut bytes, 0).ok()?;
        let (nonce, count) = bytes.split_at(8);
        Some(FlushCount {
            nonce: i64::from_be_bytes(nonce.try_into().ok()?),
            count: i64::from_be_bytes(count.try_into().ok()?),
        })
    }

    /// Writes the copy of the flush count.
    pub(crate) fn write_flush_count(&self, FlushCount { nonce, count }: FlushCount) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&nonce.to_be_bytes());
        bytes[8..].copy_from_slice(&count.to_be_bytes());
        // if the write fails, a later loss of flushes may not be detected
        let _ = self.presence.write_all_at(&bytes, 0);
    }
}

impl Deref for OpenCompanions {
    type Target = CompanionFiles;

    fn deref(&self) -> &CompanionFiles {
        self.files.as_deref().unwrap_or_else(|| unreachable!("only the drop takes the files"))
    }
}

impl Drop for OpenCompanions {
    fn drop(&mut self) {
        let mut usage = self.companions.usage.lock();
        drop(self.files.take());
        usage.users -= 1;
        if usage.users == 0 {
            usage.files = None;
        }
    }
}

/// The flush count of a database: a number that flushes increment, and by which a loss of flushes is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushCount {
    /// A random number that identifies the database.
    pub(crate) nonce: i64,
    pub(crate) count: i64,
}

impl FlushCount {
    /// Fails if the flush count in the database is smaller than its copy. Ignores the copy of another database's count.
    pub(crate) fn check(self, path: &Path, copy: Self) -> Result<(), StoreError> {
        if self.nonce != copy.nonce || self.count >= copy.count {
            return Ok(());
        }
        let (database, presence, log) =
            (path.display(), companion_path(path, "-presence"), companion_path(path, "-wal"));
        Err(StoreError::Corrupt(format!(
            "{database} has less than was acknowledged: its flush count is {}, and was {}; either {} was lost or cut and must be \
             restored, or the file is an older copy; to continue with the present data, end all processes that use it, and \
             remove {}",
            self.count,
            copy.count,
            log.display(),
            presence.display(),
        )))
    }
}

/// The identity of a file in its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(crate) fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self::of_metadata(&std::fs::metadata(path)?))
    }

    fn of_metadata(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// Fails if a path leads to another file, or to no file. Returns the length of the file in bytes, or 0 if it cannot
    /// be read.
    pub(crate) fn check(self, path: &Path) -> Result<u64, StoreError> {
        let change = match std::fs::metadata(path) {
            Ok(metadata) if Self::of_metadata(&metadata) == self => return Ok(metadata.len()),
            Ok(_) => "replaced",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "deleted or moved",
            Err(_) => return Ok(0),
        };
        Err(StoreError::Corrupt(format!(
            "{} was {change} while this process had it open, and further writes to it would be lost; end all processes that \
             use the database, make sure that its files belong together, then start them again",
            path.display()
        )))
    }
}

/// Returns the path of a file beside the database.
pub(crate) fn companion_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
