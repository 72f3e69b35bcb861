//! Recorded values as JSON, for people and for programs that read the output.

use rmpv::Value as MsgpackValue;
use rmpv::decode::read_value_with_max_depth;
use serde_json::{Map, Value, json};
use stepfast::Payload;

/// Converts a payload to JSON. Bytes become `{"bytes": length}`, and numbers beyond JSON's range become text. Python's
/// own types become the nearest type of JSON: a tuple becomes an array, an object `{"Class": fields}`, an instant text.
pub(crate) fn payload_json(payload: &Payload) -> Value {
    payload.to_value().map_or(Value::Null, |value| to_json(value, MAX_SHOWN_DEPTH))
}

/// Maximum nesting depth of a value that is shown.
const MAX_SHOWN_DEPTH: usize = 128;

/// Converts at most this many levels of a value to JSON: values in extensions of the codec may be nested without bound.
fn to_json(value: MsgpackValue, levels: usize) -> Value {
    let Some(levels) = levels.checked_sub(1) else { return "…".into() };
    match value {
        MsgpackValue::Nil => Value::Null,
        MsgpackValue::Boolean(value) => value.into(),
        MsgpackValue::Integer(number) => number
            .as_i64()
            .map(Value::from)
            .or_else(|| number.as_u64().map(Value::from))
            .unwrap_or_else(|| number.to_string().into()),
        MsgpackValue::F32(number) => float(f64::from(number)),
        MsgpackValue::F64(number) => float(number),
        MsgpackValue::String(text) => text.into_str().map_or(Value::Null, Value::from),
        MsgpackValue::Binary(bytes) => json!({ "bytes": bytes.len() }),
        MsgpackValue::Array(items) => array(items, levels),
        MsgpackValue::Map(entries) => object(entries, levels),
        MsgpackValue::Ext(code, bytes) => {
            read_value_with_max_depth(&mut bytes.as_slice(), 2 * MAX_SHOWN_DEPTH)
                .ok()
                .and_then(|content| python_to_json(code, content, levels))
                .unwrap_or_else(|| json!({ "extension": code, "bytes": bytes.len() }))
        }
    }
}

fn array(items: impl IntoIterator<Item = MsgpackValue>, levels: usize) -> Value {
    items.into_iter().map(|item| to_json(item, levels)).collect()
}

fn object(entries: impl IntoIterator<Item = (MsgpackValue, MsgpackValue)>, levels: usize) -> Value {
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

/// Converts an extension of the Python package's codec, by its code and content. `stepfast/_values/codes.py` lists the
/// codes. Returns `None` for extensions that mean nothing to people.
fn python_to_json(code: i8, content: MsgpackValue, levels: usize) -> Option<Value> {
    let is_text = content.is_str();
    Some(match (code, content) {
        // tuple, set, frozenset
        (1..=3, MsgpackValue::Array(items)) => array(items, levels),
        // dict, OrderedDict, Counter; defaultdict, after its factory
        (4 | 20 | 22, MsgpackValue::Array(items)) => object(pairs(items), levels),
        (21, MsgpackValue::Array(items)) => object(pairs(items.into_iter().skip(1)), levels),
        // deque, after its size
        (23, MsgpackValue::Array(items)) => array(items.into_iter().skip(1), levels),
        (5, MsgpackValue::Binary(bytes)) => format_integer(&bytes).into(),
        // Decimal, date, class; datetime and time without a zone
        (7 | 10 | 11 | 12 | 27, text) if is_text => to_json(text, levels),
        // datetime and time in a zone
        (10 | 12, MsgpackValue::Array(parts)) => {
            let (text, zone) = (parts.first()?.as_str()?, parts.get(2)?.as_str()?);
            format!("{text}[{zone}]").into()
        }
        (14, MsgpackValue::Binary(bytes)) => uuid::Uuid::from_slice(&bytes).ok()?.to_string().into(),
        // Path, IP address, URL: the class, and the text
        (15 | 16 | 32, MsgpackValue::Array(parts)) => parts.get(1)?.as_str()?.into(),
        // an object: its class, and its fields
        (24, MsgpackValue::Array(parts)) => {
            let mut parts = parts.into_iter();
            class_json(&parts.next()?, to_json(parts.next()?, levels))
        }
        (25, MsgpackValue::Array(parts)) => {
            let member = parts.get(1)?.as_str()?;
            format!("{}.{member}", class_name(parts.first()?)).into()
        }
        // an exception: its class, and its arguments
        (29, MsgpackValue::Array(nodes)) => {
            let Some(MsgpackValue::Array(node)) = nodes.into_iter().next() else { return None };
            let MsgpackValue::Map(state) = node.get(1)? else { return None };
            let (_, args) = state.iter().find(|(key, _)| key.as_str() == Some("args"))?;
            class_json(node.first()?, to_json(args.clone(), levels))
        }
        _ => return None,
    })
}

fn pairs(
    items: impl IntoIterator<Item = MsgpackValue>,
) -> impl Iterator<Item = (MsgpackValue, MsgpackValue)> {
    let mut items = items.into_iter();
    std::iter::from_fn(move || Some((items.next()?, items.next()?)))
}

fn class_json(name: &MsgpackValue, content: Value) -> Value {
    Value::Object(Map::from_iter([(class_name(name), content)]))
}

/// Returns the name of a class without its module.
fn class_name(name: &MsgpackValue) -> String {
    let name = name.as_str().unwrap_or_default();
    name.rsplit_once(':').map_or(name, |(_, name)| name).to_owned()
}

/// Formats an integer in two's complement, most significant byte first. The result is decimal text, or hexadecimal text
/// beyond 128 bits.
fn format_integer(bytes: &[u8]) -> String {
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

    /// Returns tuples of Python nested this many times.
    fn nested(levels: usize) -> Payload {
        let mut encoded = vec![0xc0];
        for _ in 0..levels {
            let length = u32::try_from(encoded.len() + 1).unwrap_or_default().to_be_bytes();
            encoded = [&[0xc9][..], &length, &[1, 0x91], &encoded].concat();
        }
        Payload::from_message_pack(&encoded)
    }

    #[test]
    fn deep_value_overflows_no_stack() {
        assert_eq!(payload_json(&nested(3)), json!([[[null]]]));
        let mut shown = payload_json(&nested(5_000));
        let mut levels = 0;
        while let Value::Array(mut items) = shown {
            shown = items.pop().unwrap_or_default();
            levels += 1;
        }
        assert_eq!((levels, shown), (MAX_SHOWN_DEPTH, json!("…")));
    }
}
