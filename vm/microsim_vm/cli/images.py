"""``microsim bake`` and ``microsim warm``: build before somebody waits for it."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from microsim_vm.cli import common
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import duration_text

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the commands."""
    bake = command(commands, "bake", run_bake, "Build a template's image. What is in the cache is reused.",
                   founds=True)  # fmt: skip
    warm = command(
        commands, "warm", run_warm,
        "Build a template's image, load its world, and snapshot it. What is in the cache is reused.",
        founds=True,
    )  # fmt: skip
    for parser in (bake, warm):
        parser.add_argument("template", metavar="NAME", help="the template: its name, or the path of its folder")
        common.add_templates(parser)
    common.add_engine(warm)


def run_bake(args: argparse.Namespace, output: Output) -> int:
    """Bake."""
    from microsim_vm.templates import bake

    template = common.template(args)
    said: list[str] = []

    def progress(line: str) -> None:
        said.append(line)
        output.progress(line)

    started = time.monotonic()
    image = bake.bake(template, common.cache(args), locked=args.locked, progress=progress)
    took = time.monotonic() - started
    reused = not any(line.startswith("image of ") for line in said)
    document = {
        "template": template.name,
        "digest": image.digest,
        "reused": reused,
        "seconds": round(took, 3),
        "kernel": str(image.kernel),
        "initramfs": str(image.initramfs),
        "layers": {name: str(path) for name, path in image.layers.items()},
    }
    how = "there already" if reused else f"baked in {duration_text(took)}"
    output.result(document, f"image {image.digest[:12]} of {template.name}: {how}")
    return 0


def run_warm(args: argparse.Namespace, output: Output) -> int:
    """Bake and warm up."""
    from microsim_vm.world import warm

    template = common.template(args)
    started = time.monotonic()
    world = warm(template, common.options(args), output.progress)
    took = time.monotonic() - started
    manifest = world.snapshot.manifest
    document = {
        "template": template.name,
        "digest": world.digest,
        "snapshot": world.snapshot.key,
        "reused": world.reused,
        "seconds": round(took, 3),
        "engine": world.engine_line,
        "boot_ms": round(manifest.warmup.boot_ms, 1),
        "load_ms": round(manifest.warmup.load_ms, 1),
        "findings": world.findings,
    }
    how = "there already" if world.reused else f"warmed up in {duration_text(took)}"
    lines = [f"snapshot {world.snapshot.key[:12]} of {template.name}: {how}", f"engine: {world.engine_line}"]
    lines += [f"finding: {finding}" for finding in world.findings]
    output.result(document, "\n".join(lines))
    return 0
