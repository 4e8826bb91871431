from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from launcher.transport.openssh.knownhosts import (
    Verdict,
    fingerprint,
    judge,
    known_types,
    lookup_names,
    parse,
)

KEY, OTHER = b"key", b"other"


def line(names, key=KEY, kind="ssh-ed25519", marker=""):
    return f"{marker} {names} {kind} {base64.b64encode(key).decode()} comment".lstrip()


def hashed(name, salt=b"0123456789abcdefghij"):
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, digest))


@pytest.mark.parametrize(
    ("text", "name", "verdict"),
    [
        (line("gpu-a"), "gpu-a", Verdict.KNOWN),
        (line("GPU-A"), "gpu-a", Verdict.KNOWN),
        (line("x,gpu-a,192.0.2.1"), "192.0.2.1", Verdict.KNOWN),
        (line("gpu-a"), "gpu-ab", Verdict.UNKNOWN),
        (line("gpu-*"), "gpu-a", Verdict.KNOWN),
        (line("gpu-*,!gpu-a"), "gpu-a", Verdict.UNKNOWN),
        (line("[gpu-a]:2222"), "[gpu-a]:2222", Verdict.KNOWN),
        (line("[gpu-a]:2222"), "g", Verdict.UNKNOWN),
        (line(hashed("gpu-a")), "gpu-a", Verdict.KNOWN),
        (line(hashed("gpu-a")), "gpu-b", Verdict.UNKNOWN),
        (line("2001:db8::1"), "2001:db8::1", Verdict.KNOWN),
        (line("gpu-a", OTHER), "gpu-a", Verdict.CHANGED),
        (line("gpu-a", OTHER, "ssh-rsa"), "gpu-a", Verdict.CHANGED),
        (line("gpu-a", OTHER) + "\n" + line("gpu-a"), "gpu-a", Verdict.KNOWN),
        (line("gpu-a") + "\n" + line("*", marker="@revoked"), "gpu-a", Verdict.REVOKED),
        (line("gpu-a") + "\n" + line("*", OTHER, marker="@revoked"), "gpu-a", Verdict.KNOWN),
        (line("*", OTHER, marker="@cert-authority"), "gpu-a", Verdict.CERTIFICATE),
        (line("gpu-a", marker="@cert-authority"), "gpu-a", Verdict.CERTIFICATE),
        ("# " + line("gpu-a"), "gpu-a", Verdict.UNKNOWN),
        ("gpu-a ssh-ed25519 ???\ngarbage\n|1|x|y ssh-ed25519 a2V5", "gpu-a", Verdict.UNKNOWN),
        ("", "gpu-a", Verdict.UNKNOWN),
    ],
)
def test_verdicts(text, name, verdict):
    """A key is known, unknown, changed, revoked or certified as ssh would have it."""
    assert judge(parse(text, "kh"), [name], KEY)[0] is verdict


def test_a_changed_key_names_its_line():
    """The entry behind a verdict prints as file:line, as the user must find it."""
    text = "\n".join(["# comment", line("gpu-b"), line("gpu-a", OTHER)])
    verdict, entry = judge(parse(text, "/h/known_hosts"), ["gpu-a"], KEY)
    assert (verdict, str(entry)) == (Verdict.CHANGED, "/h/known_hosts:3")


def test_names_to_look_up():
    """Ports other than 22 are part of the name, an alias replaces both, and a bare name serves any port."""
    assert lookup_names("h", 22, None) == ("h",)
    assert lookup_names("h", 2222, None) == ("[h]:2222", "h")
    assert lookup_names("h", 2222, "alias") == ("alias",)
    assert judge(parse(line("h"), "kh"), lookup_names("h", 2222, None), KEY)[0] is Verdict.KNOWN
    assert judge(parse(line("h", OTHER), "kh"), lookup_names("h", 2222, None), KEY)[0] is Verdict.UNKNOWN


def test_types_on_file():
    """Only plain entries of this host say which type of key to ask for."""
    text = "\n".join([line("h", kind="ssh-rsa"), line("x"), line("h", kind="ca", marker="@cert-authority")])
    assert known_types(parse(text, "kh"), ["h"]) == ["ssh-rsa"]


def test_fingerprint():
    """SHA-256 in base64 without padding, the form of ssh-keygen -l."""
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
