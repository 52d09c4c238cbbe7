"""Texts that are not a record: vgpu.config.records refuses each of them."""

from __future__ import annotations

BAD = [
    b"", b" ", b"{", b"[", b'"', b'{"a"', b'{"a":', b'{"a":}', b'{"a":1', b'{"a":1,}', b"{1:2}", b"[1,",
    b"[1,]", b"tru",
    b"-",    b"1 2", b"{} x", b"NaN", b"-Infinity", b"[Infinity]", b"1e999", b"-1e999", b"9" * 21,
    b"-" + b"9" * 100_000, b"01",
    b"'a'", b'"\n"', b'"\\x"', b'"\\u12"', b'"\\ud800"', b'{"\\uDFFF":1}', b"\xff", b'"\xc3"', b"\xef\xbb\xbf{}",
    b"\x00",    b"[" * 66 + b"]" * 66, b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70, b'[{"a":' * 50_000,
]  # fmt: skip
