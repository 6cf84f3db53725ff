"""The token of a run: a shared secret for mutual challenge-response authentication.

The listener sends a challenge, which is a random number. The connecting process answers with its
own random number and the HMAC-SHA256 (RFC 2104) of both under the token. The listener proves itself
in the same way. The token itself is never sent. All frames have a fixed size, so that no length is
read from an unauthenticated connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from perfmodel.base.errors import InputError

VARIABLE = "PERFMODEL_TOKEN"
"""Environment variable with the token of a run."""

SHORTEST, LONGEST = 16, 1024
"""Minimum and maximum length of a token, in bytes."""

GREETING = b"perfmdl2"
"""First 8 bytes that each side sends in this protocol."""

NONCE_BYTES, PROOF_BYTES = 32, 32
QUESTION_BYTES = len(GREETING) + NONCE_BYTES
ANSWER_BYTES = len(GREETING) + NONCE_BYTES + PROOF_BYTES

REFUSED = bytes(PROOF_BYTES)
"""Sent instead of a proof to a process with a different token."""


class Token:
    """A secret, and its origin for messages; the secret is never printed."""

    def __init__(self, secret: bytes, source: str) -> None:
        self._secret = secret
        self.source = source

    def __repr__(self) -> str:
        return f"Token(source={self.source!r})"

    @property
    def text(self) -> str:
        """The secret itself."""
        return self._secret.decode("latin-1")

    def proof(self, role: bytes, asked: bytes, answered: bytes) -> bytes:
        """Return the HMAC of the role and two random numbers under the token."""
        return hmac.digest(self._secret, GREETING + role + asked + answered, "sha256")

    def proves(self, received: bytes, role: bytes, asked: bytes, answered: bytes) -> bool:
        """Return whether ``received`` is that proof, compared in constant time."""
        return hmac.compare_digest(received, self.proof(role, asked, answered))


class Question:
    """Listening side: the challenge to one visitor, and the check of its answer."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.frame = GREETING + self._nonce

    def verdict(self, answer: bytes) -> bytes:
        """Return a proof if the visitor knows the token, else :data:`REFUSED`.

        The answer must pass :func:`is_greeting` first.
        """
        nonce, proof = _parts(answer)
        if not self._token.proves(proof, b"comes", self._nonce, nonce):
            return REFUSED
        return self._token.proof(b"listens", self._nonce, nonce)


class Answer:
    """Connecting side: the answer to a challenge, and the check of the listener's proof."""

    def __init__(self, token: Token, question: bytes) -> None:
        self._token = token
        self._asked, _ = _parts(question)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.frame = GREETING + self._nonce + token.proof(b"comes", self._asked, self._nonce)

    def accepts(self, verdict: bytes) -> bool:
        """Return whether the listener has proved that it knows the token."""
        return self._token.proves(verdict, b"listens", self._asked, self._nonce)


def is_greeting(received: bytes | bytearray) -> bool:
    """Return whether the bytes so far can be the beginning of a challenge or an answer."""
    return GREETING.startswith(received[: len(GREETING)])


def _parts(frame: bytes) -> tuple[bytes, bytes]:
    """Return the random number and the proof in a frame."""
    rest = frame[len(GREETING) :]
    return rest[:NONCE_BYTES], rest[NONCE_BYTES:]


def random_token(source: str) -> Token:
    """Return a new token."""
    return Token(secrets.token_hex(32).encode(), source)


def given_token(path: str | None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """Return the token in the file ``path`` (``--token-file``), else in the environment, else None.

    Leading and trailing white space is ignored.

    Raises
    ------
    InputError : the file cannot be read, or the token is too short or too long.
    """
    if path is not None:
        return _checked(_read(Path(path), "--token-file: "), f"--token-file: {path}")
    if VARIABLE in environment:
        return _checked(os.fsencode(environment[VARIABLE]), VARIABLE)
    return None


def own_token(environment: Mapping[str, str] = os.environ) -> Token:
    """Return this user's token from a file that only the user can read; generate it if there is
    none.

    All processes of a user on one machine, or with a shared home directory, get the same token.

    Raises
    ------
    InputError : it cannot be read or written, or other users have permission to read it.
    """
    home = environment.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(home, "perfmodel", "token")
    try:
        path = path.expanduser()
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot store a token there: {reason}; set {VARIABLE}") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"{path}: other users can read this token; delete it, or chmod 600 it")
    return _checked(_read(path, ""), str(path))


def _make(path: Path) -> None:
    """Write a new token atomically; the first of several processes wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(random_token("").text.encode() + b"\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


def _read(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST + 2)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}{path}: cannot read: {reason}") from None


def _checked(secret: bytes, source: str) -> Token:
    secret = secret.strip()
    if not SHORTEST <= len(secret) <= LONGEST:
        raise InputError(
            f"{source}: a token must have {SHORTEST} to {LONGEST} bytes, got {len(secret)}; "
            "openssl rand -hex 32 makes one"
        )
    return Token(secret, source)
