"""Tokens as a user writes them."""

import pytest

from gander.errors import InputError
from gander.traces import check_tokens, parse_tokens


@pytest.mark.parametrize(("text", "tokens"), [("0", (0,)), ("1,2,3", (1, 2, 3)), (" 511 , 0 ", (511, 0))])
def test_tokens_in_the_command_line(text, tokens):
    assert parse_tokens(text, 512) == tokens


def test_tokens_in_a_file(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text("[5, 0, 511]")
    assert parse_tokens(f"@{path}", 512) == (5, 0, 511)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no tokens given"),
        (" ", "no tokens given"),
        ("1,,2", "token 1 is ''"),
        ("1,x", "token 1 is 'x'"),
        ("1,2.5", "token 1 is '2.5'"),
        ("0,1,-1", "token 2 is -1"),
        ("0,512", "token 1 is 512"),
    ],
)
def test_wrong_tokens_are_refused_by_position(text, message):
    with pytest.raises(InputError, match=message):
        parse_tokens(text, 512)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no tokens given"),
        ("{}", "not dict"),
        ("7", "not int"),
        ('[1, "2"]', "token 1 is '2'"),
        ("[1, true]", "token 1 is True"),
        ("[1, 2.0]", "token 1 is 2.0"),
        ("[1, null]", "token 1 is None"),
        ("[1, 2", "is not JSON"),
        ("\udcff", "is not JSON"),
    ],
)
def test_wrong_files_are_refused(tmp_path, content, message):
    path = tmp_path / "tokens.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message):
        parse_tokens(f"@{path}", 512)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="cannot read the tokens"):
        parse_tokens(f"@{tmp_path / 'absent'}", 512)


def test_the_range_is_told():
    with pytest.raises(InputError, match="0 to 65535"):
        check_tokens([65536], 65536)
    assert check_tokens((65535,), 65536) == (65535,)
