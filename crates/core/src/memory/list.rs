//! Lists and counts of executions.

use super::tables::Tables;
use crate::key::Key;
use crate::payload::Payload;
use crate::store::{Execution, Filter, Page};

impl Tables {
    pub(super) fn list(&self, filter: &Filter) -> Page {
        let newest_first = self.executions.values().rev().filter(|row| matches(row, filter));
        if filter.limit == 0 {
            return Page { executions: Vec::new(), total: Some(newest_first.count() as u64) };
        }
        let executions = newest_first
            .filter(|row| filter.after.is_none_or(|after| row.key < after))
            .take(filter.limit)
            .filter_map(|row| self.execution(row.key))
            .map(|row| Execution { input: Payload::empty(), outcome: Payload::empty(), ..row })
            .collect();
        Page { executions, total: None }
    }

    /// Returns the keys of the newest executions with each value of an attribute.
    pub(super) fn find(&self, name: &str, values: &[&str], limit: u64) -> Vec<Vec<Key>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let find_value = |value: &&str| {
            let with_value =
                self.executions.values().rev().filter(|row| row.attributes.get(name) == Some(*value));
            with_value.map(|row| row.key).take(limit).collect()
        };
        values.iter().map(find_value).collect()
    }
}

/// Whether the id that the caller gave begins with `prefix`, or without such an id the text of the key.
fn has_prefix(row: &Execution, prefix: &str) -> bool {
    match &row.given_id {
        Some(id) => id.starts_with(prefix),
        None => row.key.to_string().starts_with(prefix),
    }
}

/// Whether a row matches all conditions of a filter, except its position in the list.
fn matches(row: &Execution, filter: &Filter) -> bool {
    !row.key.is_bundle()
        && (filter.statuses.is_empty() || filter.statuses.contains(&row.status))
        && filter.workflow.as_ref().is_none_or(|workflow| *workflow == row.workflow)
        && filter.is_parked.is_none_or(|is_parked| is_parked == row.is_parked)
        && filter.parent.is_none_or(|parent| row.parent.as_ref().is_some_and(|it| it.key == parent))
        && filter.id_prefix.as_ref().is_none_or(|prefix| has_prefix(row, prefix))
        && filter.app_version.as_ref().is_none_or(|version| row.app_version.as_ref() == Some(version))
        && filter.queue.as_ref().is_none_or(|queue| **queue == *row.queue())
        && row.attributes.has_all(&filter.attributes)
        && filter.created_from.is_none_or(|from| row.created_at >= from)
        && filter.created_before.is_none_or(|before| row.created_at < before)
}
