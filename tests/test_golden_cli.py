"""`gander golden` as a user types it."""

import json

import pytest

from gander.checkpoint import load
from gander.golden import open_model, read_manifest


@pytest.fixture
def golden(gander, monkeypatch):
    """Types `gander golden …` in a narrow window; its exit status, output and messages."""
    monkeypatch.setenv("COLUMNS", "60")

    def type_(*words):
        typed = gander("golden", *words)
        return typed.status, typed.out, typed.err

    return type_


def test_list(golden):
    status, out, err = golden("list")
    assert status == 0 and err == ""
    for word in (
        "golden:adversarial",
        "golden:narrow",
        "golden:vocab",
        "golden:hybrid",
        "N 32",
        "V 65536",
        "17 + 32",
        "random:1",
    ):
        assert word in out
    assert "--attention moba:chunk=8,top_k=2" in out
    assert max(len(line) for line in out.splitlines() if "--attention" not in line) <= 60  # which is to be copied


def test_verify_its_own(golden):
    status, out, _ = golden("verify")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["same"] * 16


def test_make_then_verify_then_spoil(golden, tmp_path):
    folder = tmp_path / "mine"
    make = ("make", "--model", "golden:narrow", "--out", folder)
    status, out, _ = golden(*make, "--tokens", "5,0,511", "--taps", "logits")
    assert status == 0 and "3 tokens" in out
    (made,) = read_manifest(folder).models
    assert made.traces[0].tokens == (5, 0, 511) and made.traces[0].holds == ("logits", "state")
    assert golden("verify", "--golden", folder)[:2] == (0, "same     trace.safetensors  10 tensors\n")

    status, _, err = golden(*make, "--tokens", "1")
    assert status == 2 and "--force" in err
    (tmp_path / "t.json").write_text(json.dumps([1, 2]))
    assert golden(*make, "--tokens", f"@{tmp_path / 't.json'}", "--force")[0] == 0
    assert "blocks.0.att.kk" in golden_trace(folder).tensors

    trace = folder / "trace.safetensors"
    content = bytearray(trace.read_bytes())
    content[-1] ^= 1
    trace.write_bytes(content)
    status, out, _ = golden("verify", "--golden", folder)
    assert status == 1 and out.startswith("wrong")
    trace.unlink()
    status, out, _ = golden("verify", "--golden", folder)
    assert status == 2 and out.startswith("missing")


def golden_trace(folder):
    (made,) = read_manifest(folder).models
    return made.read(made.traces[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "golden:narow", "--tokens", "1"), "did you mean 'narrow'"),
        (("--model", "golden:narrow", "--tokens", "1,512"), "token 1 is 512"),
        (("--model", "golden:narrow", "--tokens", "1,a"), "token 1 is 'a'"),
        (("--model", "golden:narrow", "--tokens", "@absent.json"), "absent.json"),
        (("--model", "absent.pth", "--tokens", "1"), "absent.pth"),
        (("--model", "golden:narrow"), "--tokens"),
    ],
)
def test_wrong_requests_leave_nothing(golden, tmp_path, words, message):
    status, _, err = golden("make", *words, "--out", tmp_path / "out")
    assert status == 2 and message in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "scheme", "target"),
    [
        ("adversarial", "official", "m.pth"),
        ("golden:adversarial", "hf", "m"),
        ("narrow", "rwkvx", "m.safetensors"),
    ],
)
def test_export(golden, tmp_path, name, scheme, target):
    status, _, err = golden("export", name, tmp_path / target, "--to", scheme)
    assert status == 0, err
    spec = name if ":" in name else f"golden:{name}"
    assert load(tmp_path / target).fingerprint() == open_model(spec).fingerprint()
    status, _, err = golden("export", name, tmp_path / target, "--to", scheme)
    assert status == 2 and "--force" in err


def test_hugging_face_cannot_hold_narrow(golden, tmp_path):
    status, _, err = golden("export", "narrow", tmp_path / "m", "--to", "hf")
    assert status == 2 and "GroupNorm eps" in err
    status, out, _ = golden("export", "narrow", tmp_path / "m", "--to", "hf", "--allow-change")
    assert status == 0 and out.startswith("note: ")
