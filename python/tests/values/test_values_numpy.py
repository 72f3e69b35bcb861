"""Arrays and scalars of numpy."""

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
def test_arrays_come_back(data: st.DataObject) -> None:
    dtype = data.draw(DTYPES)
    array = data.draw(npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
    array = data.draw(st.sampled_from([array, array.T, array[::2] if array.ndim else array]))
    back = decode(encode([array]))[0]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable
    assert back.flags.owndata or back.base.flags.owndata


@given(npst.scalar_dtypes().flatmap(npst.from_dtype))
def test_scalars_come_back(value: Any) -> None:
    back = decode(encode({"a": (value,)}))["a"][0]
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back == value or (np.isnan(back) and np.isnan(value))


@pytest.mark.parametrize("value", [np.bytes_(b"a\0"), np.str_("a\0"), np.str_(""), np.float64(1)])
def test_scalars_that_are_strings_keep_every_character(value: Any) -> None:
    back = decode(encode(value))
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_order_is_kept() -> None:
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    back = decode(encode(fortran))
    assert back.flags.f_contiguous
    assert not back.flags.c_contiguous
    assert (back == fortran).all()
    assert decode(encode(np.arange(6).reshape(2, 3))).flags.c_contiguous


def test_byte_order_is_kept() -> None:
    assert decode(encode(np.array([1, 2], ">i4"))).dtype.str == ">i4"


def test_numpy_values_are_no_plain_numbers() -> None:
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
def test_what_would_change_is_refused(value: object, reason: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode({"a": value})
    assert reason in str(caught.value)
    assert caught.value.path == "value['a']"


def test_a_big_array_is_copied_few_times() -> None:
    array = np.zeros(1_000_000)
    data = encode(array)
    assert len(data) - array.nbytes < 64
    assert (decode(data) == array).all()
