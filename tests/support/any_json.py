"""Draws JSON that nobody would send: any value, and objects with known fields and any values."""

from typing import Any

from hypothesis import strategies as st


def any_json(*, max_size: int = 4, max_leaves: int = 15) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=max_size) | st.dictionaries(st.text(max_size=10), inner, max_size=max_size)
        ),
        max_leaves=max_leaves,
    )


ANYTHING = any_json()
