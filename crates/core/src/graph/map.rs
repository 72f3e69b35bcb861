//! Tasks that are mapped over the items of a list: each item is a branch with a step of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::failure::Failure;
use crate::graph::code::{GraphCode, MapItems};
use crate::graph::place::TaskPlace;
use crate::graph::task::{TaskEnd, run_task};
use crate::payload::Payload;
use crate::runtime::run::Run;
use crate::workflow::branch::BranchGroup;

/// Runs a task for all items, and returns the list of their values in the order of the items. The items begin in their
/// order, at most `max_items` at a time. Items that are repeated after a resume begin after the others, so that they
/// hold back no recorded item. If some of the items fail, the others run to their end, and the failure is that of the
/// first failed item.
pub(super) async fn run_items(
    run: &Arc<Run>,
    code: &GraphCode,
    task: usize,
    items: MapItems,
    max_items: usize,
) -> Result<Payload, Failure> {
    let group = BranchGroup::new(run);
    let (first_place, body) = (code.shape.place(task), &items.body);
    let mut values: Vec<Payload> = Vec::with_capacity(items.len);
    let mut repeated: VecDeque<(usize, TaskPlace)> = VecDeque::new();
    let mut failed: Option<(usize, Failure)> = None;
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < max_items {
            let next = if values.len() < items.len {
                values.push(Payload::empty());
                let index = values.len() - 1;
                Some((index, first_place.item(index as u32)))
            } else {
                repeated.pop_front()
            };
            let Some((index, place)) = next else { break };
            group.begin();
            let item = run_task(run, code, task, place, move || body(index));
            running.push(item.map(move |end| (index, end)));
        }
        let Some((index, end)) = running.next().await else { break };
        group.end();
        match end {
            TaskEnd::Ended(Ok(ended)) => values[index] = ended.value,
            TaskEnd::Ended(Err(failure)) if failed.as_ref().is_none_or(|(first, _)| index < *first) => {
                failed = Some((index, failure));
            }
            TaskEnd::Ended(Err(_)) => {}
            TaskEnd::Repeated(place, _) => repeated.push_back((index, place)),
        }
    }
    match failed {
        Some((index, failure)) => {
            // as in the path of the item, the first one has the number 1
            let message = format!("item {} of {} failed: {}", index + 1, items.len, failure.message);
            Err(Failure { message, ..failure })
        }
        None => Ok(join_values(&values)),
    }
}

/// Returns the list of encoded values as one encoded value.
fn join_values(values: &[Payload]) -> Payload {
    let bytes: usize = values.iter().map(Payload::len).sum();
    let mut list = Vec::with_capacity(bytes + 5);
    // the head of an array in MessagePack
    match values.len() {
        len @ 0..=15 => list.push(0x90 | len as u8),
        len @ 16..=0xffff => {
            list.push(0xdc);
            list.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            list.push(0xdd);
            list.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    for value in values {
        list.extend_from_slice(value.as_message_pack().unwrap_or(&[0xc0]));
    }
    Payload::from_message_pack(&list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_values_are_a_list() {
        for len in [0, 1, 15, 16, 300, 0xffff, 0x1_0000] {
            let values: Vec<Payload> = (0..len).map(|n| Payload::encode(&(n, "x")).unwrap()).collect();
            let expected: Vec<(u32, String)> = (0..len).map(|n| (n, "x".to_owned())).collect();
            assert_eq!(join_values(&values).decode::<Vec<(u32, String)>>().unwrap(), expected);
        }
    }
}
