"""Golden bytes of recorded values, as databases contain them. Every later version must decode them."""

import collections
import datetime
import decimal
import fractions
import ipaddress
import pathlib
import re
import uuid
from typing import Any

import numpy
import pytest
from test_values import ZONES, Access, Bits, Box, Colour, Frozen, Level, Point, is_same

from stepfast.values import decode, decode_exception, encode, encode_exception

UTC = datetime.UTC

GOLDEN_VALUES: list[tuple[str, Any]] = [
    ("c0", None),
    ("c3", True),
    ("9600ffcf8000000000000000cb3ff8000000000000a2c3a4c40178", [0, -1, 1 << 63, 1.5, "ä", b"x"]),
    (
        "83a26964a76f726465722d37a563656e7473cd1068a470616964c2",
        {"id": "order-7", "cents": 4200, "paid": False},
    ),
    (
        ("8401a3696e74c0a46e6f6e65cb4004000000000000a5666c6f6174c4016ba56279746573"),
        {1: "int", None: "none", 2.5: "float", b"k": "bytes"},
    ),
    ("c706019201d5019102", (1, (2,))),
    ("d6029203a161", {3, "a"}),
    ("c7050391d5019101", frozenset({(1,)})),
    ("c70c0492c70301920102a470616972", {(1, 2): "pair"}),
    ("c70b05c409010000000000000000", 1 << 64),
    ("c70b05c409ff7fffffffffffffff", -(1 << 63) - 1),
    ("c7130692cb3ff0000000000000cbc000000000000000", complex(1, -2)),
    ("c70507a4312e3530", decimal.Decimal("1.50")),
    ("c70707a62d734e614e37", decimal.Decimal("-sNaN7")),
    ("c7030892ff03", fractions.Fraction(-1, 3)),
    ("d609c4027879", bytearray(b"xy")),
    (
        "c71b0aba323032342d30352d30365430373a30383a30392e303030303130",
        datetime.datetime(2024, 5, 6, 7, 8, 9, 10),
    ),
    (
        "c71a0ab9323032342d30352d30365430373a30383a30302b30303a3030",
        datetime.datetime(2024, 5, 6, 7, 8, tzinfo=UTC),
    ),
    (
        ("c7240a93b3323032342d31302d32375430323a33303a303001ad4575726f70652f4265726c696e"),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZONES[0]),
    ),
    (
        ("c71c0a93b3323032342d30312d30315430303a30303a3030009300cd0e1000"),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    ),
    (
        ("c7200a93b3323032342d30312d30315430303a30303a30300094ffce0001437000a158"),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-1), "X")),
    ),
    ("c70b0baa323032342d30322d3239", datetime.date(2024, 2, 29)),
    ("c7090ca830313a30323a3033", datetime.time(1, 2, 3)),
    ("d60d93ff0203", datetime.timedelta(-1, 2, 3)),
    ("c7120ec41000000010000000000000000000000000", uuid.UUID(int=1 << 100)),
    ("c7140f92ad50757265506f73697850617468a42f612f62", pathlib.PurePosixPath("/a/b")),
    ("c7160f92af5075726557696e646f777350617468a4633a5c61", pathlib.PureWindowsPath("c:/a")),
    ("c7161092ab4950763441646472657373a831302e302e302e31", ipaddress.ip_address("10.0.0.1")),
    ("c7171092ab495076364e6574776f726ba9666538303a3a2f3130", ipaddress.ip_network("fe80::/10")),
    ("d61193010902", range(1, 9, 2)),
    ("d61293c0ffc0", slice(None, -1)),
    (
        ("c7291392a2612bc7221a94ac72653a5265676578466c616700aa49474e4f524543415345a7554e49434f4445"),
        re.compile("a+", re.IGNORECASE),
    ),
    ("c7071494a16201a16102", collections.OrderedDict(b=1, a=2)),
    (
        "c7161593c70e1bad6275696c74696e733a6c697374a1619101",
        collections.defaultdict(list, {"a": [1]}),
    ),
    ("c7071694a16102a16201", collections.Counter("aab")),
    ("d61793050102", collections.deque([1, 2], maxlen=5)),
    (
        ("c72a1892af746573745f76616c7565733a426f7882a7636f6e74656e74d5019101a56c6162656ca56c6162656c"),
        Box((1,), "label"),
    ),
    (("c71e1892b2746573745f76616c7565733a46726f7a656e81a7636f6e74656e74c0"), Frozen(content=None)),
    ("c71b1892b1746573745f76616c7565733a506f696e7482a17801a179a179", Point(1, "y")),
    ("c71a1992b2746573745f76616c7565733a436f6c6f7572a5475245454e", Colour.GREEN),
    ("c7181992b1746573745f76616c7565733a4c6576656ca448494748", Level.HIGH),
    (("c7201a94b2746573745f76616c7565733a41636365737300a452454144a55752495445"), Access.BOTH),
    ("c7171a93b0746573745f76616c7565733a4269747308a34f4e45", Bits(9)),
    ("d81baf746573745f76616c7565733a426f78", Box),
    ("c70f1f92a33c6638c408000000000000f83f", numpy.float64(1.5)),
    ("d71f92a47374725fa178", numpy.str_("x")),
]


@pytest.mark.parametrize(
    ("golden_hex", "value"), GOLDEN_VALUES, ids=[type(v).__name__ for _, v in GOLDEN_VALUES]
)
def test_format_of_value_matches_golden_bytes(golden_hex: str, value: Any) -> None:
    assert encode(value).hex() == golden_hex
    assert is_same(decode(bytes.fromhex(golden_hex)), value)


def test_format_of_array_matches_golden_bytes() -> None:
    array = numpy.asfortranarray(numpy.array([[1, 2], [3, 4]], "<i2"))
    golden_hex = "c7171e94c6000000080100030002000400a33c6932920202a146"
    assert encode(array).hex() == golden_hex
    decoded = decode(bytes.fromhex(golden_hex))
    assert decoded.dtype.str == "<i2"
    assert decoded.tolist() == [[1, 2], [3, 4]]
    assert decoded.flags.f_contiguous


def test_format_of_exception_matches_golden_bytes() -> None:
    error = ValueError("no", (1,))
    error.add_note("note")
    error.__cause__ = KeyError("k")
    failure = (
        "84a46b696e64aa56616c75654572726f72a76d657373616765ac28276e6f272c2028312c2929"
        "a663617573657391a3276b27a6707974686f6e9285a46b696e64aa56616c75654572726f72a7"
        "6d657373616765ac28276e6f272c2028312c2929a56c696e6b739401c0c390a56e6f74657391"
        "a46e6f7465a576616c7565c43693b36275696c74696e733a56616c75654572726f7281a46172"
        "6773d70192a26e6fd501910181a95f5f6e6f7465735f5f91a46e6f746584a46b696e64a84b65"
        "794572726f72a76d657373616765a3276b27a56c696e6b7394c0c0c290a576616c7565c42093"
        "b16275696c74696e733a4b65794572726f7281a461726773c7030191a16b80"
    )
    value = (
        "c7611d9294b36275696c74696e733a56616c75654572726f7281a461726773d70192a26e6fd5"
        "01910181a95f5f6e6f7465735f5f91a46e6f74659401c0c39094b16275696c74696e733a4b65"
        "794572726f7281a461726773c7030191a16b8094c0c0c290"
    )
    assert encode_exception(error).hex() == failure
    assert encode(error).hex() == value
    for decoded in (decode_exception(bytes.fromhex(failure)), decode(bytes.fromhex(value))):
        assert repr(decoded) == repr(error)
        assert decoded.__notes__ == ["note"]
        assert repr(decoded.__cause__) == "KeyError('k')"
