"""The metadata of the command line's files: the scales and the contract's options, read, written and compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from . import _abi, _checks, specs
from .files import DumpError, File

SCALES = ("weights_softmax_scale", "weights_head_scale")


def scale(files: Sequence[File], name: str, given: float | None, size: int) -> float:
    """Return `given`, else what the first file to have `name` in its metadata says, else size**-0.5.

    Raises DumpError, of that file, for no number.
    """
    if given is not None:
        return given
    file = next((file for file in files if name in file.metadata), None)
    if file is None:
        return float(size**-0.5)
    text = file.metadata[name]
    try:
        return float(text)
    except ValueError as error:
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: metadata {name}", "a number", repr(text), "write it as repr(float) does."
            )
        ) from error


def options_in(file: File) -> dict[str, str | bool]:
    """Return the contract's options that the metadata names. Raises DumpError for one that it does not have."""
    spec: dict[str, str | bool] = {}
    for name in _abi.OPTIONS:
        text = file.metadata.get(name)
        if text is None:
            continue
        value: str | bool = text.lower() == "true" if name == "hadamard" else text
        if (name == "hadamard" and text.lower() not in ("true", "false")) or value not in _abi.OPTIONS[name]:
            expected = " or ".join(repr(choice) for choice in _abi.OPTIONS[name])
            raise DumpError(
                _checks.describe_mismatch(f"{file.path}: metadata {name}", expected, repr(text), "mend the metadata.")
            )
        spec[name] = value
    return spec


def layout(file: File, model: str | None, asked: Mapping[str, str | bool]) -> specs.IndexerQSpec:
    """Return the layout to quantize `file` in: as `asked`, else the model's, else its metadata's, else the defaults.

    Raises DumpError where the metadata says otherwise than what is asked or the model.
    """
    said = options_in(file)
    demanded = wanted(model, asked)
    contradicted = [name for name in demanded if said.get(name, demanded[name]) != demanded[name]]
    if contradicted:
        sources = " and ".join(dict.fromkeys(_flag(name, model, asked) for name in contradicted))
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: metadata",
                f"{_listed(demanded, contradicted)}, as {sources} has it",
                _listed(said, contradicted),
                f"drop {sources}, and the file's layout is taken, or correct the file.",
            )
        )
    return specs.IndexerQSpec(**{**said, **demanded})  # type: ignore[arg-type]


def wanted(model: str | None, asked: Mapping[str, str | bool]) -> dict[str, str | bool]:
    """Return the layout options that are demanded: as `asked`, else the model's."""
    return {**({} if model is None else asdict(specs.MODELS[model].spec)), **asked}


def contradictions(files: Sequence[File], model: str | None, asked: Mapping[str, str | bool]) -> list[str]:
    """Say where the layout that a file's metadata names is not the one demanded by an option or the model."""
    demanded = wanted(model, asked)
    lines = [
        f"{name} is {str(said[name]).lower()} in {file.path}, but {str(demanded[name]).lower()} is demanded, as "
        f"{_flag(name, model, asked)} has it: one of them is wrong."
        for file in files
        for said in (options_in(file),)
        for name in demanded
        if said.get(name, demanded[name]) != demanded[name]
    ]
    return list(dict.fromkeys(lines))  # the same file may be given twice


def disagreements(outputs: File, inputs: File, overridden: Collection[str]) -> list[str]:
    """Say where the metadata of two files differs: what each has, and that the first counts, unless overridden."""
    return [
        f"{name} is {outputs.metadata[name]} in {outputs.path}{'' if name in overridden else ', which counts,'} and "
        f"{inputs.metadata[name]} in {inputs.path}: one of them is wrong."
        for name in (*SCALES, *_abi.OPTIONS)
        if name in outputs.metadata
        and name in inputs.metadata
        and _comparable(outputs.metadata[name]) != _comparable(inputs.metadata[name])
    ]


def assumed_head_scale(files: Sequence[File], num_heads: int, model: str | None, given: float | None) -> list[str]:
    """Say that the head scale is taken from the heads of q alone; nothing where a model, an option or a file has it."""
    if model is not None or given is not None or any("weights_head_scale" in file.metadata for file in files):
        return []
    return [
        f"Head scale assumed: {num_heads}**-0.5, from the heads of this q. A tensor-parallel shard keeps the whole "
        "model's: pass --model or --head-scale."
    ]


def written(fmt: str, scales: tuple[float, float], spec: specs.IndexerQSpec) -> dict[str, str]:
    """Return the metadata of a file of outputs, all that `verify` needs beside the inputs."""
    numbers = {name: repr(value) for name, value in zip(SCALES, scales, strict=True)}
    options = {name: str(value).lower() for name, value in asdict(spec).items()}
    return {"contract": "1", "format": fmt, **numbers, **options}


def _flag(name: str, model: str | None, asked: Mapping[str, str | bool]) -> str:
    """What on the command line demands this option."""
    if name not in asked:
        return f"--model {model}"
    return ("--no-" if asked[name] is False else "--") + name.replace("_", "-")


def _listed(options: Mapping[str, str | bool], names: list[str]) -> str:
    return ", ".join(f"{name} {str(options[name]).lower()}" for name in names)


def _comparable(text: str) -> str:
    try:
        return repr(float(text))  # a nan is no other value than itself here
    except ValueError:
        return text.lower()
