//! Recorded values as JSON, for people and for programs that look at them.

use rmpv::Value as Packed;
use rmpv::decode::read_value_with_max_depth;
use serde_json::{Map, Value, json};
use stepfast::Payload;

/// A payload as JSON; bytes as `{"bytes": length}`, numbers beyond JSON's as text. What Python alone has is shown as
/// what is nearest: a tuple as an array, an object as `{"Class": fields}`, an instant as text.
pub(crate) fn payload_json(payload: &Payload) -> Value {
    payload.to_value().map_or(Value::Null, |value| to_json(value, DEEPEST))
}

/// How deep values may be that are shown.
const DEEPEST: usize = 128;

/// A value as JSON, so many levels of it: values in extensions of the codec may be in one another without end.
fn to_json(value: Packed, levels: usize) -> Value {
    let Some(levels) = levels.checked_sub(1) else { return "…".into() };
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
        Packed::Array(items) => array(items, levels),
        Packed::Map(entries) => object(entries, levels),
        Packed::Ext(code, bytes) => read_value_with_max_depth(&mut bytes.as_slice(), 2 * DEEPEST)
            .ok()
            .and_then(|content| python(code, content, levels))
            .unwrap_or_else(|| json!({ "extension": code, "bytes": bytes.len() })),
    }
}

fn array(items: impl IntoIterator<Item = Packed>, levels: usize) -> Value {
    items.into_iter().map(|item| to_json(item, levels)).collect()
}

fn object(entries: impl IntoIterator<Item = (Packed, Packed)>, levels: usize) -> Value {
    let entry = |(key, value)| {
        let key = match to_json(key, levels) {
            Value::String(key) => key,
            other => other.to_string(),
        };
        (key, to_json(value, levels))
    };
    Value::Object(entries.into_iter().map(entry).collect())
}

fn float(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}

/// An extension of the codec of the Python package, by its code and content, as that lists them
/// (`stepfast/values/codes.py`); `None` for those that say nothing to people.
fn python(code: i8, content: Packed, levels: usize) -> Option<Value> {
    let is_text = content.is_str();
    Some(match (code, content) {
        // tuple, set, frozenset
        (1..=3, Packed::Array(items)) => array(items, levels),
        // dict, OrderedDict, Counter; defaultdict, after its factory
        (4 | 20 | 22, Packed::Array(items)) => object(pairs(items), levels),
        (21, Packed::Array(items)) => object(pairs(items.into_iter().skip(1)), levels),
        // deque, after its size
        (23, Packed::Array(items)) => array(items.into_iter().skip(1), levels),
        (5, Packed::Binary(bytes)) => integer(&bytes).into(),
        // Decimal, date, class; datetime and time without a zone
        (7 | 10 | 11 | 12 | 27, text) if is_text => to_json(text, levels),
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
            of_class(&parts.next()?, to_json(parts.next()?, levels))
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
            of_class(node.first()?, to_json(args.clone(), levels))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A tuple of Python in a tuple, so many times.
    fn nested(levels: usize) -> Payload {
        let mut encoded = vec![0xc0];
        for _ in 0..levels {
            let length = u32::try_from(encoded.len() + 1).unwrap_or_default().to_be_bytes();
            encoded = [&[0xc9][..], &length, &[1, 0x91], &encoded].concat();
        }
        Payload::from_message_pack(&encoded)
    }

    #[test]
    fn a_value_however_deep_overflows_no_stack() {
        assert_eq!(payload_json(&nested(3)), json!([[[null]]]));
        let mut shown = payload_json(&nested(5_000));
        let mut levels = 0;
        while let Value::Array(mut items) = shown {
            shown = items.pop().unwrap_or_default();
            levels += 1;
        }
        assert_eq!((levels, shown), (DEEPEST, json!("…")));
    }
}
