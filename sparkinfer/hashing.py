"""Keys of answers and rows, in Python; ``udf/input_hash.py`` holds the SQL forms, and a test holds both equal.

All three are lower-case SHA-256 hex digests. The byte format of an input, defined here once::

    field  = <len(name)> ":" <name> <tag> [ <len(value)> ":" <value> ]
    input  = field of each template argument, in template order, then the field of ``params`` (where the UDF has params)
    row    = field of each key column, in the order of ``key``

``name`` and ``value`` are UTF-8 bytes, ``len`` is their number of bytes in ASCII decimal digits. ``tag`` is one ASCII letter:
``s`` string, ``i`` integer, ``b`` boolean, ``d`` date, ``n`` decimal, ``m`` messages, ``p`` params; a null has the tag ``0`` and
neither length nor value. So ``input_hash(["text"], [b"ok"], "s")`` digests ``4:texts2:ok``, a null text ``4:text0``, and with
params ``4:texts2:ok6:paramsp17:{"max_tokens":16}``. Nothing is put between or after fields: the lengths make it unambiguous.

The canonical text of a value: a string as it is (its bytes, also where they are no UTF-8), an integer in decimal digits, a
boolean ``true`` or ``false``, a date ``YYYY-MM-DD``, a decimal with all digits of its scale and no exponent (these four are what
``CAST(x AS STRING)`` gives), messages and params as canonical JSON (:func:`canonical_json`). Messages keep a null field as
``null`` (``[{"content":null,"role":"user"}]``); of ``params`` the null fields are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sparkinfer.config.specs import EngineSpec, TaskSpec

#: Raised by us, and only when the same input and settings may give another answer than before.
ANSWER_VERSION: Final = 1

NULL_TAG: Final = "0"
PARAMS_NAME: Final = "params"
PARAMS_TAG: Final = "p"

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-f]{4})|.)")


class _Absent:
    """The type of :data:`ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


#: The UDF has no ``params`` argument at all (a null params value is None).
ABSENT: Final = _Absent()


class InputHasher:
    """Hashes of one template's inputs; the names' part is computed once, for this runs once a row.

    Args:
        names: the template's arguments (or the key columns) in their order.
    """

    __slots__ = ("_null", "_params", "_params_null", "_prefixes")

    def __init__(self, names: Sequence[str]) -> None:
        self._prefixes = tuple(_length_prefixed(name.encode("utf-8")) for name in names)
        self._null = NULL_TAG.encode()
        params = _length_prefixed(PARAMS_NAME.encode())
        self._params = params + PARAMS_TAG.encode()
        self._params_null = params + self._null

    def digest(self, values: Sequence[bytes | None], tags: str, params: bytes | _Absent | None = ABSENT) -> str:
        """The hash of one row.

        Args:
            values: canonical text of each argument as UTF-8 bytes, None where null.
            tags: one letter an argument; that of a null is not looked at.
            params: canonical JSON of the row's ``params``, None where null, ABSENT where the UDF has none.
        """
        parts: list[bytes] = []
        for prefix, value, tag in zip(self._prefixes, values, tags, strict=True):
            if value is None:
                parts += (prefix, self._null)
            else:
                parts += (prefix, b"%c%d:" % (ord(tag), len(value)), value)
        if params is None:
            parts.append(self._params_null)
        elif not isinstance(params, _Absent):
            parts += (self._params, b"%d:" % len(params), params)
        return hashlib.sha256(b"".join(parts)).hexdigest()


def input_hash(
    names: Sequence[str], values: Sequence[bytes | None], tags: str, params: bytes | _Absent | None = ABSENT
) -> str:
    """The key of an input; see the module's docstring and :meth:`InputHasher.digest`."""
    return InputHasher(names).digest(values, tags, params)


def row_key(names: Sequence[str], values: Sequence[bytes | None], tags: str) -> str:
    """The key of a row: the same format over the key columns (or all source columns and the occurrence number)."""
    return InputHasher(names).digest(values, tags)


def canonical_json(value: Any) -> str:
    r"""JSON that is equal byte for byte for equal values.

    Object keys in code point order; no white space; in strings only ``"``, backslash and control characters are escaped
    (``\b \f \n \r \t``, the others as ``\u001F`` with upper-case digits, as Spark's ``to_json`` has it); a float is a string
    with its 64-bit pattern in hexadecimal, as Java prints it (``"0x1.8p0"``; Spark: ``format_string('%a', x)``), for no two
    languages print decimal fractions alike.

    Raises:
        TypeError: a value that JSON does not have.
    """
    text = json.dumps(_with_exact_floats(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPE.sub(_upper_hex, text) if "\\u00" in text else text


def float_hex(value: float) -> str:
    """The exact text of a 64-bit float, as Java's ``%a``: ``0x1.8p0``, ``-0x1.0p-3``, ``0x0.0p0``, ``NaN``, ``Infinity``."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    mantissa, _, exponent = value.hex().partition("p")
    whole, _, digits = mantissa.partition(".")
    return f"{whole}.{digits.rstrip('0') or '0'}p{int(exponent)}"


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 hex over the canonical JSON of ``config``."""
    return hashlib.sha256(canonical_json(dict(config)).encode("utf-8", "surrogatepass")).hexdigest()


def config_of(engine: EngineSpec, task: TaskSpec) -> dict[str, Any]:
    """What can change an answer and is known on the driver: the argument of :func:`config_hash`.

    Batch and memory settings, the priority, the model's place and name, and where progress is written are left out on
    purpose: they decide when and where an answer is computed, not what it is.
    """
    return {
        "answer_version": ANSWER_VERSION,
        "model": engine.model.fingerprint,
        "dtype": engine.dtype,
        "fallback": engine.fallback,
        "trust_remote_code": engine.trust_remote_code,
        "max_model_len": engine.settings.max_model_len,
        "prompt": task.prompt,
        "names": list(task.names),
        "system": task.system,
        "choices": None if task.choices is None else list(task.choices),
        "sampling": task.sampling.to_dict(),
        "on_overflow": task.on_overflow,
        "skip_blank": task.skip_blank,
        "template_kwargs": task.template_kwargs,
        "clock": task.clock,
    }


def _length_prefixed(data: bytes) -> bytes:
    return b"%d:" % len(data) + data


def _with_exact_floats(value: Any) -> Any:
    if isinstance(value, float):
        return float_hex(value)
    if isinstance(value, Mapping):
        return {str(key): _with_exact_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_exact_floats(item) for item in value]
    return value


def _upper_hex(escape: re.Match[str]) -> str:
    return "\\u" + escape[1].upper() if escape[1] else escape[0]
