//! A SQLite VFS that forwards all calls to the default one, and reports writes and syncs to a [`Disk`].
//!
//! The page cache survives SIGKILL, so the effect of a power cut is visible only below SQLite. A VFS is a table of C
//! functions, and this is one of the two files with `unsafe` code.

#![allow(unsafe_code)] // SQLite's interface for file systems is a C interface

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rusqlite::ffi;

use crate::crash::disk::Disk;

/// An open file of this VFS, followed in memory by the default VFS's own.
#[repr(C)]
struct Shim {
    base: ffi::sqlite3_file,
    /// A `Box`, null for temporary files.
    tracked: *mut Tracked,
}

struct Tracked {
    disk: Arc<Disk>,
    path: PathBuf,
}

/// The context of this VFS; never freed, because SQLite keeps the VFS.
struct VfsContext {
    vfs: *mut ffi::sqlite3_vfs,
    disk: Arc<Disk>,
}

/// Registers a VFS on top of `disk`, and returns its name.
pub fn register(disk: Arc<Disk>) -> &'static str {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name: &'static str =
        Box::leak(format!("stepfast-disk-{}", NUMBER.fetch_add(1, Relaxed)).into_boxed_str());
    let c_name: &'static CStr = Box::leak(CString::new(name).unwrap().into_boxed_c_str());
    // SAFETY: the default VFS lives as long as the process; this VFS is leaked, and a copy of the default one except
    // for the fields that are set here. The copied functions use no application data of the VFS that they receive.
    unsafe {
        ffi::sqlite3_initialize();
        let below = ffi::sqlite3_vfs_find(std::ptr::null());
        assert!(!below.is_null(), "SQLite has a default VFS");
        let mut vfs = *below;
        vfs.szOsFile += c_int::try_from(size_of::<Shim>()).unwrap();
        vfs.pNext = std::ptr::null_mut();
        vfs.zName = c_name.as_ptr();
        vfs.pAppData = Box::into_raw(Box::new(VfsContext { vfs: below, disk })).cast();
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        assert_eq!(ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0), ffi::SQLITE_OK);
    }
    name
}

/// Returns the default VFS's file below a file of this VFS, and its methods.
///
/// # Safety
///
/// `file` was opened by [`open`].
unsafe fn inner(file: *mut ffi::sqlite3_file) -> (*mut ffi::sqlite3_file, &'static ffi::sqlite3_io_methods) {
    // SAFETY: SQLite allocated szOsFile bytes, in which the default VFS's file follows the shim; the default VFS set
    // its methods, which are static, when it opened the file.
    unsafe {
        let inner: *mut ffi::sqlite3_file = file.cast::<Shim>().add(1).cast();
        (inner, &*(*inner).pMethods)
    }
}

/// Returns the disk and path of a file, or `None` for a temporary file.
///
/// # Safety
///
/// `file` was opened by [`open`] and is not closed.
unsafe fn tracked<'a>(file: *mut ffi::sqlite3_file) -> Option<&'a Tracked> {
    // SAFETY: null, or a box that is freed on closing
    unsafe { (*file.cast::<Shim>()).tracked.as_ref() }
}

/// Returns a path that SQLite passed, or `None` for null.
///
/// # Safety
///
/// `name` is null or a string that SQLite owns.
unsafe fn path(name: *const c_char) -> Option<PathBuf> {
    // SAFETY: as above
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_owned())
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: called by SQLite with this VFS and szOsFile bytes for the file
    unsafe {
        let below = &*(*vfs).pAppData.cast::<VfsContext>();
        let shim = file.cast::<Shim>();
        (*shim).base.pMethods = std::ptr::null();
        (*shim).tracked = std::ptr::null_mut();
        let own: *mut ffi::sqlite3_file = shim.add(1).cast();
        let Some(open) = (*below.vfs).xOpen else { return ffi::SQLITE_ERROR };
        let code = open(below.vfs, name, own, flags, out);
        if code == ffi::SQLITE_OK {
            if let Some(path) = path(name) {
                below.disk.on_open(&path);
                (*shim).tracked = Box::into_raw(Box::new(Tracked { disk: below.disk.clone(), path }));
            }
            (*shim).base.pMethods = &raw const METHODS;
        }
        code
    }
}

unsafe extern "C" fn delete(vfs: *mut ffi::sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: called by SQLite with this VFS
    unsafe {
        let below = &*(*vfs).pAppData.cast::<VfsContext>();
        let Some(delete) = (*below.vfs).xDelete else { return ffi::SQLITE_ERROR };
        let code = delete(below.vfs, name, sync_dir);
        if let (ffi::SQLITE_OK, Some(path)) = (code, path(name)) {
            below.disk.on_delete(&path, sync_dir != 0);
        }
        code
    }
}

/// Defines functions that only forward a call.
macro_rules! forward {
    ($($method:ident as $name:ident($($argument:ident: $kind:ty),*) -> $out:ty, or $missing:expr;)*) => {
        $(unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file $(, $argument: $kind)*) -> $out {
            // SAFETY: called by SQLite with a file that `open` has opened
            unsafe {
                let (inner, methods) = inner(file);
                methods.$method.map_or($missing, |method| method(inner $(, $argument)*))
            }
        })*
    };
}

forward! {
    xRead as read(to: *mut c_void, len: c_int, at: ffi::sqlite3_int64) -> c_int, or ffi::SQLITE_IOERR;
    xFileSize as file_size(size: *mut ffi::sqlite3_int64) -> c_int, or ffi::SQLITE_IOERR;
    xLock as lock(level: c_int) -> c_int, or ffi::SQLITE_IOERR;
    xUnlock as unlock(level: c_int) -> c_int, or ffi::SQLITE_IOERR;
    xCheckReservedLock as check_reserved_lock(is_held: *mut c_int) -> c_int, or ffi::SQLITE_IOERR;
    xFileControl as file_control(what: c_int, argument: *mut c_void) -> c_int, or ffi::SQLITE_NOTFOUND;
    xSectorSize as sector_size() -> c_int, or 0;
    xDeviceCharacteristics as device_characteristics() -> c_int, or 0;
    xShmMap as shm_map(page: c_int, size: c_int, extend: c_int, to: *mut *mut c_void) -> c_int,
        or ffi::SQLITE_IOERR;
    xShmLock as shm_lock(offset: c_int, n: c_int, flags: c_int) -> c_int, or ffi::SQLITE_IOERR;
    xShmBarrier as shm_barrier() -> (), or ();
    xShmUnmap as shm_unmap(delete: c_int) -> c_int, or ffi::SQLITE_IOERR;
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    len: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: called by SQLite with `len` bytes at `from`
    unsafe {
        let (inner, methods) = inner(file);
        if let Some(Tracked { disk, path }) = tracked(file) {
            let bytes = std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(len).unwrap_or(0));
            disk.on_write(path, usize::try_from(at).unwrap_or(0), bytes);
        }
        methods.xWrite.map_or(ffi::SQLITE_IOERR, |write| write(inner, from, len, at))
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: called by SQLite with a file that `open` has opened
    unsafe {
        let (inner, methods) = inner(file);
        if let Some(Tracked { disk, path }) = tracked(file) {
            disk.on_truncate(path, usize::try_from(size).unwrap_or(0));
        }
        methods.xTruncate.map_or(ffi::SQLITE_IOERR, |truncate| truncate(inner, size))
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: called by SQLite with a file that `open` has opened
    unsafe {
        let (inner, methods) = inner(file);
        if tracked(file).is_some_and(|Tracked { disk, path }| disk.fails_to_sync(path)) {
            return ffi::SQLITE_IOERR_FSYNC;
        }
        let code = methods.xSync.map_or(ffi::SQLITE_IOERR, |sync| sync(inner, flags));
        if let (ffi::SQLITE_OK, Some(Tracked { disk, path })) = (code, tracked(file)) {
            disk.on_sync(path);
        }
        code
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: called by SQLite, once, with a file that `open` has opened
    unsafe {
        let (inner, methods) = inner(file);
        let tracked = std::mem::replace(&mut (*file.cast::<Shim>()).tracked, std::ptr::null_mut());
        if !tracked.is_null() {
            drop(Box::from_raw(tracked));
        }
        methods.xClose.map_or(ffi::SQLITE_IOERR, |close| close(inner))
    }
}

/// Version 2: shared memory, which a write-ahead log needs, and no memory-mapped reads.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
