use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use stepfast_core::*;

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

async fn add(mut cx: Context, (a, b): (i64, i64)) -> Result<i64, Failure> {
    let x = cx.step("a", || async move { Ok::<_, Failure>(a * 2) }).await?;
    let y = cx.step("b", || async move { Ok::<_, Failure>(b * 2) }).await?;
    Ok(x + y)
}

#[tokio::test]
async fn runs_and_starts() {
    let wf = Workflow::new("add", add);
    let noop = Workflow::new("noop", |_cx: Context, x: i64| async move { Ok::<_, Failure>(x) });
    let engine = Engine::builder(store()).register(&wf).register(&noop).open().await.unwrap();
    eprintln!("opened");
    assert_eq!(engine.run(&noop, 3).await.unwrap(), 3);
    eprintln!("noop");
    assert_eq!(engine.run(&wf, (1, 2)).await.unwrap(), 6);
    eprintln!("start");
    let h = engine.start(&wf, (1, 2)).workflow_id("x").await.unwrap();
    assert_eq!(h.result().await.unwrap(), 6);
    eprintln!("start");
    let h = engine.start(&wf, (1, 2)).workflow_id("x").await.unwrap();
    assert_eq!(h.result().await.unwrap(), 6);
    assert_eq!(engine.start(&wf, (1, 3)).workflow_id("x").await.unwrap_err().kind(), ErrorKind::Conflict);
    eprintln!("run x");
    assert_eq!(engine.run(&wf, (1, 2)).workflow_id("x").await.unwrap(), 6);
    assert_eq!(engine.run(&noop, 1).workflow_id("x").await.unwrap_err().kind(), ErrorKind::Conflict);
    println!("{:#?}", engine.show("x").await.unwrap());
    println!("{:?}", engine.store().counters().counted());
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
    assert_eq!(engine.running(), 0);
}

#[tokio::test]
async fn branches_children_sleep() {
    let count = Arc::new(AtomicUsize::new(0));
    let child = Workflow::new("child", add);
    let c2 = child.clone();
    let parent = Workflow::new("parent", move |mut cx: Context, n: i64| {
        let (child, count) = (c2.clone(), count.clone());
        async move {
            let xs = cx
                .map(0..n, 3, |mut cx, i| {
                    let count = count.clone();
                    async move {
                        cx.step("one", || async {
                            count.fetch_add(1, SeqCst);
                            Ok::<_, Failure>(i)
                        })
                        .await
                    }
                })
                .await;
            let sum: i64 = xs.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().sum();
            let (a, b) = cx
                .join(
                    |mut cx: Context| {
                        let child = child.clone();
                        async move { cx.child(&child, (sum, 1)).await }
                    },
                    |mut cx: Context| async move {
                        cx.sleep(Duration::from_millis(20)).await;
                        5
                    },
                )
                .await;
            let e = cx
                .race(
                    |mut cx: Context| async move { cx.sleep(Duration::from_secs(100)).await },
                    |mut cx: Context| async move {
                        cx.step("quick", || async { Ok::<_, Failure>(1) }).await.unwrap()
                    },
                )
                .await;
            assert_eq!(e, Either::Second(1));
            let t = cx
                .timeout(Duration::from_millis(10), |mut cx| async move {
                    cx.step("never", || std::future::pending::<Result<(), Failure>>()).await
                })
                .await;
            assert!(t.is_err());
            let br = cx.spawn(|mut cx: Context| async move {
                cx.step("spawned", || async { Ok::<_, Failure>(7) }).await.unwrap()
            });
            let x = cx.step("main", || async { Ok::<_, Failure>(8) }).await?;
            cx.sleep(Duration::from_millis(400)).await;
            Ok::<_, Failure>(a? + b + x + br.output().await?)
        }
    });
    let engine = Engine::builder(store())
        .register(&child)
        .register(&parent)
        .suspend_after(Duration::from_millis(200))
        .open()
        .await
        .unwrap();
    let h = engine.start(&parent, 5).await.unwrap();
    assert_eq!(h.result().await.unwrap(), 20 + 2 + 5 + 15);
    let r = engine.show(&h.workflow_id()).await.unwrap();
    for c in &r.checkpoints {
        println!("{} {} {:?} {} {:?}", c.order, c.path, c.kind, c.name, c.outcome);
    }
    println!("{:?}", r.execution);
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn retries_and_cancel() {
    let n = Arc::new(AtomicUsize::new(0));
    let n2 = n.clone();
    let wf = Workflow::new("flaky", move |mut cx: Context, (): ()| {
        let n = n2.clone();
        async move {
            cx.step("flaky", || {
                let n = n.clone();
                async move { if n.fetch_add(1, SeqCst) < 2 { Err(Failure::new("no")) } else { Ok(1) } }
            })
            .retries(5)
            .backoff(Duration::from_millis(1), Duration::from_millis(5))
            .await
        }
    });
    let hang = Workflow::new("hang", |mut cx: Context, (): ()| async move {
        cx.step("hang", || std::future::pending::<Result<(), Failure>>()).await
    });
    let engine = Engine::builder(store()).register(&wf).register(&hang).open().await.unwrap();
    assert_eq!(engine.run(&wf, ()).await.unwrap(), 1);
    assert_eq!(n.load(SeqCst), 3);
    let h = engine.start(&hang, ()).await.unwrap();
    println!("{:?}", h.cancel().await.unwrap());
    println!("{:?}", h.result().await);
    let h = engine.start(&hang, ()).execution_timeout(Duration::from_millis(30)).await.unwrap();
    println!("{:?}", h.result().await);
    assert_eq!(h.status().await.unwrap(), Status::Cancelled);
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
}
