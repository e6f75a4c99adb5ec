"""The reader of documented commands finds each command with its output, and compares outputs by their shape."""

import pytest

from tests.support.documents import Command, Document, shape

SESSION = """Text.

```
$ bufferctl status
shard  pending
0      1

pending  1
$ bufferctl conversation hold \\
  one
```

```json
{"accepted": 1}
```

Then `make demo
ARGS=--reply`:

```
make up    # start
.venv/bin/bufferctl status
```

```
open  0
```
"""


def test_a_document_yields_its_commands_with_the_output_below_each() -> None:
    document = Document("a.md", SESSION)
    assert document.commands == [
        Command("a.md:4", "bufferctl status", "shard  pending\n0      1\n\npending  1"),
        Command("a.md:9", "bufferctl conversation hold    one"),
        Command("a.md:21", "make up    # start"),
        Command("a.md:22", ".venv/bin/bufferctl status"),
    ]
    assert document.listings == ["open  0\n"]
    assert document.make_commands() == ["make up    # start", "make demo ARGS=--reply"]
    assert document.of_json("accepted") == {"accepted": 1}


DIFFERENT = [
    ("Version 1, in force.", "Version 1 is in force."),
    ("shard  pending  late\n0      1        -", "shard  pending  late  more\n0      1        -     -"),
    ("count  2\nwhy    hold", "count  2\nwhy    hold\nbatch  -"),
    ("one\n\ntwo", "one"),
]


@pytest.mark.parametrize(("shown", "found"), DIFFERENT)
def test_outputs_that_differ_in_words_columns_or_keys_have_two_shapes(shown: str, found: str) -> None:
    assert shape(shown) != shape(found)


def test_outputs_that_differ_in_values_have_one_shape() -> None:
    shown = "On hold until 2026-11-18 15:24:56.950.\n\nshard  pending  late\n0      1        -\n\ncount  2\nwhy    hold"
    found = (
        "On hold until 2027-01-02 05:04:06.000.\n\nshard  pending  late\n0      2        0.0 s\n\ncount  17\nwhy    -"
    )
    assert shape(shown) == shape(found)
