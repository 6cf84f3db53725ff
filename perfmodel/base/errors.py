"""Errors for user mistakes: one line with place, value, what is allowed, and the nearest name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from perfmodel.base.limits import MOST_WHOLE, SPEED, limits_of

LONGEST_QUOTE, LONGEST_MESSAGE = 100, 4000
"""Maximum characters of a quote and of a message; longer ones are cut."""

_QUOTE = r"""(?<!\w)(['"])(.*?)\1(?!\w)"""
_CONTROL = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters; marks of direction and other invisible ones; halves of surrogate pairs."""


def plain(text: str) -> str:
    r"""Return the text with control characters and invisible ones escaped, except tabs and line
    breaks.

    Printed raw, they could change the state of the terminal, or show another text (Unicode
    Technical Report 36, sections 2.5 and 3.5).

    >>> print(plain("a\x1b[2Jb"), plain("a\u202eb\ufeff\ud800"))
    a\x1b[2Jb a\u202eb\ufeff\ud800
    """
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


def _cut(text: str, most: int) -> str:
    """Return the text, or only its beginning and end if it is too long."""
    if len(text) <= most:
        return text
    return f"{text[: most - most // 4]}...{text[len(text) - most // 4 :]}"


def message(text: str) -> str:
    """Return an error text as one line, without control characters and with long quotes cut."""
    quotes_cut = re.sub(
        _QUOTE,
        lambda m: f"{m[1]}{_cut(m[2], LONGEST_QUOTE)}{m[1]}" if len(m[2]) > LONGEST_QUOTE else m[0],
        _cut(text, 2 * LONGEST_MESSAGE),
    )
    return plain(" ".join(_cut(quotes_cut, LONGEST_MESSAGE).split()))


def exception_line(error: BaseException) -> str:
    """Return an exception of other code as one line: its class, and the first line of its text."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class PerfmodelError(Exception):
    """Base of all errors this package raises on purpose; :func:`message` formats the text."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(message(a) if isinstance(a, str) else a for a in arguments))


class InputError(PerfmodelError, ValueError):
    """The input cannot be used; the text is one line that tells the user what to do."""


class TooLargeError(InputError):
    """A job exceeds a simulation limit; the text names the limit and the way out."""


class NoTimesError(InputError):
    """A profile has no times on a device, and nothing to estimate them from."""


class PerfmodelWarning(UserWarning):
    """The user should know this, although there is a result."""


class DeadlockError(PerfmodelError, RuntimeError):
    """The op graph stopped with work left; the text names the ops that wait for each other."""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name most like another, or None if none is close.

    Of a name in a repository, such as *meta-llama/Llama-2-7b*, the last part counts.
    """
    import difflib  # only needed for an error

    choices = list(allowed)
    name = name.rpartition("/")[2] or name
    folded: dict[str, str] = {}
    for choice in choices:
        folded.setdefault(choice.lower(), choice)
    if name.lower() in folded:  # only the letter case is wrong
        return folded[name.lower()]
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    close += [folded[k] for k in difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)]
    return close[0] if close else None


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return the question whether the nearest name was meant; empty if none is close.

    >>> suggestion("workrs", ["workers", "servers"])
    "; did you mean 'workers'?"
    """
    hint = nearest(name, allowed)
    return f"; did you mean {hint!r}?" if hint else ""


def spelling(name: str) -> str:
    """Return a name without the differences that people do not mean: case, hyphens, underscores.

    >>> spelling("All-Reduce") == spelling("all_reduce") == spelling("allreduce")
    True
    """
    return re.sub(r"[-_ ]", "", name).lower()


def unknown_name(
    what: str, name: str, allowed: Iterable[str], where: str | None = "perfmodel list"
) -> InputError:
    """Return the error for an unknown name; it lists the known names and suggests the nearest.

    Of more than ``MOST_LISTED`` names it shows those that begin with the given one, and says
    ``where`` all are; None if the error is the only place.

    >>> print(unknown_name("model", "gpt2", ["gpt2-xl", "gpt2-small", *map(str, range(100))]))
    unknown model 'gpt2'; did you mean gpt2-small, gpt2-xl? (102 known: perfmodel list)
    """
    choices = sorted(allowed)
    hint = suggestion(name, choices)
    if where is None or len(choices) <= MOST_LISTED:
        return InputError(f"unknown {what} {name!r}{hint} (known: {', '.join(choices)})")
    longer = [choice for choice in choices if spelling(choice).startswith(spelling(name))]
    if 1 < len(longer) <= MOST_LISTED:
        hint = f"; did you mean {', '.join(longer)}?"
    return InputError(f"unknown {what} {name!r}{hint} ({len(choices)} known: {where})")


MOST_LISTED = 40
"""Most names that an error lists."""


def number(
    name: str,
    value: object,
    *,
    at_least: float = 0.0,
    above: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return ``value`` as a float if it is a finite number in range, else raise InputError.

    NaN, infinities, negative values, non-numbers and values beyond the limits of their unit
    (:func:`perfmodel.base.limits.limits_of`) are rejected here and nowhere else. The unit's upper
    limit applies if ``at_most`` is not given; its lower limit applies to numbers that must be
    ``above`` zero.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name}: expected a number, got {_cut(repr(value), LONGEST_QUOTE)}")
    most = at_most
    if most is None and value > 1e9:  # the smallest upper limit of any unit
        most = limits_of(name).most
    if isinstance(value, int) and abs(value) >= 2**1000:  # does not fit in a float
        if value > 0:
            raise InputError(f"{name}: must be at most {most:g}, got {_figures(value)}")
        raise InputError(f"{name}: must be at least {at_least:g}, got {_figures(value)}")
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}")
    if above is not None and not value > above:
        raise InputError(f"{name}: must be more than {above:g}, got {value:g}")
    if above == 0.0 and value < 1.0 and value < (least := limits_of(name).least):
        raise InputError(f"{name}: must be at least {least:g}, got {value:g}")
    if above is None and value < at_least:
        raise InputError(f"{name}: must be at least {at_least:g}, got {value:g}")
    if most is not None and value > most:
        raise InputError(f"{name}: must be at most {most:g}, got {value:g}")
    return float(value)


def speed_ratio(name: str, value: object) -> float:
    """Return the speed ratio of two devices if it is plausible, else raise InputError."""
    number(name, value, above=0.0)
    return number(name, value, at_least=SPEED.least, at_most=SPEED.most)


def whole_number(name: str, value: object, *, at_least: int = 1, at_most: int = MOST_WHOLE) -> int:
    """Return ``value`` if it is an integer in range, else raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}: expected a whole number, got {_cut(repr(value), LONGEST_QUOTE)}")
    if value < at_least:
        raise InputError(f"{name}: must be at least {at_least}, got {_figures(value)}")
    if value > at_most:
        raise InputError(f"{name}: must be at most {at_most}, got {_figures(value)}")
    return value


def _figures(value: int) -> str:
    """Return a whole number as text, or its digit count if it is long."""
    digits = int(value.bit_length() * math.log10(2.0)) + 1
    return str(value) if digits <= 30 else f"a number of {digits} digits"
