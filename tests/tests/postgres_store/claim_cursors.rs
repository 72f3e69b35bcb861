//! Claim cursors: rows that claims skip because they were taken, and rows that they find nevertheless.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::Key;
use stepfast_core::queue::Placement;
use stepfast_core::store::{Start, Write};

use super::support::*;

const CLOCK_STEP: Duration = Duration::from_millis(150);

/// Returns a Start in the default queue.
fn start_with_priority(key: Key, priority: i32) -> Write {
    let placement = Some(Arc::new(Placement { queue: "default".into(), key: "".into(), priority }));
    Write::Start(Box::new(Start { placement, ..start_of(key, QUEUED) }))
}

impl Fixture {
    async fn claim_keys(&self, limit: usize) -> Vec<Key> {
        self.take(limit).await.iter().map(|record| record.execution.key).collect()
    }

    /// Claims executions one by one for about a second, so that later claims skip their rows.
    async fn claim_until_full_scan(&self) {
        for _ in 0..6 {
            let key = Key::mint(0);
            self.write(vec![start(key, QUEUED)]).await;
            assert_eq!(self.claim_keys(1).await, [key]);
            self.clock.advance(CLOCK_STEP);
        }
    }
}

#[tokio::test]
async fn urgent_or_resumed_rows_are_found_before_cursor() {
    let db = Fixture::new().await;
    db.claim_until_full_scan().await;
    let [later, now, soon, begun, again]: [Key; 5] = std::array::from_fn(|_| Key::mint(0));
    db.write(vec![start(begun, RUNNING), start_with_priority(again, -5)]).await;
    assert_eq!(db.claim_keys(1).await, [again]);
    db.write(vec![start(later, QUEUED), start_with_priority(soon, -1), start_with_priority(now, -2)]).await;
    db.write(vec![transition(begun, QUEUED), transition(again, QUEUED)]).await;
    assert_eq!(db.claim_keys(9).await, [again, now, soon, begun, later]);
}

#[tokio::test]
async fn late_committed_row_is_found_within_two_seconds() {
    let db = Fixture::new().await;
    let late = Key::mint(0);
    let mut other_session = client(&db.schema).await;
    let open = other_session.transaction().await.unwrap();
    let insert = "INSERT INTO executions (created_at, status, key, workflow, input) \
                  VALUES (now(), 1, $1, 'order', '7')";
    open.execute(insert, &[&uuid(late)]).await.unwrap();
    let insert = "INSERT INTO ready (execution, route) VALUES ($1, E'order\\x01\\x01default')";
    open.execute(insert, &[&uuid(late)]).await.unwrap();
    db.claim_until_full_scan().await;
    open.commit().await.unwrap();
    // every claim finds a row, so that no claim rescans because of an empty result
    for _ in 0..20 {
        let key = Key::mint(0);
        db.write(vec![start(key, QUEUED)]).await;
        let claimed = db.claim_keys(9).await;
        if claimed == [late, key] {
            return;
        }
        assert_eq!(claimed, [key]);
        db.clock.advance(CLOCK_STEP);
    }
    panic!("the row was not found");
}
