"""Frames of the control connection between the rendezvous and an agent.

A connection begins with a challenge: the rendezvous sends `MAGIC` and a nonce, the agent a nonce and its proof, the
rendezvous its own. A proof is HMAC-SHA256 under the token that both know, over both nonces and the role; nothing is
parsed before it is right. After that each frame is ``length (4) | HMAC-SHA256 (32) | length of JSON (4) | JSON | blob``
under a key of the connection, over role and number of the frame as well, so that none can be replayed or exchanged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

from netsim.backends.rdma.errors import TransferFailure

MAGIC: Final = b"netsimR1"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MOST_FRAME_BYTES: Final = 1 << 30
"""A graph of ten million flows; our choice."""
_LENGTH: Final = struct.Struct("!I")


class FrameError(TransferFailure):
    """A frame that cannot be one of ours."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message: its kind, fields of JSON, and bytes."""

    kind: str
    fields: dict[str, Any]
    blob: bytes = b""
    received_s: float = 0.0
    """``time.monotonic`` when it was complete."""


def new_nonce() -> bytes:
    """Bytes that nobody has used or can guess."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(token: bytes, role: bytes, challenge: bytes, nonce: bytes) -> bytes:
    """What only a holder of the token can say about this connection, in this role (``agent`` or ``rendezvous``)."""
    return hmac.digest(token, b"netsim rdma " + role + challenge + nonce, hashlib.sha256)


class FrameCodec:
    """Both directions of a connection after its challenge; it does no input or output."""

    def __init__(self, token: bytes, role: bytes, challenge: bytes, nonce: bytes, most_bytes: int) -> None:
        self._key = proof(token, b"session", challenge, nonce)
        self._roles = (b"agent", b"rendezvous") if role == b"agent" else (b"rendezvous", b"agent")
        self._numbers = [0, 0]
        self._most_bytes = most_bytes
        self._received = bytearray()

    def encode(self, frame: Frame) -> bytes:
        """The bytes to send."""
        text = json.dumps({"kind": frame.kind, **frame.fields}).encode()
        payload = _LENGTH.pack(len(text)) + text + frame.blob
        return _LENGTH.pack(PROOF_BYTES + len(payload)) + self._mac(0, payload) + payload

    def decode(self, received: bytes) -> list[Frame]:
        """Frames that are complete with these bytes.

        Raises:
            FrameError: one is too long, or not from the other side.
        """
        self._received += received
        frames = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if not PROOF_BYTES + _LENGTH.size <= length <= self._most_bytes:
                raise FrameError(f"frame: found {length} bytes, expected at most {self._most_bytes}")
            if len(self._received) < _LENGTH.size + length:
                break
            mac = bytes(self._received[_LENGTH.size : _LENGTH.size + PROOF_BYTES])
            payload = bytes(self._received[_LENGTH.size + PROOF_BYTES : _LENGTH.size + length])
            del self._received[: _LENGTH.size + length]
            if not hmac.compare_digest(mac, self._mac(1, payload)):
                raise FrameError("frame: found a wrong authentication code, expected one of the other side")
            frames.append(_parsed(payload))
        return frames

    def _mac(self, direction: int, payload: bytes) -> bytes:
        number = self._numbers[direction]
        self._numbers[direction] += 1
        role = self._roles[direction]
        return hmac.digest(self._key, role + number.to_bytes(8, "big") + payload, hashlib.sha256)


def _parsed(payload: bytes) -> Frame:
    (length,) = _LENGTH.unpack_from(payload)
    try:
        fields = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        return Frame(fields.pop("kind"), fields, payload[_LENGTH.size + length :], time.monotonic())
    except (ValueError, KeyError, AttributeError):
        raise FrameError("frame: found no JSON object with a kind, expected one") from None
