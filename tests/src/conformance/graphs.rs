//! Declarations of graphs.

use std::sync::Arc;

use stepfast_core::store::GraphRow;

use crate::StoreFixture;

super::cases![graphs_are_stored_by_name, stored_graph_is_replaced, unusual_texts_of_graphs_are_kept];

fn graph(name: &str, declaration: &str) -> GraphRow {
    GraphRow { name: name.into(), declaration: declaration.into() }
}

async fn graphs_are_stored_by_name(fixture: &dyn StoreFixture) {
    let (store, other) = (fixture.store(), fixture.second_store().await);
    assert_eq!(store.graphs(None).await.unwrap(), []);
    store.store_graphs(&[]).await.unwrap();
    store.store_graphs(&[graph("b", "{}"), graph("a", "[]"), graph("c", "1")]).await.unwrap();
    assert_eq!(other.graphs(None).await.unwrap(), [graph("a", "[]"), graph("b", "{}"), graph("c", "1")]);
    let names: [Arc<str>; 3] = ["c".into(), "nothing".into(), "a".into()];
    assert_eq!(other.graphs(Some(&names)).await.unwrap(), [graph("a", "[]"), graph("c", "1")]);
    assert_eq!(other.graphs(Some(&[])).await.unwrap(), []);
}

async fn stored_graph_is_replaced(fixture: &dyn StoreFixture) {
    let (store, other) = (fixture.store(), fixture.second_store().await);
    store.store_graphs(&[graph("a", "1"), graph("b", "1")]).await.unwrap();
    other.store_graphs(&[graph("a", "2"), graph("c", "2")]).await.unwrap();
    assert_eq!(store.graphs(None).await.unwrap(), [graph("a", "2"), graph("b", "1"), graph("c", "2")]);
}

async fn unusual_texts_of_graphs_are_kept(fixture: &dyn StoreFixture) {
    let store = fixture.store();
    let graphs = [
        graph("A", ""),
        graph("a'\"\\ {}", "'\"\\\n\u{1}"),
        graph(&"long".repeat(63), &"x".repeat(3 << 20)),
        graph("é🦄", "{\"a\": \"\\u0000\"}"),
    ];
    store.store_graphs(&graphs).await.unwrap();
    assert_eq!(store.graphs(None).await.unwrap(), graphs);
}
