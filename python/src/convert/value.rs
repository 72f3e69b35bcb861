//! Converts values of Python to payloads and back. This module writes and reads plain MessagePack; `stepfast._values`
//! encodes and decodes all other values.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use rmp::Marker;
use rmp::decode::{RmpRead, bytes::Bytes, read_marker};
use rmp::encode::{
    write_array_len, write_bin, write_bool, write_f64, write_map_len, write_nil, write_sint, write_str,
    write_uint,
};
use stepfast::{Error, Payload};

use crate::error::to_exception;
use crate::exit::InterpreterGuard;

/// Maximum nesting depth of the values that this module handles. Deeper values are left to `stepfast._values`, whose
/// limits are higher, and whose error message names the limits.
const MAX_DEPTH: usize = 64;

/// Encodes a value for the record. Fails with `stepfast.values.EncodeError` if decoding could not return an equal
/// value.
pub(crate) fn encode(value: &Bound<'_, PyAny>) -> PyResult<Payload> {
    let mut bytes = Vec::with_capacity(64);
    if write(&mut bytes, value, MAX_DEPTH).is_some() {
        return Ok(Payload::from_message_pack(&bytes));
    }
    let _guard = InterpreterGuard::enter(value.py());
    let encoded = values_function(value.py(), &ENCODE, "encode")?.call1((value,))?;
    Ok(Payload::from_message_pack(encoded.cast::<PyBytes>()?.as_bytes()))
}

/// Returns the fingerprint of arguments; `None` if they cannot be encoded.
pub(crate) fn fingerprint(args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> Option<u64> {
    let is_simple = |value: &Bound<'_, PyAny>| {
        value.is_none()
            || value.is_exact_instance_of::<PyString>()
            || value.is_exact_instance_of::<PyInt>()
            || value.is_exact_instance_of::<PyFloat>()
            || value.is_exact_instance_of::<PyBool>()
            || value.is_exact_instance_of::<PyBytes>()
    };
    let has_no_maps = kwargs.is_empty() && args.iter_borrowed().all(|argument| is_simple(&argument));
    let payload = encode_arguments(args, Some(kwargs)).ok()?;
    Some(if has_no_maps { payload.fingerprint_without_maps() } else { payload.fingerprint() })
}

/// Encodes arguments for the record, as a list of two items: the arguments by position, and the arguments by name.
pub(crate) fn encode_arguments(
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Payload> {
    let py = args.py();
    let mut bytes = Vec::with_capacity(64);
    if write_arguments(&mut bytes, args, kwargs).is_some() {
        return Ok(Payload::from_message_pack(&bytes));
    }
    let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
    let _guard = InterpreterGuard::enter(py);
    let encoded = values_function(py, &ENCODE_ARGUMENTS, "encode_arguments")?.call1((args, kwargs))?;
    Ok(Payload::from_message_pack(encoded.cast::<PyBytes>()?.as_bytes()))
}

/// Calls a function with recorded arguments.
pub(crate) fn call_with<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let pair = || Some((arguments.get_item(0).ok()?, arguments.get_item(1).ok()?));
    let parts = pair().and_then(|(args, kwargs)| {
        Some((args.cast_into::<PyList>().ok()?, kwargs.cast_into::<PyDict>().ok()?))
    });
    let Some((args, kwargs)) = parts else {
        let reason = "is not the arguments of a Python function: give them by --arguments of the program stepfast, or start \
                      the workflow in Python";
        let error = Error::Invalid { input: "input", reason: reason.to_owned() };
        return Err(to_exception(function.py(), &error));
    };
    function.call(args.to_tuple(), Some(&kwargs))
}

/// Decodes the value of a payload. Fails with `stepfast.values.DecodeError` if the value cannot be read.
pub(crate) fn decode<'py>(py: Python<'py>, payload: &Payload) -> PyResult<Bound<'py, PyAny>> {
    let encoded = payload.as_message_pack().unwrap_or_default();
    let mut bytes = Bytes::new(encoded);
    if let Some(value) = read(py, &mut bytes, MAX_DEPTH)
        && bytes.remaining_slice().is_empty()
    {
        return Ok(value);
    }
    let _guard = InterpreterGuard::enter(py);
    values_function(py, &DECODE, "decode")?.call1((PyBytes::new(py, encoded),))
}

static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ENCODE_ARGUMENTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn values_function<'py>(
    py: Python<'py>,
    once: &PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let find = || Ok::<_, PyErr>(py.import("stepfast._values")?.getattr(name)?.unbind());
    Ok(once.get_or_try_init(py, find)?.bind(py).clone())
}

fn write_arguments(
    bytes: &mut Vec<u8>,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> Option<()> {
    write_array_len(bytes, 2).ok()?;
    write_array_len(bytes, args.len() as u32).ok()?;
    for argument in args.iter_borrowed() {
        write(bytes, &argument, MAX_DEPTH)?;
    }
    match kwargs {
        Some(kwargs) => write(bytes, kwargs.as_any(), MAX_DEPTH),
        None => write_map_len(bytes, 0).ok().map(drop),
    }
}

/// Writes a plain value; returns `None` if the value, or a part of it, is not plain.
fn write(bytes: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) -> Option<()> {
    if value.is_none() {
        write_nil(bytes).ok()?;
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        write_str(bytes, text.to_str().ok()?).ok()?;
    } else if let Ok(number) = value.cast_exact::<PyInt>() {
        match number.extract::<i64>() {
            Ok(number) => drop(write_sint(bytes, number).ok()?),
            Err(_) => drop(write_uint(bytes, number.extract::<u64>().ok()?).ok()?),
        }
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        write_f64(bytes, number.value()).ok()?;
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        write_bool(bytes, truth.is_true()).ok()?;
    } else if let Ok(data) = value.cast_exact::<PyBytes>() {
        write_bin(bytes, data.as_bytes()).ok()?;
    } else if depth == 0 {
        return None;
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        write_array_len(bytes, u32::try_from(list.len()).ok()?).ok()?;
        for item in list.iter() {
            write(bytes, &item, depth - 1)?;
        }
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        write_map_len(bytes, u32::try_from(dict.len()).ok()?).ok()?;
        for (key, item) in dict.iter() {
            write_str(bytes, key.cast_exact::<PyString>().ok()?.to_str().ok()?).ok()?;
            write(bytes, &item, depth - 1)?;
        }
    } else {
        return None;
    }
    Some(())
}

/// Reads a plain value; returns `None` if a part of the value is not plain, or is incomplete.
fn read<'py>(py: Python<'py>, bytes: &mut Bytes<'_>, depth: usize) -> Option<Bound<'py, PyAny>> {
    let integer = |number: i64| number.into_pyobject(py).ok().map(Bound::into_any);
    match read_marker(bytes).ok()? {
        Marker::Null => Some(py.None().into_bound(py)),
        Marker::True => Some(PyBool::new(py, true).to_owned().into_any()),
        Marker::False => Some(PyBool::new(py, false).to_owned().into_any()),
        Marker::FixPos(number) => integer(i64::from(number)),
        Marker::FixNeg(number) => integer(i64::from(number)),
        Marker::U8 => integer(i64::from(bytes.read_data_u8().ok()?)),
        Marker::U16 => integer(i64::from(bytes.read_data_u16().ok()?)),
        Marker::U32 => integer(i64::from(bytes.read_data_u32().ok()?)),
        Marker::U64 => bytes.read_data_u64().ok()?.into_pyobject(py).ok().map(Bound::into_any),
        Marker::I8 => integer(i64::from(bytes.read_data_i8().ok()?)),
        Marker::I16 => integer(i64::from(bytes.read_data_i16().ok()?)),
        Marker::I32 => integer(i64::from(bytes.read_data_i32().ok()?)),
        Marker::I64 => integer(bytes.read_data_i64().ok()?),
        Marker::F64 => Some(PyFloat::new(py, bytes.read_data_f64().ok()?).into_any()),
        Marker::F32 => Some(PyFloat::new(py, f64::from(bytes.read_data_f32().ok()?)).into_any()),
        Marker::FixStr(len) => text(py, bytes, u32::from(len)),
        Marker::Str8 => bytes.read_data_u8().ok().and_then(|len| text(py, bytes, u32::from(len))),
        Marker::Str16 => bytes.read_data_u16().ok().and_then(|len| text(py, bytes, u32::from(len))),
        Marker::Str32 => bytes.read_data_u32().ok().and_then(|len| text(py, bytes, len)),
        Marker::Bin8 => bytes.read_data_u8().ok().and_then(|len| data(py, bytes, u32::from(len))),
        Marker::Bin16 => bytes.read_data_u16().ok().and_then(|len| data(py, bytes, u32::from(len))),
        Marker::Bin32 => bytes.read_data_u32().ok().and_then(|len| data(py, bytes, len)),
        Marker::FixArray(len) => list(py, bytes, u32::from(len), depth),
        Marker::Array16 => bytes.read_data_u16().ok().and_then(|len| list(py, bytes, u32::from(len), depth)),
        Marker::Array32 => bytes.read_data_u32().ok().and_then(|len| list(py, bytes, len, depth)),
        Marker::FixMap(len) => dict(py, bytes, u32::from(len), depth),
        Marker::Map16 => bytes.read_data_u16().ok().and_then(|len| dict(py, bytes, u32::from(len), depth)),
        Marker::Map32 => bytes.read_data_u32().ok().and_then(|len| dict(py, bytes, len, depth)),
        _ => None,
    }
}

fn take_bytes<'b>(bytes: &mut Bytes<'b>, len: u32) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.remaining_slice().split_at_checked(len as usize)?;
    *bytes = Bytes::new(rest);
    Some(taken)
}

fn text<'py>(py: Python<'py>, bytes: &mut Bytes<'_>, len: u32) -> Option<Bound<'py, PyAny>> {
    let text = std::str::from_utf8(take_bytes(bytes, len)?).ok()?;
    Some(PyString::new(py, text).into_any())
}

fn data<'py>(py: Python<'py>, bytes: &mut Bytes<'_>, len: u32) -> Option<Bound<'py, PyAny>> {
    Some(PyBytes::new(py, take_bytes(bytes, len)?).into_any())
}

fn list<'py>(py: Python<'py>, bytes: &mut Bytes<'_>, len: u32, depth: usize) -> Option<Bound<'py, PyAny>> {
    let depth = depth.checked_sub(1)?;
    let list = PyList::empty(py);
    for _ in 0..len {
        list.append(read(py, bytes, depth)?).ok()?;
    }
    Some(list.into_any())
}

fn dict<'py>(py: Python<'py>, bytes: &mut Bytes<'_>, len: u32, depth: usize) -> Option<Bound<'py, PyAny>> {
    let depth = depth.checked_sub(1)?;
    let dict = PyDict::new(py);
    for _ in 0..len {
        let key = read(py, bytes, depth)?;
        if !key.is_instance_of::<PyString>() {
            return None;
        }
        dict.set_item(key, read(py, bytes, depth)?).ok()?;
    }
    Some(dict.into_any())
}
