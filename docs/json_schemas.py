"""``python docs/json_schemas.py``: write the JSON Schema of every file and of every JSON output.

They are made of the structs that read the files and hold the answers. What only the program adds
when it writes an answer is listed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from perfmodel.base.units import dimension_of
from perfmodel.calibration.placements.fit import Placements
from perfmodel.calibration.runs.fit import RunsFit
from perfmodel.calibration.servers.costs import ServerCosts
from perfmodel.calibration.servers.results import ServersFit
from perfmodel.calibration.what_if import SCHEMA as WHAT_IF, WhatIf
from perfmodel.cli.printing.profile import SCHEMA as PROFILE
from perfmodel.inputs.cluster import SCHEMA as CLUSTER, Cluster
from perfmodel.inputs.device import SCHEMA as DEVICE, Device
from perfmodel.inputs.job_files import SCHEMA as JOB, JobFile
from perfmodel.inputs.profile import SCHEMA as WORKLOAD, Profile
from perfmodel.measuring.measurements import SCHEMA as MEASUREMENTS, Measurements
from perfmodel.measuring.training.run import SCHEMA as RUN, MeasuredRun
from perfmodel.planning.layout_comparison import SCHEMA as LAYOUTS, LayoutComparison
from perfmodel.planning.plans import SCHEMA as PLAN, Plan
from perfmodel.results.prediction import SCHEMA as PREDICTION, Prediction
from perfmodel.results.schedule import FORMAT as SCHEDULE, Header
from perfmodel.studies.advice import SCHEMA as ADVICE, Advice
from perfmodel.studies.crossovers import SCHEMA as EXPLANATION, Crossover, Explanation
from perfmodel.studies.diagnosis import SCHEMA as DIAGNOSIS, Diagnosis
from perfmodel.studies.formulas import SCHEMA as FORMULA, Formula
from perfmodel.studies.reports import SCHEMA as REPORT, Scaled
from perfmodel.studies.requirements import SCHEMA as REQUIREMENT, Requirement
from perfmodel.studies.sensitivity import SCHEMA as SENSITIVITY, Sensitivity
from perfmodel.sweeping.comparison import SCHEMA as COMPARISON
from perfmodel.sweeping.convergence import SCHEMA as CONVERGENCE, TrainingSetup
from perfmodel.sweeping.sweeps import SCHEMA as SWEEP
from perfmodel.theory.scaling_laws import SCHEMA as LAW, ScalingLaw
from perfmodel.traces.workload import SCHEMA as TRACE, ImportedTrace
from perfmodel.validation.cases import SCHEMA as CASES, Cases
from perfmodel.validation.validate import SCHEMA as VALIDATION

FOLDER = Path(__file__).parent / "reference" / "schemas"
CALIBRATION = "perfmodel.calibration/1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Values = dict[str, Any]

NUMBER: Values = {"type": "number"}
TEXT: Values = {"type": "string"}
TEXTS: Values = {"type": "array", "items": TEXT}
ROW: Values = {"type": "object"}
ROWS: Values = {"type": "array", "items": ROW}
WITH_UNIT: Values = {
    "type": "string",
    "description": "a number with a unit, such as 10Gbps or 50us",
}


class Kind(NamedTuple):
    """A file or an output: its schema, a struct or its properties, and what differs from that."""

    schema: str
    struct: type | None = None
    properties: Mapping[str, Any] = MappingProxyType({})
    optional: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


INPUTS = {
    "workload": Kind(WORKLOAD, Profile),
    "device": Kind(DEVICE, Device),
    "cluster": Kind(CLUSTER, Cluster),
    "job": Kind(JOB, JobFile),
    "measurements": Kind(MEASUREMENTS, Measurements),
    "run": Kind(RUN, MeasuredRun),
    "cases": Kind(CASES, Cases),
    "scaling-law": Kind(LAW, ScalingLaw),
}
"""Files that are read. Numbers may be text with a unit where the key ends in a unit."""

PREDICTED: Values = {"$ref": "#/$defs/Prediction"}


def _or_null(schema: Values) -> Values:
    return {"anyOf": [schema, {"type": "null"}]}


OUTPUTS = {
    "prediction": Kind(
        PREDICTION,
        Prediction,
        {"remedies": _or_null(TEXTS), "replay": {"type": "object"}},
        optional=("remedies", "replay"),
        without=("predicted_job",),
    ),
    "sweep": Kind(
        SWEEP,
        properties={
            "axes": ROW,
            "rows": ROWS,
            "skipped": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"point": ROW, "reason": TEXT},
                    "required": ["point", "reason"],
                },
            },
            "notes": TEXTS,
        },
    ),
    "comparison": Kind(COMPARISON, properties={"rows": ROWS, "text": TEXTS}),
    "explanation": Kind(
        EXPLANATION,
        Explanation,
        {"against": {"type": "array", "items": {"$ref": "#/$defs/Crossover"}}},
        optional=("against",),
        without=("job",),
    ),
    "advice": Kind(ADVICE, Advice),
    "requirement": Kind(REQUIREMENT, Requirement),
    "sensitivity": Kind(SENSITIVITY, Sensitivity),
    "formula": Kind(FORMULA, Formula),
    "layouts": Kind(LAYOUTS, LayoutComparison),
    "plan": Kind(PLAN, Plan),
    "report": Kind(
        REPORT,
        properties={
            "command": TEXT,
            "job": _or_null(ROW),
            "prediction": PREDICTED,
            "coarse": _or_null(PREDICTED),
            "sensitivity": ROWS,
            "scaling": {"type": "array", "items": {"$ref": "#/$defs/Scaled"}},
            "advice": ROWS,
        },
    ),
    "convergence": Kind(
        CONVERGENCE,
        properties={
            "title": TEXT,
            "training": {"$ref": "#/$defs/TrainingSetup"},
            "seeds": {"type": "integer"},
            "target": _or_null(NUMBER),
            "rows": ROWS,
            "points": ROWS,
        },
    ),
    "validation": Kind(
        VALIDATION,
        properties={
            "fidelity": TEXT,
            "cases": ROWS,
            "groups": ROW,
            "coverage90": {"type": "object", "additionalProperties": NUMBER},
        },
    ),
    "diagnosis": Kind(DIAGNOSIS, Diagnosis, {"job": TEXT}, without=("prediction",)),
    "what-if": Kind(WHAT_IF, WhatIf, {"error": NUMBER, "speedup": NUMBER}),
    "trace": Kind(TRACE, ImportedTrace),
    "profile": Kind(
        PROFILE,
        properties={"name": TEXT, "parameter_bytes": NUMBER, "measured": ROWS, "workload": ROW},
    ),
    "calibration-network": Kind(
        CALIBRATION,
        properties={
            "kind": {"const": "network"},
            "cluster": {"$ref": "#/$defs/Cluster"},
            "link": _or_null(ROW),
            "inside": _or_null(ROW),
            "collectives": ROWS,
            "notes": TEXTS,
        },
    ),
    "calibration-placements": Kind(CALIBRATION, Placements, {"kind": {"const": "placements"}}),
    "calibration-runs": Kind(CALIBRATION, RunsFit),
    "calibration-server": Kind(CALIBRATION, ServerCosts),
    "calibration-servers": Kind(CALIBRATION, ServersFit),
    "schedule": Kind(SCHEDULE, Header),
}
"""Answers of ``--json``, and the header of a schedule file."""

COMPUTED = {
    "Recommendation": {"throughput_samples_per_s": NUMBER},
    "Effect": {"swing": NUMBER},
}
"""What is computed for the JSON of a struct inside an answer; plans have no ``swing``."""

LEFT_OUT = {
    "Recommendation": "prediction",
    "Candidate": "prediction",
    "Prediction": "predicted_job",
}
"""What the JSON of a struct inside an answer leaves out."""

MORE: tuple[type, ...] = (Cluster, Crossover, Scaled, TrainingSetup, Prediction)
"""Structs that properties above refer to."""


def with_units(schema: Any, name: str = "") -> Any:
    """A schema of a file, in which numbers under a name that ends in a unit may be text."""
    if isinstance(schema, list):
        return [with_units(each, name) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("number", "integer") and dimension_of(name):
        return {"anyOf": [schema, WITH_UNIT]}
    return {
        key: {each: with_units(value[each], each) for each in value}
        if key in ("properties", "$defs")
        else with_units(value, name)
        for key, value in schema.items()
    }


def schema_of(kind: Kind, *, file: bool) -> Values:
    """The JSON Schema of a file or of an output."""
    structs = tuple(dict.fromkeys([kind.struct, *(() if file else MORE)]))
    types = [each for each in structs if each is not None]
    _, parts = msgspec.json.schema_components(
        types, ref_template="#/$defs/{name}", schema_hook=lambda of: {"title": of.__name__}
    )
    parts = null_last(without_words(parts))
    for name, part in parts.items() if not file else ():
        adapted(part, COMPUTED.get(name, {}), LEFT_OUT.get(name, ""), optional=("swing",))
    if kind.struct is None:
        top: Values = {"type": "object", "properties": {"schema": TEXT}, "required": ["schema"]}
    else:
        top = parts.pop(kind.struct.__name__)
        if kind.struct is Prediction:
            parts["Prediction"] = {"$ref": "#"}
    if not file:
        adapted(top, kind.properties, *kind.without, optional=kind.optional)
    key = "format" if kind.schema == SCHEDULE else "schema"
    top["properties"][key] = {"const": kind.schema}
    if key not in top["required"]:
        top["required"] = [key, *top["required"]]
    top = {"$schema": DIALECT, "title": kind.schema, **{k: top[k] for k in top if k != "title"}}
    used = reachable(top, parts)
    if used:
        top["$defs"] = {name: parts[name] for name in sorted(used)}
    return dict(with_units(top)) if file else top


def without_words(schema: Any) -> Any:
    """A schema without descriptions, which are docstrings; the pages of the reference say more."""
    if isinstance(schema, list):
        return [without_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {each: without_words(value[each]) for each in value}
        if key in ("properties", "$defs")
        else without_words(value)
        for key, value in schema.items()
        if key != "description" or not isinstance(value, str)
    }


def null_last(schema: Any) -> Any:
    """A schema whose ``anyOf`` end with null; the order means nothing, and differs with msgspec."""
    if isinstance(schema, list):
        return [null_last(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {key: null_last(value) for key, value in schema.items()}
    if isinstance(schema.get("anyOf"), list):
        ordered["anyOf"].sort(key=lambda each: each == {"type": "null"})
    return ordered


def adapted(
    schema: Values, more: Mapping[str, Any], *without: str, optional: Iterable[str] = ()
) -> None:
    """Add properties to the schema of a struct, and take others out; outputs have them all."""
    if "properties" not in schema:
        return
    properties = {k: v for k, v in schema["properties"].items() if k not in without} | dict(more)
    for each in properties.values():
        each.pop("default", None)
    schema["properties"] = properties
    schema["required"] = [name for name in properties if name not in optional]


def reachable(top: Values, parts: Values) -> set[str]:
    """The names of the definitions that a schema uses, directly or not."""
    found: set[str] = set()
    todo = [json.dumps(top)]
    while todo:
        text = todo.pop()
        for name in parts:
            if name not in found and f'"#/$defs/{name}"' in text:
                found.add(name)
                todo.append(json.dumps(parts[name]))
    return found


def every(write: Callable[[Path, str], None] | None = None) -> dict[str, str]:
    """The text of every schema by its name; ``write`` gets each with its path."""
    kinds = [(name, kind, True) for name, kind in INPUTS.items()]
    kinds += [(name, kind, False) for name, kind in OUTPUTS.items()]
    texts = {
        name: json.dumps(schema_of(kind, file=file), indent=1) + "\n" for name, kind, file in kinds
    }
    for name, text in texts.items() if write is not None else ():
        write(FOLDER / f"{name}.json", text)
    return texts


def paths(schema: Values) -> set[str]:
    """All keys that a schema knows, as paths; ``[]`` is a list, and ``!`` marks required keys."""
    found: set[str] = set()

    def walk(part: Any, place: str, inside: tuple[str, ...]) -> None:
        if not isinstance(part, dict):
            return
        ref = part.get("$ref", "")
        if ref and ref not in inside:
            name = ref.removeprefix("#/$defs/")
            walk(schema if ref == "#" else schema["$defs"][name], place, (*inside, ref))
        for key, value in part.get("properties", {}).items():
            at = f"{place}.{key}" if place else key
            found.add(f"{at}!" if key in part.get("required", ()) else at)
            walk(value, at, inside)
        walk(part.get("items"), f"{place}[]", inside)
        walk(part.get("additionalProperties"), f"{place}.*", inside)
        for each in (*part.get("anyOf", ()), *part.get("prefixItems", ())):
            walk(each, place, inside)

    walk(schema, "", ("#",))
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    every(lambda path, text: path.write_text(text, encoding="utf-8", newline="\n") and None)
