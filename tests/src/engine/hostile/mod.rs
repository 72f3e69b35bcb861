//! Hostile values: every option, id, name and parameter of the Rust API works with each value, or refuses it by name.
//!
//! A *door* is one place where a value enters. A value that a door takes has its effect unchanged. Innocent executions
//! beside the door always complete.

mod ask;
mod child;
mod engine;
mod inbox;
mod queue;
mod stage;
mod start;
mod step;
mod url;
mod values;

use ask::{filters_take_any_value, questions_take_any_text};
use child::children_take_an_option_or_refuse_it;
use engine::{clients_take_a_name_or_refuse_it, engines_take_an_option_or_refuse_it};
use inbox::each_row_of_the_inbox_starts_or_dies_or_is_refused;
use queue::{queues_take_a_limit_or_refuse_it, queues_take_a_name_or_refuse_it};
use start::{starts_take_a_text_or_refuse_it, starts_take_a_time_or_refuse_it};
use step::{sleeps_branches_and_values_have_no_bounds, steps_take_an_option_or_refuse_it};
use url::{stores_take_an_option_or_refuse_it, urls_take_a_parameter_or_refuse_it};

super::cases![
    children_take_an_option_or_refuse_it,
    clients_take_a_name_or_refuse_it,
    each_row_of_the_inbox_starts_or_dies_or_is_refused,
    engines_take_an_option_or_refuse_it,
    filters_take_any_value,
    questions_take_any_text,
    queues_take_a_limit_or_refuse_it,
    queues_take_a_name_or_refuse_it,
    sleeps_branches_and_values_have_no_bounds,
    starts_take_a_text_or_refuse_it,
    starts_take_a_time_or_refuse_it,
    steps_take_an_option_or_refuse_it,
    stores_take_an_option_or_refuse_it,
    urls_take_a_parameter_or_refuse_it,
];
