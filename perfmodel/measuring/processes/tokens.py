"""The token of a run: a secret that all its processes know, and how they prove that they do.

Who listens asks a question, a random number. Who comes answers with a random number of its own and
the HMAC-SHA256 (RFC 2104) of both under the token; who listens proves itself in the same way. The
token is never sent. All frames are of fixed size, so that nothing a stranger sends is ever taken
for a length.
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
"""Environment variable that has the token of a run."""

SHORTEST, LONGEST = 16, 1024
"""Bytes of a token."""

GREETING = b"perfmdl2"
"""What both sides of this protocol say first; 8 bytes."""

NONCE_BYTES, PROOF_BYTES = 32, 32
QUESTION_BYTES = len(GREETING) + NONCE_BYTES
ANSWER_BYTES = len(GREETING) + NONCE_BYTES + PROOF_BYTES

REFUSED = bytes(PROOF_BYTES)
"""What who has another token is told in the place of a proof."""


class Token:
    """A secret, and where it is from (for messages); it is not shown."""

    def __init__(self, secret: bytes, source: str) -> None:
        self._secret = secret
        self.source = source

    def __repr__(self) -> str:
        return f"Token(source={self.source!r})"

    @property
    def text(self) -> str:
        """The secret itself."""
        return self._secret.decode("latin-1")

    def proof(self, who: bytes, asked: bytes, answered: bytes) -> bytes:
        """What only who knows the token can say about two random numbers."""
        return hmac.digest(self._secret, GREETING + who + asked + answered, "sha256")

    def proves(self, said: bytes, who: bytes, asked: bytes, answered: bytes) -> bool:
        """Whether ``said`` is that proof, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(said, self.proof(who, asked, answered))


class Question:
    """The side that listens: what it asks one visitor, and what it makes of the answer."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.frame = GREETING + self._nonce

    def verdict(self, answer: bytes) -> bytes:
        """A proof for who knows the token, :data:`REFUSED` for others; see :func:`is_greeting`."""
        nonce, proof = _parts(answer)
        if not self._token.proves(proof, b"comes", self._nonce, nonce):
            return REFUSED
        return self._token.proof(b"listens", self._nonce, nonce)


class Answer:
    """The side that comes: its answer to a question, and what it makes of the verdict."""

    def __init__(self, token: Token, question: bytes) -> None:
        self._token = token
        self._asked, _ = _parts(question)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.frame = GREETING + self._nonce + token.proof(b"comes", self._asked, self._nonce)

    def accepts(self, verdict: bytes) -> bool:
        """Whether who listens has proved that it knows the token."""
        return self._token.proves(verdict, b"listens", self._asked, self._nonce)


def is_greeting(said: bytes | bytearray) -> bool:
    """Whether what was said so far is how a question or an answer begins."""
    return GREETING.startswith(said[: len(GREETING)])


def _parts(frame: bytes) -> tuple[bytes, bytes]:
    """Random number and proof of a frame."""
    rest = frame[len(GREETING) :]
    return rest[:NONCE_BYTES], rest[NONCE_BYTES:]


def random_token(source: str) -> Token:
    """A new token."""
    return Token(secrets.token_hex(32).encode(), source)


def given_token(path: str | None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """The token in the file ``path`` (``--token-file``), else in the environment, else None.

    White space around it does not count.

    Raises
    ------
    InputError : the file cannot be read, or what is there is too short or too long.
    """
    if path is not None:
        return _checked(_read(Path(path), "--token-file: "), f"--token-file: {path}")
    if VARIABLE in environment:
        return _checked(os.fsencode(environment[VARIABLE]), VARIABLE)
    return None


def own_token(environment: Mapping[str, str] = os.environ) -> Token:
    """The token of this user, made where there is none yet: a file that only the user can read.

    Processes of one user find the same on one machine, and on all that share a home directory.

    Raises
    ------
    InputError : it cannot be read or written, or others may read it.
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
        raise InputError(f"{path}: cannot keep a token there: {reason}; set {VARIABLE}") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"{path}: others may read this token; delete it, or chmod 600 it")
    return _checked(_read(path, ""), str(path))


def _make(path: Path) -> None:
    """Write a new token, whole or not at all; the first of several processes counts."""
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
            f"{source}: a token has {SHORTEST} to {LONGEST} bytes, here are {len(secret)}; "
            "openssl rand -hex 32 makes one"
        )
    return Token(secret, source)
