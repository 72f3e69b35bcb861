//! [`Companions`]: the files beside a database, open while anything in this process uses them; and [`Identity`], which tells
//! whether a path still leads to the file that was opened.
//!
//! `fcntl` locks do not exclude threads of one process, and closing *any* descriptor of a file drops all the locks that the
//! process has on it. So there is one descriptor per process and file. Its users are counted, and it is opened and closed
//! under the lock of their number.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepfast_core::store::StoreError;
use stepfast_core::sync::Mutex;

/// The companions of one database.
pub(crate) struct Companions {
    /// The database.
    path: PathBuf,
    open: Mutex<CompanionUsage>,
}

#[derive(Default)]
struct CompanionUsage {
    files: Option<Arc<CompanionFiles>>,
    users: usize,
}

/// The files themselves.
pub(crate) struct CompanionFiles {
    pub(crate) presence: File,
    pub(crate) turnstile: File,
    pub(crate) wake: File,
}

/// A use of the files: they stay open until it is dropped.
pub(crate) struct OpenCompanions {
    companions: Arc<Companions>,
    /// Always there, until it is dropped under the lock.
    files: Option<Arc<CompanionFiles>>,
}

impl Companions {
    pub(crate) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Self { path: path.to_owned(), open: Mutex::default() })
    }

    /// The path of one of the files, or of another file beside the database.
    pub(crate) fn path(&self, suffix: &str) -> PathBuf {
        companion_path(&self.path, suffix)
    }

    /// Returns the files, and opens them if they are not open.
    pub(crate) fn open(self: &Arc<Self>) -> io::Result<OpenCompanions> {
        let mut open = self.open.lock();
        let files = match &open.files {
            Some(files) => files.clone(),
            None => open.files.insert(Arc::new(CompanionFiles::open(&self.path)?)).clone(),
        };
        open.users += 1;
        Ok(OpenCompanions { companions: self.clone(), files: Some(files) })
    }

    /// Returns the files if they are open.
    pub(crate) fn if_open(self: &Arc<Self>) -> Option<OpenCompanions> {
        let mut open = self.open.lock();
        let files = open.files.clone()?;
        open.users += 1;
        Some(OpenCompanions { companions: self.clone(), files: Some(files) })
    }

    /// Refuses a presence file that is not the one which this process has open: its locks say nothing to others then.
    pub(crate) fn check_presence(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(used) = self.if_open() else { return Ok(()) };
        let Ok(opened) = used.presence.metadata() else { return Ok(()) };
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

    /// Returns the copy of the count of flushes, if there is one: the nonce of the database, and the count.
    pub(crate) fn read_flush_count(&self) -> Option<FlushCount> {
        let mut bytes = [0; 16];
        self.presence.read_exact_at(&mut bytes, 0).ok()?;
        let (nonce, count) = bytes.split_at(8);
        Some(FlushCount {
            nonce: i64::from_be_bytes(nonce.try_into().ok()?),
            count: i64::from_be_bytes(count.try_into().ok()?),
        })
    }

    /// Writes the copy of the count of flushes.
    pub(crate) fn write_flush_count(&self, FlushCount { nonce, count }: FlushCount) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&nonce.to_be_bytes());
        bytes[8..].copy_from_slice(&count.to_be_bytes());
        // where it cannot be written, a loss may not be noticed
        let _ = self.presence.write_all_at(&bytes, 0);
    }
}

impl Deref for OpenCompanions {
    type Target = CompanionFiles;

    fn deref(&self) -> &CompanionFiles {
        self.files.as_deref().unwrap_or_else(|| unreachable!("it is taken when it is dropped"))
    }
}

impl Drop for OpenCompanions {
    fn drop(&mut self) {
        let mut open = self.companions.open.lock();
        drop(self.files.take());
        open.users -= 1;
        if open.users == 0 {
            open.files = None;
        }
    }
}

/// How many flushes of a database were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushCount {
    pub(crate) nonce: i64,
    pub(crate) count: i64,
}

impl FlushCount {
    /// Refuses a database that has less than a copy of its count says. A copy of another database says nothing.
    pub(crate) fn check(self, path: &Path, copy: Self) -> Result<(), StoreError> {
        if self.nonce != copy.nonce || self.count >= copy.count {
            return Ok(());
        }
        let (at, presence, log) = (path.display(), companion_path(path, "-presence"), companion_path(path, "-wal"));
        Err(StoreError::Corrupt(format!(
            "{at} has less than was acknowledged: it is at count {}, and was at {}; either {} was lost or cut, and has to be put \
             back, or the file is an older copy; to go on with what is there, end all processes that use it, and remove {}",
            self.count,
            copy.count,
            log.display(),
            presence.display(),
        )))
    }
}

/// Which file of the system a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(crate) fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self::of_metadata(&std::fs::metadata(path)?))
    }

    fn of_metadata(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }

    /// Refuses a path that leads to another file, or to none. Returns the length of the file, 0 if the system does not tell.
    pub(crate) fn check(self, path: &Path) -> Result<u64, StoreError> {
        let was = match std::fs::metadata(path) {
            Ok(found) if Self::of_metadata(&found) == self => return Ok(found.len()),
            Ok(_) => "replaced",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "deleted or moved",
            Err(_) => return Ok(0),
        };
        Err(StoreError::Corrupt(format!(
            "{} was {was} while this process had it open, and what is written to it is lost; end all processes that \
             use the database, see that its files are those that belong together, then start them again",
            path.display()
        )))
    }
}

/// The path of a file beside the database.
pub(crate) fn companion_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
