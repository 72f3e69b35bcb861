//! `stepfast._native`: what the Python package is built on. Bytes in, bytes out; everything that people import
//! is in the package beside it.

mod branch;
mod call;
mod caller_code;
mod carried;
mod code;
mod dead_letters;
mod ending;
mod engine;
mod error;
mod exit;
mod filter;
mod forked;
mod handle;
mod inline;
mod interpreter;
mod letter;
mod lock;
mod log;
mod order;
mod package;
mod port;
mod queue;
mod record;
mod reply;
mod running;
mod runtime;
mod signature;
mod slot;
mod step_settings;
mod survey;
mod turn;
mod value;
mod waiter;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::branch::{Branch, Join};
    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::code::Code;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::exit::end_threads;
    #[pymodule_export]
    use crate::forked::{after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use crate::handle::Handle;
    #[pymodule_export]
    use crate::letter::{hint_channel, letter};
    #[pymodule_export]
    use crate::log::{close_log, next_log_lines};
    #[pymodule_export]
    use crate::order::Order;
    #[pymodule_export]
    use crate::port::Port;
    #[pymodule_export]
    use crate::signature::Signature;
    #[pymodule_export]
    use crate::step_settings::StepSettings;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::log::install();
        pyo3::types::PyModuleMethods::add(module, "__version__", env!("CARGO_PKG_VERSION"))
    }
}
