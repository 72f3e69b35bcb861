"""Names of classes in recorded values: classes of scripts and modules, type hints, and earlier names."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from test_values import Box

import stepfast
from stepfast._values import references
from stepfast.values import DecodeError, decode, encode

SCRIPT = """
    import dataclasses, enum, sys
    from pathlib import Path
    from stepfast.values import decode, encode, decode_exception, encode_exception

    @dataclasses.dataclass
    class Item:
        price: int

    @dataclasses.dataclass
    class Order:
        items: list[Item]

        class Kind(enum.Enum):
            BIG = 1

    class Declined(Exception):
        pass

    def make_value():
        return {"order": Order([Item(5)]), "kind": Order.Kind.BIG}

    def write():
        Path("value").write_bytes(encode(make_value()))
        Path("failure").write_bytes(encode_exception(Declined("no")))

    def read(hint=None):
        assert decode(Path("value").read_bytes(), hint) == make_value()
        print(type(decode_exception(Path("failure").read_bytes())) is Declined)

    if __name__ == "__main__":
        {"write": write, "read": read}[sys.argv[1]]()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that contains the module shop, by itself and in a package."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "shop.py").write_text(textwrap.dedent(SCRIPT))
    return tmp_path


def run_python(folder: Path, *arguments: str) -> str:
    """Runs Python in a folder, and returns the program's output."""
    program = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{Path(references.__file__).parents[2]}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    return program.stdout.strip()


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (["shop.py", "write"], ["shop.py", "read"]),
        (["shop.py", "write"], ["-m", "shop", "read"]),
        (["shop.py", "write"], ["-c", "import shop; shop.read()"]),
        (["-c", "import shop; shop.write()"], ["shop.py", "read"]),
        (["-m", "shop", "write"], ["-c", "import shop; shop.read()"]),
        (["-m", "package.shop", "write"], ["-m", "package.shop", "read"]),
        (["-m", "package.shop", "write"], ["-c", "from package import shop; shop.read()"]),
        (["-c", "from package import shop; shop.write()"], ["-m", "package.shop", "read"]),
    ],
    ids=" ".join,
)
def test_class_of_script_is_found_by_later_program(folder: Path, write: list[str], read: list[str]) -> None:
    run_python(folder, *write)
    assert run_python(folder, *read) == "True"


def test_moved_class_is_found_by_type_hint(folder: Path) -> None:
    run_python(folder, "shop.py", "write")
    (folder / "shop.py").unlink()
    program = (
        "from package import shop\n"
        "from stepfast.values import DecodeError\n"
        "try: shop.read()\n"
        "except DecodeError as error: print(error)\n"
        "print(shop.read(dict[str, shop.Order | None]))\n"
    )
    output = run_python(folder, "-c", program)
    assert "class Item of module shop is not found: module shop cannot be imported" in output
    assert "register the class that took its place" in output
    assert "aliases=['shop:Item']" in output


def test_script_loaded_twice_is_reported(folder: Path) -> None:
    (folder / "main.py").write_text(
        "import main as copy\n"
        "from stepfast.values import EncodeError, encode\n"
        "class C(Exception): pass\n"
        "if __name__ == '__main__':\n"
        "    encode(C())\n"
        "    try: encode(copy.C())\n"
        "    except EncodeError as error: print(error)\n"
    )
    assert "the file was loaded twice, as main and as __main__" in run_python(folder, "main.py")


def test_class_of_program_without_file_is_found_in_process(folder: Path) -> None:
    program = (
        "import dataclasses\n"
        "from stepfast.values import *\n"
        "@dataclasses.dataclass\n"
        "class C: x: int\n"
        "data = encode(C(1))\n"
        "assert b'__main__:C' in data\n"
        "assert decode(data) == C(1)\n"
        "C = dataclasses.make_dataclass('C', ['x'], namespace={'__module__': '__main__'})\n"
        "C.__module__ = '__main__'\n"
        "assert type(decode(data)) is C\n"
        "assert type(decode(encode(C(2)))) is C\n"
    )
    run_python(folder, "-c", program)


def test_spawned_process_finds_classes_of_its_script(folder: Path) -> None:
    (folder / "pool.py").write_text(
        "import dataclasses, multiprocessing\n"
        "from stepfast.values import *\n"
        "@dataclasses.dataclass\n"
        "class C: x: int\n"
        "def encode_more(data): return encode([decode(data), C(2)])\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        assert decode(pool.apply(encode_more, [encode(C(1))])) == [C(1), C(2)]\n"
        "        print('ok')\n"
    )
    assert run_python(folder, "pool.py") == "ok"


def test_decoding_imports_only_module_of_class(folder: Path) -> None:
    program = (
        "import sys, shop\n"
        "from stepfast.values import encode, decode\n"
        "data = encode(shop.Item(1))\n"
        "del sys.modules['shop']\n"
        "before = set(sys.modules)\n"
        "decode(data)\n"
        "print(set(sys.modules) - before)\n"
    )
    assert run_python(folder, "-c", program) == "{'shop'}"


def test_module_with_import_error_is_reported(folder: Path) -> None:
    run_python(folder, "-c", "import shop; shop.write()")
    (folder / "shop.py").write_text("1 / 0")
    program = (
        "from stepfast.values import *\n"
        "try: decode(open('value', 'rb').read())\n"
        "except DecodeError as error: print(error.code, error)\n"
    )
    output = run_python(folder, "-W", "ignore", "-c", program)
    assert "SF-0031" in output
    assert "module shop cannot be imported (ZeroDivisionError: division by zero)" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (b"test_values:Bux", "module test_values has no class Bux"),
        (b"test_values:ZONES", "module test_values has no class ZONES"),
        (b"no.such:Box", "module no.such cannot be imported (ModuleNotFoundError"),
        (b"__main__:Bux", "the program that runs has no class Bux"),
        (b"__main__:Box.x", "the program that runs has no class Box.x"),
        (b"test_values:Colour", "has no fields any more"),
    ],
)
def test_missing_class_is_reported(name: bytes, message: str) -> None:
    recorded_name = b"\xaftest_values:Box"
    data = encode(Box(1))
    assert recorded_name in data
    # the extension begins with the array of the content, one byte before the name
    content = data[data.index(recorded_name) - 1 :]
    content = content.replace(recorded_name, bytes((0xA0 | len(name),)) + name)
    with pytest.raises(DecodeError) as caught:
        decode(b"\xc7" + bytes((len(content), 24)) + content)
    assert message in str(caught.value)


def test_type_hint_never_changes_type_of_value() -> None:
    class Other:
        pass

    hints: list[Any] = [Box, list[Box], Box | None, "Box", int, Other, None, dict[str, tuple[Box]]]
    for hint in hints:
        assert decode(encode({"content": 1}), hint) == {"content": 1}
        assert decode(encode(Box((1,))), hint) == Box((1,))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("stepfast.values.errors:EncodeError", stepfast.EncodeError),
        ("stepfast.records:Execution", stepfast.Execution),
        ("stepfast.queue:Rate", stepfast.Rate),
    ],
)
def test_earlier_name_of_class_is_found(name: str, cls: type) -> None:
    assert references.find(name) is cls
    assert references.find(references.name_of(cls)) is cls
