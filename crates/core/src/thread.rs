//! Threads of the engine, each with a tokio runtime of its own.

use crate::error::Error;

/// Runs `future` on a new thread that has a tokio runtime of its own.
pub(crate) fn spawn_on_thread(
    name: String,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let fail = |error: std::io::Error| Error::Unavailable(format!("cannot start a thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
    std::thread::Builder::new().name(name).spawn(move || runtime.block_on(future)).map_err(fail)?;
    Ok(())
}
