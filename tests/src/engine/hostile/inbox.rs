//! Columns of the inbox. A row becomes an execution or a dead letter, or the database rejects it.

use std::collections::HashSet;

use stepfast_core::store::{Filter, Status};
use stepfast_core::{Engine, Error, Key, Workflow};

use super::harness::{HostileHarness, QUEUE};
use super::values::texts;
use crate::StoreFixture;
use crate::engine::support::{BodyResult, Count};

/// The SQL literals of a database.
struct Dialect {
    is_sqlite: bool,
}

impl Dialect {
    fn bytes(&self, bytes: &[u8]) -> String {
        let digits = bytes.iter().fold(String::new(), |all, byte| all + &format!("{byte:02x}"));
        if self.is_sqlite { format!("x'{digits}'") } else { format!("'\\x{digits}'::bytea") }
    }

    fn text(&self, bytes: &[u8]) -> String {
        let bytes = self.bytes(bytes);
        if self.is_sqlite {
            format!("CAST({bytes} AS TEXT)")
        } else {
            format!("convert_from({bytes}, 'UTF8')")
        }
    }

    fn key(&self, key: Key) -> String {
        if self.is_sqlite { self.bytes(key.as_bytes()) } else { format!("'{key}'") }
    }

    /// Returns the statement that inserts a row with this value in a column.
    fn row(&self, key: Key, column: &str, value: &str) -> String {
        let mut columns =
            vec![("key", self.key(key)), ("workflow", "'noop'".to_owned()), ("input", self.bytes(&[1, 7]))];
        if self.is_sqlite {
            columns.push(("put_at", "CAST(unixepoch('subsec') * 1000000 AS INTEGER)".to_owned()));
        }
        if ["queue_key", "dedup_id", "priority"].contains(&column) {
            columns.push(("queue", format!("'{QUEUE}'")));
        }
        columns.retain(|(name, _)| *name != column);
        columns.push((column, value.to_owned()));
        let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        format!("INSERT INTO inbox ({}) VALUES ({})", names.join(", "), values.join(", "))
    }

    /// Returns the columns, each with its values.
    fn values(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut texts: Vec<String> = texts().iter().map(|text| self.text(text.as_bytes())).collect();
        // bytes that are not UTF-8, and halves of a surrogate pair
        texts.extend([&b"a\xffb"[..], b"a\xed\xa0\x80b", b"\xed\xa0"].map(|bytes| self.text(bytes)));
        let numbers = [
            "0",
            "1",
            "-1",
            "1.5",
            "1e300",
            "2147483648",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "'inf'",
            "'NaN'",
            "''",
            "NULL",
        ];
        let numbers: Vec<String> = numbers.map(str::to_owned).to_vec();
        let ages = [
            "infinity",
            "-infinity",
            "1970-01-01",
            "1969-12-31",
            "2399-12-31",
            "294276-12-31",
            "4714-11-24 BC",
            "now",
            "tomorrow",
            "",
        ];
        let times =
            if self.is_sqlite { numbers.clone() } else { ages.map(|age| format!("'{age}'")).to_vec() };
        let keys = if self.is_sqlite {
            [&[][..], &[0; 15], &[0; 16], &[0; 16], &[0; 17], &[255; 16]].map(|key| self.bytes(key)).to_vec()
        } else {
            [
                "00000000-0000-0000-0000-000000000000",
                "00000000-0000-0000-0000-000000000000",
                "",
                "x",
                "ffffffff-ffff-ffff-ffff-ffffffffffff",
            ]
            .map(|key| format!("'{key}'"))
            .to_vec()
        };
        let attributes = |n: usize| {
            let all: Vec<String> = (0..n).map(|n| format!("\"name {n}\":\"value\"")).collect();
            format!("{{{}}}", all.join(","))
        };
        let objects = [
            "",
            "x",
            "null",
            "1",
            "[]",
            "{}",
            "\"x\"",
            r#"{"a":1}"#,
            r#"{"a":null}"#,
            r#"{"a":{"b":"c"}}"#,
            r#"{"":"x"}"#,
            r#"{"a":""}"#,
            r#"{"a":"x","a":"y"}"#,
            r#"{"a=b":"x"}"#,
            r#"{"a\nb":"x"}"#,
            r#"{"a":"\u0000"}"#,
            r#"{"\u0000":"x"}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"\udfff":"x"}"#,
            r#"{"a":"🦄"}"#,
        ];
        let mut objects: Vec<String> = objects.map(str::to_owned).to_vec();
        objects.extend([
            attributes(64),
            attributes(65),
            attributes(5_000),
            format!(r#"{{"a":"{}"}}"#, "x".repeat(1_025)),
        ]);
        let mut objects: Vec<String> = objects.iter().map(|object| format!("'{object}'")).collect();
        if self.is_sqlite {
            objects.push(self.text(b"{\"a\":\"\xff\"}"));
        }
        let (nested, long) = ([&[1_u8][..], &[0x91; 5_000]].concat(), vec![1; 2_000_000]);
        let inputs = [
            &[][..],
            &[0],
            &[1],
            &[1, 7],
            &[1, 0xc1],
            &[1, 0xdb, 255, 255, 255, 255],
            &[2, 7],
            &[0x81],
            &[0x81; 21],
            &[0xff; 21],
            &[0xff],
            &nested,
            &long,
        ];
        let inputs = inputs.map(|bytes| self.bytes(bytes)).to_vec();
        let mut columns = vec![
            ("put_at", times.clone()),
            ("due_at", times.clone()),
            ("deadline_at", times),
            ("fingerprint", numbers.clone()),
            ("run_timeout_ms", numbers.clone()),
            ("priority", numbers),
            ("key", keys),
            ("attributes", objects),
            ("input", inputs),
        ];
        let named = ["workflow", "workflow_id", "app_version", "queue", "queue_key", "dedup_id"];
        columns.extend(named.map(|column| (column, texts.clone())));
        columns
    }
}

/// Returns whether the row of this key has become an execution, whose record can be read.
async fn has_started(engine: &Engine, key: Key) -> bool {
    match engine.show(&key.to_string()).await {
        Ok(record) => record.execution.key == key,
        Err(Error::NotFound { .. }) => false,
        Err(error) => panic!("{key}: {error}"),
    }
}

pub(super) async fn inbox_rows_start_or_become_dead_letters_or_are_rejected(fixture: &dyn StoreFixture) {
    let count = Count::new();
    let counting = count.clone();
    let counting = Workflow::new("counting", move |_cx, x: i64| {
        counting.increment();
        async move { BodyResult::Ok(x) }
    });
    let harness = HostileHarness::with(fixture, |b| b.register(&counting)).await;
    let dialect = Dialect { is_sqlite: fixture.store().info().kind == "sqlite" };
    let (mut accepted, mut seen) = (Vec::new(), HashSet::new());
    for (column, values) in dialect.values() {
        for value in values {
            let key = Key::mint(0);
            let is_new = seen.insert((column, value.clone()));
            let Some(inserted) = fixture.try_execute(&dialect.row(key, column, &value)).await else {
                return harness.end().await;
            };
            // a repeated row is the same Start, and a row whose key is the value has another key
            if inserted.is_ok() && column != "key" && is_new {
                accepted.push((key, format!("{column} = {value:.60}")));
            }
        }
    }
    assert!(accepted.len() > 100, "{} rows", accepted.len());
    fixture.execute(&dialect.row(Key::mint(0), "workflow", "'counting'")).await;
    harness
        .check("inbox", &[], [accepted.len()], async |_| {
            count.wait_for(1).await;
            let store = fixture.store();
            let dead_letters = store.dead_letters(10_000).await?;
            let dead_letters: HashSet<Key> = dead_letters.into_iter().map(|letter| letter.key).collect();
            for (key, row) in &accepted {
                assert!(has_started(&harness.engine, *key).await != dead_letters.contains(key), "{row}");
            }
            let all = Filter { limit: 10_000, ..Filter::default() };
            let listed = harness.engine.list(&all).await?.executions;
            assert!(listed.len() >= accepted.len() - dead_letters.len());
            harness.engine.workers().await?;
            let unfinished =
                Filter { statuses: vec![Status::Queued, Status::Scheduled], ..Filter::default() };
            harness.engine.cancel_all(&unfinished, |_| {}).await.map(drop)
        })
        .await;
    harness.end().await;
}
