//! [`Disk`]: what a disk has for sure, and what it would lose or mangle if the power went now.
//!
//! [`vfs`](crate::crash::vfs) tells it of every write, truncation, sync and deletion of SQLite. Until a file is
//! synced, what was written to it since may be there after a cut or not, in any combination, torn at sectors.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A write reaches the disk in pieces of this size.
const SECTOR_BYTES: usize = 512;

/// What a frame of the write-ahead log begins with, and the log itself.
const FRAME_HEADER_BYTES: usize = 24;

/// What becomes of writes that were not synced when the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// None is there.
    Lost,
    /// Each is there or not, as a whole.
    Scattered,
    /// Each sector of each is there or not.
    Torn,
}

impl PowerCut {
    /// All of them.
    pub const ALL: [PowerCut; 3] = [PowerCut::Lost, PowerCut::Scattered, PowerCut::Torn];
}

enum FileChange {
    Write(usize, Vec<u8>),
    Truncate(usize),
    Delete,
}

#[derive(Default)]
struct FileState {
    /// What was there at the last sync; `None` if the file was not.
    durable: Option<Vec<u8>>,
    pending: Vec<FileChange>,
}

/// What happened to the log of a database, and what was acknowledged, in the order of time.
#[derive(Default)]
struct Timeline {
    next: u64,
    /// Marks in pages of the write-ahead log: when each was first written.
    written: HashMap<Vec<u8>, u64>,
    /// When frames that end a transaction were written.
    commits: Vec<u64>,
    /// When syncs of the log had returned.
    syncs: Vec<u64>,
    /// True while the header of a frame says that it ends a transaction, until its page comes.
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
    /// What marks begin with, if marks are looked for.
    mark: Option<&'static [u8]>,
    /// The syncs that fail: of files whose names end so, after this many that succeed, this many.
    failures: Mutex<Vec<(&'static str, u32, u32)>>,
}

/// Bytes of a mark behind what it begins with.
pub const MARK_SUFFIX_BYTES: usize = 12;

impl Disk {
    /// A disk that also keeps when marks (`prefix` and [`MARK`] bytes more) were written to the log.
    pub fn with_marks(prefix: &'static [u8]) -> Self {
        Self { mark: Some(prefix), ..Self::default() }
    }

    /// Lets syncs of the files whose names end with `suffix` fail: `count` of them, after `after` that succeed.
    pub fn fail_syncs(&self, suffix: &'static str, after: u32, count: u32) {
        self.failures.lock().unwrap().push((suffix, after, count));
    }

    /// Lets all syncs succeed from here on.
    pub fn heal(&self) {
        self.failures.lock().unwrap().clear();
    }

    /// True if a sync of the file fails now. What it should have written is lost then, as the system reports an error once
    /// and takes its pages for written: only those that are written again come with a later sync.
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

    /// SQLite writes a frame's header by itself, then its page.
    fn record_log_write(&self, prefix: &[u8], bytes: &[u8]) {
        let mut timeline = self.timeline.lock().unwrap();
        let at = timeline.tick();
        if bytes.len() == FRAME_HEADER_BYTES {
            timeline.is_commit = bytes[4..8] != [0; 4];
            return;
        }
        for mark in bytes.windows(prefix.len() + MARK_SUFFIX_BYTES).filter(|window| window.starts_with(prefix)) {
            timeline.written.entry(mark.to_vec()).or_insert(at);
        }
        if std::mem::take(&mut timeline.is_commit) {
            timeline.commits.push(at);
        }
    }

    pub(crate) fn on_truncate(&self, path: &Path, len: usize) {
        self.add_change(path, FileChange::Truncate(len));
    }

    /// `is_durable`: the directory was synced too.
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
            // with a new journal SQLite syncs the directory too: what was deleted in it stays deleted
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

    /// Cuts the power: what would be found after it is put into the directory `into`, under the same names.
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
                            // sectors are those of the file, not of the write
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

    /// What time it is on the disk: for an acknowledgement that has just been heard.
    pub fn now(&self) -> u64 {
        self.timeline.lock().unwrap().tick()
    }

    /// When the sync had returned that covers the commit of the transaction in which the mark was first
    /// written; `None` if there was none.
    pub fn durable_at(&self, mark: &[u8]) -> Option<u64> {
        let timeline = self.timeline.lock().unwrap();
        let after = |times: &[u64], at: u64| {
            let i = times.partition_point(|time| *time < at);
            times.get(i).copied()
        };
        let written = *timeline.written.get(mark)?;
        after(&timeline.syncs, after(&timeline.commits, written)?)
    }

    /// How often the log was synced.
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
