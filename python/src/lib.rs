//! `stepfast._native`: the native part of the Python package. The package around it contains everything that programs
//! use, and passes encoded values to this part.

mod bridge;
mod convert;
mod error;
mod exit;
mod fork;
mod interpreter;
mod lock;
mod log;
mod outcome_slot;
mod poll_state;
mod python_functions;
mod runtime;
mod thread;
mod unwinding;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::bridge::batch::handle::BatchHandle;
    #[pymodule_export]
    use crate::bridge::batch::results::BatchResults;
    #[pymodule_export]
    use crate::bridge::batch::submission::BatchSubmission;
    #[pymodule_export]
    use crate::bridge::branch::{Branch, Join};
    #[pymodule_export]
    use crate::bridge::call::Call;
    #[pymodule_export]
    use crate::bridge::call::continuation::continue_as_new;
    #[pymodule_export]
    use crate::bridge::call::race::begin_race;
    #[pymodule_export]
    use crate::bridge::engine::Engine;
    #[pymodule_export]
    use crate::bridge::fork_hooks::{after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use crate::bridge::handle::Handle;
    #[pymodule_export]
    use crate::bridge::messaging::question::Question;
    #[pymodule_export]
    use crate::bridge::messaging::step::send_in_step;
    #[pymodule_export]
    use crate::bridge::messaging::stream::{StreamReader, append_to_stream, close_stream, write_stream};
    #[pymodule_export]
    use crate::bridge::messaging::token::Token;
    #[pymodule_export]
    use crate::bridge::port::Port;
    #[pymodule_export]
    use crate::bridge::scheduling::schedules::Schedules;
    #[pymodule_export]
    use crate::bridge::task_code::BranchCoroutine;
    #[pymodule_export]
    use crate::convert::graph::{GraphDeclaration, GraphProgress, GraphShape, Rule};
    #[pymodule_export]
    use crate::convert::outbox::{encode_message, encode_start, hint_channel};
    #[pymodule_export]
    use crate::convert::schedule::{Schedule, scheduled_at};
    #[pymodule_export]
    use crate::convert::signature::Signature;
    #[pymodule_export]
    use crate::convert::start_options::StartOptions;
    #[pymodule_export]
    use crate::convert::step_settings::StepSettings;
    #[pymodule_export]
    use crate::exit::park_other_threads;
    #[pymodule_export]
    use crate::log::{next_log_lines, set_log_closed};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::log::install();
        pyo3::types::PyModuleMethods::add(module, "__version__", env!("CARGO_PKG_VERSION"))
    }
}
