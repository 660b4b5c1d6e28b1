"""YAML as people write it, and as nobody should."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config import load
from dra_driver.config.yaml_text import read_yaml
from dra_driver.model.errors import SettingInvalid

HEAD = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: a: given twice, first in line 1; allowed: once"),
        ("a:\n  b: {c: 1, c: 2}", "line 2: a.b.c: given twice, first in line 2; allowed: once"),
        ("a: 1\n2: b", "line 2: the document: a key is '2'; allowed: a string, in quotes"),
        ("a: {true: b}", "line 1: a: a key is 'true'; allowed: a string, in quotes"),
        ("? [a]\n: b", "line 1: the document: a key is a list; allowed: a string"),
        ("a: 1\nb: [", "line 2: "),
        ("a: b: c", "line 1: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2", "line 2: but found another document"),
        ("a: !!python/object:os.system x", "line 1: could not determine a constructor"),
        ("a: *nobody", "line 1: found undefined alias"),
        ("a: 2024-13-45", "line 1: '2024-13-45': month must be in 1..12"),
        ("a: &a [*a]", "line 1: more than 100000 values, or more than 30 of them inside"),
        ("[" * 2000, "more than 30 values inside each other"),
        ("{a: " * 2000, "more than 30 values inside each other"),
        ("\x00", "not YAML: unacceptable character"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(message)


def test_aliases_may_not_multiply_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(SettingInvalid, match="more than 100000 values"):
        read_yaml("\n".join(lines))


def test_an_alias_is_what_it_stands_for() -> None:
    assert read_yaml("a: &x [1]\nb: *x").data == {"a": [1], "b": [1]}


def test_an_empty_text_lacks_everything() -> None:
    with pytest.raises(SettingInvalid, match="line 1: apiVersion: is missing"):
        load("# nothing yet\n")


def test_a_list_is_no_configuration() -> None:
    with pytest.raises(SettingInvalid, match="line 1: the document: a list is not allowed; allow"):
        load("- a")


KEYS = st.text(alphabet="ab-.", min_size=1, max_size=3)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(DATA)
def test_data_is_read_as_yamls_own_reader_does(data: Any) -> None:
    text = yaml.safe_dump(data, allow_unicode=False)
    assert read_yaml(text).data == yaml.safe_load(text)


@given(st.text() | DATA.map(yaml.safe_dump))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for whole in (text, HEAD + text):
        try:
            load(whole)
        except SettingInvalid as error:
            assert "\n" not in str(error)
