//! Hostile values: every option, id, name and parameter of the Rust API accepts each value, or rejects it with an error
//! that names the option.
//!
//! An *entry point* is one place where a value enters the API. An accepted value has its effect unchanged. Unrelated
//! executions beside the entry point always complete.

mod child;
mod engine;
mod harness;
mod inbox;
mod lookup;
mod queue;
mod start;
mod step;
mod url;
mod values;

use child::child_options_are_applied_or_rejected;
use engine::{client_names_are_applied_or_rejected, engine_options_are_applied_or_rejected};
use inbox::inbox_rows_start_or_become_dead_letters_or_are_rejected;
use lookup::{filters_accept_any_value, lookups_accept_any_text};
use queue::{queue_limits_are_applied_or_rejected, queue_names_are_applied_or_rejected};
use start::{start_texts_are_applied_or_rejected, start_times_are_applied_or_rejected};
use step::{sleeps_branches_and_values_are_unbounded, step_options_are_applied_or_rejected};
use url::{store_options_are_applied_or_rejected, url_parameters_are_applied_or_rejected};

super::cases![
    child_options_are_applied_or_rejected,
    client_names_are_applied_or_rejected,
    inbox_rows_start_or_become_dead_letters_or_are_rejected,
    engine_options_are_applied_or_rejected,
    filters_accept_any_value,
    lookups_accept_any_text,
    queue_limits_are_applied_or_rejected,
    queue_names_are_applied_or_rejected,
    sleeps_branches_and_values_are_unbounded,
    start_texts_are_applied_or_rejected,
    start_times_are_applied_or_rejected,
    step_options_are_applied_or_rejected,
    store_options_are_applied_or_rejected,
    url_parameters_are_applied_or_rejected,
];
