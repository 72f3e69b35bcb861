"""Arrays and scalars of numpy as recorded values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from stepfast.values import EncodeError, decode, encode

DTYPES = st.one_of(
    npst.scalar_dtypes(),
    npst.array_dtypes(max_size=3),
    npst.nested_dtypes(max_itemsize=200),
).filter(lambda dtype: dtype.subdtype is None)


@given(st.data())
def test_array_survives_round_trip(data: st.DataObject) -> None:
    dtype = data.draw(DTYPES)
    array = data.draw(npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
    array = data.draw(st.sampled_from([array, array.T, array[::2] if array.ndim else array]))
    decoded = decode(encode([array]))[0]
    assert type(decoded) is np.ndarray
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()
    assert decoded.flags.writeable
    assert decoded.flags.owndata or decoded.base.flags.owndata


@given(npst.scalar_dtypes().flatmap(npst.from_dtype))
def test_scalar_survives_round_trip(value: Any) -> None:
    decoded = decode(encode({"a": (value,)}))["a"][0]
    assert type(decoded) is type(value)
    assert decoded.dtype == value.dtype
    assert decoded == value or (np.isnan(decoded) and np.isnan(value))


@pytest.mark.parametrize("value", [np.bytes_(b"a\0"), np.str_("a\0"), np.str_(""), np.float64(1)])
def test_string_scalar_keeps_every_character(value: Any) -> None:
    decoded = decode(encode(value))
    assert type(decoded) is type(value)
    assert repr(decoded) == repr(value)


def test_array_keeps_memory_order() -> None:
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    decoded = decode(encode(fortran))
    assert decoded.flags.f_contiguous
    assert not decoded.flags.c_contiguous
    assert (decoded == fortran).all()
    assert decode(encode(np.arange(6).reshape(2, 3))).flags.c_contiguous


def test_array_keeps_byte_order() -> None:
    assert decode(encode(np.array([1, 2], ">i4"))).dtype.str == ">i4"


def test_numpy_scalar_keeps_its_class() -> None:
    assert type(decode(encode(np.float64(1.5)))) is np.float64
    assert type(decode(encode([np.bool_(True)]))[0]) is np.bool_


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([None]), "dtype is object"),
        (np.array(["a"], np.dtypes.StringDType()), "dtype is StringDType"),
        (np.zeros(2, [("a", "O")]), "dtype is"),
        (np.ma.masked_array([1], [True]), "come back as a plain array"),
        (np.zeros(1, [("a", "i4")])[0], "not supported"),
        (np.dtype("i4"), "str(dtype)"),
        (np.longlong(1), "dtype is"),
        (np.zeros(1, "q"), "dtype is"),
        (np.zeros(1, [("a", "q")]), "dtype is"),
    ],
    ids=repr,
)
def test_unsupported_array_is_refused(value: object, reason: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode({"a": value})
    assert reason in str(caught.value)
    assert caught.value.path == "value['a']"


def test_large_array_is_encoded_with_little_overhead() -> None:
    array = np.zeros(1_000_000)
    data = encode(array)
    assert len(data) - array.nbytes < 64
    assert (decode(data) == array).all()
