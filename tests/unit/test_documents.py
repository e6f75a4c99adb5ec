"""The reader of documented commands finds each command, and leaves out what it prints."""

from tests.support.documents import Command, Document

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


def test_a_document_yields_its_commands_without_the_output_below_each() -> None:
    document = Document("a.md", SESSION)
    assert document.commands == [
        Command("a.md:4", "bufferctl status"),
        Command("a.md:9", "bufferctl conversation hold    one"),
        Command("a.md:21", "make up    # start"),
        Command("a.md:22", ".venv/bin/bufferctl status"),
    ]
    assert document.make_commands() == ["make up    # start", "make demo ARGS=--reply"]
    assert document.of_json("accepted") == {"accepted": 1}
