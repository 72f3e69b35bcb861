//! [`Disk`]: the durable content of a simulated disk, and the content after a power cut.
//!
//! [`vfs`](crate::crash::vfs) reports every write, truncation, sync and deletion of SQLite to it. After a power cut,
//! the writes to a file since its last sync may be present in any combination, torn at sectors.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Size of the units in which a write reaches the disk.
const SECTOR_BYTES: usize = 512;

/// Length of the headers of the write-ahead log and of its frames.
const FRAME_HEADER_BYTES: usize = 24;

/// The effect of a power cut on writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// No write is present.
    Lost,
    /// Each write is present or absent as a whole.
    Scattered,
    /// Each sector of a write is present or absent.
    Torn,
}

impl PowerCut {
    /// Every kind of power cut.
    pub const ALL: [PowerCut; 3] = [PowerCut::Lost, PowerCut::Scattered, PowerCut::Torn];
}

enum FileChange {
    Write(usize, Vec<u8>),
    Truncate(usize),
    Delete,
}

#[derive(Default)]
struct FileState {
    /// The content at the last sync; `None` if the file did not exist.
    durable: Option<Vec<u8>>,
    pending: Vec<FileChange>,
}

/// The history of a database's log and of acknowledgements, in order.
#[derive(Default)]
struct Timeline {
    next: u64,
    /// Marks in pages of the write-ahead log, with the time when each was first written.
    written: HashMap<Vec<u8>, u64>,
    /// Times at which frames that end a transaction were written.
    commits: Vec<u64>,
    /// Times at which syncs of the log returned.
    syncs: Vec<u64>,
    /// Whether the last frame header ends a transaction; its page follows.
    is_commit: bool,
}

impl Timeline {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A disk under one database; see the module.
#[derive(Default)]
pub struct Disk {
    files: Mutex<BTreeMap<PathBuf, FileState>>,
    timeline: Mutex<Timeline>,
    /// The prefix of marks, if marks are recorded.
    mark: Option<&'static [u8]>,
    /// The syncs that fail: the suffix of their files, the number of syncs that succeed before, and the number that
    /// fail.
    failures: Mutex<Vec<(&'static str, u32, u32)>>,
}

/// Length of a mark after its prefix.
pub const MARK_SUFFIX_BYTES: usize = 12;

impl Disk {
    /// Creates a disk that also records when marks (`prefix` and [`MARK_SUFFIX_BYTES`] more bytes) were written to
    /// the log.
    pub fn with_marks(prefix: &'static [u8]) -> Self {
        Self { mark: Some(prefix), ..Self::default() }
    }

    /// Makes `count` syncs of files with this suffix fail, after `after` syncs that succeed.
    pub fn fail_syncs(&self, suffix: &'static str, after: u32, count: u32) {
        self.failures.lock().unwrap().push((suffix, after, count));
    }

    /// Makes all further syncs succeed.
    pub fn heal(&self) {
        self.failures.lock().unwrap().clear();
    }

    /// Returns whether a sync of the file fails now. A failed sync loses its writes: the system reports the error
    /// once and then treats the pages as written, so a later sync contains only those that are written again.
    pub(crate) fn fails_to_sync(&self, path: &Path) -> bool {
        let name = path.to_string_lossy();
        let mut failures = self.failures.lock().unwrap();
        let mut fails = false;
        for (_, after, count) in failures.iter_mut().filter(|(suffix, ..)| name.ends_with(suffix)) {
            if let Some(rest) = after.checked_sub(1) {
                *after = rest;
            } else if let Some(rest) = count.checked_sub(1) {
                *count = rest;
                fails = true;
            }
        }
        drop(failures);
        if fails && let Some(file) = self.files.lock().unwrap().get_mut(path) {
            file.pending.retain(|change| !matches!(change, FileChange::Write(..)));
        }
        fails
    }

    pub(crate) fn on_open(&self, path: &Path) {
        self.files.lock().unwrap().entry(path.to_owned()).or_default();
    }

    pub(crate) fn on_write(&self, path: &Path, offset: usize, bytes: &[u8]) {
        self.add_change(path, FileChange::Write(offset, bytes.to_vec()));
        if let Some(prefix) = self.mark
            && is_log(path)
        {
            self.record_log_write(prefix, bytes);
        }
    }

    /// Records a write to the log. SQLite writes a frame's header separately, then its page.
    fn record_log_write(&self, prefix: &[u8], bytes: &[u8]) {
        let mut timeline = self.timeline.lock().unwrap();
        let at = timeline.tick();
        if bytes.len() == FRAME_HEADER_BYTES {
            timeline.is_commit = bytes[4..8] != [0; 4];
            return;
        }
        for mark in
            bytes.windows(prefix.len() + MARK_SUFFIX_BYTES).filter(|window| window.starts_with(prefix))
        {
            timeline.written.entry(mark.to_vec()).or_insert(at);
        }
        if std::mem::take(&mut timeline.is_commit) {
            timeline.commits.push(at);
        }
    }

    pub(crate) fn on_truncate(&self, path: &Path, len: usize) {
        self.add_change(path, FileChange::Truncate(len));
    }

    /// Records a deletion. `is_durable`: the directory was synced too.
    pub(crate) fn on_delete(&self, path: &Path, is_durable: bool) {
        if is_durable {
            self.files.lock().unwrap().insert(path.to_owned(), FileState::default());
        } else {
            self.add_change(path, FileChange::Delete);
        }
    }

    fn add_change(&self, path: &Path, change: FileChange) {
        self.files.lock().unwrap().entry(path.to_owned()).or_default().pending.push(change);
    }

    pub(crate) fn on_sync(&self, path: &Path) {
        let mut files = self.files.lock().unwrap();
        if !is_database(path) && files.get(path).is_none_or(|file| file.durable.is_none()) {
            // with a new journal, SQLite syncs the directory too: earlier deletions become durable
            for file in files.values_mut() {
                if let Some(last) = file.pending.iter().rposition(|it| matches!(it, FileChange::Delete)) {
                    file.durable = None;
                    file.pending.drain(..=last);
                }
            }
        }
        let file = files.entry(path.to_owned()).or_default();
        let mut image = file.durable.take();
        for change in file.pending.drain(..) {
            match change {
                FileChange::Write(offset, bytes) => write_at(image.get_or_insert_default(), offset, &bytes),
                FileChange::Truncate(len) => image.get_or_insert_default().resize(len, 0),
                FileChange::Delete => image = None,
            }
        }
        file.durable = Some(image.unwrap_or_default());
        drop(files);
        if is_log(path) {
            let mut timeline = self.timeline.lock().unwrap();
            let at = timeline.tick();
            timeline.syncs.push(at);
        }
    }

    /// Cuts the power: writes the remaining content of all files to the directory `into`, under the same names.
    pub fn cut_power(&self, cut: PowerCut, rng: &mut fastrand::Rng, into: &Path) {
        let files = self.files.lock().unwrap();
        for (path, file) in files.iter() {
            let mut image = file.durable.clone();
            for change in &file.pending {
                if cut == PowerCut::Lost || (cut == PowerCut::Scattered && rng.bool()) {
                    continue;
                }
                match change {
                    FileChange::Truncate(_) | FileChange::Delete if cut == PowerCut::Torn && rng.bool() => {}
                    FileChange::Truncate(len) => image.get_or_insert_default().resize(*len, 0),
                    FileChange::Delete => image = None,
                    FileChange::Write(offset, bytes) if cut == PowerCut::Scattered => {
                        write_at(image.get_or_insert_default(), *offset, bytes);
                    }
                    FileChange::Write(offset, bytes) => {
                        let image = image.get_or_insert_default();
                        let mut at = 0;
                        while at < bytes.len() {
                            // sectors are aligned to the file, not to the write
                            let end = (at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES).min(bytes.len());
                            if rng.bool() {
                                write_at(image, offset + at, &bytes[at..end]);
                            }
                            at = end;
                        }
                    }
                }
            }
            if let (Some(image), Some(name)) = (image, path.file_name()) {
                fs::write(into.join(name), image).unwrap();
            }
        }
    }

    /// Returns the current time on the disk, for an acknowledgement that was just received.
    pub fn now(&self) -> u64 {
        self.timeline.lock().unwrap().tick()
    }

    /// Returns the time at which a mark became durable: the end of the first sync after the commit of the transaction
    /// that wrote the mark. Returns `None` without such a sync.
    pub fn durable_at(&self, mark: &[u8]) -> Option<u64> {
        let timeline = self.timeline.lock().unwrap();
        let after = |times: &[u64], at: u64| {
            let i = times.partition_point(|time| *time < at);
            times.get(i).copied()
        };
        let written = *timeline.written.get(mark)?;
        after(&timeline.syncs, after(&timeline.commits, written)?)
    }

    /// Returns the number of syncs of the log.
    pub fn sync_count(&self) -> usize {
        self.timeline.lock().unwrap().syncs.len()
    }
}

fn is_database(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "db")
}

fn is_log(path: &Path) -> bool {
    path.to_string_lossy().ends_with("-wal")
}

fn write_at(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if image.len() < offset + bytes.len() {
        image.resize(offset + bytes.len(), 0);
    }
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}
