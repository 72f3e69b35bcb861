//! Recorded values as JSON, for people and for programs that look at them.

use rmpv::Value as Packed;
use serde_json::{Map, Value, json};
use stepfast::Payload;

/// A payload as JSON; bytes as `{"bytes": length}`, numbers beyond JSON's as text. What Python alone has is shown as
/// what is nearest: a tuple as an array, an object as `{"Class": fields}`, an instant as text.
pub(crate) fn payload_json(payload: &Payload) -> Value {
    payload.to_value().map_or(Value::Null, to_json)
}

fn to_json(value: Packed) -> Value {
    match value {
        Packed::Nil => Value::Null,
        Packed::Boolean(value) => value.into(),
        Packed::Integer(number) => number
            .as_i64()
            .map(Value::from)
            .or_else(|| number.as_u64().map(Value::from))
            .unwrap_or_else(|| number.to_string().into()),
        Packed::F32(number) => float(f64::from(number)),
        Packed::F64(number) => float(number),
        Packed::String(text) => text.into_str().map_or(Value::Null, Value::from),
        Packed::Binary(bytes) => json!({ "bytes": bytes.len() }),
        Packed::Array(items) => items.into_iter().map(to_json).collect(),
        Packed::Map(entries) => object(entries),
        Packed::Ext(code, bytes) => rmpv::decode::read_value(&mut bytes.as_slice())
            .ok()
            .and_then(|content| python(code, content))
            .unwrap_or_else(|| json!({ "extension": code, "bytes": bytes.len() })),
    }
}

fn object(entries: impl IntoIterator<Item = (Packed, Packed)>) -> Value {
    let entry = |(key, value)| {
        let key = match to_json(key) {
            Value::String(key) => key,
            other => other.to_string(),
        };
        (key, to_json(value))
    };
    Value::Object(entries.into_iter().map(entry).collect())
}

fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}

/// An extension of the codec of the Python package, by its code and content, as that lists them
/// (`stepfast/values/codes.py`); `None` for those that say nothing to people.
fn python(code: i8, content: Packed) -> Option<Value> {
    let is_text = content.is_str();
    Some(match (code, content) {
        // tuple, set, frozenset
        (1..=3, Packed::Array(items)) => items.into_iter().map(to_json).collect(),
        // dict, OrderedDict, Counter; defaultdict, after its factory
        (4 | 20 | 22, Packed::Array(items)) => object(pairs(items)),
        (21, Packed::Array(items)) => object(pairs(items.into_iter().skip(1))),
        // deque, after its size
        (23, Packed::Array(items)) => items.into_iter().skip(1).map(to_json).collect(),
        (5, Packed::Binary(bytes)) => integer(&bytes).into(),
        // Decimal, date, class; datetime and time without a zone
        (7 | 10 | 11 | 12 | 27, text) if is_text => to_json(text),
        // datetime and time in a zone
        (10 | 12, Packed::Array(parts)) => {
            let (text, zone) = (parts.first()?.as_str()?, parts.get(2)?.as_str()?);
            format!("{text}[{zone}]").into()
        }
        (14, Packed::Binary(bytes)) => uuid::Uuid::from_slice(&bytes).ok()?.to_string().into(),
        // Path, IP address, URL: the class, and the text
        (15 | 16 | 32, Packed::Array(parts)) => parts.get(1)?.as_str()?.into(),
        // an object: its class, and its fields
        (24, Packed::Array(parts)) => {
            let mut parts = parts.into_iter();
            of_class(&parts.next()?, to_json(parts.next()?))
        }
        (25, Packed::Array(parts)) => {
            let member = parts.get(1)?.as_str()?;
            format!("{}.{member}", class(parts.first()?)).into()
        }
        // an exception: its class, and its arguments
        (29, Packed::Array(nodes)) => {
            let Some(Packed::Array(node)) = nodes.into_iter().next() else { return None };
            let Packed::Map(state) = node.get(1)? else { return None };
            let (_, args) = state.iter().find(|(key, _)| key.as_str() == Some("args"))?;
            of_class(node.first()?, to_json(args.clone()))
        }
        _ => return None,
    })
}

fn pairs(items: impl IntoIterator<Item = Packed>) -> impl Iterator<Item = (Packed, Packed)> {
    let mut items = items.into_iter();
    std::iter::from_fn(move || Some((items.next()?, items.next()?)))
}

fn of_class(name: &Packed, content: Value) -> Value {
    Value::Object(Map::from_iter([(class(name), content)]))
}

/// The name of a class without its module, as people call it.
fn class(name: &Packed) -> String {
    let name = name.as_str().unwrap_or_default();
    name.rsplit_once(':').map_or(name, |(_, name)| name).to_owned()
}

/// A whole number in two's complement, most significant byte first, as decimal or, beyond 128 bits, as
/// hexadecimal text.
fn integer(bytes: &[u8]) -> String {
    let is_negative = bytes.first().is_some_and(|first| *first >= 0x80);
    if bytes.len() <= 16 {
        let mut wide = [if is_negative { 0xff } else { 0 }; 16];
        wide[16 - bytes.len()..].copy_from_slice(bytes);
        return i128::from_be_bytes(wide).to_string();
    }
    let digits = bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"));
    format!("0x{digits}{}", if is_negative { " (two's complement)" } else { "" })
}
