//! Heads of queues: what claims pass over because it was taken, and what they find all the same.

use std::sync::Arc;
use std::time::Duration;

use stepfast_core::Key;
use stepfast_core::queue::Placement;
use stepfast_core::store::{Start, Write};

use super::support::*;

const PAUSE: Duration = Duration::from_millis(150);

fn urgent(key: Key, priority: i32) -> Write {
    let ticket = Some(Arc::new(Placement { queue: "default".into(), key: "".into(), priority }));
    Write::Start(Box::new(Start { placement: ticket, ..start_of(key, QUEUED) }))
}

impl Fixture {
    async fn taken(&self, limit: usize) -> Vec<Key> {
        self.take(limit).await.iter().map(|record| record.execution.key).collect()
    }

    /// Takes one after the other for about a second, so that claims pass over them.
    async fn take_for_a_while(&self) {
        for _ in 0..6 {
            let key = Key::mint(0);
            self.write(vec![start(key, QUEUED)]).await;
            assert_eq!(self.taken(1).await, [key]);
            self.clock.advance(PAUSE);
        }
    }
}

#[tokio::test]
async fn urgent_or_resumed_rows_are_found_before_cursor() {
    let db = Fixture::new().await;
    db.take_for_a_while().await;
    let [later, now, soon, begun, again]: [Key; 5] = std::array::from_fn(|_| Key::mint(0));
    db.write(vec![start(begun, RUNNING), urgent(again, -5)]).await;
    assert_eq!(db.taken(1).await, [again]);
    db.write(vec![start(later, QUEUED), urgent(soon, -1), urgent(now, -2)]).await;
    db.write(vec![moved(begun, QUEUED), moved(again, QUEUED)]).await;
    assert_eq!(db.taken(9).await, [again, now, soon, begun, later]);
}

#[tokio::test]
async fn late_committed_row_is_found_within_two_seconds() {
    let db = Fixture::new().await;
    let late = Key::mint(0);
    let mut somebody = client(&db.schema).await;
    let open = somebody.transaction().await.unwrap();
    let insert = "INSERT INTO executions (created_at, status, key, workflow, input) \
                  VALUES (now(), 1, $1, 'order', '7')";
    open.execute(insert, &[&uuid(late)]).await.unwrap();
    let insert = "INSERT INTO ready (execution, workflow) VALUES ($1, 'order')";
    open.execute(insert, &[&uuid(late)]).await.unwrap();
    db.take_for_a_while().await;
    open.commit().await.unwrap();
    // there is always something to take, so that nobody looks because there is not
    for _ in 0..20 {
        let key = Key::mint(0);
        db.write(vec![start(key, QUEUED)]).await;
        let taken = db.taken(9).await;
        if taken == [late, key] {
            return;
        }
        assert_eq!(taken, [key]);
        db.clock.advance(PAUSE);
    }
    panic!("it was not found");
}
